"""Budgets, and the places of tables and features that they choose."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rest_triton import train as command_line
from rest_triton.config import Config
from rest_triton.data.sizes import Sizes, sizes_of
from rest_triton.training import plan as planning
from rest_triton.training.advice import refuse_if_too_large
from rest_triton.training.memory import Run
from rest_triton.training.plan import limits_here, plan
from rest_triton.utils.errors import UserError
from rest_triton.utils.machine import bytes_of

from ..settings import Settings
from .commands import FEW, metrics
from .commands import refusal as said_by

LARGE = Sizes(nodes=1_000_000, edges=20_000_000, features=100, classes=40, name="large", prepared=True)
BASE = Settings(hidden_channels=128)
ON_GPU = BASE.changed(device="cuda")
PLENTY: Any = {"GPU": 1 << 50, "host": 1 << 50, "disk": 1 << 50}
GIB = 1 << 30


@pytest.mark.parametrize(
    ("text", "size"),
    [("48GiB", 48 << 30), ("500MB", 500 * 10**6), ("1.5 gib", 3 << 29), ("2TB", 2 * 10**12), ("7kib", 7168), ("512", 512)],
)  # fmt: skip
def test_sizes(text: str, size: int) -> None:
    assert bytes_of(text) == size


@pytest.mark.parametrize("text", ["", "48G", "GiB", "-1GiB", "0", "0.1", "1e9", "48GiB 2", "a lot", "inf"])
def test_what_is_no_size(text: str) -> None:
    for name in ("memory_budget", "device_budget"):
        with pytest.raises(UserError, match=f"^{name} is '{text}'; it must be a size, such as 48GiB, 500MB or a number of"):
            Config(dataset="cora", **{name: text})


def places(sizes: Sizes, settings: Config, limits: Any) -> tuple[str, str]:
    chosen = plan(sizes, settings, limits).settings
    return chosen.history, chosen.features


def test_what_fits_stays_beside_the_model() -> None:
    """Also to the last byte, and where nothing is known of the memory."""
    for settings in (BASE, ON_GPU):
        wanted = plan(LARGE, settings.changed(history="device", features="device"))
        assert places(LARGE, settings, wanted.totals) == places(LARGE, settings, PLENTY) == ("device", "device")
        assert plan(LARGE, settings, {}).arrays == plan(LARGE, settings, wanted.totals).arrays == wanted.arrays


@pytest.mark.parametrize("settings", [BASE, ON_GPU, BASE.changed(method="gas+rest"), Settings("gcnii", 64, 4)])
def test_one_byte_too_few(settings: Config) -> None:
    """Each step down: the budget holds the chosen places exactly. With a byte less, others are chosen, which move more."""
    tier = "GPU" if settings.device == "cuda" else "host"
    limits, seen, moved = dict(PLENTY), list[tuple[str, str]](), (-1, -1)
    while True:
        chosen = plan(LARGE, settings, limits)
        if chosen.too_large:
            break
        seen.append((chosen.settings.history, chosen.settings.features))
        assert chosen.moved > moved and chosen.total(tier) <= limits[tier]
        limits[tier], moved = chosen.total(tier), chosen.moved
        assert places(LARGE, settings, limits) == seen[-1]
        limits[tier] -= 1
    assert seen[0] == ("device", "device") and len(seen) == len(set(seen)) >= 2
    with pytest.raises(UserError, match=r"^large with "):
        refuse_if_too_large(LARGE, settings, limits)
    refuse_if_too_large(LARGE, settings, limits | {tier: limits[tier] + 1})


def test_the_host_takes_what_a_gpu_cannot() -> None:
    """The disk only what the host cannot."""
    limits = PLENTY | {"GPU": plan(LARGE, ON_GPU, PLENTY).total("GPU") - 1}
    assert set(places(LARGE, ON_GPU, limits)) == {"device", "pinned"}
    limits["host"] = plan(LARGE, ON_GPU, limits).total("host") - 1
    assert "disk" in places(LARGE, ON_GPU, limits) or set(places(LARGE, ON_GPU, limits)) == {"device", "pinned"}
    limits["host"] = plan(LARGE, ON_GPU).total("host")
    assert "disk" in places(LARGE, ON_GPU, limits) and "pinned" not in places(LARGE, ON_GPU, limits)


def test_the_place_that_moves_less() -> None:
    """Narrow tables move less than wide features, and wide ones more. The budget has room for either to stay."""
    for hidden, wanted in ((8, ("disk", "device")), (128, ("device", "disk"))):
        settings = Settings(hidden_channels=hidden)
        given = [settings.changed(history=h, features=f) for h, f in (("disk", "device"), ("device", "disk"))]
        limits = PLENTY | {"host": max(plan(LARGE, one).total("host") for one in given)}
        limits["host"] = min(limits["host"], plan(LARGE, settings).total("host") - 1)
        assert all(not plan(LARGE, one, limits).too_large for one in given)
        assert places(LARGE, settings, limits) == wanted


def test_given_places_are_kept() -> None:
    nothing: Any = {"host": GIB, "disk": 1 << 50}
    assert places(LARGE, BASE.changed(history="device", features="disk"), nothing) == ("device", "disk")
    assert places(LARGE, BASE.changed(features="device"), nothing) == ("disk", "device")
    assert places(LARGE, BASE.changed(history="disk", features="disk"), PLENTY) == ("disk", "disk")


def test_without_a_choice() -> None:
    """Methods without tables, and features that have one place."""
    few: Any = {"host": GIB, "disk": 1 << 50}
    assert places(LARGE, BASE.changed(method="sage"), few)[0] == "device"
    assert places(LARGE, BASE.changed(num_layers=2, first="exact"), few)[0] == "device"
    assert places(LARGE, BASE.changed(method="sgc"), few) == ("device", "device")
    assert places(LARGE, ON_GPU.changed(method="sgc"), few | {"GPU": GIB}) == ("device", "device")
    sparse = replace(LARGE, features=1600, feature_nnz=10 * LARGE.nodes)
    assert places(sparse, BASE, few) == ("disk", "device")


def test_the_default_budget_leaves_a_margin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(planning, "available_memory", lambda: 100 * GIB)
    assert limits_here(BASE, tmp_path)["host"] == 85 * GIB
    small, large = BASE.changed(memory_budget="48GiB"), BASE.changed(memory_budget="300GiB", device_budget="14GiB")
    assert limits_here(small, tmp_path)["host"] == limits_here(small, tmp_path, elsewhere=True)["host"] == 48 * GIB
    assert limits_here(large, tmp_path)["host"] == 100 * GIB  # no budget makes a machine larger
    elsewhere = limits_here(large, tmp_path, elsewhere=True)
    assert (elsewhere["host"], elsewhere["GPU"]) == (300 * GIB, 14 * GIB)


def test_rows_that_a_step_moves() -> None:
    """By hand: tables are read for the halo and written for the batch, features are read for the batch."""
    far = BASE.changed(history="disk", features="disk", feature_dtype="float16")
    run = Run(LARGE, far)
    rows, halo, moved = run.rows, run.halo, lambda s: {a.name: a.moved for a in plan(LARGE, s).arrays if a.moved}
    assert moved(far) == {"history tables": 2 * 128 * 4 * (rows + halo), "aggregated features": 200 * rows}
    assert moved(BASE) == moved(ON_GPU) == {} and moved(far.changed(history="device", features="device")) == {}
    narrow = far.changed(dtype="bfloat16", first="exact")
    assert moved(narrow) == {"history tables": 128 * 2 * (rows + halo), "aggregated features": 200 * (rows + halo)}
    refreshed = far.changed(method="gas+rest", frequency=2)
    tables = 1024 * (3 * rows + 2 * halo)  # refreshes do not read the last one
    assert moved(refreshed) == {"history tables": tables, "aggregated features": 3 * 200 * rows}
    encodes = Settings("gcnii", 64, 4, features="pinned", device="cuda")
    assert moved(encodes) == {"features": 400 * rows} and plan(LARGE, encodes).moved == (0, 400 * rows)
    attends = Settings("gat", 64, 3, features="disk")
    assert moved(attends) == {"features": 400 * (rows + halo)} and plan(LARGE, attends).moved == (400 * (rows + halo), 0)
    both = plan(LARGE, far).moved
    assert both == (sum(moved(far).values()), 0)
    table = str(plan(LARGE, far))
    assert "    array                tier        bytes  moved per step\n" in table
    assert "    history tables       disk    976.6 MiB       458.3 MiB  2 of widths 128, float32\n" in table


def test_a_budget_too_small_for_a_batch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused before a file is written, also of data."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command_line, "keep_freed_memory", lambda: True)
    name = "synthetic:nodes=100000,edges=1000000,features=32,classes=8"
    arguments = ["--dataset", name, "--recipe", "none", "--device", "cpu", "--batch-size", "20"]
    arguments += ["--memory-budget", "1100MiB"]
    said = said_by(command_line.main, arguments, capsys)
    assert said.startswith(f"{name} with gcn needs ") and "of host memory (1.1 GiB available); activations: " in said
    assert "makes smaller; it fits with " in said
    said = said_by(command_line.main, [*arguments[:-1], "540MiB"], capsys)
    assert "process: 530.0 MiB of the " in said and said.endswith("give a larger --memory-budget")
    assert list(tmp_path.iterdir()) == []


def test_a_run_keeps_its_places(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """They are in its settings. Losses are those of a run beside the model, and a resumed run has the same places."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command_line, "keep_freed_memory", lambda: True)
    name = "synthetic:nodes=100000,edges=100000,features=32,classes=4"
    common = ["--dataset", name, *FEW[:-1], "8", "--partition", "random", "--device", "cpu", "--save-history"]

    def settings(folder: str) -> tuple[str, str, str]:
        stored = Config.of(f"{folder}/config.yaml")
        return stored.history, stored.features, stored.memory_budget

    command_line.main([*common, "--epochs", "2", "--run-dir", "near"])
    assert "places by the budgets" not in capsys.readouterr().out
    assert settings("near") == ("device", "device", "free")
    far = Config.of("near/config.yaml", history="disk", features="disk")
    budget = str(plan(sizes_of(name, "data"), far).total("host"))
    command_line.main([*common, "--epochs", "2", "--run-dir", "far", "--memory-budget", budget])
    assert "places by the budgets: --history disk, --features disk\n" in capsys.readouterr().out
    assert settings("far") == ("disk", "disk", budget)
    assert "moved per step" in Path("far/plan.txt").read_text()
    losses = [[record["loss"] for record in metrics(Path(folder))] for folder in ("near", "far")]
    assert losses[0] == losses[1]

    command_line.main(["--resume", "far", "--epochs", "3", "--memory-budget", "free"])
    assert settings("far") == ("disk", "disk", "free")  # now they are given
    capsys.readouterr()
    said = said_by(command_line.main, ["--resume", "near", "--epochs", "3", "--memory-budget", budget], capsys)
    assert said.endswith("; it fits with --features disk --history disk")
    command_line.main(["--resume", "near", "--epochs", "3", "--memory-budget", budget, *said.split()[-4:]])
    assert settings("near") == ("disk", "disk", budget)
    losses = [[record["loss"] for record in metrics(Path(folder))] for folder in ("near", "far")]
    assert losses[0] == losses[1] and len(losses[0]) == 3
