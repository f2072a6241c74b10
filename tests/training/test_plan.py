"""The plan of memory: against what a run takes, and against its own arithmetic."""

import os
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rest_triton import plan as planning
from rest_triton.config import Config
from rest_triton.data.sizes import Sizes, sizes_of
from rest_triton.nn.inference import PIECE
from rest_triton.plan import bytes_of, limits_here, main, plan, refuse_if_too_large, smallest_change

from ..settings import Settings

MIB = 1 << 20
WITHIN = 0.15  # of the measured peak
SMALL = Sizes(nodes=1000, edges=8000, features=30, classes=7, name="small")
LARGE = Sizes(nodes=1_000_000, edges=20_000_000, features=100, classes=40, name="large")

# A whole run, in the order in which a trainer should do it: the graph in its old order is let go of as soon as there is the
# new one, and that one's edges as soon as there is the adjacency. Evaluation comes after steps: the heap is as it then is.
RUN = """
import sys
import torch
from rest_triton.sampling.batch import ClusterLoader
from rest_triton.data.datasets import load
from rest_triton.methods.engine import Engine
from rest_triton.history.history import History
from rest_triton.data.partition import partition
from rest_triton.nn import MODELS
from rest_triton.nn.scene import Scene

dataset, root, model, hidden = sys.argv[1:]
graph = load(dataset, root)
clusters = partition(graph, 40, method="random")
graph = clusters.apply(graph)
adj = graph.adjacency()
x, y, train = graph.x, graph.y, graph.train_mask
model = MODELS[model](graph.num_features, int(hidden), graph.num_classes, num_layers=3, dropout=0.5)
del graph
engine = Engine(Scene(adj, x, History(adj.num_nodes, model.widths)), model)
engine.fill()
optimizer = torch.optim.Adam(model.parameters())
for number, batch in enumerate(ClusterLoader(clusters.ptr, 5, seed=1).epoch(0)[:3], 1):
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
    settings = Settings(hidden_channels=HIDDEN[dataset], dropout=0.5)
    assert_planned(peaks[dataset], plan(sizes_of(dataset, tmp_path), settings).total("host"))


def test_process_as_measured(peaks: dict[str, int]) -> None:
    """A run with next to no tensors takes what the process takes."""
    assert_planned(peaks[TINY], planning.PROCESS)


if ROOT := os.environ.get("REST_TRITON_ROOT"):  # 20 GB and minutes: only where a folder for the graph is named

    @pytest.mark.large
    def test_host_memory_of_products() -> None:
        took = peak_of(start("synthetic:products", ROOT, 256))
        assert_planned(took, plan(sizes_of("synthetic:products", ROOT), Settings(dropout=0.5)).total("host"))


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
    # Position maps of nobody and of a batch; a GCN whose last layer narrows has another one, with the halo in it.
    assert nbytes(plan(SMALL, Settings("appnp", 16, 4)), "position maps") == {"host": 2 * 4 * n}
    assert nbytes(made, "position maps") == {"host": 3 * 4 * n}
    # Of an epoch's batches; those of refreshes have an iterator of their own, unless everyone is refreshed.
    assert nbytes(made, "ids of batches") == {"host": 8 * n}
    rest, everyone = (Settings(hidden_channels=16, method="gas+rest", refresh_batch=count) for count in ("half", "full"))
    assert nbytes(plan(SMALL, rest), "ids of batches") == {"host": 2 * 8 * n}
    assert nbytes(plan(SMALL, everyone), "ids of batches") == {"host": 8 * n}
    # Edges that are dropped have to know their mirror: the same as a reverse of a directed graph.
    dropping = plan(SMALL, Settings(hidden_channels=16, edge_dropout=0.5))
    assert nbytes(dropping, "graph") == nbytes(directed, "graph")


def test_full_batches_have_no_tables() -> None:
    made = plan(SMALL, Settings(hidden_channels=16, method="full", history="disk"))
    assert nbytes(made, "history tables") == nbytes(made, "stamps") == nbytes(made, "scratch tables", "exact") == {}
    assert "; no tables; full; on cpu\nall nodes in one batch\n" in str(made)


def test_exact_input_has_a_table_less() -> None:
    cached, exact = (plan(SMALL, Settings("gcnii", 16, 4, input=kind)) for kind in ("cached", "exact"))
    assert nbytes(cached, "history tables") == {"host": 4 * 4 * 1000 * 16}
    assert nbytes(exact, "history tables") == {"host": 3 * 4 * 1000 * 16} and nbytes(exact, "stamps") == {
        "host": 3 * 4 * 1000
    }


def test_tiers() -> None:
    tables = 2 * 2 * LARGE.nodes * 128
    settings = Settings(hidden_channels=128, dtype="bfloat16", device="cuda")
    device, pinned, disk = (plan(LARGE, replace(settings, history=place)) for place in ("device", "pinned", "disk"))
    assert nbytes(device, "history tables") == {"GPU": tables} and nbytes(disk, "history tables") == {"disk": tables}
    assert nbytes(pinned, "history tables") == {"host": 2 * 2**28}  # 2.44e8 bytes: torch takes the next power of two
    assert nbytes(device, "stamps") == nbytes(pinned, "stamps") == {"GPU": 8 * LARGE.nodes}
    assert nbytes(disk, "stamps") == {"disk": 8 * LARGE.nodes}
    # Of a step both tables' rows of a batch. Of an exact pass five pieces: four wait, one is being written, in float32.
    assert nbytes(disk, "rows to be written", "step") == {"host": tables * 5 // 40}
    assert nbytes(disk, "rows to be written", "exact") == {"host": 5 * PIECE["cuda"] * 128 * 4}
    assert nbytes(device, "rows to be written", "exact") == nbytes(pinned, "rows to be written", "exact") == {}
    # Two scratch tables in float32, on disk with their stamps, pinned in powers of two; on the GPU they are in the pass.
    assert nbytes(disk, "scratch tables", "exact") == {"disk": 2 * 4 * LARGE.nodes * (128 + 1)}
    assert nbytes(pinned, "scratch tables", "exact") == {"host": 2 * 2**29}
    assert nbytes(device, "scratch tables", "exact") == {}
    assert (
        nbytes(device, "exact pass", "exact")["GPU"] > 2 * 4 * LARGE.nodes * 128 > nbytes(disk, "exact pass", "exact")["GPU"]
    )
    for made in (device, pinned, disk):
        for name in ("graph", "features", "aggregated features", "weights", "CUDA context"):
            assert nbytes(made, name).keys() == {"GPU"}
        assert nbytes(made, "small blocks") == {}
        assert nbytes(made, "results", "exact") == {"host": 4 * LARGE.nodes * 40}  # scored on the host
    on_cpu = plan(LARGE, Settings(hidden_channels=128, history="pinned", dtype="bfloat16"))
    assert nbytes(on_cpu, "history tables") == {"host": tables} and "GPU" not in on_cpu.totals
    assert nbytes(on_cpu, "results", "exact") == nbytes(on_cpu, "scratch tables", "exact") == {}  # both are in the pass


def test_device_is_settled() -> None:
    """``auto`` is what there is; a GPU that is named is planned for wherever the plan is made."""
    there = "cuda" if torch.cuda.is_available() else "cpu"
    auto = Config(dataset="graph", device="auto")
    assert plan(SMALL, auto).settings.device == there
    assert plan(SMALL, auto).totals == plan(SMALL, auto.changed(device=there)).totals
    assert refuse_if_too_large(SMALL, auto).limits == pytest.approx(limits_here(auto), rel=0.5)


def test_room_is_looked_for_where_the_root_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning.shutil, "disk_usage", lambda path: SimpleNamespace(free=7 if path == tmp_path else 8))
    assert limits_here(Settings(root=str(tmp_path / "nothing" / "yet")))["disk"] == 7
    assert limits_here(Settings(root=str(tmp_path)), tmp_path.parent)["disk"] == 8


def test_metis_is_mentioned_where_it_runs() -> None:
    sizes = replace(SMALL, nodes=2_000_000, edges=100_000_000)
    metis, stream = (plan(sizes, Settings(hidden_channels=16, partition=how)) for how in ("metis", "stream"))
    assert nbytes(metis, "METIS", "before") and not nbytes(stream, "METIS", "before") and metis.totals == stream.totals


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


def limits(sizes: Sizes, *allowed: Config) -> dict[Any, int]:
    """Just enough for all of these."""
    totals = [plan(sizes, settings).totals for settings in allowed]
    return {tier: max(total.get(tier, 0) for total in totals) for tier in ("GPU", "host", "disk")}


BASE = Settings(hidden_channels=128)
DEEP = Settings("gcnii", 128, 16, dtype="bfloat16")
GPU = Settings(hidden_channels=128, device="cuda", num_parts=4, batch_size=4)
NARROW = Settings("gcnii", 16, 8, device="cuda", num_parts=1, batch_size=1)


@pytest.mark.parametrize(
    ("settings", "change", "flags"),
    [
        (BASE, {"dtype": "bfloat16"}, "--dtype bfloat16"),
        (DEEP, {"history": "disk"}, "--history disk"),
        (replace(BASE, history="disk", dtype="bfloat16"), {"hidden_channels": 64}, "--hidden-channels 64"),
        (replace(BASE, history="disk", dtype="bfloat16"), {"hidden_channels": 32}, "--hidden-channels 32"),
        (replace(GPU, dtype="float16"), {"history": "pinned"}, "--history pinned"),
        (replace(GPU, model="gcnii", num_layers=8), {"batch_size": 2}, "--batch-size 2"),
        (replace(DEEP, num_parts=4, batch_size=1), {"num_parts": 8, "batch_size": 1}, "--num-parts 8 --batch-size 1"),
        # Smaller batches alone save less than that in the end: an exact pass takes more than they do.
        (NARROW, {"dtype": "bfloat16", "num_parts": 4, "batch_size": 1}, "--dtype bfloat16 --num-parts 4 --batch-size 1"),
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
    # What this machine has.
    assert refuse_if_too_large(SMALL, Settings(hidden_channels=16)).limits.keys() == {"host", "disk"}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"device": "tpu"}, "device is 'tpu'"),
        ({"hidden_channels": 0}, "hidden_channels is 0; it must be at least 1"),
        ({"batch_size": 41}, "batch_size is 41, and there are 40 clusters"),
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
    few = ["--recipe", "none", "--hidden-channels", "16", "--batch-size", "1", "--root", str(tmp_path / "nothing")]
    main(["--dataset", "papers100m", "--model", "gcn", "--device", "cpu", *few])
    printed = capsys.readouterr().out
    assert printed.startswith("papers100m: 111,059,956 nodes") and "history tables       host     13.2 GiB" in printed
    arxiv = ["--dataset", "synthetic:arxiv", "--device", "cuda", *few]
    main([*arxiv, "--gpu-memory", "200MiB"])
    printed = capsys.readouterr().out
    assert "200.0 MiB available: does not fit" in printed and "\n\nsynthetic:arxiv with gcn needs " in printed
    main([*arxiv, "--gpu-memory", "80GiB"])
    assert "80.0 GiB available: fits" in capsys.readouterr().out
    for wrong in (
        ["--dataset", "product"],
        ["--dataset", "arxiv", "--num-parts", "0"],
        ["--dataset", str(tmp_path / "a.npz")],
    ):
        with pytest.raises(SystemExit) as exit:
            main(wrong)
        assert exit.value.code == 1 and capsys.readouterr().err.count("\n") == 1
    with pytest.raises(SystemExit):
        main(["--dataset", "arxiv", "--gpu-memory", "much"])
    assert "'much' is not a size; write it as 40GiB" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["--dataset", "arxiv", "--hidden", "16"])
    assert "--hidden is not a flag: did you mean" in capsys.readouterr().err


def test_flags_of_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same flags make the same configuration: by the recipe for the data set, unless none is to be taken."""
    products = ["--dataset", "products", "--device", "cpu", "--root", str(tmp_path)]
    main(products)
    assert "batches of 10 of 70 clusters: 349,862 nodes" in capsys.readouterr().out  # ceil(2,449,029 * 10 / 70)
    main([*products, "--recipe", "none"])
    assert "batches of 5 of 40 clusters: 306,129 nodes" in capsys.readouterr().out  # ceil(2,449,029 * 5 / 40)
    main([*products, "--batch-size", "5", "--method", "gas+rest-is", "--history", "disk", "--dtype", "bfloat16"])
    printed = capsys.readouterr().out
    assert "batches of 5 of 70 clusters" in printed and "bfloat16 tables, disk; gas+rest-is; on cpu" in printed
    main([*products, "--recipe", "arxiv_gcnii", "--dropout", "0.1", "--epochs", "7", "--no-batch-norm"])
    assert "\ngcnii, 4 layers of 256;" in capsys.readouterr().out


def test_every_flag_of_training_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    known = capsys.readouterr().out
    assert [f.name for f in fields(Config) if f"--{f.name.replace('_', '-')} " not in known.replace(",", " ")] == []
