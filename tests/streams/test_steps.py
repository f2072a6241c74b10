"""The Trainer's steps are in order on streams beside each other, and each of their waits is needed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import torch
from torch.nn import BatchNorm1d, Linear, ModuleList, Sequential

from rest_triton.history import disk as on_disk
from rest_triton.history import history, streams, table
from rest_triton.methods import coded_context, engine, frequency, graphfm, refresh, rest, rest_is
from rest_triton.methods.sampled import cached, graphfm_ib, vrgcn
from rest_triton.nn import Context, HistoryGNN, context, inference, inputs, norm, pyg, rows
from rest_triton.nn.pyg import PyGLayer
from rest_triton.sampling.batch import Batch, node_batch
from tests.streams.ordering import _Checker, check, interleavings
from tests.streams.recorder import Op, Record, Recording

from ..history.runs import CLASSES, FEATURES, NODES, Run, disk
from .mutants import installed, mutants

STEPS = 3  # the third one meets what the first left behind
LMC: dict[str, Any] = dict(method="lmc+rest", frequency=2, gradient_frequency=1)
CODED = LMC | dict(method="lmc-coded+rest")
REST, REST_IS, AUTO = dict(method="gas+rest"), dict(method="gas+rest-is"), dict(method="gas+rest", frequency="auto")
DRAWN: dict[str, Any] = dict(batch_nodes=15, importance_every=2, importance_share=0.8)
FEW: dict[str, Any] = dict(batch_nodes=15, fanout="2")

# Every setting that changes a step, with several others. tier: near, far or disk. evaluate: between steps.
# before: steps that are not recorded.
CASES: dict[str, dict[str, Any]] = {
    "gas": dict(model="gcn"),
    "gas, far": dict(model="gcnii", tier="far"),
    "gas, disk, accumulate": dict(model="appnp", tier="disk", accumulate=2),
    "rest": dict(model="gcn-norm", **REST),
    "rest, far": dict(model="gcn-norm", **REST, tier="far"),
    "rest, disk": dict(model="gcn-linear", **REST, tier="disk"),
    "three refreshes": dict(model="appnp", **REST, frequency=3),
    "three refreshes, far": dict(model="gcnii", **REST, frequency=3, tier="far"),
    "running statistics": dict(model="gcn-norm", **REST, refresh_mode="eval"),
    "running statistics, far, accumulate, clip": dict(
        model="gcnii-norm", **REST, refresh_mode="eval", tier="far", accumulate=2, clip=0.5
    ),
    "running statistics, disk, three": dict(model="gcn-norm", **REST, refresh_mode="eval", frequency=3, tier="disk"),
    "running statistics, dropout": dict(model="gcn-norm", **REST, refresh_norm="running"),
    "running statistics, dropout, far": dict(model="gcnii-norm", **REST, refresh_norm="running", tier="far"),
    "rest-is": dict(model="gcnii", **REST_IS),
    "rest-is, far": dict(model="gcn", **REST_IS, tier="far"),
    "rest-is in three pieces": dict(model="gcn-norm", **REST_IS, frequency=3),
    "rest-is in three pieces, far": dict(model="gcnii", **REST_IS, frequency=3, tier="far"),
    "rest-is, running statistics, disk": dict(
        model="gcn-norm", **REST_IS, frequency=3, refresh_mode="eval", tier="disk", edge_dropout=0.3
    ),
    "oldest, edge dropout, clip": dict(model="gcn", **REST, refresh_order="oldest", edge_dropout=0.3, clip=0.5),
    "by age": dict(model="gcn-norm", **AUTO, batch_size=1, target_age=1.0, refresh_mode="eval"),
    "by drift": dict(model="appnp", **AUTO, batch_size=1, target_drift=0.01, refresh_order="oldest", before=8),
    "by drift, far": dict(model="gcnii", **AUTO, batch_size=1, target_drift=0.01, tier="far", before=8),
    "history dropout": dict(model="gcn-norm", **REST, history_dropout=True),
    "history dropout, far": dict(model="gcnii", **REST_IS, history_dropout=True, tier="far"),
    "history dropout, pna": dict(model="pna", **REST, history_dropout=True),
    "history dropout, disk": dict(model="gcn-linear", **REST, history_dropout=True, tier="disk"),
    "history dropout, lmc": dict(model="gcn-norm", **LMC, history_dropout=True, refresh_norm="running", tier="far"),
    "half": dict(model="gcn-norm", **REST, refresh_batch="half", edge_dropout=0.3),
    "half, disk, exact input": dict(model="gcnii", **REST, refresh_batch="half", tier="disk", first="exact"),
    "full refresh": dict(model="gcnii-norm", **REST, refresh_batch="full"),
    "full refresh, far": dict(model="gcn-linear", **REST, refresh_batch="full", tier="far", accumulate=2),
    "exact input": dict(model="appnp", **REST, frequency=3, first="exact", edge_dropout=0.3),
    "exact input, far": dict(model="gcn-linear", **REST_IS, first="exact", tier="far"),
    "exact first layer": dict(model="gcn", **REST, frequency=3, first="exact", batch_norm=True, edge_dropout=0.3),
    "exact first layer, far": dict(model="gcn", **REST_IS, first="exact", batch_norm=True, refresh_mode="eval", tier="far"),
    "evaluation": dict(model="gcn-norm", **REST, refresh_mode="eval", evaluate=True),
    "evaluation writes": dict(model="gcnii", **REST, eval_updates_history=True, evaluate=True),
    "evaluation writes, plain": dict(model="gcn", **REST, eval_updates_history=True, evaluate=True),
    "evaluation writes, far": dict(model="appnp", **REST_IS, eval_updates_history=True, evaluate=True, tier="far"),
    "evaluation writes, bfloat16": dict(
        model="gcn", **REST, eval_updates_history=True, evaluate=True, dtype="bfloat16", tier="far"
    ),
    "pna, running statistics": dict(model="pna", **REST, refresh_mode="eval", batch_norm=True, dropout=0.3),
    "pna, far": dict(model="pna", **REST_IS, tier="far", eval_updates_history=True, evaluate=True),
    "gat": dict(model="gat", dropout=0.0, **REST, refresh_mode="eval"),
    "gat, far": dict(model="gat", dropout=0.0, **REST_IS, tier="far", eval_updates_history=True),
    "gin, disk": dict(model="gin", **REST, batch_norm=True, tier="disk"),
    "lmc": dict(model="gcnii", method="lmc", edge_dropout=0.3),
    "lmc, far": dict(model="gcn", method="lmc", tier="far"),
    "trim": dict(model="gcn", **REST, frequency=2, trim=True),
    "trim, exact input, far": dict(model="appnp", **REST_IS, first="exact", trim=True, tier="far"),
    "trim, disk, accumulate, evaluate": dict(model="gcnii", **REST, trim=True, tier="disk", accumulate=2, evaluate=True),
    "lmc, exact input, disk, accumulate": dict(model="appnp", method="lmc", first="exact", tier="disk", accumulate=2),
    "lmc, exact first layer, disk": dict(model="gin", method="lmc", first="exact", tier="disk", accumulate=2),
    "lmc, rest-is, far": dict(model="gcn-norm", method="lmc+rest-is", tier="far"),
    "bidirectional": dict(model="gcn-norm", **LMC, dtype="float16"),
    "bidirectional, running statistics, far": dict(model="gcn-norm", **LMC, refresh_mode="eval", tier="far"),
    "bidirectional, disk": dict(model="appnp", **LMC, tier="disk"),
    "bidirectional, exact input": dict(model="appnp", **LMC, first="exact"),
    "lmc-coded": dict(model="gcn-norm", method="lmc-coded", edge_dropout=0.3, dtype="float16"),
    "lmc-coded, far": dict(model="gcnii", method="lmc-coded+rest-is", frequency=2, tier="far"),
    "lmc-coded, disk": dict(model="gcn-linear", method="lmc-coded+rest", tier="disk", accumulate=2),
    "lmc-coded, bidirectional": dict(model="gcn-norm", **CODED, refresh_mode="eval"),
    "lmc-coded, bidirectional, far": dict(model="gcnii-norm", **CODED, refresh_norm="running", tier="far"),
    "lmc-coded, exact input": dict(model="appnp", **CODED, first="exact", batch_norm=True),
    "lmc-coded, exact first layer, far": dict(model="gcn", **CODED, first="exact", batch_norm=True, tier="far"),
    "graphfm": dict(model="gcn-norm", method="graphfm+rest", refresh_mode="eval"),
    "graphfm, far": dict(model="gcnii", method="graphfm+rest", tier="far"),
    "graphfm, rest-is, far": dict(model="gcn-norm", method="graphfm+rest-is", frequency=3, tier="far"),
    "graphfm, disk": dict(model="appnp", method="graphfm", tier="disk", accumulate=2),
    "graphfm, exact input": dict(model="appnp", method="graphfm+rest", first="exact", edge_dropout=0.3),
    "mvs": dict(model="gcn-norm", method="mvs+rest", refresh_mode="eval", **DRAWN),
    "mvs, far": dict(model="gcnii", method="mvs+rest-is", tier="far", **DRAWN),
    "mvs, disk": dict(model="appnp", method="mvs", tier="disk", accumulate=2, **DRAWN),
    "vrgcn": dict(model="gcn-norm", method="vrgcn", **FEW),
    "vrgcn, far": dict(model="gcnii", method="vrgcn", tier="far", **FEW),
    "vrgcn, rest": dict(model="gcn-norm", method="vrgcn+rest", refresh_mode="eval", **FEW),
    "vrgcn, rest, far": dict(model="gcn-norm", method="vrgcn+rest", frequency=3, tier="far", **FEW),
    "vrgcn, rest-is": dict(model="gcnii-norm", method="vrgcn+rest-is", frequency=3, refresh_mode="eval", **FEW),
    "vrgcn, rest-is, far": dict(model="gcn-norm", method="vrgcn+rest-is", frequency=2, tier="far", **FEW),
    "vrgcn, exact input, disk, accumulate": dict(
        model="appnp", method="vrgcn+rest", first="exact", tier="disk", accumulate=2, **FEW
    ),
    "graphfm-ib": dict(model="gcn-norm", method="graphfm-ib", **FEW),
    "graphfm-ib, rest": dict(model="gcn-norm", method="graphfm-ib+rest", refresh_mode="eval", **FEW),
    "graphfm-ib, rest, far": dict(model="gcnii", method="graphfm-ib+rest", tier="far", **FEW),
    "graphfm-ib, rest-is": dict(model="gcnii-norm", method="graphfm-ib+rest-is", frequency=3, **FEW),
    "graphfm-ib, rest-is, far": dict(model="gcn-norm", method="graphfm-ib+rest-is", tier="far", **FEW),
    "graphfm-ib, disk": dict(model="appnp", method="graphfm-ib", tier="disk", accumulate=2, **FEW),
    "refresh": dict(model="gcn-norm", method="refresh", **FEW),
    "refresh, rest": dict(model="gcn-norm", method="refresh+rest", refresh_mode="eval", **FEW),
    "refresh, rest, far": dict(model="gcnii", method="refresh+rest", tier="far", **FEW),
    "refresh, rest-is": dict(model="gcnii-norm", method="refresh+rest-is", frequency=3, **FEW),
    "refresh, rest-is, far": dict(model="gcn-norm", method="refresh+rest-is", tier="far", **FEW),
    "refresh, slots": dict(model="gcn-norm", method="refresh+rest-is", cache_rows=20, accumulate=2, **FEW),
    "refresh, slots, far": dict(model="gcnii", method="refresh+rest-is", cache_rows=20, tier="far", **FEW),
    "refresh, disk": dict(model="appnp", method="refresh+rest", tier="disk", accumulate=2, **FEW),
    "sage": dict(model="gcn-norm", method="sage", fanout="3", batch_nodes=15, evaluate=True),
    "fastgcn": dict(model="gcnii", method="fastgcn", layer_nodes=20, batch_nodes=15),
    "ladies": dict(model="appnp", method="ladies", layer_nodes=20, batch_nodes=15, row_normalise=True, first="exact"),
    "cluster": dict(model="gcn-norm", method="cluster", edge_dropout=0.3, accumulate=2),
    "saint-node": dict(model="gcn-linear", method="saint-node", subgraph_nodes=30, coverage=5.0),
    "saint-edge": dict(model="gcnii-norm", method="saint-edge", subgraph_nodes=20, coverage=5.0, edge_dropout=0.3),
    "saint-walk": dict(model="appnp", method="saint-walk", subgraph_nodes=20, coverage=5.0, evaluate=True),
    "sgc": dict(model="gcn", method="sgc", batch_nodes=20, evaluate=True),
    "narrow": dict(model="gcn-norm", **REST_IS, dtype="bfloat16", amp=True),
}


@pytest.fixture(autouse=True)
def small(threads: Callable[[int], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny tensors on one thread. An exact pass takes two pieces."""
    threads(1)
    monkeypatch.setitem(inference.CHUNK_ROWS, "cpu", 64)


