"""The memory plan: compared with runs and with its formulas."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rest_triton.config import MODELS, Config
from rest_triton.data import kaminpar, metis
from rest_triton.data.datasets import load
from rest_triton.data.partition import partition
from rest_triton.data.sizes import Sizes, sizes_of
from rest_triton.nn import build, model_named
from rest_triton.plan import main
from rest_triton.training import memory
from rest_triton.training.advice import refuse_if_too_large
from rest_triton.training.plan import plan
from rest_triton.utils.errors import UserError

from ..settings import Settings
from .commands import folder_in, run, summary

LARGE = Sizes(nodes=1_000_000, edges=20_000_000, features=100, classes=40, name="large", prepared=True)
BASE = Settings(hidden_channels=128)


def test_host_memory_as_measured(tmp_path: Path) -> None:
    """The peak memory of the command, with its settings of malloc."""
    name = "synthetic:nodes=60000,edges=1200000,features=64,classes=20"
    flags = ["--recipe", "none", "--partition", "random", "--epochs", "1", "--max-steps", "3", "--device", "cpu"]
    done = run("-m", "rest_triton.train", "--dataset", name, *flags, "--dropout", "0.5", cwd=tmp_path)
    took = summary(folder_in(done, tmp_path))["memory"]
    planned = plan(sizes_of(name, tmp_path), Settings(dropout=0.5)).total("host")
    assert planned > memory.PROCESS + (200 << 20)  # mostly arrays can be wrong, not only the process
    assert planned == pytest.approx(took, rel=0.15)


def test_results_of_all_nodes_are_not_held(tmp_path: Path) -> None:
    """With many classes: the peak is below results of all nodes and the arrays that are there in any case."""
    name = "synthetic:nodes=250000,edges=500000,features=16,classes=500"
    flags = ["--recipe", "none", "--partition", "random", "--epochs", "1", "--max-steps", "1", "--device", "cpu"]
    few = ["--hidden-channels", "16", "--num-parts", "100", "--batch-size", "1"]
    done = run("-m", "rest_triton.train", "--dataset", name, *flags, *few, cwd=tmp_path)
    took = summary(folder_in(done, tmp_path))["memory"]
    planned = plan(sizes_of(name, tmp_path), Settings(hidden_channels=16, num_parts=100, batch_size=1))
    assert planned.total("host") == pytest.approx(took, rel=0.15)
    held = sum(a.nbytes for a in planned.arrays if (a.tier, a.when) == ("host", "held"))
    assert took < held + 4 * 250_000 * 500


WATCHED = """
import os, re, sys, threading, time
from rest_triton import train
from rest_triton.training import run
most, status = 0, open("/proc/self/status")
def watch():
    global most
    while True:
        status.seek(0)
        most = max(most, int(re.search(r"RssAnon:\\s+(\\d+)", status.read())[1]))
        time.sleep(0.002)
threading.Thread(target=watch, daemon=True).start()
run.write_report = lambda path: None
train.main(sys.argv[1:])
files, name = 0, ""
for line in open("/proc/self/smaps"):
    if re.match("[0-9a-f]+-[0-9a-f]+ ", line):
        name = line.split(None, 5)[5:]
    elif line.startswith("Rss:") and name and name[0].startswith("/") and not name[0].startswith(os.getcwd()):
        files += int(line.split()[1])
print("anonymous", most, files)
"""


def watched(*arguments: str, cwd: Path) -> tuple[int, int]:
    """(largest anonymous memory of a run, its mapped files that are not in ``cwd``). Pages of others can be dropped."""
    done = run("-c", WATCHED, *arguments, cwd=cwd)
    assert done.returncode == 0, done.stderr
    anonymous, files = done.stdout.split("anonymous")[1].split()
    return 1024 * int(anonymous), 1024 * int(files)


needs_proc = pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="the kernel does not tell")


@needs_proc
def test_places_as_measured(tmp_path: Path) -> None:
    """The peak for each place of tables and features, those of the model's device and files."""
    name = "synthetic:nodes=100000,edges=300000,features=256,classes=8"
    flags = ["--recipe", "none", "--partition", "kaminpar", "--epochs", "1", "--max-steps", "2", "--device", "cpu"]
    shape = ["--hidden-channels", "128", "--num-parts", "100", "--batch-size", "10"]

    def measured(history: str, features: str) -> int:
        places = ["--history", history, "--features", features]
        return sum(watched("--dataset", name, *flags, *shape, *places, cwd=tmp_path))

    near, far = ("device", "device"), ("disk", "disk")
    took = {near: measured(*near), far: measured(*far)}  # they write what the others read: the graph, and features
    others = [("device", "disk"), ("disk", "device")]
    with ThreadPoolExecutor(2) as pool:
        took |= dict(zip(others, pool.map(lambda places: measured(*places), others), strict=True))
    for (history, features), peak in took.items():
        settings = Settings(hidden_channels=128, num_parts=100, batch_size=10, history=history, features=features)
        planned = plan(sizes_of(name, tmp_path / "data"), settings).total("host")
        assert planned == pytest.approx(peak, rel=0.15), (history, features)
    size = 100_000 * 256 * 4  # of the features, and of their aggregate
    assert took[near] - took["device", "disk"] > size and took["disk", "device"] - took[far] > size
    assert took[near] - took[far] > 3 * size / 2


