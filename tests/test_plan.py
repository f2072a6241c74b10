"""The plan of memory: against what a run takes, and against its own arithmetic."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rest_triton import plan as planning
from rest_triton.config import Config
from rest_triton.plan import bytes_of, main, plan, refuse_if_too_large, smallest_change
from rest_triton.sizes import Sizes, sizes_of

from .settings import Settings

MIB = 1 << 20
WITHIN = 0.15  # of the measured peak
SMALL = Sizes(nodes=1000, edges=8000, features=30, classes=7, name="small")
LARGE = Sizes(nodes=1_000_000, edges=20_000_000, features=100, classes=40, name="large")

# A whole run, in the order in which a trainer should do it: the graph in its old order is let go of as soon as there is the
# new one, and that one's edges as soon as there is the adjacency. Evaluation comes after steps: the heap is as it then is.
RUN = """
import sys
import torch
from rest_triton.batches import ClusterBatches
from rest_triton.datasets import load
from rest_triton.engine import Engine
from rest_triton.history import HistoryStore
from rest_triton.partition import partition
from rest_triton.models import MODELS
from rest_triton.scene import Scene

dataset, root, model, hidden = sys.argv[1:]
graph = load(dataset, root)
clusters = partition(graph, 40, method="random")
graph = clusters.apply(graph)
adj = graph.adjacency()
x, y, train = graph.x, graph.y, graph.train_mask
model = MODELS[model](graph.num_features, int(hidden), graph.num_classes, num_layers=3, dropout=0.5)
del graph
engine = Engine(Scene(adj, x, HistoryStore(adj.num_nodes, model.widths)), model)
engine.fill()
optimizer = torch.optim.Adam(model.parameters())
for number, batch in enumerate(ClusterBatches(clusters.ptr, 5, seed=1).epoch(0)[:3], 1):
    mask, label = batch.take(train), batch.take(y)
    engine.step(batch, number, lambda out: torch.nn.functional.cross_entropy(out[mask], label[mask]), optimizer)