def prepared(case: str, folder: Path) -> Run:
    options = dict(CASES[case])
    tier = options.pop("tier", "near")
    for ours in ("evaluate", "before"):
        options.pop(ours, None)
    run = Run(**options, **(disk(folder / uuid4().hex) if tier == "disk" else dict(far=tier == "far")))
    proceed(run, case, CASES[case].get("before", 1))  # the optimizer's state, gradients and maps are there
    return run


def proceed(run: Run, case: str, steps: int) -> None:
    for _ in range(steps):
        run.step()
        if CASES[case].get("evaluate"):
            run.trainer.evaluate()


def recorded(case: str, folder: Path, steps: int = STEPS) -> tuple[Run, list[Record]]:
    """The records of some steps, of a run that has made one before."""
    run = prepared(case, folder)
    with Recording() as recording, as_from_a_gpu():
        run.use(recording)
        proceed(run, case, steps)
    return run, recording.log


@contextmanager
def as_from_a_gpu() -> Iterator[None]:
    """What goes to the host is copied, also where it is there already."""
    to, on = torch.Tensor.to, Batch.on

    def copied(tensor: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        found = to(tensor, *args, **options)
        return found.clone() if found is tensor and args == ("cpu",) else found

    def batch_copied(batch: Batch, device: Any) -> Batch:
        nodes = on(batch, device).nodes
        return replace(batch, nodes=None if nodes is None else nodes.clone())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "to", copied)
        patch.setattr(Batch, "on", batch_copied)
        yield


