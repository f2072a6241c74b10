"""history_spmm: every backend against the definition, forward and gradients, on one set of cases."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from rest_triton.ops import Adjacency, history_spmm, use_backend

from ..conftest import COMPILED, PLACES
from . import graphs
from .budget import assert_within_budget
from .graphs import KINDS
from .pairs import pairwise

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16


@dataclass(frozen=True)
class Case:
    graph: str = "hub"
    n: int = 16
    width: int = 32
    share: float = 0.6  # of the nodes that are in the batch
    x: torch.dtype | None = F32
    history: torch.dtype | None = F32
    residual: torch.dtype | None = None
    out: torch.dtype | None = None
    col: torch.dtype = torch.int32
    row_scale: bool = True
    col_scale: bool = True
    edge_weight: bool = False
    edge_id: torch.dtype | None = None
    edge_dropout: float = 0.0
    grad_history: torch.dtype | None = None
    staged: bool = False
    strided: str = ""
    share_reverse: bool = False


PLAIN = Case()
# Node 0 has more edges than two blocks of 32, which is what a warp resolves at once.
GRAPHS = KINDS | {"hub": lambda n: graphs.random(n, 40, hub=70)}
ANY = dict(
    graph=["hub", "undirected", "star", "chain"], width=[1, 3, 47, 100, 128, 256, 300],
    x=[F32, BF16, F16, None], history=[F32, BF16, F16, None], residual=[None, F32, BF16], out=[None, F32, BF16],
    col=[torch.int32, torch.int64], row_scale=[True, False], col_scale=[True, False], edge_weight=[False, True],
    edge_id=[None, torch.int32, torch.int64], edge_dropout=[0.0, 0.4], grad_history=[None, F32, BF16],
    staged=[False, True], strided=["", "rows", "columns", "vectors"],
)  # fmt: skip


def never(chosen: dict[str, Any]) -> bool:
    """Whether a case has no x, and no history or only a staging buffer, which holds only the halo."""
    return chosen.get("x", F32) is None and (chosen.get("history", F32) is None or chosen.get("staged", False))


CASES: dict[str, Case] = {f"pairs-{n}": replace(PLAIN, **chosen) for n, chosen in enumerate(pairwise(ANY, never))}
# The most frequent path, which is another one where both sources have one dtype and no edge is dropped.
CASES |= {f"width-{w}": replace(PLAIN, width=w) for w in (1, 3, 47, 100, 300)}
# One option at a time, where all others would hide it or are not allowed beside it, and cases that other tests take up.
CASES |= {
    "plain": PLAIN,
    "edgeless": replace(PLAIN, graph="edgeless"),
    "rows-of-a-whole-block": replace(PLAIN, graph="star", n=33),  # node 0 has 32 edges
    "no-x": replace(PLAIN, x=None),
    "no-history": replace(PLAIN, history=None),
    "no-scales": replace(PLAIN, row_scale=False, col_scale=False),
    "zero-halo": replace(PLAIN, share=1.0),
    "zero-halo-no-history": replace(PLAIN, share=1.0, history=None),
    "all-halo": replace(PLAIN, share=0.0, x=None),
    "zero-rows": replace(PLAIN, share=0.0),
    "staging-slots": replace(PLAIN, staged=True),
    "residual": replace(PLAIN, residual=F32),
    "edge-weight": replace(PLAIN, edge_weight=True),
    "edge-weight-named": replace(PLAIN, edge_weight=True, edge_id=torch.int32, width=47),
    "edge-weight-wide": replace(PLAIN, edge_weight=True, width=300),
    "edge-dropout": replace(PLAIN, edge_dropout=0.4),
    "edge-dropout-all": replace(PLAIN, edge_dropout=1.0),
    "grad-history": replace(PLAIN, grad_history=F32),
    "undirected-shared": replace(PLAIN, graph="undirected", share_reverse=True),
    "undirected-shared-grad-history": replace(PLAIN, graph="undirected", share_reverse=True, grad_history=F32),
    "bfloat16": replace(PLAIN, x=BF16, history=BF16, width=256),  # a lane takes eight elements, the most there are
    "bfloat16-width-100": replace(PLAIN, x=BF16, history=BF16, width=100),
    "everything": Case(
        width=47, x=BF16, history=F16, residual=F32, out=F32, col=torch.int64, edge_weight=True, edge_id=torch.int64,
        edge_dropout=0.3, grad_history=BF16, staged=True, strided="rows",
    ),
}  # fmt: skip


def strided(values: Tensor, how: str) -> Tensor:
    """The same values in memory that is not contiguous."""
    if how == "rows":
        return torch.cat([values, torch.full_like(values, torch.nan)], 1)[:, : values.shape[1]]
    if how == "columns":
        return torch.stack([values, torch.full_like(values, torch.nan)], 2)[:, :, 0]
    return values


@dataclass
class Problem:
    adj: Adjacency
    rows: Tensor
    position: Tensor
    tensors: dict[str, Tensor]
    options: dict[str, Any]
    share_reverse: bool = False
    spread: bool = False  # indices and scales with gaps between them

    def run(self, precision: torch.dtype | None, device: torch.device) -> dict[str, Tensor]:
        """Result and gradients, with all floats in ``precision`` if given."""

        def ready(t: Tensor, leaf: bool = False) -> Tensor:
            if precision is not None and t.is_floating_point():
                t = t.to(precision)
            t = t.to(device)
            if self.spread and t.dim() == 1:
                t = torch.stack([t, torch.full_like(t, 99)], 1)[:, 0]
            return t.detach().requires_grad_() if leaf else t

        weight = self.adj.edge_weight
        fields = {n: getattr(self.adj, n) for n in ("rowptr", "col", "row_scale", "col_scale", "edge_id")}
        adj = Adjacency(
            **{n: None if t is None else ready(t) for n, t in fields.items()},
            edge_weight=None if weight is None else ready(weight, leaf=True),
        )
        adj = adj.undirected() if self.share_reverse else adj.with_reverse()
        tensors = {n: ready(t, leaf=n in ("x", "residual")) for n, t in self.tensors.items()}
        options = dict(self.options)
        if precision is not None and options["dtype"] is not None:
            options["dtype"] = precision
        out = history_spmm(adj, ready(self.rows), ready(self.position), **tensors, **options)
        results = {"out": out}
        leaves = {n: tensors[n] for n in ("x", "residual") if n in tensors}
        if adj.edge_weight is not None:
            leaves["edge_weight"] = adj.edge_weight
        if leaves:
            g = torch.Generator().manual_seed(9)
            grad = torch.randn(out.shape, generator=g, dtype=torch.float64).to(F32)
            got = torch.autograd.grad(out, list(leaves.values()), grad.to(device, out.dtype))
            results |= {f"grad {n}": t for n, t in zip(leaves, got, strict=True)}
        return results


def problem(case: Case, seed: int = 0) -> Problem:
    g = torch.Generator().manual_seed(seed)

    def randn(rows: int, dtype: torch.dtype) -> Tensor:
        return torch.randn(rows, case.width, generator=g).to(dtype)

    rowptr, col = GRAPHS[case.graph](case.n)
    n, edges = case.n, col.numel()
    in_batch = torch.rand(n, generator=g) < case.share
    in_batch[0] = case.share > 0  # where the hub is
    order = torch.randperm(n, generator=g)
    batch = order[in_batch[order]]
    rows = order[: n // 2] if case.x is None else batch
    position = ~torch.arange(n, dtype=torch.int32)
    history_rows = n
    if case.staged:
        halo = torch.nonzero(~in_batch).squeeze(1)[torch.randperm(int((~in_batch).sum()), generator=g)]
        position[halo] = ~torch.arange(len(halo), dtype=torch.int32)
        history_rows = len(halo)
    if case.x is not None:
        position[batch] = torch.arange(len(batch), dtype=torch.int32)
    adj = Adjacency(
        rowptr,
        col.to(case.col),
        row_scale=torch.rand(n, generator=g) + 0.5 if case.row_scale else None,
        col_scale=torch.rand(n, generator=g) + 0.5 if case.col_scale else None,
        edge_weight=torch.randn(edges, generator=g) if case.edge_weight else None,
        edge_id=torch.randperm(edges, generator=g).to(case.edge_id) if case.edge_id is not None else None,
    )
    tensors = {}
    for name, dtype, count in (
        ("x", case.x, len(batch)),
        ("history", case.history, history_rows),
        ("residual", case.residual, len(rows)),
        ("grad_history", case.grad_history, history_rows),
    ):
        if dtype is not None:
            tensors[name] = strided(randn(count, dtype), case.strided)
    options = dict(edge_dropout=case.edge_dropout, seed=77, alpha=0.3 if case.residual else 0.0, dtype=case.out)
    return Problem(adj, rows, position, tensors, options, case.share_reverse, case.strided == "vectors")


@pytest.mark.parametrize("name", CASES)
def test_against_the_definition(name: str, place: torch.device) -> None:
    task = problem(CASES[name])
    got = task.run(None, place)
    with use_backend("torch"):
        plain, truth = task.run(None, torch.device("cpu")), task.run(torch.float64, torch.device("cpu"))
    assert got.keys() == plain.keys()
    for key in got:
        assert_within_budget(key, got[key], plain[key], truth[key])


@pytest.mark.parametrize("name", ["plain", "edge-weight", "everything", "no-history", "grad-history", "staging-slots"])
def test_definition_against_loops(name: str) -> None:
    """The definition equals the formula as loops over Python numbers."""
    case = CASES[name]
    task = problem(case)
    with use_backend("torch"):
        got = task.run(torch.float64, torch.device("cpu"))["out"]
    adj, t = task.adj, {n: v.double() for n, v in task.tensors.items()}
    from rest_triton.ops.hashing import edge_kept

    for i, g in enumerate(task.rows.tolist()):
        total = torch.zeros(case.width, dtype=torch.float64)
        for k in range(int(adj.rowptr[g]), int(adj.rowptr[g + 1])):
            c = int(adj.col[k])
            e = k if adj.edge_id is None else int(adj.edge_id[k])
            if case.edge_dropout and not bool(edge_kept(77, torch.tensor([e]), case.edge_dropout)):
                continue
            p = int(task.position[c])
            if p < 0 and "history" not in t:
                continue
            weight = 1.0 if adj.col_scale is None else float(adj.col_scale[c])
            weight *= 1.0 if adj.edge_weight is None else float(adj.edge_weight[e])
            weight /= 1 - case.edge_dropout
            total += weight * (t["x"][p] if p >= 0 else t["history"][~p])
        total *= 1.0 if adj.row_scale is None else float(adj.row_scale[g])
        if "residual" in t:
            total = 0.7 * total + 0.3 * t["residual"][i]
        torch.testing.assert_close(got[i], total, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["plain", "residual", "edge-weight", "edge-dropout", "undirected-shared"])
def test_gradcheck_of_the_definition(name: str) -> None:
    task = problem(replace(CASES[name], width=3))
    adj = task.adj.undirected() if task.share_reverse else task.adj
    weight = None if adj.edge_weight is None else adj.edge_weight.double().requires_grad_()
    tensors = {n: t.double().requires_grad_(n != "history") for n, t in task.tensors.items()}

    def run(x: Tensor, residual: Tensor | None, edge_weight: Tensor | None) -> Tensor:
        graph = replace(adj, edge_weight=edge_weight, reverse=None)
        return history_spmm(
            graph, task.rows, task.position, x, tensors.get("history"), residual=residual, **task.options
        )  # fmt: skip

    with use_backend("torch"):
        assert torch.autograd.gradcheck(run, (tensors["x"], tensors.get("residual"), weight))


def test_double_backward(place: torch.device) -> None:
    """The backward is the same op on the reverse graph, so it can be differentiated again."""
    task = problem(replace(PLAIN, width=3, graph="random", n=40))

    def second(precision: torch.dtype, device: torch.device) -> Tensor:
        fields = (getattr(task.adj, n) for n in ("rowptr", "col", "row_scale", "col_scale"))
        adj = Adjacency(*(t.to(device, precision) if t.is_floating_point() else t.to(device) for t in fields)).with_reverse()
        x, history = (task.tensors[n].to(device, precision) for n in ("x", "history"))
        x.requires_grad_()
        out = history_spmm(adj, task.rows.to(device), task.position.to(device), x, history)
        (first,) = torch.autograd.grad((out**3).sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), x)[0]

    got = second(F32, place)
    with use_backend("torch"):
        plain, truth = second(F32, torch.device("cpu")), second(torch.float64, torch.device("cpu"))
    assert_within_budget("second derivative", got, plain, truth)


@pytest.mark.parametrize("history", [F32, BF16])
def test_a_hub_of_degree_10000(history: torch.dtype) -> None:
    n = 10_001
    task = problem(replace(PLAIN, graph="star", n=n, width=16, history=history))
    got = task.run(None, torch.device("cpu"))
    with use_backend("torch"):
        plain, truth = task.run(None, torch.device("cpu")), task.run(torch.float64, torch.device("cpu"))
    for key in got:
        assert_within_budget(key, got[key], plain[key], truth[key])


@pytest.mark.parametrize("name", ["plain", "everything", "no-x"])
def test_rows_split_at_hubs(name: str, place: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """With hubs from five edges on and segments of four, most rows are split, and results do not change."""
    from rest_triton.kernels import gpu
    from rest_triton.ops import adjacency

    monkeypatch.setattr(adjacency, "HUB_DEGREE", 5)
    monkeypatch.setattr(adjacency, "HUB_SEGMENT", 4)
    monkeypatch.setitem(gpu.spmm.__kwdefaults__, "hub_degree", 5)
    monkeypatch.setitem(gpu.spmm.__kwdefaults__, "hub_segment", 4)
    test_against_the_definition(name, place)


@pytest.mark.parametrize("place", PLACES[1:], indirect=True)
def test_gradients_of_edges_in_several_steps(place: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one program a row and 32 edges a step, node 0 takes three steps."""
    from rest_triton.kernels import gpu

    monkeypatch.setitem(gpu.edge_grad.__globals__, "EDGE_GRAD_SPLIT", 1)  # the programs
    monkeypatch.setattr(gpu.launch, "EDGE_GRAD_SPLIT", 1)  # the setting that they are compiled with
    test_against_the_definition("edge-weight", place)


