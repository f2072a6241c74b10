"""Tables: what is written is what is read, and when it was written is known."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from rest_triton.history import file as tables_file
from rest_triton.history.age import ages, mean_age
from rest_triton.history.history import History
from rest_triton.sampling.batch import ClusterLoader, node_batch

from .runs import NODES, FarStore, disk

N, WIDTHS = 50, (3, 47)
BATCHES = ClusterLoader(torch.tensor([0, 9, 20, 33, 50]), 4)
KINDS = {"range": BATCHES.batch([0, 1]), "ranges": BATCHES.batch([0, 2]), "nodes": node_batch(torch.tensor([40, 3, 17]), N),
         "empty": node_batch(torch.zeros(0, dtype=torch.int64), N), "all": BATCHES.batch(range(4))}  # fmt: skip


@pytest.fixture(params=["device", "far", "disk"])
def place(request: pytest.FixtureRequest) -> str:
    return request.param


def with_place(place: str, folder: Path, dtype: torch.dtype = torch.float32) -> History:
    if place == "disk":
        return History(N, WIDTHS, place="disk", folder=folder, fingerprint="f", dtype=dtype)
    return (FarStore if place == "far" else History)(N, WIDTHS, dtype=dtype, fingerprint="f")


def rows_of(store: History, table: int, ids: torch.Tensor) -> torch.Tensor:
    """As a forward on the device gets them."""
    if store.direct:
        return store.tables[table].rows[ids].clone()
    return store.stage(table, ids).rows.clone()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", KINDS)
def test_record_and_read(place: str, kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    batch, store = KINDS[kind], with_place(place, tmp_path / "tables", dtype)
    everyone = torch.arange(N)
    for table, width in enumerate(WIDTHS):
        assert rows_of(store, table, everyone).count_nonzero() == 0
        h = torch.randn(len(batch), width)
        store.record(table, batch, h, 5)
        expected = torch.zeros(N, width, dtype=dtype)
        expected[batch.rows] = h.to(dtype)
        assert torch.equal(rows_of(store, table, everyone), expected)
        assert torch.equal(rows_of(store, table, batch.rows.flip(0)), h.to(dtype).flip(0))
        stamp = torch.full((N,), -1, dtype=torch.int32)
        stamp[batch.rows] = 5
        assert torch.equal(store.stamp(table), stamp)
        assert store.unwritten(table, everyone) == N - len(batch)
        blended = torch.randn(len(batch), width)
        store.record(table, batch, blended, 8, blend=0.25)
        expected[batch.rows] = (0.75 * expected[batch.rows].float() + 0.25 * blended).to(dtype)
        torch.testing.assert_close(rows_of(store, table, everyone), expected)
        assert bool((store.stamp(table)[batch.rows] == 8).all())
    store.close()


def test_recorded_as_it_was(place: str, tmp_path: Path) -> None:
    """A gradient does not follow the rows into the table."""
    store = with_place(place, tmp_path / "tables")
    h = torch.ones(len(KINDS["range"]), 3, requires_grad=True)
    store.record(0, KINDS["range"], h * 2, 1)
    assert not store.tables[0].rows.requires_grad
    store.close()


def test_wrong_shape_is_refused_before_anything_is_written(place: str, tmp_path: Path) -> None:
    store = with_place(place, tmp_path / "tables")
    with pytest.raises(ValueError, match=r"h has shape \[20, 4\]; for a batch of 20 rows, table 0 takes \[20, 3\]"):
        store.record(0, KINDS["range"], torch.ones(20, 4), 1)
    assert store.unwritten(0, torch.arange(N)) == N
    store.close()


def test_buffers_are_used_again_and_grow() -> None:
    store = FarStore(N, (8, 8, 8))
    few, more = torch.arange(10), torch.arange(40)
    first = store.stage(0, few).rows
    assert store.stage(2, few).rows.data_ptr() == first.data_ptr()  # tables take turns
    assert store.stage(1, few).rows.data_ptr() != first.data_ptr()
    grown = store.stage(0, more).rows
    assert grown.shape == (40, 8)
    assert store.stage(0, torch.arange(45)).rows.data_ptr() == grown.data_ptr()  # a quarter in reserve


def test_unwritten_rows_are_refused() -> None:
    store = History(N, WIDTHS)
    store.record(0, KINDS["range"], torch.ones(20, 3), 1)
    store.refuse_unwritten(0, torch.arange(20))
    with pytest.raises(ValueError, match="2 of 3 rows that are read from table 0 were never written; fill the tables first"):
        store.refuse_unwritten(0, torch.tensor([4, 30, 31]))


def test_pinned_without_a_gpu_says_so_once(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.cuda.is_available():
        return
    monkeypatch.setattr(History, "_said_so", False)
    assert History(N, WIDTHS, place="pinned").direct
    History(N, WIDTHS, place="pinned")
    assert (
        capsys.readouterr().err == "history: pinned means memory beside a GPU; without one, tables are in ordinary memory\n"
    )


def test_bad_arguments(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="place is 'ram'; it must be one of device, pinned, disk"):
        History(N, WIDTHS, place="ram")
    with pytest.raises(TypeError, match=r"dtype is torch\.int8"):
        History(N, WIDTHS, dtype=torch.int8)
    with pytest.raises(ValueError, match="a folder is what disk needs"):
        History(N, WIDTHS, place="disk")
    with pytest.raises(ValueError, match="a folder is what disk needs"):
        History(N, WIDTHS, folder=tmp_path)


# Ages


def test_ages() -> None:
    stamp = torch.tensor([10, 10, 9, 7, 2, -1, -1], dtype=torch.int32)
    seen = ages(stamp, 10)
    assert seen.mean == pytest.approx((0 + 0 + 1 + 3 + 8) / 5)
    assert seen.percentiles == (1, 8, 8, 8) and seen.never == 2
    assert seen.histogram.tolist() == [2, 1, 1, 0, 1]  # 0 | 1 | 2, 3 | 4 to 7 | 8 to 15
    assert mean_age(stamp, 10) == pytest.approx((0 + 0 + 1 + 3 + 8 + 11 + 11) / 7)
    assert ages(stamp[-1:], 3).mean == 0 and ages(stamp[-1:], 3).never == 1
    assert int(ages(torch.zeros(3, dtype=torch.int32), 1_000_000).histogram.sum()) == 3  # older than is told apart
    with pytest.raises(ValueError, match="rows were written at step 10, later than step 9"):
        ages(stamp, 9)


def test_ages_of_rows_just_read(place: str, tmp_path: Path) -> None:
    store = with_place(place, tmp_path / "tables")
    store.record(0, BATCHES.batch([0, 1, 2, 3]), torch.ones(N, 3), 1)
    store.record(0, BATCHES.batch([1]), torch.ones(11, 3), 4)
    assert store.ages(0, 5).mean == pytest.approx((39 * 4 + 11 * 1) / N)
    assert store.ages(0, 5, torch.tensor([9, 0])).mean == pytest.approx(2.5)
    store.close()


# Checkpoints


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_save_and_load(place: str, dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables_file, "PIECE", 100)  # several pieces, and one row larger than a piece
    store = with_place(place, tmp_path / "tables", dtype)
    for table, width in enumerate(WIDTHS):
        store.record(table, KINDS["ranges"], torch.randn(len(KINDS["ranges"]), width), 3)
    store.save(tmp_path / "checkpoint", 3)
    expected = [t.clone() for table in store.tables for t in (table.rows, table.stamp)]
    store.close()
    if place != "disk":
        assert [p.name for p in tmp_path.iterdir()] == ["checkpoint"]
    other = with_place(place, tmp_path / "tables", dtype)
    if place != "disk":
        assert not other.load(tmp_path / "checkpoint", 2)
        assert other.unwritten(0, torch.arange(N)) == N  # nothing of it was taken
    assert other.load(tmp_path / "checkpoint", 3)
    loaded = [t for table in other.tables for t in (table.rows, table.stamp)]
    assert all(torch.equal(a, b) for a, b in zip(expected, loaded, strict=True))
    other.close()


def test_tables_on_disk_that_went_on_are_noticed(tmp_path: Path) -> None:
    store = with_place("disk", tmp_path / "tables")
    store.record(0, KINDS["range"], torch.ones(20, 3), 3)
    store.save(tmp_path / "checkpoint", 3)
    store.record(0, KINDS["range"], torch.ones(20, 3), 4)
    store.close()
    again = with_place("disk", tmp_path / "tables")
    assert not again.load(tmp_path / "checkpoint", 3)
    assert again.unwritten(0, torch.arange(N)) == N  # to be filled before they are read
    again.close()


def test_another_step_than_the_one_on_disk(tmp_path: Path) -> None:
    store = with_place("disk", tmp_path / "tables")
    store.record(0, KINDS["range"], torch.ones(20, 3), 3)
    store.save(tmp_path / "checkpoint", 3)
    store.close()
    again = with_place("disk", tmp_path / "tables")
    assert again.unwritten(0, torch.arange(N)) == N - 20
    assert not again.load(tmp_path / "checkpoint", 2)
    assert again.unwritten(0, torch.arange(N)) == N
    again.close()


LARGE = """
import sys, torch
import torch.nn.functional as F
from rest_triton.sampling.batch import ClusterLoader
from rest_triton.data.datasets.synthetic import Shape, generate
from rest_triton.methods.engine import Engine
from rest_triton.history.history import History
from rest_triton.nn import GCN
from rest_triton.nn.scene import Scene