def used(case: str) -> set[str]:
    options = CASES[case]
    refreshes = "+" in options.get("method", "gas") and options.get("refresh_batch") != "full"
    tier = {"near": set(), "far": {"io"}, "disk": {"io", "writer"}}[options.get("tier", "near")]
    fetched = {"io"} if options.get("trim") else set()  # rows that are not numbered as nodes are
    return {"compute"} | ({"refresh"} if refreshes else set()) | tier | fetched


@pytest.mark.parametrize("case", CASES)
def test_every_conflict_is_ordered(case: str, tmp_path: Path) -> None:
    _, log = recorded(case, tmp_path)
    assert {record.stream for record in log} == used(case)
    assert check(log) == []


INTERLEAVED = [
    "gas, far", "rest", "running statistics", "running statistics, far, accumulate, clip", "rest-is in three pieces, far",
    "by drift", "trim", "trim, exact input, far", "exact input", "exact first layer", "evaluation writes", "bidirectional",
    "bidirectional, running statistics, far",
    "history dropout", "history dropout, far", "running statistics, dropout", "lmc-coded, bidirectional, far",
    "vrgcn, rest", "vrgcn, rest-is, far", "graphfm-ib, rest, far", "refresh, rest", "refresh, rest-is, far",
    "refresh, slots", "refresh, slots, far",
]  # fmt: skip