@pytest.mark.parametrize("place", COMPILED, indirect=True)
@pytest.mark.parametrize("name", ["plain", "bfloat16", "edge-weight", "edge-dropout", "everything"])
def test_bitwise_repeatable_on_any_number_of_threads(name: str, place: torch.device, threads: Any) -> None:
    task = problem(replace(CASES[name], n=200))
    results = []
    for count in (1, 2, 3, 2):
        threads(count)
        results.append(task.run(None, place))
    for again in results[1:]:
        for key, value in results[0].items():
            assert torch.equal(value, again[key]), key


def test_row_does_not_depend_on_the_batch_around_it(place: torch.device) -> None:
    """With exact histories a row is bitwise the same alone, in a batch, and with all nodes."""
    task = problem(replace(PLAIN, share=1.0, width=47))
    table = torch.empty(PLAIN.n, 47)
    table[task.rows] = task.tensors["x"]
    full = history_spmm(
        Adjacency(*(getattr(task.adj, n).to(place) for n in ("rowptr", "col", "row_scale", "col_scale"))),
        torch.arange(PLAIN.n, device=place), ~torch.arange(PLAIN.n, dtype=torch.int32, device=place), None, table.to(place),
    )  # fmt: skip
    got = task.run(None, place)["out"]
    assert torch.equal(got, full[task.rows.to(place)])