graph = generate(Shape(40_000, 200_000, 16, 5))
resident = lambda: int(next(l for l in open("/proc/self/status") if l.startswith("RssFile")).split()[1]) * 1024
for place in (dict(), dict(place="disk", folder=sys.argv[1], budget=8 << 20)):
    torch.manual_seed(0)
    model = GCN(16, 128, 5, 3)
    store = History(graph.num_nodes, model.widths, **place)  # two tables of 20 MB
    engine = Engine(Scene(graph.adjacency("gcn"), graph.x, store), model)
    engine.fill()
    store.streams.finish()
    optimizer, before, most = torch.optim.Adam(model.parameters(), lr=0.01), resident(), 0
    for step, batch in enumerate(ClusterLoader(torch.arange(0, 40_001, 2_000), 2).epoch(0)):
        loss = engine.step(batch, step + 1, lambda z: F.cross_entropy(z, batch.take(graph.y)), optimizer)
        most = max(most, resident() - before)
    print(float(loss), most)
    store.close()
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the mapped bytes of a process from /proc")
def test_tables_larger_than_their_budget_of_mapped_pages(tmp_path: Path) -> None:
    """40 MB of tables with 8 MB of them mapped at a time: the same training, within the budget."""
    run = subprocess.run([sys.executable, "-c", LARGE, str(tmp_path / "t")], check=True, capture_output=True, text=True)
    (loss, _), (on_disk, mapped) = (line.split() for line in run.stdout.splitlines())
    assert on_disk == loss
    assert int(mapped) < (8 << 20) + (8 << 20)  # and what one look apart can bring