@needs_proc
def test_features_on_disk_as_measured(tmp_path: Path) -> None:
    """Features on disk save the memory that the plan says. Pages of mapped files are left out: the system can drop them."""
    name = "synthetic:nodes=200000,edges=400000,features=256,classes=8"
    flags = ["--recipe", "none", "--partition", "random", "--epochs", "1", "--max-steps", "1", "--device", "cpu"]
    few = ["--hidden-channels", "16", "--num-parts", "100", "--batch-size", "1"]
    took, planned = [], []
    for place in ("device", "disk", "disk"):  # the first one on disk writes the files
        took.append(watched("--dataset", name, *flags, *few, "--features", place, cwd=tmp_path)[0])
        settings = Settings(hidden_channels=16, num_parts=100, batch_size=1, features=place)
        planned.append(plan(sizes_of(name, tmp_path / "data"), settings).total("host"))
    files = sorted(p.name for p in tmp_path.glob("data/prepared/*/features-*/*.rows"))
    assert files == ["aggregated-gcn-float32.rows", "features-float32.rows"]
    assert planned[0] - planned[1] > 200_000 * 256 * 4
    # Random clusters have a larger halo than the plan guesses, and pieces of the aggregate are made with theirs.
    assert took[0] - took[1] > (planned[0] - planned[1]) / 2
    assert took[0] - took[2] == pytest.approx(2 * 200_000 * 256 * 4, rel=0.25)


@pytest.mark.parametrize(
    ("more", "settings"),
    [
        (["--num-layers", "2"], Settings(num_layers=2, first="exact")),
        (["--batch-norm", "--dropout", "0.5"], Settings(batch_norm=True, dropout=0.5, first="exact")),
    ],
)
def test_exact_first_layer_as_measured(more: list[str], settings: Config, tmp_path: Path) -> None:
    name = "synthetic:nodes=60000,edges=1200000,features=64,classes=20"
    flags = ["--recipe", "none", "--partition", "random", "--epochs", "1", "--max-steps", "3", "--device", "cpu", *more]
    done = run("-m", "rest_triton.train", "--dataset", name, "--first", "exact", *flags, cwd=tmp_path)
    took = summary(folder_in(done, tmp_path))["memory"]
    planned = plan(sizes_of(name, tmp_path), settings).total("host")
    assert planned == pytest.approx(took, rel=0.15)


def test_trimmed_as_measured(tmp_path: Path) -> None:
    """Tables of rows that training depends on. The guess of their number takes edges to end at random nodes."""
    name = "synthetic:nodes=200000,edges=600000,features=32,classes=8,train=0.02"
    flags = ["--recipe", "none", "--partition", "random", "--epochs", "1", "--max-steps", "2", "--device", "cpu"]
    took, planned = [], []
    for trim in (False, True):
        more = ["--hidden-channels", "256", "--trim" if trim else "--no-trim"]
        done = run("-m", "rest_triton.train", "--dataset", name, *flags, *more, cwd=tmp_path)
        took.append(summary(folder_in(done, tmp_path))["memory"])
        planned.append(plan(sizes_of(name, tmp_path), Settings(trim=trim)))
    for estimate, peak in zip(planned, took, strict=True):
        assert estimate.total("host") == pytest.approx(peak, rel=0.15)
    assert took[0] - took[1] > 200_000 * 256 * 4  # of two tables
    assert "rows by a guess" in str(planned[1]) and "rows by a guess" not in str(planned[0])


