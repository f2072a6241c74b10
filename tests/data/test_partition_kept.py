"""Partitions cached on disk: found again, and made again if the file is damaged."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rest_triton.data import partition as module
from rest_triton.data import partitioners
from rest_triton.data.partition import Partition, partition
from rest_triton.utils.errors import UserError

from ..clusters import assert_good, from_kind, planted, same


@pytest.mark.parametrize("method", ["kaminpar", "metis"])
def test_kept_on_disk(
    method: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    graph = planted()
    made = partition(graph, 10, method=method, seed=3, root=tmp_path)
    path = tmp_path / "partitions" / f"{graph.fingerprint}-{method}-10-3.npz"
    assert [path] == list((tmp_path / "partitions").iterdir())
    monkeypatch.setattr(partitioners, "CHILDREN", None)
    for asked in (method, "auto"):
        kept = partition(planted(), 10, method=asked, seed=3, root=str(tmp_path))
        assert same(kept, made) and (kept.method, kept.cut, kept.balance) == (method, made.cut, made.balance)
        assert (kept.asked, kept.fallback) == (asked, None)
    assert kept.apply(graph).fingerprint == made.apply(graph).fingerprint
    assert capfd.readouterr().err == ""
    for other in (dict(num_parts=9, seed=3), dict(num_parts=10, seed=4)):
        with pytest.raises(TypeError):
            partition(graph, **other, method=method, root=tmp_path)


def test_auto_takes_clusters_that_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of its second choice, too: a run that is resumed has the clusters that it began with."""
    graph = planted()
    made = partition(graph, 10, method="metis", root=tmp_path)
    monkeypatch.setattr(partitioners, "AUTO", ("kaminpar", "metis"))
    assert same(partition(graph, 10, root=tmp_path), made)
    first = partition(graph, 10, method="kaminpar", root=tmp_path)
    assert same(partition(graph, 10, root=tmp_path), first) and not same(first, made)


def test_whether_it_is_kept(tmp_path: Path) -> None:
    graph = from_kind("random")
    of = tmp_path, graph.fingerprint
    assert not module.is_kept(*of, 4, "auto")
    partition(graph, 4, method="metis", root=tmp_path)
    assert module.is_kept(*of, 4, "auto") and module.is_kept(*of, 4, "metis")
    assert not module.is_kept(*of, 4, "kaminpar") and not module.is_kept(*of, 5, "auto")
    assert not module.is_kept(*of, 4, "metis", seed=1)


def _rewrite(path: Path, **changes: object) -> None:
    with np.load(path) as file:
        content = dict(file)
    np.savez(path, **(content | changes))


def test_the_summary(tmp_path: Path) -> None:
    """The methods, the reason and the quality, in the result and from the file."""
    made = partition(planted(), 10, method="metis", root=tmp_path)
    sizes = made.ptr.diff().tolist()
    assert made.summary() == {
        "asked": "metis", "method": "metis", "fallback": None, "cut": made.cut, "balance": made.balance,
        "num_parts": 10, "num_nodes": 3000, "smallest": min(sizes), "largest": max(sizes),
    }  # fmt: skip
    assert json.loads(json.dumps(made.summary())) == made.summary()
    assert partition(planted(), 10, method="metis", root=tmp_path).summary() == made.summary()


def _of_version_01(folder: Path, made: Partition, choice: str, used: str, **more: object) -> Path:
    path = folder / f"{made.fingerprint}-{choice}-10-0.npz"
    np.savez(
        path, format="rest_triton partition 1", key=path.stem, method=used, cut=made.cut, ptr=made.ptr.numpy(),
        order=made.order.numpy(), **more,
    )  # fmt: skip
    return path


