"""Tables: what is written is what is read, and when it was written is known."""

from pathlib import Path
from typing import Any

import pytest
import torch

from rest_triton.history import file
from rest_triton.history.age import ages, mean_age
from rest_triton.history.history import History
from rest_triton.sampling.batch import ClusterBatches, node_batch

from .runs import FarHistory

N, WIDTHS = 50, (3, 47)
BATCHES = ClusterBatches(torch.tensor([0, 9, 20, 33, 50]), 4)
KINDS = {"range": BATCHES.batch([0, 1]), "ranges": BATCHES.batch([0, 2]), "nodes": node_batch(torch.tensor([40, 3, 17]), N),
         "empty": node_batch(torch.zeros(0, dtype=torch.int64), N), "all": BATCHES.batch(range(4))}  # fmt: skip


@pytest.fixture(params=["device", "far", "disk"])
def place(request: pytest.FixtureRequest) -> str:
    return request.param


def with_place(place: str, folder: Path, dtype: torch.dtype = torch.float32, **kinds: Any) -> History:
    if place == "disk":
        return History(N, WIDTHS, place="disk", folder=folder, fingerprint="f", dtype=dtype, **kinds)
    return (FarHistory if place == "far" else History)(N, WIDTHS, dtype=dtype, fingerprint="f", **kinds)


def rows_of(history: History, table: int, ids: torch.Tensor) -> torch.Tensor:
    """As a forward on the device gets them."""
    source = history.pull(table, ids)
    return source.rows[ids].clone() if source.in_place else source.rows.clone()


def unwritten(history: History, table: int = 0) -> int:
    return int((history.stamp(table) == -1).sum())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", KINDS)