def test_sparse_features_as_measured(tmp_path: Path) -> None:
    """The peak of a run is far below the dense features alone, and near the plan, which says how features are kept."""
    nodes, width, each = 40_000, 20_000, 10
    rng = np.random.default_rng(0)
    part = np.arange(nodes) % 3
    np.savez(
        tmp_path / "words.npz", edge_index=rng.integers(0, nodes, (2, 3 * nodes)), y=rng.integers(0, 8, nodes),
        x_indptr=np.arange(0, each * nodes + 1, each), x_indices=rng.integers(0, width, each * nodes).astype(np.int32),
        x_data=np.ones(each * nodes, np.float32), x_shape=np.array([nodes, width]),
        train_mask=part == 0, val_mask=part == 1, test_mask=part == 2,
    )  # fmt: skip
    flags = ["--recipe", "none", "--partition", "random", "--epochs", "1", "--hidden-channels", "64", "--device", "cpu"]
    done = run("-m", "rest_triton.train", "--dataset", "words.npz", *flags, cwd=tmp_path)
    took = summary(folder_in(done, tmp_path))["memory"]
    sizes = sizes_of(str(tmp_path / "words.npz"), tmp_path / "data")
    planned = plan(sizes, Settings(hidden_channels=64))
    assert planned.total("host") == pytest.approx(took, rel=0.15)
    assert took < 4 * nodes * width / 2
    kept = "features: sparse, 10 nonzeros a row: the first layer multiplies nonzero elements alone\n"
    assert kept in done.stdout and kept in str(planned)


def test_features_are_sparse_or_the_plan_says_why_not() -> None:
    wide = replace(LARGE, features=1600, feature_nnz=100 * LARGE.nodes)
    assert "features: sparse, 100 nonzeros a row" in str(plan(wide, BASE))
    assert nbytes(BASE, "features", wide) == {"host": 8 * (101 * LARGE.nodes + 1)}
    assert nbytes(BASE, "aggregated features", wide) == {}
    denser = replace(wide, feature_nnz=101 * LARGE.nodes)
    assert "features: dense: 101 nonzeros a row of 1,600 are more than one in 16\n" in str(plan(denser, BASE))
    assert nbytes(BASE, "features", denser) == nbytes(BASE, "aggregated features", denser) == {"host": 6400 * LARGE.nodes}
    pna = Settings("pna", 128, 3)
    assert "features: dense: pna does not only multiply them by a weight" in str(plan(wide, pna))
    assert nbytes(pna, "features", wide) == nbytes(pna, "features", denser)
    assert "features: dense, as they are stored\n" in str(plan(LARGE, BASE))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("others", [{}, {"batch_norm": True}, {"linear": True, "shared_weights": False, "mlp_layers": 3}])
def test_widths_and_weights_are_the_models(model: str, others: dict[str, Any]) -> None:
    s = Settings(model, 16, 4, **others)
    built = build(model_named(model), LARGE.features, LARGE.classes, s)
    assert memory.FAMILIES[model](LARGE, s).tables == built.history_dims
    assert memory.FAMILIES[model](LARGE, s).weights == sum(p.numel() for p in built.parameters())


def test_exact_first_layer() -> None:
    """A table less, and rows of the halo in a step. The plan says what a row takes either way."""
    for model in ("gcn", "gin", "appnp", "gcnii"):
        cached = Settings(model, 128, 4, first="cached")
        exact = cached.changed(first="exact")
        width = 40 if model == "appnp" else 128
        tables = [nbytes(s, "history tables")["host"] for s in (cached, exact)]
        assert tables[0] - tables[1] == 4 * LARGE.nodes * width
        assert memory.Run(LARGE, exact).model.outside > memory.Run(LARGE, cached).model.outside + 100
        assert nbytes(exact, "activations")["host"] > nbytes(cached, "activations")["host"]
        row = "400 bytes of features" if model in ("appnp", "gcnii") else "400 bytes of aggregated features"
        less = "computed" if width == 128 else "read from a table"
        said = f"a row takes {row} or {4 * width} of a table, so fewer bytes are read if it is {less}\n"
        assert f"neighbours' first embedding: computed; {said}" in str(plan(LARGE, exact))
        assert f"neighbours' first embedding: read from a table; {said}" in str(plan(LARGE, cached))
    for without in (Settings("gat", 128, 3), BASE.changed(method="sage"), BASE.changed(num_layers=1),
                    BASE.changed(drop_input=True, dropout=0.5)):  # fmt: skip
        assert "first embedding" not in str(plan(LARGE, without))
    two = BASE.changed(num_layers=2, first="exact")
    assert nbytes(two, "history tables") == {} and "; no tables; " in str(plan(LARGE, two))
    refresh = [nbytes(BASE.changed(method="gas+rest", first=first), "a refresh")["host"] for first in ("cached", "exact")]
    rows, around = memory.Run(LARGE, BASE).rows, memory.Run(LARGE, BASE).halo
    assert refresh == [4 * rows * 3 * 128, 4 * (rows * 128 + around * (100 + 2 * 128))]
    assert nbytes(two.changed(method="gas+rest"), "a refresh") == {}  # without a table nothing is refreshed


