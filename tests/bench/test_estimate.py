"""Estimates of GPU kernels: formulas against a count of every element, bounds in order, and the page up to date."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bench import estimate as command
from bench.binaries import STORED, WIDTHS, Binary, keys, stored
from bench.estimate_page import page
from bench.gpu_shapes import SHAPES, Shape, counted, make
from bench.gpus import GPUS, find, kinds, named
from bench.roofline import estimate
from bench.streams import PRECISIONS, Stream, Work
from bench.traffic import FORMULAS, KERNELS, binary_of, drawn
from rest_triton.kernels.gpu.launch import EDGE_GRAD_SPLIT, REMOTE_PROGRAMS

from . import counting

ROOT = Path(__file__).parents[2]
A100, H100, MI300X = GPUS
SMALL = Shape("small", "for counting", 40, 600, 25, 35, 0.6, 70)
HUBBY = Shape("hubby", "for counting", 30, 9000, 40, 28, 0.5, 120, hubs=2, hub_edges=6000, graph_hubs=3)
BINARY = Binary(64, 0, 0, 0.5, 8, None)


def work_of(kernel: str, shape: Shape, width: int = 128, precision: int = 0) -> Work:
    return KERNELS[kernel](shape, width, PRECISIONS[precision], 32)


def assert_counted(work: Work, count: counting.Count, among: int = 0) -> None:
    """Streams against counts. What every program reads from a cache has no count. Rows that follow each other share an
    entry of rowptr, in a graph whose rows are scattered they need not: between R + 1 and 2 R."""
    streams = {s.name: s for s in work.streams if not s.shared and s.accesses}
    assert streams.keys() == count.accesses.keys()
    for name, s in streams.items():
        assert s.accesses * s.item == count.accesses[name], name
        if name == "rowptr":
            assert s.least <= count.distinct[name] <= 2 * s.least
        else:
            assert s.least == pytest.approx(count.distinct[name], rel=among / 100), name


@pytest.mark.parametrize("precision", range(3))
@pytest.mark.parametrize("width", [8, 256])
def test_spmm_moves_what_its_definition_reads_and_writes(width: int, precision: int) -> None:
    p = PRECISIONS[precision]
    blocks = 2 if width == 256 and precision < 2 else 1  # of 128 float32, or 256 bfloat16
    counted = counting.spmm(make(SMALL), width, p, blocks)
    assert_counted(KERNELS["spmm"](SMALL, width, p, 32), counted)


def test_hubs_are_left_to_their_segments() -> None:
    """Which neighbours hubs meet is random: within a few percent."""
    p, graph = PRECISIONS[0], make(HUBBY)
    assert graph.hub_segments == HUBBY.graph_segments == 9
    whole, segments = counting.spmm(graph, 4, p, 1), counting.spmm_hub_segment(graph, 4, p, 1)
    for kernel, count in (("spmm", whole), ("spmm_hub_segment", segments)):
        work = KERNELS[kernel](HUBBY, 4, p, 32)
        for name in ("col", "position", "col_scale"):
            stream = next(s for s in work.streams if s.name == name)
            assert stream.accesses * stream.item == count.accesses[name]
            assert stream.least == pytest.approx(count.distinct[name], rel=0.05)
        rows = [s for s in work.streams if s.name in ("x", "history")]
        assert sum(s.accesses * s.item for s in rows) == count.accesses["x"] + count.accesses["history"]
    partial = next(s for s in KERNELS["spmm_hub_segment"](HUBBY, 4, p, 32).streams if s.name == "partial")
    assert partial.least == segments.accesses["partial"]
    read = next(s for s in KERNELS["spmm_hub_sum"](HUBBY, 4, p, 32).streams if s.name == "partial")
    assert read.least == partial.least
    assert whole.accesses["out"] + 4 * 4 * HUBBY.hubs == HUBBY.rows * 4 * 4


@pytest.mark.parametrize("precision", range(3))
def test_edge_grad_moves_what_its_definition_reads_and_writes(precision: int) -> None:
    p = PRECISIONS[precision]
    assert_counted(KERNELS["edge_grad"](SMALL, 8, p, 32), counting.edge_grad(make(SMALL), 8, p, 32, EDGE_GRAD_SPLIT))


def test_mark_neighbours_moves_what_its_definition_reads_and_writes() -> None:
    assert_counted(work_of("mark_neighbours", SMALL), counting.mark_neighbours(make(SMALL)))


@pytest.mark.parametrize("precision", range(3))
@pytest.mark.parametrize("far", ["", ", far"])
def test_copies_move_what_their_definitions_read_and_write(precision: int, far: str) -> None:
    p, graph = PRECISIONS[precision], make(SMALL)
    for name, index in (("gather_rows", graph.halo), ("scatter_rows", graph.rows)):
        work = KERNELS[name + far](SMALL, 8, p, 32)
        assert_counted(work, counting.copy_rows(index.tolist(), 8, p, gather=name == "gather_rows"))
        assert work.bytes(far=True) == (len(index) * 8 * p.table.itemsize if far else 0)


@pytest.mark.parametrize("precision", range(3))
def test_activate_moves_what_its_definition_reads_and_writes(precision: int) -> None:
    p = PRECISIONS[precision]
    assert_counted(KERNELS["activate"](SMALL, 8, p, 32), counting.activate(SMALL.rows, 8, p))
    work = KERNELS["activate_backward"](SMALL, 128, p, 32)
    assert_counted(work, counting.activate_backward(SMALL.rows, 128, p, work.programs))
    added = KERNELS["column_sum"](SMALL, 128, p, 32)
    assert added.bytes(write=False) == work.programs * 128 * 4


@pytest.mark.parametrize("shape", [SMALL, HUBBY])
def test_a_graph_has_its_shapes_counts(shape: Shape) -> None:
    graph = make(shape)
    neighbours = graph.col.unique().long()
    inside = graph.position[neighbours] >= 0
    assert (len(graph.rows), len(graph.col)) == (shape.rows, shape.edges)
    assert (int(inside.sum()), int((~inside).sum())) == (shape.inside, shape.halo)
    assert torch.equal(neighbours[~inside], graph.halo)
    degree = graph.rowptr.diff()[graph.rows]
    assert sorted(degree.tolist()) == sorted(n for n, rows in shape.degrees() for _ in range(rows))
    # Hubs elsewhere have no edges here, so they are not counted.
    found = counted(shape.name, shape.source, graph.rowptr, graph.col, graph.rows)
    assert replace(found, graph_hubs=shape.graph_hubs) == shape


def test_a_shape_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot reach 500 rows"):
        replace(SMALL, inside=500)


@pytest.mark.parametrize("kernel", KERNELS)
def test_caches_and_sectors_only_help(kernel: str) -> None:
    for shape in SHAPES:
        work = work_of(kernel, shape)
        assert 0 < work.bytes() <= work.bytes(32) <= work.bytes(64)
        assert work.bytes() == work.bytes(write=True) + work.bytes(write=False)


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
@pytest.mark.parametrize("kernel", KERNELS)
def test_bounds_are_ordered(kernel: str, gpu) -> None:
    for shape in SHAPES:
        e = estimate(work_of(kernel, shape), BINARY, gpu)
        assert 0 < e.floor < e.low <= e.high
        assert e.low == e.bounds[e.low_bound][0] + gpu.launch
        assert all(low <= high for low, high in e.bounds.values())
        assert max(high for _, high in e.bounds.values()) + gpu.launch == e.high


@pytest.mark.parametrize("kernel", KERNELS)
def test_wider_rows_take_longer(kernel: str) -> None:
    for shape in SHAPES:
        narrow, wide = (estimate(work_of(kernel, shape, width), BINARY, H100) for width in WIDTHS)
        assert narrow.high <= wide.high
        assert all(narrow.bounds[name] <= wide.bounds[name] for name in ("memory", "cache", "flops", "bus"))


def test_more_edges_take_longer_and_a_faster_memory_less() -> None:
    shape = SHAPES[1]
    more = replace(shape, edges=2 * shape.edges)
    for kernel in ("spmm", "edge_grad", "mark_neighbours"):
        assert estimate(work_of(kernel, shape), BINARY, H100).high < estimate(work_of(kernel, more), BINARY, H100).high
    faster = replace(A100, memory_bandwidth=2 * A100.memory_bandwidth)
    assert estimate(work_of("activate", shape), BINARY, faster).low < estimate(work_of("activate", shape), BINARY, A100).low


def test_few_warps_with_little_in_flight_do_not_reach_the_bandwidth() -> None:
    """Little's law: what the registers leave resident, times what a lane loads at once."""
    work = work_of("spmm", SHAPES[1])
    starved = estimate(work, replace(BINARY, occupancy=1 / 64, in_flight=1), H100)
    assert starved.high_bound == "latency"
    assert starved.high > 10 * estimate(work, BINARY, H100).low