@pytest.mark.parametrize("case", INTERLEAVED)
def test_any_legal_interleaving_gives_the_same_bits(case: str, tmp_path: Path) -> None:
    run = prepared(case, tmp_path)

    def program(recording: Recording) -> None:
        run.use(recording)
        proceed(run, case, STEPS)

    assert interleavings(program, run.state(), range(6)) == []


def test_running_statistics_are_read_by_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refresh in eval mode that read the running statistics themselves would meet a training forward that moves them."""
    monkeypatch.setattr(engine, "snapshot", lambda *of: None)
    for case in ("running statistics", "running statistics, dropout", "by age", "evaluation"):
        found = check(recorded(case, tmp_path)[1])
        assert found and all("lerp" in said for said in found), case


@pytest.mark.parametrize("far", [False, True])
def test_ages_are_read_before_rows_are_written_again(far: bool) -> None:
    """An epoch asks for the mean age after every step."""
    run = Run("gcn", **REST, far=far)
    run.step()
    with Recording() as recording:
        run.use(recording)
        for _ in range(STEPS):
            run.step()
            run.trainer._age()
    assert check(recording.log) == []


@pytest.mark.parametrize("model", ["appnp", "gcn-linear"])
def test_the_first_refresh_comes_after_the_weights_and_features(model: str) -> None:
    assert from_the_beginning(model) == []


def test_a_refresh_whose_halo_is_one_row_reads_running_statistics_by_copies() -> None:
    """One row has no variance. By lmc-coded the halo's rows are normalised, too."""
    run = Run("gcn-norm", **CODED)
    run.step()
    with Recording() as recording:
        run.use(recording)
        for step in range(2, 2 + STEPS):
            batch = node_batch(torch.arange(1, NODES), NODES)
            assert batch.halo(run.data.adj).tolist() == [0]
            run.engine.refresh(batch, step)
            run.engine.train(run.batch(0, 1), step, lambda logits: None)
    assert check(recording.log) == []