def nbytes(settings: Config, name: str, sizes: Sizes = LARGE) -> dict[str, int]:
    return {a.tier: a.nbytes for a in plan(sizes, settings).arrays if a.name == name}


def test_arrays_by_hand() -> None:
    n, e = LARGE.nodes, LARGE.edges
    assert nbytes(BASE, "graph") == {"host": 8 * (n + 1) + 4 * (e + n) + 4 * n}
    assert nbytes(BASE, "features") == nbytes(BASE, "aggregated features") == {"host": 4 * n * 100}
    assert nbytes(BASE, "prepared graph", replace(LARGE, prepared=False)) == {"disk": 8 * (n + 1) + 4 * e + 400 * n + 11 * n}
    directed = nbytes(BASE, "graph", replace(LARGE, directed=True))
    assert directed == nbytes(BASE.changed(edge_dropout=0.5), "graph") == {"host": 16 * (n + 1) + 12 * (e + n) + 4 * n}
    exact = Settings("gcnii", 16, 4, first="exact", dtype="bfloat16")
    assert nbytes(exact, "history tables") == {"host": 3 * 2 * n * 16} and nbytes(exact, "stamps") == {"host": 3 * 4 * n}
    assert nbytes(BASE.changed(method="full", history="disk"), "history tables") == {}


@pytest.mark.parametrize(("place", "tier"), [("device", "GPU"), ("pinned", "host"), ("disk", "disk")])
def test_places_of_features(place: str, tier: str) -> None:
    both, n = ("features", "aggregated features"), LARGE.nodes
    for dtype, size in (("float32", 400 * n), ("float16", 200 * n)):
        s = BASE.changed(device="cuda", features=place, feature_dtype=dtype)
        size = 1 << (size - 1).bit_length() if place == "pinned" else size
        assert [nbytes(s, name) for name in both] == [{tier: size}] * 2
        assert (nbytes(s, "rows to aggregate") == {}) == (place == "device")
        assert (nbytes(s.changed(edge_dropout=0.5), "features of the halo") == {}) == (place == "device")
    as_published = replace(LARGE, feature_bytes=2)
    s = BASE.changed(device="cuda", features="disk")
    assert [nbytes(s, name, as_published) for name in both] == [{"disk": 200 * n}, {"disk": 400 * n}]
    assert nbytes(s, "features in new order") == {} and nbytes(BASE, "features in new order") == {"host": 400 * n}


def test_a_push_is_of_the_halo() -> None:
    halo = memory.Run(LARGE, BASE).halo
    assert nbytes(BASE, "a push") == nbytes(BASE.changed(method="graphfm", push_momentum=0.0), "a push") == {}
    for refresh in ("", "+rest", "+rest-is"):
        assert nbytes(BASE.changed(method="graphfm" + refresh), "a push") == {"host": 4 * halo * 3 * 128}


def test_batches_of_nodes() -> None:
    """Scattered nodes have a halo of nearly all their neighbours."""
    settings = BASE.changed(method="mvs+rest-is", batch_nodes=1000, importance_share=0.5)
    assert nbytes(settings, "importance") == {"host": 18 * LARGE.nodes} and nbytes(BASE, "importance") == {}
    assert 19_000 < memory.Run(LARGE, settings).halo < 20_000
    assert nbytes(settings, "history tables") == nbytes(BASE, "history tables")
    assert "batches of 1,000 training nodes, with perhaps 19," in str(plan(LARGE, settings))