def test_instructions_count_where_they_are_known() -> None:
    heavy = replace(BINARY, num_parts={"tile": {"multiply and add": 100_000}})
    assert estimate(work_of("spmm", SHAPES[1]), heavy, H100).low_bound == "issue"
    assert estimate(work_of("spmm", SHAPES[1]), BINARY, H100).bounds["issue"] == (0, 0)


def test_far_rows_are_bound_by_the_bus() -> None:
    for kernel in ("gather_rows, far", "scatter_rows, far"):
        work = work_of(kernel, SHAPES[3])
        assert work.programs == REMOTE_PROGRAMS
        assert estimate(work, BINARY, A100).low_bound == "bus"


def test_drawn_is_what_draws_meet() -> None:
    assert drawn(0, 10) == 0
    assert drawn(1, 10) == 1
    assert drawn(1000, 10) == 10
    met = torch.randint(0, 5000, (4000,), generator=torch.Generator().manual_seed(0)).unique().numel()
    assert drawn(4000, 5000) == pytest.approx(met, rel=0.03)


def test_a_scattered_item_moves_whole_sectors() -> None:
    s = Stream("position", 10, 4, 4, scattered=True)
    assert (s.least, s.most(32), replace(s, scattered=False).most(32), replace(s, shared=True).most(32)) == (16, 320, 40, 16)


