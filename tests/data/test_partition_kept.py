"""Partitions kept on disk: found again, and made again where the file is not what it should be."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rest_triton.data import metis as metis_worker
from rest_triton.data import partition as rooms
from rest_triton.data.partition import partition

from ..clusters import assert_good, from_kind, planted, same


def test_kept_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    graph = planted()
    made = partition(graph, 10, seed=3, root=tmp_path)
    path = tmp_path / "partitions" / f"{graph.fingerprint}-metis-10-3.npz"
    assert [path] == list((tmp_path / "partitions").iterdir())
    monkeypatch.setattr(metis_worker, "run", None)
    monkeypatch.setattr(rooms, "_stream", None)
    kept = partition(planted(), 10, seed=3, root=str(tmp_path))
    assert same(kept, made) and (kept.method, kept.cut, kept.balance) == ("metis", made.cut, made.balance)
    assert kept.apply(graph).fingerprint == made.apply(graph).fingerprint
    assert capfd.readouterr().err == ""
    for other in (dict(num_parts=9, seed=3), dict(num_parts=10, seed=4)):
        with pytest.raises(TypeError):
            partition(graph, **other, root=tmp_path)


def _rewrite(path: Path, **changes: object) -> None:
    with np.load(path) as file:
        content = dict(file)
    np.savez(path, **(content | changes))


SPOILED: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut off": (lambda path: path.write_bytes(path.read_bytes()[:-300]), "zip"),
    "empty": (lambda path: path.write_bytes(b""), "data"),
    "a bit": (lambda path: path.write_bytes(path.read_bytes()[:9000] + b"!!" + path.read_bytes()[9002:]), "CRC"),
    "text": (lambda path: path.write_text("hello"), "pickle"),
    "another array": (lambda path: np.save(path.open("wb"), np.zeros(3)), ""),
    "no order": (lambda path: np.savez(path, format=rooms.FORMAT), "key"),
    "version": (lambda path: _rewrite(path, format="rest_triton partition 0"), "another version or graph"),
    "graph": (lambda path: _rewrite(path, key="f" * 32 + "-stream-10-0"), "another version or graph"),
    "order": (lambda path: _rewrite(path, order=np.zeros(3000, np.int64)), "order"),
    "fewer": (lambda path: _rewrite(path, order=np.arange(2999)), "order"),
    "int32": (lambda path: _rewrite(path, order=np.arange(3000, dtype=np.int32)), "order"),
    "ptr": (lambda path: _rewrite(path, ptr=np.array([0, 3000])), "one per cluster"),
    "an empty cluster": (lambda path: _rewrite(path, ptr=np.array([0, 0, *range(2, 10), 3000])), "empty"),
    "falling": (lambda path: _rewrite(path, ptr=np.array([0, 5, 2, *range(6, 13), 3000])), "decreases"),
    "end": (lambda path: _rewrite(path, ptr=np.arange(11) * 200), "runs from 0 to 2000"),
}


@pytest.mark.parametrize("how", SPOILED)
def test_spoiled_files_are_made_again(how: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    graph = planted()
    made = partition(graph, 10, method="stream", root=tmp_path)
    (path,) = (tmp_path / "partitions").iterdir()
    good = path.read_bytes()
    spoil, why = SPOILED[how]
    spoil(path)
    assert same(partition(graph, 10, method="stream", root=tmp_path), made)
    said = capfd.readouterr().err
    assert f"{path} cannot be used, the partition is made again: " in said and why in said
    assert len(path.read_bytes()) == len(good)
    partition(graph, 10, method="stream", root=tmp_path)
    assert capfd.readouterr().err == ""


def test_no_room_to_keep_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """A write that fails half-way leaves neither a file nor a part of one, and the partition is there all the same."""

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    graph = from_kind("random")
    assert_good(partition(graph, 4, method="stream", root=tmp_path), graph, 4)
    assert "not kept for the next time: [Errno 28] No space left" in capfd.readouterr().err
    assert not any((tmp_path / "partitions").iterdir())


def test_a_root_that_cannot_be_written_is_said_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(rooms, "_stream", None)
    with pytest.raises(NotADirectoryError):
        partition(from_kind("random"), 4, method="stream", root=tmp_path / "file")
