"""Checkpoints are complete: a stopped and resumed run is bitwise equal to an uninterrupted one."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from rest_triton.config import RENAMED, Config
from rest_triton.training import checkpoint
from rest_triton.training import run as session
from rest_triton.training.trainer import Trainer

from .resuming import Data, losses, newest, records, same, state_in

pytestmark = pytest.mark.usefixtures("without_pictures")


@pytest.mark.parametrize("order", ["uniform", "oldest"])
def test_everything_is_in_it(order: str, data: Data, tmp_path: Path) -> None:
    config = data.config(refresh_order=order, frequency=2, batch_size=1, batch_norm=True, epochs=3)
    first = data.run(config, tmp_path)
    state, settings = checkpoint.read(newest(tmp_path), config, data.loaded.fingerprint)
    assert Config(**settings) == config
    assert state["epoch"] == 3 and state["trainer"]["step"] == first.trainer.step == 18
    assert 0 <= state["seconds"] - first.directory.records()[-1]["seconds"] < 5
    assert state["best"] == first.best and set(state["best"]) == {"epoch", "train", "val", "test"}

    written = first.trainer.state()
    kept = ("exp_avg", "exp_avg_sq", "step")
    for slots in written["optimizer"]["state"].values():
        assert all(bool(slots[name].any()) for name in kept)  # or nothing would be compared
    iterator = written["schedule"]
    assert iterator["drawn"] >= 36 if order == "uniform" else max(iterator["written"]) == 18 > min(iterator["written"])
    assert any("running_mean" in name for name in written["model"])

    second = Trainer(config.changed(seed=1), data.loaded)  # its weights and its generator are others
    assert written["method"] == {}  # GAS has no state
    assert not any(same(written[name], value) for name, value in second.state().items() if name != "method")
    second.load(state["trainer"])
    assert same(second.state(), written)


def test_a_checkpoint_with_old_names(data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint with old names of settings is read and belongs to this run."""
    old = {new: name for name, new in RENAMED.items()}
    config = data.config(epochs=1)
    with monkeypatch.context() as before:
        before.setattr(checkpoint, "asdict", lambda c: {old.get(name, name): v for name, v in asdict(c).items()})
        data.run(config, tmp_path)
    assert b'"parts": ' in newest(tmp_path).read_bytes() and b'"batch_size"' not in newest(tmp_path).read_bytes()
    _, settings = checkpoint.read(newest(tmp_path), config, data.loaded.fingerprint)
    assert Config(**settings) == config
    with pytest.raises(checkpoint.Unusable, match="is of another run, with num_parts 6 instead of 5"):
        checkpoint.read(newest(tmp_path), config.changed(num_parts=5), data.loaded.fingerprint)


CASES = {
    "gas": dict(method="gas"),
    "uniform": dict(method="gas+rest", frequency=2),
    "oldest": dict(method="gas+rest", frequency=2, refresh_order="oldest", batch_size=1, seed=1),  # half of 6 clusters wait
    "rest-is": dict(method="gas+rest-is", frequency=2),
    "full": dict(method="full"),
    "mvs": dict(method="mvs+rest", batch_nodes=10, importance_every=4, importance_share=0.5),
    "graphfm": dict(method="graphfm+rest", push_momentum=0.5),
    "norms, dropout": dict(method="gas+rest", refresh_norm="running", history_dropout=True),
}
MODELS = {"gcn": dict(batch_norm=True, residual=True), "appnp": {}, "gcnii": {}}
PLACED = [
    ("gas", "gcn", "device"), ("uniform", "gcn", "device"), ("uniform", "appnp", "disk"), ("oldest", "gcnii", "device"),
    ("oldest", "gcn", "disk"), ("rest-is", "appnp", "device"), ("rest-is", "gcnii", "disk"), ("full", "gcn", "device"),
    ("mvs", "gcn", "device"), ("mvs", "appnp", "disk"), ("graphfm", "gcn", "device"), ("graphfm", "gcnii", "disk"),
    ("norms, dropout", "gcn", "device"), ("norms, dropout", "gcnii", "disk"),
]  # fmt: skip


@pytest.mark.parametrize(("case", "model", "place"), PLACED)
def test_six_epochs_are_three_and_three(case: str, model: str, place: str, data: Data, tmp_path: Path) -> None:
    config = data.config(model=model, history=place, **CASES[case], **MODELS[model])
    whole = data.run(config, tmp_path / "whole")
    data.run(config.changed(epochs=3), tmp_path / "halves")
    assert list(losses(tmp_path / "halves")) == [1, 2, 3]
    halves = data.run(config, tmp_path / "halves", newest(tmp_path / "halves"))
    compare(whole, halves)
    assert not (tmp_path / "whole" / "history").exists() and not (tmp_path / "halves" / "history").exists()
    assert (case == "full") == (state_in(tmp_path / "whole")["tables"] == b"")
    assert len(set(losses(tmp_path / "whole").values())) == 6


