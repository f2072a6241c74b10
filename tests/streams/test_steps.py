"""Whole steps of GAS, REST and REST-IS: every pair of ops that needs an order has one, whatever runs beside what."""

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from rest_triton.history import history
from rest_triton.history import streams as streams
from rest_triton.methods import engine
from rest_triton.nn import context as view
from tests.streams.ordering import _Checker, check, interleavings
from tests.streams.recorder import Op, Record, Recording

from ..history.runs import MODELS, Run, disk
from .mutants import installed, mutants

METHODS = [("gas", 0), ("rest", 1), ("rest", 3), ("is", 1), ("is", 3)]
STEPS = 3  # the third one meets what the first left behind


@pytest.fixture(autouse=True)
def on_one_thread(threads: Callable[[int], None]) -> None:
    """Tiny tensors: a team of threads would only wait for each other."""
    threads(1)


def program(run: Run, method: str, frequency: int) -> Callable[[Recording], None]:
    def steps(recording: Recording) -> None:
        run.use(recording)
        for number in range(2, 2 + STEPS):
            run.step(number, method, frequency)

    return steps


def prepared(model: str, far: bool, method: str, frequency: int, **options: object) -> Run:
    run = Run(model, far=far, **options)
    run.step(1, method, frequency)  # the optimizer's state, gradients and maps are there
    return run


@pytest.mark.parametrize("far", [False, True], ids=["device", "pinned"])
@pytest.mark.parametrize(("method", "frequency"), METHODS)
@pytest.mark.parametrize("model", MODELS)
def test_every_conflict_is_ordered(model: str, method: str, frequency: int, far: bool) -> None:
    run = prepared(model, far, method, frequency)
    with Recording() as recording:
        program(run, method, frequency)(recording)
    assert {record.stream for record in recording.log} == used(method, far)
    assert check(recording.log) == []


def used(method: str, far: bool) -> set[str]:
    return {"compute"} | ({"refresh"} if method != "gas" else set()) | ({"io"} if far else set())


@pytest.mark.parametrize("far", [False, True], ids=["device", "pinned"])
@pytest.mark.parametrize(("method", "frequency"), METHODS)
@pytest.mark.parametrize("model", ["gcn-norm", "appnp", "gcnii"])
def test_any_legal_interleaving_gives_the_same_bits(model: str, method: str, frequency: int, far: bool) -> None:
    run = prepared(model, far, method, frequency)
    assert interleavings(program(run, method, frequency), run.state(), range(6)) == []


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
    run = prepared(model, False, "rest", 1)
    with Recording() as recording:
        run.use(recording)
        run.step(2, "rest", 1)
    tables = [table.rows for table in run.store.tables]

    def touches(op: Op, table: int, spans: str) -> bool:
        return any(span.storage == tables[table].untyped_storage().data_ptr() for span in getattr(op, spans))

    ops = [(i, r) for i, r in enumerate(recording.log) if isinstance(r, Op)]
    recorded = [max(i for i, op in ops if op.stream == "refresh" and touches(op, t, "writes")) for t in range(len(tables))]
    assert recorded == sorted(recorded) and len(set(recorded)) == len(tables)
    for table in range(len(tables)):
        known = list(refresh_before(recording.log, lambda op, t=table: reads_rows(op) and touches(op, t, "reads")))
        assert len(known) == 1 and known[0] >= recorded[table]
        if table + 1 < len(tables):
            assert known[0] < recorded[table + 1]


@pytest.mark.parametrize("frequency", [1, 3])
def test_refreshed_halos_are_not_fetched_again(frequency: int) -> None:
    """REST-IS with far tables: rows are fetched for the refresh, whose neighbours are further away, and for nobody else."""
    run = prepared("gcnii", True, "is", frequency)
    with Recording() as recording:
        run.use(recording)
        run.step(2, "is", frequency)
    names = [record.name for record in recording.log if isinstance(record, Op) and record.stream == "io"]
    assert sum("gather_rows_into" in name for name in names) == frequency * (len(run.store.tables) - 1)


SCENES = [("gcn-norm", "rest", 1), ("gcn-norm", "is", 3), ("appnp", "rest", 3), ("gcnii", "is", 1)]


def complaints(folder: Path) -> Iterator[str]:
    """What the checker says about steps of several models, with tables near and far."""
    for model, method, frequency in SCENES:
        for far in (True, False):
            run = prepared(model, far, method, frequency)
            with Recording() as recording:
                program(run, method, frequency)(recording)
                run.store.ages(0, STEPS + 2)
            yield from check(recording.log)
    for far in (True, False):  # without an optimizer step, only the tables tie one step to the next
        run = prepared("appnp", far, "rest", 1)
        with Recording() as recording:
            run.use(recording)
            for number, batch in enumerate(run.batches.epoch(0)):
                run.engine.step(
                    batch, number + 2, lambda logits: None, run.optimizer, refresh=run.refresh_batches.epoch(0)[:1]
                )
                run.store.read(0, run.refresh_batches.epoch(0)[0].rows)  # which the next refresh writes
        yield from check(recording.log)
    for options in (dict(far=True), disk(folder / uuid4().hex)):  # from the very beginning
        with Recording() as recording:
            run = Run("gcn", streams=recording, **options)
            run.step(1, "rest")
            run.step(2, "is")
        scene = run.engine.scene
        adj = [t for t in (scene.adj.rowptr, scene.adj.col, scene.adj.row_scale) if t is not None]
        yield from check(recording.log, known=[*run.state(), *adj, scene.x, scene.aggregated()])  # these stay until the end


ALL = [
    *((streams, *mutant) for mutant in mutants(streams, inside=["Streams"])),
    *((module, *mutant) for module in (history, view, engine) for mutant in mutants(module)),
]


def test_steps_are_in_order_as_they_are(tmp_path: Path) -> None:
    assert list(complaints(tmp_path)) == []


@pytest.mark.parametrize("number", range(len(ALL)), ids=[f"{m.__name__.split('.')[1]}-{what}" for m, what, _ in ALL])
def test_nothing_that_is_waited_for_can_be_left_out(number: int, tmp_path: Path) -> None:
    module, what, mutant = ALL[number]
    with installed(module, mutant):
        assert next(complaints(tmp_path), None) is not None, f"{what} makes no difference"