KILLED = """
import sys, torch
from pathlib import Path
from tests.history.runs import Run, disk
folder = Path(sys.argv[1])
run = Run("gcn", **disk(folder / "tables"))
run.losses(3)
run.store.save(folder / "checkpoint", 3)
print("saved", flush=True)
number = 3
while True:
    number += 1
    run.step(number)
"""


def test_killed_while_rows_are_written(tmp_path: Path) -> None:
    """Tables that went on after the checkpoint, for however short a time, do not pass for those of the checkpoint."""
    for delay in (0.02, 0.1, 0.3):
        child = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(tmp_path / str(delay))], stdout=subprocess.PIPE, text=True,
            cwd=Path(__file__).parent.parent.parent,
        )  # fmt: skip
        assert child.stdout is not None and child.stdout.readline() == "saved\n"
        time.sleep(delay)
        child.kill()
        child.wait()
        store = History(NODES, (16, 16), **disk(tmp_path / str(delay) / "tables"))
        assert store.unwritten(0, torch.arange(NODES)) == NODES  # already before anybody asks for a checkpoint
        assert not store.load(tmp_path / str(delay) / "checkpoint", 3)
        store.close()


def test_nothing_is_filled_behind_ones_back(tmp_path: Path) -> None:
    store = with_place("disk", tmp_path / "tables")
    store.close()
    again = with_place("disk", tmp_path / "tables")
    assert again.unwritten(0, torch.arange(N)) == N
    again.close()


def test_nothing_saved(tmp_path: Path) -> None:
    assert not History(N, WIDTHS).load(tmp_path / "nothing", 3)


DAMAGE = {
    "foreign": (lambda data: b"PK" + data[2:], "was not written by this version"),
    "cut": (lambda data: data[:-1000], "bytes instead of"),
    "cut-header": (lambda data: data[:40], "it ends after 40 bytes, within its header"),
    "torn-header": (lambda data: data[:29] + b"?" + data[30:], "its header cannot be read"),
    "a-bit": (lambda data: data[:2000] + bytes([data[2000] ^ 1]) + data[2001:], "its checksum is wrong"),
    "empty": (lambda data: b"", "was not written by this version"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_checkpoint(kind: str, tmp_path: Path) -> None:
    store, path = History(N, WIDTHS, fingerprint="f"), tmp_path / "checkpoint"
    store.record(1, KINDS["all"], torch.randn(N, 47), 3)
    store.save(path, 3)
    damage, message = DAMAGE[kind]
    path.write_bytes(damage(path.read_bytes()))
    before = store.tables[1].rows.clone()
    with pytest.raises(ValueError, match=f"checkpoint cannot be used: .*{message}.*delete it"):
        store.load(path, 3)
    assert torch.equal(store.tables[1].rows, before)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(widths=(3, 48)), r"widths \[3, 47\], this run has \[3, 48\]"),
        (dict(num_nodes=51), "num_nodes 50, this run has 51"),
        (dict(dtype=torch.float16), "dtype float32, this run has float16"),
        (dict(fingerprint="g"), "fingerprint f, this run has g"),
    ],
)
def test_checkpoint_of_another_run(change: dict, message: str, tmp_path: Path) -> None:
    History(N, WIDTHS, fingerprint="f").save(tmp_path / "checkpoint", 3)
    arguments = dict(num_nodes=N, widths=WIDTHS, fingerprint="f") | change
    with pytest.raises(ValueError, match=f"checkpoint has tables with {message}; it is of another run"):
        History(**arguments).load(tmp_path / "checkpoint", 3)