def compare(whole: session.Run, parts: session.Run) -> None:
    """Metrics of all epochs, weights, optimizer, iterators, tables and stamps are equal."""
    assert records(whole.directory.path) == records(parts.directory.path)
    assert same(state_in(whole.directory.path), state_in(parts.directory.path))
    assert same(whole.trainer.state(), parts.trainer.state())
    if whole.trainer.history.folder is None:  # else what the checkpoint holds was compared
        for a, b in zip(whole.trainer.history.tables, parts.trainer.history.tables, strict=True):
            assert same((a.rows, a.stamp), (b.rows, b.stamp))


def test_with_everything_that_keeps_count(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    data = Data.make(tmp_path / "data", edge_dropout=0.2)
    config = data.config(
        accumulate=2, clip=0.5, edge_dropout=0.2, dtype="bfloat16", eval_updates_history=True, error_every=2,
        refresh_batch="half", drop_input=True, linear=True, first="exact", reg_weight_decay=1e-3, max_steps=1,
    )  # fmt: skip
    whole = data.run(config, tmp_path / "whole")
    data.run(config.changed(epochs=4), tmp_path / "parts")
    compare(whole, data.run(config, tmp_path / "parts", newest(tmp_path / "parts")))


def stop_in(epoch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupt the run after the first batch of an epoch."""
    real = Trainer.update

    def update(trainer: Trainer, *arguments: Any) -> Any:
        if trainer.step == 3 * (epoch - 1) + 1:
            raise KeyboardInterrupt
        return real(trainer, *arguments)

    monkeypatch.setattr(Trainer, "update", update)


@pytest.mark.parametrize(
    ("epoch", "taken_up", "place"), [(1, 0, "disk"), (2, 0, "device"), (5, 4, "device"), (6, 4, "disk")]
)
def test_stopped_in_the_middle(
    epoch: int, taken_up: int, place: str, data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run resumes from the last checkpoint, or from the beginning without one, and repeats the steps since then."""
    config = data.config(checkpoint_every=2, history=place, run_dir=str(tmp_path / "parts"))
    whole = data.run(config, tmp_path / "whole")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        stop_in(epoch, patch)
        session.train(config)
    assert epoch == 1 or list(losses(tmp_path / "parts")) == list(range(1, epoch))
    start = session._last(tmp_path / "parts")
    assert (0 if start is None else checkpoint.read(start)[0]["epoch"]) == taken_up
    session.train(config, resume=tmp_path / "parts")
    assert records(tmp_path / "parts") == records(tmp_path / "whole")
    assert same(state_in(tmp_path / "parts"), state_in(whole.directory.path))


def test_seconds_add_up(data: Data, tmp_path: Path) -> None:
    data.run(data.config(epochs=2), tmp_path)
    state = checkpoint.read(newest(tmp_path))[0]
    state["seconds"] = 1000.0
    checkpoint.write(newest(tmp_path), state, data.config(epochs=2), data.loaded.fingerprint)
    summary = data.run(data.config(epochs=3), tmp_path, newest(tmp_path)).directory.summary()
    assert summary is not None and 1000 < summary["seconds"] < 1100


@pytest.mark.parametrize("place", ["device", "disk"])
@pytest.mark.parametrize("lost", [False, True], ids=["not saved", "lost"])
def test_without_tables(lost: bool, place: str, data: Data, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without saved tables an exact pass fills them, a notice is printed, and the run continues with other losses."""
    config = data.config(history=place, save_history=lost)
    data.run(config, tmp_path / "whole")
    data.run(config.changed(epochs=3), tmp_path / "parts")
    from_ = newest(tmp_path / "parts")
    if lost:
        checkpoint.tables_path(from_).unlink()
    assert not checkpoint.tables_path(from_).exists()
    capsys.readouterr()
    taken = session.Run(config, data.loaded, tmp_path / "parts", resume=from_)
    said = capsys.readouterr().err
    assert f"going on after epoch 3, step 9, from {from_}" in said
    assert "histories were not saved and are filled by an exact pass" in said and "--save-history" in said
    assert all(bool((table.stamp == 9).all()) for table in taken.trainer.history.tables)
    taken.run()
    whole, parts = losses(tmp_path / "whole"), losses(tmp_path / "parts")
    assert list(parts) == [1, 2, 3, 4, 5, 6] and torch.tensor(list(parts.values())).isfinite().all()
    assert [whole[e] == parts[e] for e in range(1, 7)] == [True] * 3 + [False] * 3


def test_saved_tables_are_said_to_be_there(data: Data, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data.run(data.config(epochs=2), tmp_path)
    data.run(data.config(epochs=3), tmp_path, newest(tmp_path))
    assert "going on after epoch 2, step 6" in (said := capsys.readouterr().err) and "as they were saved" in said
    data.run(data.config(method="full", epochs=2), tmp_path / "full")
    data.run(data.config(method="full", epochs=3), tmp_path / "full", newest(tmp_path / "full"))
    assert "going on after epoch 2, step 2" in (said := capsys.readouterr().err) and "history" not in said


def names(path: Path) -> list[str]:
    return sorted(p.name for p in (path / "checkpoints").iterdir())


def kept(*numbers: int, tables: bool = True) -> list[str]:
    return ["best.pt", *(f"epoch-{n:06}.{kind}" for n in numbers for kind in ("pt", "tables") if tables or kind == "pt")]


@pytest.mark.parametrize("saved", [True, False])
def test_the_newest_two_and_the_best_are_kept(saved: bool, data: Data, tmp_path: Path) -> None:
    leftovers = [
        tmp_path / "checkpoints" / name
        for name in (
            "epoch-000001.pt.partial-17",
            "best.pt.partial-17",
            "epoch-000009.tables.partial-17",
            "epoch-000009.tables",
        )
    ]
    leftovers[0].parent.mkdir()
    for path in leftovers:
        path.write_bytes(b"whatever")
    run = data.run(data.config(save_history=saved), tmp_path)
    assert names(tmp_path) == kept(5, 6, tables=saved)
    best = checkpoint.read(tmp_path / "checkpoints" / "best.pt")[0]
    assert best["epoch"] == best["best"]["epoch"] == run.best["epoch"]
    top = max(records(tmp_path), key=lambda record: record["val"])
    assert run.best == {name: top[name] for name in ("epoch", "train", "val", "test")}
    data.run(data.config(save_history=saved, epochs=7, checkpoint_every=3), tmp_path, newest(tmp_path))
    assert names(tmp_path) == kept(6, 7, tables=saved)


def test_a_million_epochs(tmp_path: Path) -> None:
    """The newest checkpoint has the highest number, also if the number has one digit more."""
    paths = [checkpoint.epoch_path(tmp_path, n) for n in (2, 999_999, 1_000_000, 1_000_001)]
    for path in (*reversed(paths), tmp_path / "epoch-12.pt", tmp_path / "epoch-000003.pt.partial-1", tmp_path / "best.pt"):
        path.touch()
    assert checkpoint.epochs(tmp_path) == paths
    checkpoint.remove_old(tmp_path)
    assert checkpoint.epochs(tmp_path) == paths[-2:]


def test_going_back_undoes_what_came_later(data: Data, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A resume from an earlier checkpoint removes the later ones, so that they do not replace the new ones."""
    whole = data.run(data.config(), tmp_path / "whole")
    data.run(data.config(checkpoint_every=2), tmp_path / "parts")
    assert names(tmp_path / "parts") == kept(4, 6)
    fourth = checkpoint.epochs(tmp_path / "parts" / "checkpoints")[0]
    again = session.Run(data.config(), data.loaded, tmp_path / "parts", resume=fourth)
    assert "epoch-000006.pt" in capsys.readouterr().err  # said, for they are gone
    assert names(tmp_path / "parts") == kept(4) and list(losses(tmp_path / "parts")) == [1, 2, 3, 4]
    again.run()
    compare(whole, again)


def test_beginning_anew_in_the_same_folder(data: Data, tmp_path: Path) -> None:
    whole = data.run(data.config(epochs=3), tmp_path / "whole")
    data.run(data.config(), tmp_path / "again")
    compare(whole, data.run(data.config(epochs=3), tmp_path / "again"))
    assert names(tmp_path / "again") == kept(2, 3)


def test_the_best_is_what_best_pt_holds(data: Data, tmp_path: Path) -> None:
    """best.pt stays the best, also if its epoch is computed again with another score, as happens without tables."""
    config = data.config(save_history=False)
    data.run(config, tmp_path)
    good = tmp_path / "checkpoints" / "best.pt"
    state = checkpoint.read(good)[0]
    state["best"] |= {"epoch": 6, "val": 2.0}  # nothing is as good
    checkpoint.write(good, state, config, data.loaded.fingerprint)
    fifth = checkpoint.epochs(tmp_path / "checkpoints")[0]
    again = data.run(config, tmp_path, fifth)
    assert again.best == state["best"] and checkpoint.read(good)[0]["best"] == again.best
    summary = again.directory.summary()
    assert summary is not None and (summary["best_epoch"], summary["best_val"]) == (6, 2.0)


def test_tables_move(data: Data, tmp_path: Path) -> None:
    """The place of the tables may change in a resumed run."""
    whole = data.run(data.config(), tmp_path / "whole")
    for before, after in (("device", "disk"), ("disk", "device")):
        folder = tmp_path / after
        data.run(data.config(history=before, epochs=3), folder)
        parts = data.run(data.config(history=after), folder, newest(folder))
        assert records(folder) == records(tmp_path / "whole") and same(parts.trainer.state(), whole.trainer.state())


def test_several_seeds(data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = data.config(epochs=3, runs=2, run_dir=str(tmp_path / "runs"))
    monkeypatch.setattr(session, "write_summary", lambda path, folders: None)
    session.train(config)
    whole = [records(tmp_path / "runs" / f"seed-{seed}") for seed in (0, 1)]
    assert whole[0] != whole[1]
    for folder in (tmp_path / "runs" / "seed-1", tmp_path / "runs" / "seed-0"):
        (folder / "summary.json").unlink()
        (folder / "checkpoints" / "epoch-000003.pt").unlink()
        session.train(config, resume=tmp_path / "runs")
        assert [records(tmp_path / "runs" / f"seed-{seed}") for seed in (0, 1)] == whole