@pytest.mark.parametrize(
    ("name", "gpu"),
    [("NVIDIA A100-SXM4-80GB", A100), ("NVIDIA H100 80GB HBM3", H100), ("AMD Instinct MI300X", MI300X),
     ("NVIDIA H100 PCIe", None), ("NVIDIA A100-PCIE-40GB", None), ("NVIDIA GeForce RTX 4090", None)],
)  # fmt: skip
def test_devices_are_found_by_name(name: str, gpu) -> None:
    assert named(name) is gpu


def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'V100' is not in the table.*A100, H100, MI300X"):
        find(["V100"])
    assert find([]) == list(GPUS)
    assert set(kinds().values()) == {"data sheet", "assumption"}


def test_the_page_is_what_the_command_makes_of_the_stored_binaries(tmp_path: Path) -> None:
    """After a change of a formula or an assumption: python -m bench.estimate --stored --out docs/gpu-estimate.md."""
    out, numbers = tmp_path / "page.md", tmp_path / "numbers.json"
    assert command.main(["--stored", "--out", str(out), "--json", str(numbers), "--no-measure"]) == 0
    assert out.read_text() == (ROOT / "docs" / "gpu-estimate.md").read_text()
    rows = json.loads(numbers.read_text())
    assert len(rows) == len(GPUS) * len(SHAPES) * len(WIDTHS) * len(PRECISIONS) * len(KERNELS)
    assert all(row["measured"] is None for row in rows)


def test_the_page_begins_with_what_it_is_not() -> None:
    version, binaries = stored()
    text = page(version, GPUS, {gpu.name: command.estimates(gpu, binaries) for gpu in GPUS}, binaries)
    assert "ESTIMATE. No kernel of this project has ever run on a GPU" in text.split("##")[0]
    assert all(f"`{kernel}`" in text for kernel in KERNELS)
    assert FORMULAS.keys() == KERNELS.keys()


def test_every_kernel_is_stored_without_spills_and_with_its_loops() -> None:
    _, binaries = stored()
    assert binaries.keys() == set(keys())
    assert {name for name, *_ in binaries} == {binary_of(kernel) for kernel in KERNELS}
    assert all(binary.spills == 0 for binary in binaries.values())
    untold = [key for key, binary in binaries.items() if binary.parts is None and key[3] != "gfx942"]
    assert untold == []


def test_stored_binaries_are_those_that_are_compiled() -> None:
    """A few of them: all take minutes. In a process of its own, as this one interprets kernels."""
    version, binaries = stored()
    pytest.importorskip("triton")
    few = [("spmm", 128, "fp32", "sm_90"), ("mark_neighbours", 128, "fp32", "sm_80"), ("gather_rows", 256, "bf16", "gfx942")]
    code = (
        "import json, sys, triton; from dataclasses import asdict; from bench.binaries import read\n"
        "print(json.dumps([triton.__version__, [asdict(read(tuple(key))) for key in json.loads(sys.argv[1])]]))"
    )
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    run = subprocess.run(
        [sys.executable, "-c", code, json.dumps(few)], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    here, found = json.loads(run.stdout)
    if here != version:
        pytest.skip(f"{STORED.name} was read from the binaries of Triton {version}, and here is {here}")
    assert [Binary(**binary) for binary in found] == [binaries[key] for key in few]


def test_out_is_for_all_gpus(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        command.main(["--stored", "--out", "page.md", "--gpu", "H100"])
    assert "leave one away" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU kernels are compiled, not interpreted")
def test_interpreted_kernels_are_not_compiled(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        command.main([])
    assert "unset TRITON_INTERPRET, or use --stored" in capsys.readouterr().err
