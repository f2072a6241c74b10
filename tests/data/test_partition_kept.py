"""Partitions cached on disk: found again, and made again if the file is damaged."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rest_triton.data import metis as metis_worker
from rest_triton.data import partition as module
from rest_triton.data.partition import partition

from ..clusters import assert_good, from_kind, planted, same


def test_kept_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    graph = planted()
    made = partition(graph, 10, seed=3, root=tmp_path)
    path = tmp_path / "partitions" / f"{graph.fingerprint}-metis-10-3.npz"
    assert [path] == list((tmp_path / "partitions").iterdir())
    monkeypatch.setattr(metis_worker, "run", None)
    monkeypatch.setattr(module, "_stream", None)
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


def test_a_fallback_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The methods, the reason and the quality, in the result and in the file."""
    graph = planted()
    monkeypatch.setattr(metis_worker, "why_not", lambda *_: "the graph is too large")
    made = partition(graph, 10, root=tmp_path)
    assert (made.asked, made.method, made.fallback) == ("metis", "stream", "the graph is too large")
    sizes = made.ptr.diff().tolist()
    assert made.summary() == {
        "asked": "metis", "method": "stream", "fallback": "the graph is too large", "cut": made.cut, "balance": made.balance,
        "num_parts": 10, "num_nodes": 3000, "smallest": min(sizes), "largest": max(sizes),
    }  # fmt: skip
    assert json.loads(json.dumps(made.summary())) == made.summary()
    monkeypatch.undo()
    assert partition(graph, 10, root=tmp_path).summary() == made.summary()
    plain = partition(graph, 10, method="stream")
    assert (plain.asked, plain.method, plain.fallback) == ("stream", "stream", None)


@pytest.mark.parametrize(("used", "fallback"), [("metis", None), ("stream", module.NOT_RECORDED)])
def test_files_of_earlier_versions_are_read(
    used: str, fallback: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have the method that ran, but not the reason."""
    graph = planted()
    made = partition(graph, 10, root=tmp_path)
    (path,) = (tmp_path / "partitions").iterdir()
    np.savez(
        path, format="rest_triton partition 1", key=f"{graph.fingerprint}-metis-10-0", method=used, cut=made.cut,
        ptr=made.ptr.numpy(), order=made.order.numpy(),
    )  # fmt: skip
    monkeypatch.setattr(module, "_divide", None)
    cached = partition(graph, 10, root=tmp_path)
    assert same(cached, made) and (cached.cut, cached.balance) == (made.cut, made.balance)
    assert (cached.asked, cached.method, cached.fallback) == ("metis", used, fallback)


SPOILED: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated": (lambda path: path.write_bytes(path.read_bytes()[:-300]), "zip"),
    "a bit": (lambda path: path.write_bytes(path.read_bytes()[:9000] + b"!!" + path.read_bytes()[9002:]), "CRC"),
    "text": (lambda path: path.write_text("hello"), "pickle"),
    "no order": (lambda path: np.savez(path, format=module.FORMAT), "key"),
    "version": (lambda path: _rewrite(path, format="rest_triton partition 0"), "another version or graph"),
    "graph": (lambda path: _rewrite(path, key="f" * 32 + "-stream-10-0"), "another version or graph"),
    "order": (lambda path: _rewrite(path, order=np.zeros(3000, np.int64)), "order"),
    "int32": (lambda path: _rewrite(path, order=np.arange(3000, dtype=np.int32)), "order"),
    "ptr": (lambda path: _rewrite(path, ptr=np.array([0, 3000])), "one per cluster"),
    "an empty cluster": (lambda path: _rewrite(path, ptr=np.array([0, 0, *range(2, 10), 3000])), "empty"),
    "falling": (lambda path: _rewrite(path, ptr=np.array([0, 5, 2, *range(6, 13), 3000])), "decreases"),
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


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """A failed write leaves no file, and the partition is returned."""

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    graph = from_kind("random")
    (tmp_path / "partitions").mkdir()
    monkeypatch.setattr(os, "fsync", full)
    assert_good(partition(graph, 4, method="stream", root=tmp_path), graph, 4)
    assert "the partition is not cached: [Errno 28] No space left" in capfd.readouterr().err
    assert not any((tmp_path / "partitions").iterdir())


def test_a_root_that_cannot_be_written_is_refused_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(module, "_stream", None)
    with pytest.raises(NotADirectoryError):
        partition(from_kind("random"), 4, method="stream", root=tmp_path / "file")
