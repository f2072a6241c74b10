"""history_attention: every backend against the definition, forward and gradients, on one set of cases."""

import re
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from rest_triton.ops import Adjacency, debug, history_attention, use_backend
from rest_triton.ops.hashing import edge_kept

from .budget import assert_within_budget
from .graphs import KINDS, csr
from .test_spmm import strided

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
CPU = torch.device("cpu")
LEAVES = ("x", "x_score", "row_score")


@dataclass(frozen=True)
class Case:
    graph: str = "random"
    n: int = 40
    heads: int = 4
    channels: int = 8
    share: float = 0.6  # of the nodes that are in the batch
    x: torch.dtype | None = F32
    history: torch.dtype | None = F32
    x_score: torch.dtype = F32
    history_score: torch.dtype = F32
    row_score: torch.dtype = F32
    col: torch.dtype = torch.int32
    edge_id: torch.dtype | None = None
    dropout: float = 0.0
    slope: float = 0.2
    size: float = 1.0  # of the scores
    staged: bool = False
    strided: str = ""
    share_reverse: bool = False


PLAIN = Case()
SHAPES = ((1, 1), (3, 1), (8, 8), (1, 47), (4, 32), (5, 3), (2, 47), (1, 300), (3, 128), (12, 4))
CASES: dict[str, Case] = {f"{h}x{c}": replace(PLAIN, heads=h, channels=c) for h, c in SHAPES}
CASES |= {
    f"{str(x)[6:]}-over-{str(h)[6:]}": replace(PLAIN, x=x, history=h, x_score=x, history_score=h, heads=2, channels=24)
    for x in (F32, BF16, F16)
    for h in (F32, BF16, F16)
}
CASES |= {f"graph-{kind}": replace(PLAIN, graph=kind) for kind in KINDS}
CASES |= {
    "no-x": replace(PLAIN, x=None),
    "no-x-bfloat16": replace(PLAIN, x=None, history=BF16, history_score=F16),
    "no-history": replace(PLAIN, history=None),
    "zero-halo": replace(PLAIN, share=1.0),
    "zero-halo-no-history": replace(PLAIN, share=1.0, history=None),
    "all-halo": replace(PLAIN, share=0.0, x=None),
    "zero-rows": replace(PLAIN, share=0.0),
    "staging-slots": replace(PLAIN, staged=True),
    "int64-col": replace(PLAIN, col=torch.int64),
    "scores-of-each-dtype": replace(PLAIN, x_score=BF16, history_score=F16, row_score=F32),
    "row-score-bfloat16": replace(PLAIN, row_score=BF16),
    "large-scores": replace(PLAIN, size=60.0),
    "slope-0": replace(PLAIN, slope=0.0),
    "slope-1": replace(PLAIN, slope=1.0),
    "dropout": replace(PLAIN, dropout=0.4),
    "dropout-named": replace(PLAIN, dropout=0.4, edge_id=torch.int32),
    "dropout-named-wide": replace(PLAIN, dropout=0.4, edge_id=torch.int64, heads=3, channels=5),
    "dropout-all": replace(PLAIN, dropout=1.0),
    "undirected-shared": replace(PLAIN, graph="undirected", share_reverse=True),
    "row-strided": replace(PLAIN, strided="rows"),
    "column-strided": replace(PLAIN, strided="columns"),
    "everything": Case(
        heads=3, channels=17, x=BF16, history=F16, x_score=F32, history_score=BF16, row_score=F16, col=torch.int64,
        edge_id=torch.int64, dropout=0.3, slope=0.1, staged=True, strided="rows",
    ),
}  # fmt: skip


