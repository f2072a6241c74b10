"""Settings that fit budgets, and what is in the way of others."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rest_triton.config import Config
from rest_triton.data.sizes import sizes_of
from rest_triton.plan import main
from rest_triton.training.advice import in_the_way, refusal, refuse_if_too_large, suggestions
from rest_triton.training.plan import plan
from rest_triton.utils.errors import UserError

from ..settings import Settings
from .test_budget import BASE, GIB, LARGE, ON_GPU, PLENTY


@pytest.mark.parametrize(
    "settings", [BASE, ON_GPU, BASE.changed(method="mvs"), Settings("gcnii", 128, 8, method="gas+rest")]
)
def test_suggestions_fit(settings: Config) -> None:
    """As flags they give what was planned. They are in order, none beats another, and none changes the model."""
    tier: Any = "GPU" if settings.device == "cuda" else "host"
    device = settings.changed(history="device", features="device")
    limits = PLENTY | {tier: plan(LARGE, device).total(tier) * 2 // 3}
    found = suggestions(plan(LARGE, device, limits))
    assert 2 <= len(found) <= 5
    assert any(one.same for one in found)
    for one in found:
        tried = plan(LARGE, device.changed(**one.change), limits)
        assert not tried.too_large and tried.arrays == one.plan.arrays and tried.moved == one.plan.moved
        assert set(one.change) <= {
            "history", "features", "dtype", "feature_dtype", "first", "num_parts", "batch_size", "batch_nodes",
        }  # fmt: skip
        less = [o for o in found if o is not one and all(a <= b for a, b in zip(o.steps, one.steps, strict=True))]
        assert not [other for other in less if other.cost <= one.cost]  # it changes less, and moves no more
    costs = [one.cost for one in found[:-1]]
    assert costs == sorted(costs)


def test_a_batch_is_no_smaller_than_it_must_be() -> None:
    given = BASE.changed(history="device", features="device", first="cached")
    for change in ({"batch_size": 2}, {"num_parts": 80, "batch_size": 1}):
        limits = PLENTY | {"host": plan(LARGE, given.changed(**change)).total("host")}
        assert change in [one.change for one in suggestions(plan(LARGE, given, limits))]
        limits["host"] -= 1
        assert change not in [one.change for one in suggestions(plan(LARGE, given, limits))]


def test_what_is_in_the_way() -> None:
    def said(settings: Config, tier: Any, share: float) -> str:
        limits = PLENTY | {tier: round(share * plan(LARGE, settings).total(tier))}
        return in_the_way(plan(LARGE, settings, limits))

    held = BASE.changed(history="device", features="device")
    assert said(held, "host", 0.9) == "history tables: 976.6 MiB, which --history disk moves"
    wide = held.changed(device="cuda", batch_size=20)
    assert said(wide, "GPU", 0.9) == "activations: 1.6 GiB, which a smaller --batch-size makes smaller"
    one = wide.changed(num_parts=2, batch_size=1)
    assert said(one, "GPU", 0.9) == "activations: 1.6 GiB, which more --num-parts make smaller"
    nodes = one.changed(method="mvs", batch_nodes=300_000)
    assert said(nodes, "GPU", 0.9).endswith(" GiB, which a smaller --batch-nodes makes smaller")
    deep = held.changed(device="cuda", num_layers=6)
    assert said(deep, "GPU", 0.9) == "history tables: 2.4 GiB, which --history pinned moves"
    wide = replace(LARGE, features=3000)
    need = plan(wide, held.changed(device="cuda", features="pinned")).total("host")
    pinned = plan(wide, held.changed(device="cuda", features="pinned"), PLENTY | {"host": need - 1})
    assert in_the_way(pinned) == "features: 16.0 GiB, which --features disk moves"
    on_disk = held.changed(history="disk")
    assert said(on_disk, "disk", 0.9) == "history tables: 976.6 MiB, which a narrower --dtype makes smaller"
    assert said(on_disk.changed(dtype="bfloat16", num_layers=9), "disk", 0.9).endswith("which no setting makes smaller")
    tableless = held.changed(device="cuda", method="cluster")
    assert said(tableless, "GPU", 0.55) == "scratch tables: 976.6 MiB of the 1.8 GiB of GPU memory that no setting moves"
    dense = replace(LARGE, edges=10**9)
    limits = PLENTY | {"GPU": 2 * GIB}
    no_room = plan(dense, ON_GPU.changed(method="gas+rest"), limits)
    assert in_the_way(no_room).startswith("graph: 3.7 GiB of the ")
    assert " of GPU memory that no setting moves" in in_the_way(no_room)
    way_out = suggestions(no_room)
    assert way_out and all(one.change["device"] == "cpu" for one in way_out)  # there all of it is in host memory
    assert "it fits with --device cpu" in refusal(no_room)


def test_nothing_fits() -> None:
    with pytest.raises(UserError) as refused:
        refuse_if_too_large(LARGE, BASE, {"host": 100, "disk": 1 << 50})
    said = str(refused.value)
    assert (
        said.startswith("large with gcn needs ")
        and " of host memory (100 bytes available); process: 530.0 MiB of the " in said
    )
    assert said.endswith("; no setting that keeps the model makes it fit; give a larger --memory-budget")


def test_papers100m() -> None:
    """48 GiB of host memory and a GPU of 14 GiB: the graph alone takes nearly all of it, and the plan says so.

    With 24 GiB, and with 48 GiB and no GPU, there are settings that fit.
    """
    sizes, given = sizes_of("papers100m", "nowhere"), Config(dataset="papers100m", device="cuda")
    small = plan(sizes, given, {"host": 48 * GIB, "GPU": 14 * GIB, "disk": 1 << 40})
    assert "graph: 13.7 GiB of the " in in_the_way(small)
    assert "it fits with --device cpu --features disk --history disk" in refusal(small)
    larger = suggestions(plan(sizes, given, {"host": 48 * GIB, "GPU": 24 * GIB, "disk": 1 << 40}))
    assert larger and all("device" not in one.change and one.plan.total("GPU") <= 24 * GIB for one in larger)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = [
        "--dataset",
        "synthetic:nodes=200000,edges=400000,features=64,classes=8",
        "--recipe",
        "none",
        "--root",
        str(tmp_path),
    ]
    main([*few, "--device-budget", "800MiB", "--memory-budget", "900GiB", "--hidden-channels", "64"])
    printed = capsys.readouterr().out
    assert (
        "; gas; on cuda\n" in printed and "900.0 GiB available: fits" in printed and "800.0 MiB available: fits" in printed
    )
    assert "settings that fit" not in printed
    main([*few, "--device-budget", "800MiB", "--hidden-channels", "64", "--search"])
    assert "\nsettings that fit, by bytes that a step moves" in capsys.readouterr().out
    main([*few, "--device-budget", "560MiB", "--hidden-channels", "64"])
    printed = capsys.readouterr().out
    assert "\nsettings that fit, by bytes" in printed and "560.0 MiB available: does not fit" in printed
    with pytest.raises(SystemExit, match="2"):
        main([*few, "--gpu-memory", "1GiB"])
    assert capsys.readouterr().err == "--gpu-memory is --device-budget now\n"