@pytest.mark.parametrize(
    ("place", "rows", "stamps"),
    [
        ("device", {"GPU": 4 * 128 * 2 * 10**6}, "GPU"),
        ("pinned", {"host": 2 << 29}, "GPU"),
        ("disk", {"disk": 1024 * 10**6}, "disk"),
    ],
)
def test_places_of_tables(place: str, rows: dict[str, int], stamps: str) -> None:
    settings = BASE.changed(device="cuda", history=place)
    assert nbytes(settings, "history tables") == rows and nbytes(settings, "stamps") == {stamps: 8 * 10**6}
    assert nbytes(settings, "scratch tables") == rows  # two of the same width and, here, format
    assert (nbytes(settings, "staging buffers") == {}) == (place == "device")


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = ["--recipe", "none", "--hidden-channels", "16", "--batch-size", "1", "--root", str(tmp_path)]
    main(["--dataset", "papers100m", "--model", "gcn", "--history", "disk", "--device", "cpu", *few])
    printed = capsys.readouterr().out
    assert printed.startswith("papers100m: 111,059,956 nodes") and "batches of 1 of 40 clusters: 2,776,499 nodes" in printed
    assert "history tables" in printed and "disk     13.2 GiB         2.1 GiB  2 of widths 16, float32" in printed
    main(["--dataset", "synthetic:arxiv", "--device", "cuda", *few, "--device-budget", "200MiB"])
    printed = capsys.readouterr().out
    assert "200.0 MiB available: does not fit" in printed and "\n\nsynthetic:arxiv with gcn needs " in printed
    with pytest.raises(SystemExit, match="1"):
        main(["--dataset", "product"])
    assert capsys.readouterr().err.count("\n") == 1


def divided(sizes: Sizes, **settings: Any) -> dict[str, int]:
    """Bytes by name while the graph is divided."""
    made = plan(sizes, Settings(**settings)).arrays
    return {a.name: a.nbytes for a in made if a.when == "divide"}


def test_memory_of_partitioners() -> None:
    """What runs, and nothing where nothing does. Edges of one direction are doubled in memory."""
    nodes, edges = LARGE.nodes, LARGE.edges
    child = kaminpar.peak_bytes(nodes, edges)
    assert divided(LARGE, partition="kaminpar") == {"process": memory.PROCESS, "partitioner": child}
    assert divided(LARGE, partition="auto") == divided(LARGE, partition="kaminpar")
    assert divided(LARGE, partition="metis")["partitioner"] == metis.peak_bytes(nodes, edges) > child
    both = divided(replace(LARGE, directed=True), partition="kaminpar")
    assert both["partitioner"] == kaminpar.peak_bytes(nodes, 2 * edges)
    assert both["undirected edges"] == 8 * (nodes + 1) + 4 * 2 * edges
    assert divided(LARGE, partition="random") == divided(LARGE, partition="stream") == {}
    assert divided(LARGE, num_parts=1, batch_size=1) == {}
    with_it, without = (plan(LARGE, Settings(partition=name, hidden_channels=1)) for name in ("metis", "random"))
    assert with_it.total("host") == memory.PROCESS + metis.peak_bytes(nodes, edges) > without.total("host")
    assert "METIS, a process of its own" in str(with_it) and "a process of its own" not in str(without)


def test_clusters_that_are_there_need_no_memory(tmp_path: Path) -> None:
    name = "synthetic:nodes=600,edges=4000,features=8,classes=4"
    graph = load(name, tmp_path)
    sizes, settings = sizes_of(name, tmp_path), dict(root=str(tmp_path), num_parts=6, batch_size=2, partition="metis")
    assert sizes.fingerprint == graph.fingerprint and divided(sizes, **settings) != {}
    partition(graph, 6, method="metis", root=tmp_path)
    assert divided(sizes, **settings) == {} != divided(sizes, **settings | dict(num_parts=7))


def test_a_partitioner_that_does_not_fit() -> None:
    """The refusal has a partitioner that does."""
    narrow = replace(LARGE, features=1, edges=100_000_000)
    for asked, change in (("metis", "kaminpar"), ("kaminpar", "random")):
        settings = Settings(partition=asked, hidden_channels=1, num_parts=1000)
        need = plan(narrow, settings).total("host")
        program = {"kaminpar": kaminpar, "metis": metis}[asked]
        assert need == memory.PROCESS + program.peak_bytes(narrow.nodes, narrow.edges)
        with pytest.raises(UserError, match=rf"needs .* of host memory .*; it fits with --partition {change}$"):
            refuse_if_too_large(narrow, settings, {"host": need - 1, "disk": 1 << 50})