def test_a_dropped_edge_hides_what_is_behind_it(place: torch.device) -> None:
    """A dropped edge is not read: NaN in its row of the table does not reach the result."""
    task = problem(replace(PLAIN, x=None, edge_dropout=1.0))
    task.tensors["history"].fill_(torch.nan)
    assert torch.equal(task.run(None, place)["out"].cpu(), torch.zeros(len(task.rows), 32))


def test_a_neighbour_without_a_source_weighs_nothing(place: torch.device) -> None:
    """A neighbour without a source counts as zero, also if its scale is infinite, as for an isolated node."""
    task = problem(CASES["no-history"])
    expected = task.run(None, place)
    assert task.adj.col_scale is not None
    task.adj.col_scale[task.position < 0] = torch.inf
    assert torch.equal(task.run(None, place)["out"], expected["out"])


def test_rows_of_other_nodes_are_not_read(place: torch.device) -> None:
    """Only neighbours are read: NaN in all other rows of x and history has no effect."""
    task = problem(PLAIN)
    degree = task.adj.rowptr[task.rows + 1] - task.adj.rowptr[task.rows]
    edges = torch.cat([torch.arange(int(task.adj.rowptr[g]), int(task.adj.rowptr[g + 1])) for g in task.rows])
    assert len(edges) == degree.sum()
    read = task.position[task.adj.col[edges].long()].long()
    expected = task.run(None, place)["out"]
    for name, used in (("x", read[read >= 0]), ("history", ~read[read < 0])):
        unused = torch.ones(len(task.tensors[name]), dtype=torch.bool)
        unused[used] = False
        assert unused.any()
        task.tensors[name][unused] = torch.nan
    assert torch.equal(task.run(None, place)["out"], expected)


def test_gradient_is_refused_after_leaving_the_batch() -> None:
    """Autograd notices a change of the position map before backward, which reads it again."""
    task = problem(PLAIN)
    x = task.tensors["x"].requires_grad_()
    out = history_spmm(task.adj.with_reverse(), task.rows, task.position, x, task.tensors["history"])
    task.position[task.rows] = ~task.rows.int()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()