class PyGGIN(HistoryGNN):
    """Layers of PyG with a BatchNorm of their own."""

    normalise = "sum"

    def __init__(self) -> None:
        from torch_geometric.nn import GINConv

        super().__init__([16, 16])
        mlps = [Sequential(Linear(a, b), BatchNorm1d(b)) for a, b in ((FEATURES, 16), (16, 16), (16, CLASSES))]
        self.convs = ModuleList(PyGLayer(GINConv(mlp)) for mlp in mlps)

    def layer(self, layer: int, ctx: Context) -> torch.Tensor:
        h = self.convs[layer](ctx)
        return h if layer == 2 else ctx.output(h)


@pytest.mark.parametrize("how", [dict(refresh_mode="train"), dict(refresh_mode="eval"), dict(refresh_norm="running")])
@pytest.mark.parametrize("far", [False, True])
def test_layers_of_pyg(how: dict[str, str], far: bool) -> None:
    assert layers_of_pyg(**how, far=far) == []


def layers_of_pyg(**options: Any) -> list[str]:
    run = Run(PyGGIN(), **REST, **options)
    run.step()
    with Recording() as recording:
        run.use(recording)
        run.losses(STEPS)
    return check(recording.log)


def refresh_before(log: list[Record], which: Callable[[Op], bool]) -> Iterator[int]:
    """For every compute op that is asked for: the last record of the refresh stream that it certainly comes after."""
    checker = _Checker(log, set())
    for index, record in enumerate(log):
        checker.take(index, record)
        if isinstance(record, Op) and record.stream == "compute" and which(record):
            yield checker.clock["compute"].get("refresh", -1)


def reads_rows(op: Op) -> bool:
    """By the aggregate itself, or by the gather before one that transforms first."""
    return "history_spmm" in op.name or "gather_rows" in op.name


@pytest.mark.parametrize("model", ["gcn", "appnp", "gcnii"])
def test_refresh_runs_a_layer_ahead(model: str) -> None:
    """An aggregate of table t waits for the refresh to have recorded table t, and not for what it does after that."""
    run = Run(model, **REST)
    run.step()
    with Recording() as recording:
        run.use(recording)
        run.step()
    tables = [table.rows for table in run.history.tables]

    def touches(op: Op, t: int, spans: str) -> bool:
        return any(span.storage == tables[t].untyped_storage().data_ptr() for span in getattr(op, spans))

    ops = [(i, r) for i, r in enumerate(recording.log) if isinstance(r, Op)]
    recorded = [max(i for i, op in ops if op.stream == "refresh" and touches(op, t, "writes")) for t in range(len(tables))]
    assert recorded == sorted(recorded) and len(set(recorded)) == len(tables)
    for t in range(len(tables)):
        known = list(refresh_before(recording.log, lambda op, t=t: reads_rows(op) and touches(op, t, "reads")))
        assert len(known) == 1 and known[0] >= recorded[t]
        if t + 1 < len(tables):
            assert known[0] < recorded[t + 1]


@pytest.mark.parametrize("frequency", [1, 3])
def test_refreshed_halos_are_not_fetched_again(frequency: int) -> None:
    """REST-IS with far tables: only the refreshes fetch rows, whose neighbours are further away."""
    run = Run("gcnii", **REST_IS, frequency=frequency, far=True)
    run.step()
    with Recording() as recording:
        run.use(recording)
        run.step()
    names = [record.name for record in recording.log if isinstance(record, Op) and record.stream == "io"]
    assert sum("gather_rows_into" in name for name in names) == frequency * (len(run.history.tables) - 1)