engine.exact()
print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])
"""


def start(dataset: str, root: Path | str, hidden: int, **environment: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", RUN, dataset, str(root), "gcn", str(hidden)]
    return subprocess.Popen(command, env=os.environ | environment, stdout=subprocess.PIPE, text=True)


def peak_of(run: "subprocess.Popen[str]") -> int:
    """Bytes at the peak of a run in a process of its own."""
    printed = run.communicate()[0]
    assert run.returncode == 0
    return int(printed) * 1024


TINY = "synthetic:nodes=2000,edges=20000,features=16,classes=5"
HIDDEN = {"synthetic:products@0.05": 256, "synthetic:products@0.1": 256, TINY: 16}


@pytest.fixture(scope="module")
def peaks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """All runs beside each other, each on one thread, for theirs would wait for each other."""
    root = tmp_path_factory.mktemp("root")
    runs = {dataset: start(dataset, root, hidden, OMP_NUM_THREADS="1") for dataset, hidden in HIDDEN.items()}
    return {dataset: peak_of(run) for dataset, run in runs.items()}


def assert_planned(took: int, planned: int) -> None:
    assert abs(planned - took) < WITHIN * took, f"planned {planned / MIB:.0f} MiB, took {took / MIB:.0f}"


@pytest.mark.parametrize("dataset", HIDDEN)
def test_host_memory_as_measured(dataset: str, peaks: dict[str, int], tmp_path: Path) -> None:
    assert_planned(
        peaks[dataset], plan(sizes_of(dataset, tmp_path), Settings(hidden_channels=HIDDEN[dataset])).total("host")
    )


def test_process_as_measured(peaks: dict[str, int]) -> None:
    """A run with next to no tensors takes what the process takes."""
    assert_planned(peaks[TINY], planning.PROCESS)


if ROOT := os.environ.get("REST_TRITON_ROOT"):  # 20 GB and minutes: only where a folder for the graph is named

    @pytest.mark.large
    def test_host_memory_of_products() -> None:
        took = peak_of(start("synthetic:products", ROOT, 256))
        assert_planned(took, plan(sizes_of("synthetic:products", ROOT), Settings()).total("host"))


def nbytes(made: planning.Plan, name: str, when: str = "held") -> dict[str, int]:
    return {item.tier: item.nbytes for item in made.items if item.name == name and item.when == when}


def test_items_by_hand() -> None:
    made = plan(SMALL, Settings(hidden_channels=16))
    n, e = 1000, 8000
    assert nbytes(made, "graph") == {"host": 8 * (n + 1) + 4 * (e + n) + 4 * n}
    assert nbytes(made, "features") == nbytes(made, "aggregated features") == {"host": 4 * n * 30}
    assert nbytes(made, "history tables") == {"host": 2 * 4 * n * 16} and nbytes(made, "stamps") == {"host": 2 * 4 * n}
    assert nbytes(made, "labels") == {"host": 8 * n + 3 * n + 8 * n}
    assert nbytes(made, "weights") == {"host": 16 * (30 * 16 + 16 + 16 * 16 + 16 + 16 * 7 + 7)}
    assert nbytes(made, "prepared graph") == {"disk": 8 * (n + 1) + 4 * e + 4 * n * 30 + 11 * n}
    assert nbytes(plan(replace(SMALL, prepared=True), Settings()), "prepared graph") == {}
    directed = plan(replace(SMALL, directed=True), Settings(hidden_channels=16))
    assert nbytes(directed, "graph")["host"] - nbytes(made, "graph")["host"] == 8 * (n + 1) + 8 * (e + n)
    several = plan(replace(SMALL, multilabel=True), Settings(hidden_channels=16))
    assert nbytes(several, "labels") == {"host": (7 + 3 + 8) * n}
    sparse = plan(replace(SMALL, feature_nnz=500), Settings(hidden_channels=16))
    assert nbytes(sparse, "prepared graph") == {"disk": 8 * (n + 1) + 4 * e + 8 * (500 + n + 1) + 11 * n}
    assert nbytes(sparse, "features") == nbytes(made, "features")
    half = plan(replace(SMALL, feature_bytes=2), Settings(hidden_channels=16))
    assert nbytes(half, "features") == {"host": 2 * n * 30} and nbytes(half, "aggregated features") == {"host": 4 * n * 30}
    assert nbytes(plan(SMALL, Settings("appnp", 16, 4)), "history tables") == {"host": 4 * 4 * n * 7}
    assert nbytes(plan(SMALL, Settings("appnp", 16, 4)), "aggregated features") == {}


def test_tiers() -> None:
    tables = 2 * 2 * LARGE.nodes * 128
    settings = Settings(hidden_channels=128, dtype="bfloat16", device="cuda")
    device, pinned, disk = (plan(LARGE, replace(settings, history=place)) for place in ("device", "pinned", "disk"))
    assert nbytes(device, "history tables") == {"GPU": tables} and nbytes(disk, "history tables") == {"disk": tables}
    assert nbytes(pinned, "history tables") == {"host": 2 * 2**28}  # 2.44e8 bytes: torch takes the next power of two
    assert nbytes(device, "stamps") == nbytes(pinned, "stamps") == {"GPU": 8 * LARGE.nodes}
    assert nbytes(disk, "stamps") == {"disk": 8 * LARGE.nodes}
    assert nbytes(disk, "rows to be written", "exact") == {"host": tables}
    assert nbytes(device, "rows to be written", "exact") == nbytes(pinned, "rows to be written", "exact") == {}
    for made in (device, pinned, disk):
        for name in ("graph", "features", "aggregated features", "weights", "CUDA context"):
            assert nbytes(made, name).keys() == {"GPU"}
        assert nbytes(made, "small blocks") == {}
    on_cpu = plan(LARGE, Settings(hidden_channels=128, history="pinned", dtype="bfloat16"))
    assert nbytes(on_cpu, "history tables") == {"host": tables} and "GPU" not in on_cpu.totals


def test_total_is_the_larger_moment() -> None:
    def made(**size: int) -> int:
        items = tuple(planning.Item(when, "host", nbytes, "", when) for when, nbytes in size.items())
        return planning.Plan(SMALL, Settings(), items).total("host")

    assert made(held=10, exact=5, step=7, prepare=3, before=99) == 17
    assert made(held=10, exact=8, step=7, prepare=3) == 18
    assert made(held=10, exact=5, step=7, prepare=30) == 30


def test_table_for_people() -> None:
    need = plan(LARGE, Settings()).totals
    text = str(plan(LARGE, Settings(), {"host": need["host"], "disk": need["disk"] - 1}))
    lines = text.splitlines()
    assert lines[0].startswith("large: 1,000,000 nodes, 20,000,000 edges (undirected), 100 features, 40 classes")
    assert "5 of 40 clusters: 125,000 nodes, with perhaps" in text
    rows = [line for line in lines if line.startswith("    ")]
    assert len({line.index(" host ") for line in rows if " host " in line}) == 1  # one column
    assert lines[-2].endswith("available: fits") and lines[-1].endswith("available: does not fit")
    assert "not known" in str(plan(LARGE, Settings()))


def limits(sizes: Sizes, *allowed: Settings) -> dict[Any, int]:
    """Just enough for all of these."""
    totals = [plan(sizes, settings).totals for settings in allowed]
    return {tier: max(total.get(tier, 0) for total in totals) for tier in ("GPU", "host", "disk")}


BASE = Settings(hidden_channels=128)
DEEP = Settings("gcnii", 128, 16, dtype="bfloat16")
GPU = Settings(hidden_channels=128, device="cuda", parts=4, per_batch=4)
NARROW = Settings("gcnii", 16, 8, device="cuda", parts=1, per_batch=1)


@pytest.mark.parametrize(
    ("settings", "change", "flags"),
    [
        (BASE, {"dtype": "bfloat16"}, "--dtype bfloat16"),
        (DEEP, {"history": "disk"}, "--history disk"),
        (replace(BASE, history="disk", dtype="bfloat16"), {"hidden_channels": 64}, "--hidden-channels 64"),
        (replace(BASE, history="disk", dtype="bfloat16"), {"hidden_channels": 32}, "--hidden-channels 32"),
        (replace(GPU, dtype="float16"), {"history": "pinned"}, "--history pinned"),
        (replace(GPU, model="gcnii", num_layers=8), {"per_batch": 2}, "--per-batch 2"),
        (replace(DEEP, parts=4, per_batch=1), {"parts": 8, "per_batch": 1}, "--parts 8 --per-batch 1"),
        (NARROW, {"dtype": "bfloat16", "parts": 2, "per_batch": 1}, "--dtype bfloat16 --parts 2 --per-batch 1"),
    ],
)
def test_smallest_change(settings: Config, change: dict[str, Any], flags: str) -> None:
    have = limits(LARGE, replace(settings, **change))
    assert plan(LARGE, settings, have).too_large
    assert smallest_change(LARGE, settings, have) == flags
    assert not plan(LARGE, replace(settings, **change), have).too_large


def test_no_change_helps() -> None:
    have: dict[Any, int] = {"GPU": 100 * MIB, "host": 1 << 50, "disk": 1 << 50}
    assert smallest_change(LARGE, NARROW, have) is None
    with pytest.raises(MemoryError, match=r"GiB of GPU memory \(100.0 MiB available\); no change of one or two settings"):
        refuse_if_too_large(LARGE, NARROW, have)


def test_refusal() -> None:
    have = limits(LARGE, replace(BASE, dtype="bfloat16"))
    with pytest.raises(
        MemoryError, match=r"large with gcn needs .* GiB of host memory \(.* available\); it fits with --dtype bfloat16"
    ):
        refuse_if_too_large(LARGE, BASE, have)
    assert refuse_if_too_large(LARGE, replace(BASE, dtype="bfloat16"), have).limits == have
    assert refuse_if_too_large(SMALL, Settings(hidden_channels=16)).limits.keys() == {
        "host",
        "disk",
    }  # what this machine has


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"device": "tpu"}, "device is 'tpu'"),
        ({"hidden_channels": 0}, "hidden_channels is 0; it must be at least 1"),
        ({"per_batch": 41}, "per_batch is 41; there are 40 clusters"),
    ],
)
def test_settings_are_checked(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Settings(**wrong)


@pytest.mark.parametrize(
    ("text", "size"), [("40GiB", 40 << 30), ("1.5 gib", 3 << 29), ("2GB", 2 * 10**9), ("512", 512), ("1TiB", 1 << 40)]
)
def test_bytes_of(text: str, size: int) -> None:
    assert bytes_of(text) == size


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = [
        "--recipe",
        "none",
        "--hidden-channels",
        "16",
        "--per-batch",
        "1",
        "--root",
        str(tmp_path / "nothing"),
    ]  # to be changed
    main(["--dataset", "papers100m", "--model", "gcn", "--device", "cpu", *few])
    printed = capsys.readouterr().out
    assert printed.startswith("papers100m: 111,059,956 nodes") and "history tables       host     13.2 GiB" in printed
    arxiv = ["--dataset", "synthetic:arxiv", "--device", "cuda", *few]
    main([*arxiv, "--gpu-memory", "200MiB"])
    printed = capsys.readouterr().out
    assert "200.0 MiB available: does not fit" in printed and "\n\nsynthetic:arxiv with gcn needs " in printed
    main([*arxiv, "--gpu-memory", "80GiB"])
    assert "80.0 GiB available: fits" in capsys.readouterr().out
    for wrong in (["--dataset", "product"], ["--dataset", "arxiv", "--parts", "0"], ["--dataset", str(tmp_path / "a.npz")]):
        with pytest.raises(SystemExit) as exit:
            main(wrong)
        assert exit.value.code == 1 and capsys.readouterr().err.count("\n") == 1
    with pytest.raises(SystemExit):
        main(["--dataset", "arxiv", "--gpu-memory", "much"])
    assert "'much' is not a size; write it as 40GiB" in capsys.readouterr().err