@pytest.mark.parametrize(
    ("used", "more", "fallback"),
    [
        ("metis", {}, None),
        ("metis", dict(asked="metis", fallback=""), None),
        ("stream", {}, module.NOT_RECORDED),
        ("stream", dict(asked="metis", fallback="the graph is too large"), "the graph is too large"),
    ],
)
@pytest.mark.parametrize("asked", ["metis", "auto"])
def test_files_of_earlier_versions_are_read(
    asked: Any, used: str, more: dict[str, object], fallback: str | None, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """The first ones have the method that ran, but not the reason. METIS was replaced where it failed."""
    graph = planted()
    made = partition(graph, 10, method="random")
    (tmp_path / "partitions").mkdir()
    path = _of_version_01(tmp_path / "partitions", made, "metis", used, **more)
    monkeypatch.setattr(module, "divide", None)
    cached = partition(graph, 10, method=asked, root=tmp_path)
    assert same(cached, made) and (cached.cut, cached.balance) == (made.cut, made.balance)
    assert (cached.asked, cached.method, cached.fallback) == (asked, used, fallback)
    said = "" if fallback is None else f"planted was divided by stream: {fallback}. To try again, remove {path}\n"
    assert capfd.readouterr().err == said


def test_a_partitioner_that_is_gone(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Its clusters are read. Without them, the error names its successor and the missing file."""
    graph = planted()
    made = partition(graph, 10, method="random")
    name = f"{graph.fingerprint}-stream-10-0.npz"
    gone = r"^partition is 'stream', which is gone; give --partition kaminpar\. .* copy its clusters to "
    for root in (tmp_path, None):
        with pytest.raises(UserError, match=gone + re.escape(str(Path(root or "data", "partitions", name))) + "$"):
            partition(graph, 10, method="stream", root=root)
    path = _of_version_01(tmp_path / "partitions", made, "stream", "stream", asked="stream", fallback="")
    assert path.name == name
    cached = partition(graph, 10, method="stream", root=tmp_path)
    assert same(cached, made) and (cached.asked, cached.method, cached.fallback) == ("stream", "stream", None)
    assert capfd.readouterr().err == ""


SPOILED: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated": (lambda path: path.write_bytes(path.read_bytes()[:-300]), "zip"),
    "a bit": (lambda path: path.write_bytes(path.read_bytes()[:9000] + b"!!" + path.read_bytes()[9002:]), "CRC"),
    "text": (lambda path: path.write_text("hello"), "pickle"),
    "no order": (lambda path: np.savez(path, format=module.FORMAT), "key"),
    "version": (lambda path: _rewrite(path, format="rest_triton partition 0"), "another version or graph"),
    "graph": (lambda path: _rewrite(path, key="f" * 32 + "-random-10-0"), "another version or graph"),
    "order": (lambda path: _rewrite(path, order=np.zeros(3000, np.int64)), "order"),
    "int32": (lambda path: _rewrite(path, order=np.arange(3000, dtype=np.int32)), "order"),
    "ptr": (lambda path: _rewrite(path, ptr=np.array([0, 3000])), "one per cluster"),
    "an empty cluster": (lambda path: _rewrite(path, ptr=np.array([0, 0, *range(2, 10), 3000])), "empty"),
    "falling": (lambda path: _rewrite(path, ptr=np.array([0, 5, 2, *range(6, 13), 3000])), "decreases"),
}


@pytest.mark.parametrize("how", SPOILED)
def test_spoiled_files_are_made_again(how: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    graph = planted()
    made = partition(graph, 10, method="random", root=tmp_path)
    (path,) = (tmp_path / "partitions").iterdir()
    good = path.read_bytes()
    spoil, why = SPOILED[how]
    spoil(path)
    assert same(partition(graph, 10, method="random", root=tmp_path), made)
    said = capfd.readouterr().err
    assert f"{path} cannot be used, the partition is made again: " in said and why in said
    assert len(path.read_bytes()) == len(good)
    partition(graph, 10, method="random", root=tmp_path)
    assert capfd.readouterr().err == ""


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """A failed write leaves no file, and the partition is returned."""

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    graph = from_kind("random")
    (tmp_path / "partitions").mkdir()
    monkeypatch.setattr(os, "fsync", full)
    assert_good(partition(graph, 4, method="random", root=tmp_path), graph, 4)
    assert "the partition is not cached: [Errno 28] No space left" in capfd.readouterr().err
    assert not any((tmp_path / "partitions").iterdir())


def test_a_root_that_cannot_be_written_is_refused_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(module, "divide", None)
    with pytest.raises(NotADirectoryError):
        partition(from_kind("random"), 4, method="random", root=tmp_path / "file")