def test_push_and_pull(place: str, kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    batch, store = KINDS[kind], with_place(place, tmp_path / "tables", dtype)
    all_nodes = torch.arange(N)
    for table, width in enumerate(WIDTHS):
        assert rows_of(store, table, all_nodes).count_nonzero() == 0
        h = torch.randn(len(batch), width)
        store.push(table, batch, h, 5)
        expected = torch.zeros(N, width, dtype=dtype)
        expected[batch.rows] = h.to(dtype)
        assert torch.equal(rows_of(store, table, all_nodes), expected)
        assert torch.equal(rows_of(store, table, batch.rows.flip(0)), h.to(dtype).flip(0))
        stamp = torch.full((N,), -1, dtype=torch.int32)
        stamp[batch.rows] = 5
        assert torch.equal(store.stamp(table), stamp)
        assert unwritten(store, table) == N - len(batch)
        blended = torch.randn(len(batch), width)
        store.push(table, batch, blended, 8, momentum=0.25)
        expected[batch.rows] = (0.75 * expected[batch.rows].float() + 0.25 * blended).to(dtype)
        torch.testing.assert_close(rows_of(store, table, all_nodes), expected)
        assert bool((store.stamp(table)[batch.rows] == 8).all())
    store.close()


def test_recorded_as_it_was(place: str, tmp_path: Path) -> None:
    """A gradient does not follow the rows into the table."""
    store = with_place(place, tmp_path / "tables")
    h = torch.ones(len(KINDS["range"]), 3, requires_grad=True)
    store.push(0, KINDS["range"], h * 2, 1)
    assert not store.tables[0].rows.requires_grad
    store.close()


def test_wrong_shape_is_refused_before_anything_is_written(place: str, tmp_path: Path) -> None:
    store = with_place(place, tmp_path / "tables")
    with pytest.raises(ValueError, match=r"h has shape \[20, 4\]; for a batch of 20 rows, table 0 takes \[20, 3\]"):
        store.push(0, KINDS["range"], torch.ones(20, 4), 1)
    assert unwritten(store) == N
    store.close()


def test_tables_by_kind(place: str, tmp_path: Path) -> None:
    """Tables of gradients beside those of layer inputs: in the same place, closed and removed with them."""
    history = with_place(place, tmp_path / "tables", torch.bfloat16, kinds={"gradient": [3, 47], "aggregate": [5]})
    assert {kind: [t.rows.shape[1] for t in tables] for kind, tables in history.kinds.items()} == {
        "input": [3, 47], "gradient": [3, 47], "aggregate": [5]
    }  # fmt: skip
    assert history.tables == history.kinds["input"] and len(history.all_tables) == 5 and history.widths == WIDTHS
    for table in history.all_tables:
        assert table.rows.dtype == torch.bfloat16 and table.rows.count_nonzero() == 0 and bool((table.stamp == -1).all())
        assert type(table) is type(history.tables[0])
    history.kinds["gradient"][1].push(history.streams, KINDS["ranges"], torch.ones(len(KINDS["ranges"]), 47), 7, 1.0)
    history.streams.finish()
    assert int(history.kinds["gradient"][1].rows.count_nonzero()) == 47 * len(KINDS["ranges"])
    assert unwritten(history, 1) == N and history.tables[1].rows.count_nonzero() == 0
    history.close()
    assert list(tmp_path.iterdir()) == []


def test_buffers_are_used_again_and_grow() -> None:
    store = FarHistory(N, (8, 8, 8))
    few, more = torch.arange(10), torch.arange(40)
    first = store.pull(0, few).rows
    assert store.pull(2, few).rows.data_ptr() == first.data_ptr()  # tables take turns
    assert store.pull(1, few).rows.data_ptr() != first.data_ptr()
    grown = store.pull(0, more).rows
    assert grown.shape == (40, 8)
    assert store.pull(0, torch.arange(45)).rows.data_ptr() == grown.data_ptr()  # a quarter in reserve


def test_unwritten_rows_are_refused() -> None:
    store = History(N, WIDTHS)
    store.push(0, KINDS["range"], torch.ones(20, 3), 1)
    store.refuse_unwritten(0, torch.arange(20))
    with pytest.raises(ValueError, match="2 of 3 rows that are read from table 0 were never written; fill the tables first"):
        store.refuse_unwritten(0, torch.tensor([4, 30, 31]))


def test_pinned_without_a_gpu_says_so_once(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.cuda.is_available():
        return
    monkeypatch.setattr(History, "_said_so", False)
    assert History(N, WIDTHS, place="pinned").tables[0].in_place
    History(N, WIDTHS, place="pinned")
    assert capsys.readouterr().err == "history: pinned memory belongs to a GPU; without one, tables are in ordinary memory\n"


def test_bad_arguments(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="place is 'ram'; it must be one of device, pinned, disk"):
        History(N, WIDTHS, place="ram")
    with pytest.raises(TypeError, match=r"dtype is torch\.int8"):
        History(N, WIDTHS, dtype=torch.int8)
    with pytest.raises(ValueError, match="disk needs a folder, and no other place has one"):
        History(N, WIDTHS, place="disk")
    with pytest.raises(ValueError, match="disk needs a folder, and no other place has one"):
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
    store.push(0, BATCHES.batch([0, 1, 2, 3]), torch.ones(N, 3), 1)
    store.push(0, BATCHES.batch([1]), torch.ones(11, 3), 4)
    assert store.ages(0, 5).mean == pytest.approx((39 * 4 + 11 * 1) / N)
    assert store.ages(0, 5, torch.tensor([9, 0])).mean == pytest.approx(2.5)
    store.close()


# Checkpoints


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_in_a_file_and_back(place: str, dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of all kinds, with their stamps."""
    monkeypatch.setattr(file, "PIECE", 100)  # several pieces, and one row larger than a piece
    history = with_place(place, tmp_path / "tables", dtype, kinds={"gradient": [4]})
    for table, width in enumerate(WIDTHS):
        history.push(table, KINDS["ranges"], torch.randn(len(KINDS["ranges"]), width), 3)
    history.kinds["gradient"][0].rows.normal_()
    history.streams.finish()
    file.save(history, tmp_path / "checkpoint", 3)
    expected = [t.clone() for table in history.all_tables for t in (table.rows, table.stamp)]
    history.close()
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint"]
    other = with_place(place, tmp_path / "tables", dtype, kinds={"gradient": [4]})
    assert not file.load(other, tmp_path / "checkpoint", 2)
    assert bool((other.stamp(0) == -1).all())  # nothing of it was taken
    assert file.load(other, tmp_path / "checkpoint", 3)
    loaded = [t for table in other.all_tables for t in (table.rows, table.stamp)]
    assert len(loaded) == 6 and all(map(torch.equal, expected, loaded))
    other.close()


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
    store.push(1, KINDS["all"], torch.randn(N, 47), 3)
    file.save(store, path, 3)
    damage, message = DAMAGE[kind]
    path.write_bytes(damage(path.read_bytes()))
    before = store.tables[1].rows.clone()
    with pytest.raises(ValueError, match=f"checkpoint cannot be used: .*{message}.*delete it"):
        file.load(store, path, 3)
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
    file.save(History(N, WIDTHS, fingerprint="f"), tmp_path / "checkpoint", 3)
    arguments = dict(num_nodes=N, widths=WIDTHS, fingerprint="f") | change
    with pytest.raises(ValueError, match=f"checkpoint has tables with {message}; it is of another run"):
        file.load(History(**arguments), tmp_path / "checkpoint", 3)