@dataclass
class Problem:
    adj: Adjacency
    rows: Tensor
    position: Tensor
    tensors: dict[str, Tensor]
    options: dict[str, Any]
    share_reverse: bool = False

    def run(self, precision: torch.dtype | None, device: torch.device) -> dict[str, Tensor]:
        """Result and gradients, with all floats in ``precision`` if given."""

        def ready(t: Tensor, leaf: bool) -> Tensor:
            t = t.to(device, precision if precision is not None else t.dtype)
            return t.detach().requires_grad_() if leaf else t

        edge_id = None if self.adj.edge_id is None else self.adj.edge_id.to(device)
        adj = Adjacency(self.adj.rowptr.to(device), self.adj.col.to(device), edge_id=edge_id)
        adj = adj.undirected() if self.share_reverse else adj.with_reverse()
        tensors = {name: ready(t, name in LEAVES) for name, t in self.tensors.items()}
        absent = {name: None for name in ("x", "x_score") if name not in tensors}
        out = history_attention(adj, self.rows.to(device), self.position.to(device), **tensors, **absent, **self.options)
        leaves = {name: tensors[name] for name in LEAVES if name in tensors}
        got = torch.autograd.grad(out, list(leaves.values()), self.grad(out))
        return {"out": out.detach(), **{f"grad {name}": t for name, t in zip(leaves, got, strict=True)}}

    def grad(self, out: Tensor) -> Tensor:
        """The gradient of the result, the same in every precision."""
        grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
        return grad.to(F32).to(out)

    def largest_product(self) -> float:
        """A bound of |<grad, src>| of an edge and a head."""
        heads, dropout = self.tensors["row_score"].shape[1], self.options["dropout"]
        sources = torch.cat([self.tensors[name].double() for name in ("x", "history") if name in self.tensors])
        grad = self.grad(torch.empty(len(self.rows), sources.shape[1], dtype=torch.float64))
        norms = [t.view(len(t), heads, sources.shape[1] // heads).norm(dim=2) for t in (sources, grad)]
        return float(norms[0].max() * norms[1].max()) / (1 - dropout or 1) if grad.numel() > 0 else 0.0


def problem(case: Case, seed: int = 0) -> Problem:
    g = torch.Generator().manual_seed(seed)
    rowptr, col = KINDS[case.graph](case.n)
    n, width = case.n, case.heads * case.channels
    in_batch = torch.rand(n, generator=g) < case.share
    if case.graph == "star":
        in_batch[0] = True
    order = torch.randperm(n, generator=g)
    batch = order[in_batch[order]]
    rows = order[: n // 2] if case.x is None else batch
    position, history_rows = ~torch.arange(n, dtype=torch.int32), n
    if case.staged:
        halo = torch.nonzero(~in_batch).squeeze(1)[torch.randperm(int((~in_batch).sum()), generator=g)]
        position[halo] = ~torch.arange(len(halo), dtype=torch.int32)
        history_rows = len(halo)
    if case.x is not None:
        position[batch] = torch.arange(len(batch), dtype=torch.int32)
    edge_id = None if case.edge_id is None else torch.randperm(col.numel(), generator=g).to(case.edge_id)
    tensors = {"row_score": case.size * torch.randn(len(rows), case.heads, generator=g).to(case.row_score)}
    for name, dtype, score, count in (
        ("x", case.x, case.x_score, len(batch)),
        ("history", case.history, case.history_score, history_rows),
    ):
        if dtype is not None:
            tensors[name] = torch.randn(count, width, generator=g).to(dtype)
            tensors[f"{name}_score"] = case.size * torch.randn(count, case.heads, generator=g).to(score)
    tensors = {name: strided(t, case.strided) for name, t in tensors.items()}
    options = dict(dropout=case.dropout, seed=77, negative_slope=case.slope)
    return Problem(
        Adjacency(rowptr, col.to(case.col), edge_id=edge_id), rows, position, tensors, options, case.share_reverse
    )


def against_the_definition(task: Problem, place: torch.device) -> None:
    got = task.run(None, place)
    with use_backend("torch"):
        plain, truth = task.run(None, CPU), task.run(torch.float64, CPU)
    assert got.keys() == plain.keys()
    for key in got:
        # The gradient of a score is the difference of an edge's <grad, src> from the mean of its row.
        terms = task.largest_product() if "score" in key else 0.0
        assert_within_budget(key, got[key], plain[key], truth[key], terms)


@pytest.mark.parametrize("name", CASES)
def test_against_the_definition(name: str, place: torch.device) -> None:
    against_the_definition(problem(CASES[name]), place)


@pytest.mark.parametrize("name", ["3x1", "4x32", "everything", "no-history", "no-x", "staging-slots", "dropout-named"])
def test_definition_against_loops(name: str) -> None:
    """The definition equals the formula as loops over Python numbers."""
    case = CASES[name]
    task = problem(case)
    with use_backend("torch"):
        got = task.run(torch.float64, CPU)["out"]
    adj, t = task.adj, {n: v.double() for n, v in task.tensors.items()}
    for i, g in enumerate(task.rows.tolist()):
        for h in range(case.heads):
            edges, scores, sources = [], [], []
            for k in range(int(adj.rowptr[g]), int(adj.rowptr[g + 1])):
                p = int(task.position[adj.col[k]])
                table, at = ("x", p) if p >= 0 else ("history", ~p)
                if table not in t:
                    continue
                e = t["row_score"][i, h] + t[f"{table}_score"][at, h]
                edges.append(k if adj.edge_id is None else int(adj.edge_id[k]))
                scores.append(e if e > 0 else case.slope * e)
                sources.append(t[table][at, h * case.channels : (h + 1) * case.channels])
            total = torch.zeros(case.channels, dtype=torch.float64)
            if scores:
                for edge, alpha, source in zip(edges, torch.softmax(torch.stack(scores), 0), sources, strict=True):
                    if not case.dropout or bool(edge_kept(77, torch.tensor([edge * case.heads + h]), case.dropout)):
                        total += alpha / (1 - case.dropout) * source
            torch.testing.assert_close(got[i, h * case.channels : (h + 1) * case.channels], total, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["3x1", "no-history", "dropout-named", "graph-undirected"])
def test_gradcheck_of_the_definition(name: str) -> None:
    task = problem(replace(CASES[name], heads=3, channels=2))
    t = {n: v.double() for n, v in task.tensors.items()}

    def run(x: Tensor, x_score: Tensor, row_score: Tensor) -> Tensor:
        return history_attention(
            task.adj,
            task.rows,
            task.position,
            x,
            x_score,
            row_score,
            t.get("history"),
            t.get("history_score"),
            **task.options,
        )

    with use_backend("torch"):
        assert torch.autograd.gradcheck(run, [t[leaf].requires_grad_() for leaf in LEAVES])


@pytest.mark.parametrize("heads", [1, 4])
def test_against_gatconv(heads: int, place: torch.device) -> None:
    """Result and gradients of the parameters equal those of PyG's layer on a whole graph with self-loops."""
    pyg = pytest.importorskip("torch_geometric.nn")
    torch.manual_seed(3)
    n, channels = 40, 6
    layer = pyg.GATConv(10, channels, heads=heads, add_self_loops=False, bias=False)
    a, b = (torch.randint(0, n, (120,)) for _ in range(2))
    loops = torch.arange(n)
    source, target = torch.cat([a, loops]), torch.cat([b, loops])
    features, grad = torch.randn(n, 10), torch.randn(n, heads * channels)
    parameters = layer.lin.weight, layer.att_src, layer.att_dst
    expected = layer(features, torch.stack([source, target]))
    wanted = torch.autograd.grad(expected, parameters, grad)

    h = layer.lin(features)
    of_source, of_row = ((h.view(n, heads, channels) * att).sum(-1) for att in (layer.att_src, layer.att_dst))
    adj = Adjacency(*csr(source, target, n)).with_reverse().to(place)
    position = torch.arange(n, dtype=torch.int32, device=place)
    got = history_attention(adj, loops.to(place), position, *(t.to(place) for t in (h, of_source, of_row)))
    torch.testing.assert_close(got.cpu(), expected, rtol=1e-5, atol=1e-5)
    for mine, theirs in zip(torch.autograd.grad(got, parameters, grad.to(place)), wanted, strict=True):
        torch.testing.assert_close(mine.cpu(), theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("heads", "channels", "dropout"), [(2, 8, 0.0), (1, 3, 0.5)])
def test_a_hub_of_degree_10000(heads: int, channels: int, dropout: float) -> None:
    case = Case(graph="star", n=10_001, heads=heads, channels=channels, history=BF16, dropout=dropout)
    against_the_definition(problem(case), CPU)


def test_a_hub_whose_scores_rise() -> None:
    """Each window of the row has larger scores than all before, so that the sums are rescaled every time."""
    task = problem(Case(graph="star", n=5001, share=1.0, history=None, heads=2))
    task.tensors["x_score"][task.rows.argsort()] = torch.linspace(-30, 30, 5001)[:, None].expand(-1, 2).clone()
    against_the_definition(task, CPU)


def small_hubs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub at five edges and segments of four: most rows are split."""
    from rest_triton.kernels import gpu
    from rest_triton.ops import adjacency

    monkeypatch.setattr(adjacency, "HUB_DEGREE", 5)
    monkeypatch.setattr(adjacency, "HUB_SEGMENT", 4)
    for launcher in (gpu.attention, gpu.attention_row_grad, gpu.attention_source_grad):
        monkeypatch.setitem(launcher.__kwdefaults__, "hub_degree", 5)
        monkeypatch.setitem(launcher.__kwdefaults__, "hub_segment", 4)


HUBS = ["graph-star", "graph-random", "everything", "dropout", "no-x", "no-history", "8x8", "3x128"]


@pytest.mark.parametrize("name", HUBS)
def test_rows_split_at_hubs(name: str, place: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    small_hubs(monkeypatch)
    test_against_the_definition(name, place)


@pytest.mark.parametrize("name", ["1x47", "bfloat16-over-float16", "dropout", "everything"])
def test_bitwise_repeatable_on_any_number_of_threads(name: str, place: torch.device, threads: Any) -> None:
    task = problem(replace(CASES[name], n=200 if place.type == "cuda" else 40))
    results = []
    for count in (1, 2, 3, 2):
        threads(count)
        results.append(task.run(None, place))
    for again in results[1:]:
        for key, value in results[0].items():
            assert torch.equal(value, again[key]), key


def test_row_does_not_depend_on_the_batch_around_it(place: torch.device) -> None:
    """With exact histories a row's bits are the same in a batch and with all nodes."""
    task = problem(replace(PLAIN, share=1.0, heads=1, channels=47, history=None))
    x, x_score, row_score = (torch.empty(40, t.shape[1]).index_copy(0, task.rows, t) for t in map(task.tensors.get, LEAVES))
    adj = Adjacency(task.adj.rowptr.to(place), task.adj.col.to(place))
    position = ~torch.arange(40, dtype=torch.int32, device=place)
    full = history_attention(
        adj, torch.arange(40, device=place), position, None, None, *(t.to(place) for t in (row_score, x, x_score))
    )
    assert torch.equal(task.run(None, place)["out"], full[task.rows.to(place)])


def test_rows_without_neighbours_are_zero(place: torch.device) -> None:
    task = problem(PLAIN)
    alone = (task.adj.rowptr.diff() == 0)[task.rows]
    assert alone.any()
    out = task.run(None, place)["out"].cpu()
    assert torch.equal(out[alone], torch.zeros(int(alone.sum()), 32))


def test_dropout_leaves_its_share_of_every_head() -> None:
    """With rows of ones a head's result is the sum of its kept alphas, which is 1 on average."""
    rowptr, col = KINDS["star"](4001)
    zero = torch.zeros(1, dtype=torch.int64)
    position = ~torch.arange(4001, dtype=torch.int32)
    ones, nothing = torch.ones(4001, 8), torch.zeros(4001, 8)
    out = history_attention(
        Adjacency(rowptr, col), zero, position, None, None, nothing[:1], ones, nothing, dropout=0.5, seed=3
    )
    assert ((out - 1).abs() < 0.1).all() and out.unique().numel() == 8


def test_rows_of_other_nodes_are_not_read(place: torch.device) -> None:
    """Only neighbours are read: NaN in all other rows of x, history and their scores has no effect."""
    task = problem(PLAIN)
    edges = torch.cat([torch.arange(int(task.adj.rowptr[g]), int(task.adj.rowptr[g + 1])) for g in task.rows])
    read = task.position[task.adj.col[edges].long()].long()
    expected = task.run(None, place)["out"]
    for name, used in (("x", read[read >= 0]), ("history", ~read[read < 0])):
        unused = torch.ones(len(task.tensors[name]), dtype=torch.bool)
        unused[used] = False
        assert unused.any()
        task.tensors[name][unused] = task.tensors[f"{name}_score"][unused] = torch.nan
    assert torch.equal(task.run(None, place)["out"], expected)


def test_gradients_of_some_inputs_only(place: torch.device) -> None:
    """Gradients of one input equal those of all inputs together. row_score alone needs no reverse."""
    task = problem(PLAIN)
    full = task.run(None, place)
    grad = task.grad(full["out"])
    adj = task.adj.to(place)
    for leaf in LEAVES:
        t = {name: tensor.to(place).detach().requires_grad_(name == leaf) for name, tensor in task.tensors.items()}
        graph = adj if leaf == "row_score" else adj.with_reverse()
        out = history_attention(graph, task.rows.to(place), task.position.to(place), **t, **task.options)
        assert torch.equal(torch.autograd.grad(out, t[leaf], grad)[0], full[f"grad {leaf}"])


def test_second_derivatives_are_refused() -> None:
    task = problem(PLAIN)
    t = {name: tensor.requires_grad_(name in LEAVES) for name, tensor in task.tensors.items()}
    out = history_attention(task.adj.with_reverse(), task.rows, task.position, **t)
    with pytest.raises(RuntimeError, match=r'differentiated once; .*use_backend\("torch"\)'):
        torch.autograd.grad(out.square().sum(), t["x"], create_graph=True)


def test_gradient_is_refused_after_leaving_the_batch() -> None:
    task = problem(PLAIN)
    task.tensors["x"].requires_grad_()
    out = history_attention(task.adj.with_reverse(), task.rows, task.position, **task.tensors)
    task.position[task.rows] = ~task.rows.int()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


TASK = problem(Case(share=1.0))
GIVEN = dict(TASK.tensors, adj=TASK.adj, rows=TASK.rows, position=TASK.position)
WITH_GRAD = TASK.tensors["x"].clone().requires_grad_()
SCORE_WITH_GRAD = TASK.tensors["x_score"].clone().requires_grad_()
ONES = torch.ones(TASK.adj.num_edges)
BAD: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "rows-int32": ({"rows": TASK.rows.int()}, TypeError, "rows is int32; it must be int64"),
    "position-short": ({"position": TASK.position[1:]}, ValueError, "position has shape [39]; dimension 0 must be 40"),
    "no-source": (dict.fromkeys(("x", "x_score", "history", "history_score")), ValueError, "x and history are both None"),
    "x-alone": ({"x_score": None}, ValueError, "only one of x and x_score is given; pass both or none"),
    "history-alone": ({"history": None}, ValueError, "only one of history and history_score is given"),
    "x-float64": ({"x": TASK.tensors["x"].double()}, TypeError, "x is float64; it must be float32 or bfloat16"),
    "score-int": ({"x_score": TASK.tensors["x_score"].int()}, TypeError, "x_score is int32"),
    "widths": ({"history": TASK.tensors["history"][:, 1:]}, ValueError, "history has shape [40, 31]; dimension 1 must be"),
    "heads": ({"x_score": TASK.tensors["x_score"][:, 1:]}, ValueError, "x_score has shape [40, 3]; dimension 1 must be 4"),
    "uneven": (
        {name: TASK.tensors[name][:, :3] for name in ("x_score", "row_score", "history_score")}, ValueError,
        "rows of 32 elements cannot be split into 3 heads; the width must be a multiple of heads",
    ),
    "score-rows": ({"history_score": TASK.tensors["history_score"][1:]}, ValueError, "must be 40, one per row of"),
    "row-score-rows": ({"row_score": TASK.tensors["row_score"][1:]}, ValueError, "dimension 0 must be 40, one per row"),
    "device": ({"row_score": TASK.tensors["row_score"].to("meta")}, ValueError, "row_score is on meta, the op runs on cpu"),
    "dropout": ({"dropout": 1.5}, ValueError, "dropout is 1.5; it must be a probability"),
    "scales": (
        {"adj": replace(TASK.adj, row_scale=torch.ones(40))}, ValueError,
        "adj has row_scale, but attention weighs edges by their scores; pass an Adjacency without it",
    ),
    "weights": ({"adj": replace(TASK.adj, edge_weight=ONES)}, ValueError, "adj has edge_weight"),
    "history-grad": ({"history": WITH_GRAD}, ValueError, "history requires a gradient"),
    "history-score-grad": ({"history_score": SCORE_WITH_GRAD}, ValueError, "history_score requires a gradient"),
    "no-reverse": ({"x": WITH_GRAD}, ValueError, "x requires a gradient but adj has no reverse; use adj.undirected()"),
    "no-reverse-score": ({"x_score": SCORE_WITH_GRAD}, ValueError, "x_score requires a gradient but adj has no reverse"),
    "x-rows": (
        {"adj": TASK.adj.with_reverse(), "rows": TASK.rows[:9], "row_score": TASK.tensors["row_score"][:9], "x": WITH_GRAD},
        ValueError, "x has shape [40, 32]; dimension 0 must be 9, one per row",
    ),
    "no-mirror": (
        {"adj": TASK.adj.undirected(), "x": WITH_GRAD, "dropout": 0.5}, ValueError,
        "dropout needs the reverse's edge ids; use adj.with_reverse()",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_refused(name: str) -> None:
    changes, error, message = BAD[name]
    with pytest.raises(error, match=re.escape(message)):
        history_attention(**GIVEN | changes)


def test_values_are_checked_in_debug_mode() -> None:
    with debug():
        history_attention(**GIVEN)
        for changes, message in (
            ({"rows": TASK.rows + 1}, "rows has values from 1 to 40"),
            ({"position": TASK.position + 1}, "position has values from 1 to 40; .*rows of x"),
            ({"adj": TASK.adj.with_reverse(), "rows": TASK.rows.flip(0), "x": WITH_GRAD}, "enter the batch first"),
        ):
            with pytest.raises(ValueError, match=message):
                history_attention(**GIVEN | changes)
