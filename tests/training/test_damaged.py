"""Checkpoints that are torn, damaged or of another run are refused. The message names a usable one."""

import pickle
import random
import re
import shutil
import zlib
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rest_triton.config import Config
from rest_triton.nn import GCN, Context, HistoryGNN
from rest_triton.training import checkpoint
from rest_triton.training import run as session
from rest_triton.training.checkpoint import FREE, MAGIC, Unusable, epoch_path, read, tables_path

from .resuming import Data, content, losses, newest, records, same, state_in

pytestmark = pytest.mark.usefixtures("without_pictures")


@pytest.fixture(scope="module")
def whole(data: Data, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of six epochs with the checkpoints of the last four. Tests must not change it."""
    path = tmp_path_factory.mktemp("run") / "whole"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "write_report", lambda path: None)
        patch.setattr(checkpoint, "KEPT", 4)
        data.run(data.config(), path)
    return path


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    """A copy of the run that tests may change."""
    path = tmp_path / "run"
    shutil.copytree(whole, path)
    assert [p.name for p in checkpoint.epochs(path / "checkpoints")] == [f"epoch-00000{n}.pt" for n in (3, 4, 5, 6)]
    return path


def numbered(run: Path, epoch: int) -> Path:
    return epoch_path(run / "checkpoints", epoch)


def flip(path: Path, at: int) -> None:
    found = bytearray(path.read_bytes())
    found[at] ^= 1 << at % 8
    path.write_bytes(found)


def refusal(path: Path, *what: Any) -> str:
    with pytest.raises(Unusable) as refused:
        read(path, *what)
    message = str(refused.value)
    assert message.startswith(str(path)) and "\n" not in message
    return message


def offered(message: str) -> Path:
    found = re.search(r"--resume (\S+)$", message)
    assert found is not None, message
    return Path(found[1])


SIZES = [0, 1, len(MAGIC) - 1, len(MAGIC), len(MAGIC) + 5, len(MAGIC) + 8, len(MAGIC) + 11, len(MAGIC) + 12, 100, 5000]


@pytest.mark.parametrize("size", [*SIZES, -5000, -5, -4, -3, -1])
def test_truncated(size: int, run: Path, data: Data) -> None:
    path = numbered(run, 6)
    path.write_bytes(path.read_bytes()[:size])
    message = refusal(path, data.config(), data.loaded.fingerprint)
    reason = "is damaged: its" if len(path.read_bytes()) >= len(MAGIC) else "is not a checkpoint" if size else "it is empty"
    assert reason in message and "the one before it is whole" in message
    assert offered(message) == numbered(run, 5)


def test_one_flipped_bit(run: Path) -> None:
    """A checkpoint with any one bit flipped is refused."""
    path = numbered(run, 6)
    good = path.read_bytes()
    inside = random.Random(0).sample(range(len(MAGIC) + 8, len(good) - 4), 60)
    for at in (*range(len(MAGIC) + 8), *inside, *range(len(good) - 4, len(good))):
        path.write_bytes(good)
        flip(path, at)
        assert offered(refusal(path)) == numbered(run, 5)
    path.write_bytes(good)
    read(path)


def test_something_else(run: Path, tmp_path: Path) -> None:
    path = numbered(run, 6)
    torch.save({"epoch": 6}, path)
    assert "is not a checkpoint of this version" in refusal(path)
    path.write_bytes(path.read_bytes() + b"x")
    assert "is not a checkpoint of this version" in refusal(path)
    path.unlink()
    assert f"{path} does not exist; the one before it is whole: --resume {numbered(run, 5)}" == refusal(path)
    alone = tmp_path / "nowhere" / "epoch-000001.pt"
    assert refusal(alone) == f"{alone} does not exist; there is no other one before it: start again without --resume"
    good = numbered(run, 5).read_bytes()
    path.write_bytes(good + b"\0")
    assert "is damaged" in refusal(path)


def test_what_is_offered(run: Path) -> None:
    """The message names the newest whole checkpoint before it, else the newest after it, else none."""
    for epoch in (6, 5, 4):
        flip(numbered(run, epoch), -1)
        message = refusal(numbered(run, 6))
        assert offered(message) == numbered(run, epoch - 1)
        assert ("the one before it is whole" if epoch == 6 else "an older one is whole") in message
    flip(numbered(run, 6), -1)
    flip(numbered(run, 3), -1)
    message = refusal(numbered(run, 5))
    assert "a later one is whole" in message and offered(message) == numbered(run, 6)
    flip(numbered(run, 6), -1)
    message = refusal(numbered(run, 6))
    assert message.endswith("; there is no other one before it: start again without --resume")


def test_best_has_others_before_it(run: Path) -> None:
    flip(run / "checkpoints" / "best.pt", 1000)
    assert offered(refusal(run / "checkpoints" / "best.pt")) == numbered(run, 6)


@pytest.mark.parametrize("bad", [(6,), (5, 6)])
def test_the_offer_is_good(bad: tuple[int, ...], run: Path, whole: Path, data: Data) -> None:
    """A resume is refused because of a damaged last checkpoint. From the one in the message the run is the same."""
    for epoch in bad:
        flip(numbered(run, epoch), 2000)
    (run / "summary.json").unlink()
    before = content(run)
    with pytest.raises(Unusable) as refused:
        session.train(data.config(), resume=run)
    assert {k: v for k, v in content(run).items() if k != "plan.txt"} == {k: v for k, v in before.items() if k != "plan.txt"}
    other = offered(str(refused.value))
    assert other == numbered(run, bad[0] - 1)
    session.train(data.config(), resume=other)
    assert records(run) == records(whole) and same(state_in(run), state_in(whole))


def test_offers_are_for_a_shell(run: Path, tmp_path: Path) -> None:
    odd = tmp_path / "a b"
    shutil.copytree(run, odd)
    flip(numbered(odd, 6), 0)
    assert refusal(numbered(odd, 6)).endswith(f"--resume '{numbered(odd, 5)}'")


def test_of_another_graph(run: Path, data: Data, tmp_path: Path) -> None:
    other = Data.make(tmp_path, seed=1)
    with pytest.raises(Unusable, match="is of another graph than this run's, or of other clusters") as refused:
        other.run(data.config(), run, numbered(run, 6))
    assert "start again without --resume" in str(refused.value)  # the one before it is of that graph, too


def test_of_another_run(run: Path, data: Data) -> None:
    """Every setting that changes results is compared and named. The others may change."""
    config, fingerprint = data.config(), data.loaded.fingerprint
    another: dict[str, Any] = {
        "dataset": "other.npz", "partition": "random", "model": "appnp", "method": "gas", "refresh_batch": "half",
        "refresh_order": "oldest", "refresh_mode": "eval", "dtype": "bfloat16", "history": "disk", "device": "auto",
        "features": "disk", "feature_dtype": "float16", "memory_budget": "1GiB", "device_budget": "1GiB",
        "root": "elsewhere", "run_dir": "elsewhere", "dropout": 0.5, "alpha": 0.5, "edge_dropout": 0.5,
        "push_momentum": 0.5, "importance_share": 0.5, "refresh_norm": "running", "beta": 0.5, "score": "sin",
        "ib_momentum": 0.5, "gradient_quantile": 0.5, "fanout": "5", "first": "exact",
    }  # fmt: skip
    for f in fields(Config):
        now = getattr(config, f.name)
        changes = {
            f.name: another.get(f.name, not now if isinstance(now, bool) else now if isinstance(now, str) else now + 1)
        }
        if f.name == "gradient_frequency":  # which not every method knows
            changes = {"gradient_frequency": 1, "method": "lmc+rest"}
        try:
            read(numbered(run, 6), config.changed(**changes), fingerprint)
        except Unusable as refused:
            assert f.name not in FREE and f"{changes[f.name]!r}" in str(refused)
            assert "is of another run, with " in str(refused) and f"{f.name} {now!r} instead of" in str(refused)
            assert "start again without --resume" in str(refused)
        else:
            assert f.name in FREE
    assert "lr 0.02 instead of 0.05" in refusal(numbered(run, 6), data.config(lr=0.05), fingerprint)


class Narrow(GCN):
    """A custom model with narrower layers under the same settings."""

    def __init__(self, in_channels: int, hidden_channels: int, out_channels: int, num_layers: int) -> None:
        super().__init__(in_channels, 3, out_channels, num_layers)


class Renamed(HistoryGNN):
    def __init__(self, in_channels: int, hidden_channels: int, out_channels: int, num_layers: int) -> None:
        inner = GCN(in_channels, hidden_channels, out_channels, num_layers)
        super().__init__(inner.history_dims)
        self.inner = inner

    def layer(self, layer: int, ctx: Context) -> Tensor:
        return self.inner.layer(layer, ctx)


@pytest.mark.parametrize("model", [Narrow, Renamed])
def test_of_another_model(model: type[HistoryGNN], run: Path, data: Data) -> None:
    before = content(run)
    with pytest.raises(Unusable, match="does not fit the model of this run") as refused:
        data.run(data.config(), run, numbered(run, 6), model=model)
    assert str(refused.value).startswith(str(numbered(run, 6))) and "\n" not in str(refused.value)
    assert content(run) == before


TABLES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda good: b"",
    "something else": lambda good: b"something else",
    "torn header": lambda good: good[:60],
    "torn": lambda good: good[:-100],
    "longer": lambda good: good + b"\0",
    "last bit": lambda good: good[:-1] + bytes([good[-1] ^ 1]),
    "a row": lambda good: good[:3000] + bytes([good[3000] ^ 16]) + good[3001:],
    "the header": lambda good: good.replace(b'"num_nodes": 120', b'"num_nodes": 121'),
    "the step": lambda good: good.replace(b'"step": 18', b'"step": 19'),
}


@pytest.mark.parametrize(("how", "place"), [*((how, "device") for how in TABLES), ("a row", "disk"), ("empty", "disk")])
def test_damaged_tables(how: str, place: str, run: Path, data: Data, capsys: pytest.CaptureFixture[str]) -> None:
    """Damaged tables are refused by name, and nothing changes. After they are deleted, as advised, the run resumes."""
    config = data.config(epochs=7, history=place)
    if place == "disk":
        shutil.rmtree(run)
        data.run(config.changed(epochs=6), run)
    path = tables_path(newest(run))
    good = path.read_bytes()
    path.write_bytes(TABLES[how](good))
    assert path.read_bytes() != good
    before = content(run / "checkpoints") | {"metrics": (run / "metrics.jsonl").read_bytes()}
    with pytest.raises(Unusable) as refused:
        data.run(config, run, newest(run))
    message = str(refused.value)
    assert message.startswith(f"{path} ") and message.endswith("; delete it, and the tables are filled again")
    assert content(run / "checkpoints") | {"metrics": (run / "metrics.jsonl").read_bytes()} == before
    path.unlink()
    capsys.readouterr()
    data.run(config, run, newest(run))
    assert "histories were not saved and are filled by an exact pass" in capsys.readouterr().err
    assert list(losses(run)) == [1, 2, 3, 4, 5, 6, 7]


class Bomb:
    """An object that runs code when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return (Path.touch, (self.mark,))


def forge(path: Path, payload: bytes, header: bytes) -> None:
    """A file with the right format and checksum and unexpected content."""
    data = MAGIC + len(header).to_bytes(8, "little") + header + payload
    path.write_bytes(data + zlib.crc32(data).to_bytes(4, "little"))


def header_of(path: Path) -> bytes:
    data, begin = path.read_bytes(), len(MAGIC) + 8
    return data[begin : begin + int.from_bytes(data[len(MAGIC) : begin], "little")]


def test_nothing_is_run(run: Path, tmp_path: Path) -> None:
    path, mark = numbered(run, 6), tmp_path / "mark"
    header = header_of(path)
    torch.save({"trainer": Bomb(mark)}, tmp_path / "zip")
    torch.save({"trainer": Bomb(mark)}, tmp_path / "legacy", _use_new_zipfile_serialization=False)
    payloads = [(tmp_path / "zip").read_bytes(), (tmp_path / "legacy").read_bytes(), pickle.dumps(Bomb(mark), protocol=2)]
    for payload in payloads:
        forge(path, payload, header)
        message = refusal(path)
        assert "holds something else than tensors and plain values" in message and offered(message) == numbered(run, 5)
        assert not mark.exists()
    torch.load(tmp_path / "zip", weights_only=False)
    assert mark.exists()  # it would have


@pytest.mark.parametrize("header", [b"", b"{", b"[]", b"3", b"{}", b'{"config": 3, "fingerprint": ""}', b"\xff"])
def test_without_a_header(header: bytes, run: Path) -> None:
    forge(numbered(run, 6), b"", header)
    assert "does not say what run it is of" in refusal(numbered(run, 6))