SCENES = [
    "rest, far", "running statistics", "rest-is in three pieces, far", "rest-is, running statistics, disk",
    "evaluation writes", "evaluation writes, plain", "running statistics, far, accumulate, clip", "exact input",
    "pna, running statistics", "pna, far", "evaluation writes, far",
    "graphfm, rest-is, far",
]  # fmt: skip
# Where what a module leaves out is found first.
FIRST = {
    "disk": ["rest-is, running statistics, disk"],
    "inference": ["evaluation writes", "evaluation writes, plain", "pna, far", "evaluation writes, far"],
    "context": ["rest, far", "running statistics", "rest", "pna, far", "pna, running statistics", "bidirectional",
        "bidirectional, exact input", "refresh, rest", "refresh, rest-is, far"],
    "norm": ["running statistics"], "pyg": ["layers of pyg"], "history": ["tables alone"], "table": ["tables alone"],
    "graphfm": ["graphfm, far", "graphfm, rest-is, far"], "coded_context": ["lmc-coded, far", "lmc-coded, bidirectional"],
    "vrgcn": ["vrgcn, rest", "vrgcn, rest-is, far"], "graphfm_ib": ["graphfm-ib, rest", "graphfm-ib, rest-is, far"],
    "cached": ["refresh, rest", "refresh, rest-is, far"],
    "engine": ["from the beginning"],
}  # fmt: skip


def complaints(folder: Path, first: list[str]) -> Iterator[str]:
    """What the checker says about steps of several runs, some of them first."""
    for case in dict.fromkeys([*first, *SCENES, "tables alone", "from the beginning", "layers of pyg"]):
        if case == "layers of pyg":
            yield from layers_of_pyg(refresh_mode="eval")
        elif case == "tables alone":
            for far in (True, False):
                yield from tables_alone(far)
        elif case == "from the beginning":
            for options in ({}, dict(far=True), disk(folder / uuid4().hex)):
                yield from from_the_beginning("gcn-norm", **options)
        else:
            yield from check(recorded(case, folder)[1])


def tables_alone(far: bool) -> list[str]:
    """Without updates of the weights, only the tables tie one step to the next."""
    run = Run("appnp", **REST, far=far)
    run.step()
    with Recording() as recording:
        run.use(recording)
        for step in range(2, 5):
            run.engine.refresh(run.batch(step % 6), step)
            run.history.read(0, run.batch(step % 6 - 1).rows)  # which the next refresh writes
            run.engine.train(run.batch(step % 5 + 1), step, lambda logits: None)
        run.history.ages(len(run.history.tables) - 1, step)
    return check(recording.log)


def from_the_beginning(model: str, **options: Any) -> list[str]:
    """What the checker says about a run from the making of its data on."""
    with Recording() as recording:
        run = Run(model, **REST, streams=recording, **options)
        run.losses(2)
    made = run.engine.inputs
    adj = [t for t in (made.adj.rowptr, made.adj.col, made.adj.row_scale) if t is not None]
    return check(recording.log, known=[*run.state(), *adj, made.features.rows, made.aggregated().rows])


MODULES = (
    history, table, on_disk, context, rows, inputs, norm, pyg, inference, engine, refresh, rest, rest_is, frequency,
    graphfm, coded_context, vrgcn, graphfm_ib, cached,
)  # fmt: skip
ALL = [
    *((streams, *mutant) for mutant in mutants(streams, inside=["Streams"])),
    *((module, *mutant) for module in MODULES for mutant in mutants(module)),
]


def test_steps_are_in_order_as_they_are(tmp_path: Path) -> None:
    assert list(complaints(tmp_path, [])) == []


@pytest.mark.parametrize("number", range(len(ALL)), ids=[f"{m.__name__.split('.')[-1]}-{what}" for m, what, _ in ALL])
def test_no_wait_can_be_left_out(number: int, tmp_path: Path) -> None:
    module, what, mutant = ALL[number]
    first = FIRST.get(module.__name__.split(".")[-1], [])
    with installed(module, mutant):
        assert next(complaints(tmp_path, first), None) is not None, f"{what} makes no difference"
