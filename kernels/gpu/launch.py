"""Launch settings, and the function that launches every kernel.

Settings are a pure function of widths, dtypes and alignment. They do not depend on node or edge counts, which differ in
every batch, and are not tuned at run time. So the bits of a row do not depend on its batch. Settings include a kernel's
register budget; ``python -m bench.compile.report`` checks it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields, replace
from math import gcd
from typing import NamedTuple

import torch
from torch import Tensor

LANE_BYTES = 16  # the widest load of one lane
SPMM_TILE_BYTES = 4096  # row bytes a warp has in flight: 8 such loads per lane

# Programs that read or write rows over the bus. 32 x 8 KiB in flight cover bandwidth x latency of a PCIe 5 x16 link
# (64 GB/s x 2 us = 128 KiB) twice, and leave most of a GPU's 100 or more multiprocessors to other kernels.
REMOTE_PROGRAMS = 32
# Programs of a reduction over rows, each writing one partial row. Fixed, so that the order of the sum is fixed.
PARTIAL_PROGRAMS = 256
# Programs that share one row's edges in edge_grad, which has no sum over edges.
EDGE_GRAD_SPLIT = 4
# The largest fan-out whose draws fit the registers of one warp: 32 per lane.
MOST_DRAWS = 1024


@dataclass(frozen=True)
class Settings:
    """Compile-time settings of a kernel. Names in capitals are constexpr arguments of the kernels that have them.

    ``registers`` is a budget and a setting. Without a limit, NVIDIA's assembler saves registers to fit more resident
    programs: it loads the second row of a tile after the first has been used. With the limit, it issues all loads of a
    tile at once. A limit that is too low causes spills.
    """

    registers: int  # per thread, on NVIDIA
    vgprs: int = 96  # per lane, on AMD: five waves per SIMD, of at most eight
    num_warps: int = 1
    num_stages: int = 1  # Triton's own pipelining through shared memory is not used
    # Whether products may be fused into sums. Where lanes exchange products and add them up, each lane would fuse its own
    # product: the lanes' sums would differ in the last bit, and any of them could be stored.
    fused: bool = True
    BLOCK_R: int | None = None  # rows of a tile
    BLOCK_D: int | None = None  # features of a tile
    EDGES: int | None = None  # edges resolved at once, one per lane
    K: int | None = None  # of these, rows in flight at a time
    GROUP: int | None = None  # rows that one warp-wide load covers
    SPLIT: int | None = None  # programs per row
    BLOCK_H: int | None = None  # heads of a tile, which share its features

    @property
    def constants(self) -> dict[str, int]:
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name.isupper()}
        return {name: value for name, value in values.items() if value is not None}

    def options(self, amd: bool) -> dict[str, int]:
        options = dict(num_warps=self.num_warps, num_stages=self.num_stages, enable_fp_fusion=self.fused)
        return options if amd else dict(options, maxnreg=self.registers)


def lanes() -> int:
    """Threads of a warp: 32 on NVIDIA, 64 on AMD's data-centre GPUs."""
    return _recorder.lanes if _recorder else 64 if torch.version.hip else 32


def spmm_settings(width: int, align: int, *dtypes: torch.dtype, lanes: int = 32) -> Settings:
    """Settings of spmm for rows of ``width`` elements of ``dtypes`` (those of the sources given).

    One warp per program: its lanes exchange values by shuffles, and no sum crosses a warp. A block of features is at
    most what the warp reads with one 16-byte load per lane: 128 float32 or 256 16-bit values. Wider rows take more
    programs, which read the indices again, a fiftieth of the row.
    """
    items = [dtype.itemsize for dtype in set(dtypes)]
    block_d = min(next_power_of_2(width), 32 * LANE_BYTES // max(items))
    # Sources of two dtypes are loaded side by side. Loads narrower than 16 bytes are twice as many at most.
    fitting = SPMM_TILE_BYTES // (block_d * sum(items))
    issued = 2 * SPMM_TILE_BYTES * align // (LANE_BYTES * block_d * max(items))
    k = min(lanes, previous_power_of_2(fitting), max(issued, 4))
    # Rows of one load have separate sums, which shuffles add once, at the end.
    group = min(k, max(lanes * align // (block_d * min(items)), 1))
    return Settings(registers=88, BLOCK_D=block_d, EDGES=lanes, K=k, GROUP=group)


def hub_sum_settings(width: int) -> Settings:
    """Settings of the kernel that adds up a hub's segments: 4 KiB of float32 in flight, as in spmm."""
    return Settings(registers=80, BLOCK_R=8, BLOCK_D=min(next_power_of_2(width), 128))


def edge_grad_settings(width: int, align: int, *dtypes: torch.dtype, lanes: int = 32) -> Settings:
    """Settings of edge_grad: those of spmm, without groups (every row has its own sum), with split rows."""
    return replace(spmm_settings(width, align, *dtypes, lanes=lanes), GROUP=None, SPLIT=EDGE_GRAD_SPLIT)


def attention_settings(heads: int, channels: int, align: int, *dtypes: torch.dtype, lanes: int = 32) -> Settings:
    """Settings of attention and its gradients: a program takes whole heads, as many as it would take features in spmm.

    A head is padded to a power of two, so that sums over its features are sums over an axis of the tile.
    """
    items = [dtype.itemsize for dtype in set(dtypes)]
    block_c = next_power_of_2(channels)
    block_h = min(next_power_of_2(heads), max(32 * LANE_BYTES // max(items) // block_c, 1))
    block_d = block_h * block_c
    warps = min(max(block_d // 512, 1), 8)
    # In registers elements are float32, whatever they are in memory, and products beside them.
    fitting = previous_power_of_2(warps * SPMM_TILE_BYTES // (block_d * max(sum(items), 4)) or 1)
    # Loads narrower than 16 bytes take more registers for their addresses: as many loads, not as many bytes. AMD keeps
    # what all 64 lanes share, such as hashes of edges, in scalar registers, of which there are few.
    align = align if block_c == channels else min(items)
    if align < LANE_BYTES:
        fitting = min(fitting, max(fitting * align // LANE_BYTES, 4) * 32 // lanes)
    k = max(min(fitting, 32), 2)
    return Settings(registers=128, vgprs=144, num_warps=warps, fused=False, BLOCK_D=block_d, BLOCK_H=block_h, K=k)


def copy_settings(width: int, vector: int) -> Settings:
    """Settings of gather_rows and scatter_rows: four loads in flight per lane, eight where they are narrow."""
    return _row_settings(width, 4 * vector if vector >= 4 else 8)


def activate_settings(width: int, vector: int, moments: bool = False) -> Settings:
    """Settings of activate and its backward, which hold several float32 values per element. The gradient through
    moments holds two more vectors over the features: within 64 registers it spills."""
    settings = _row_settings(width, 8 if vector >= 2 else 4)
    return replace(settings, registers=80) if moments else settings


def _row_settings(width: int, lane_elements: int) -> Settings:
    block_d = min(next_power_of_2(width), 256)
    block_r = max(4 * 32 * lane_elements // block_d, 1)
    return Settings(registers=64, num_warps=4, BLOCK_R=block_r, BLOCK_D=block_d)


def column_sum_settings() -> Settings:
    """Settings of the kernel that adds up partial rows: narrow blocks, so that programs share the columns."""
    return Settings(registers=64, num_warps=4, BLOCK_R=64, BLOCK_D=32)


def mark_settings() -> Settings:
    """Settings of the kernel that marks neighbours: 8 columns per lane cover most rows in one step."""
    return Settings(registers=64, EDGES=256)


def sample_settings(fanout: int) -> Settings:
    """Settings of the kernel that samples neighbours: one warp, so that no test for repetitions waits at a barrier.

    Small fan-outs share a program, so that the draws of one row hide the latency of another's.
    """
    edges = next_power_of_2(fanout)
    return Settings(registers=128, vgprs=128, BLOCK_R=max(256 // edges, 1), EDGES=edges)


def flag_settings(lanes: int) -> Settings:
    """Settings of the kernel that samples neighbours by flags: one row per lane."""
    return Settings(registers=64, BLOCK_R=lanes)


def next_power_of_2(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def previous_power_of_2(n: int) -> int:
    return 1 << (n.bit_length() - 1)


def row_alignment(*matrices: Tensor | None) -> int:
    """The largest power of two, up to 16, that divides the address in bytes of every row of every matrix.

    It lets a lane load several elements at a time. Triton infers it only from strides that are a multiple of 16 elements.
    Counted in bytes, width 100 in float32 is aligned as well.
    """
    align = LANE_BYTES
    for matrix in matrices:
        if matrix is not None:
            align = gcd(align, matrix.data_ptr(), matrix.stride(0) * matrix.element_size())
    return align


def row_vector(*matrices: Tensor | None) -> int:
    """Elements that a lane can load or store at once in every one of ``matrices``.

    It is the same for all of them, even if a narrow dtype would allow more. So a lane has the same elements of every
    matrix, and none has to move to another lane between a load and a store.
    """
    given = [matrix for matrix in matrices if matrix is not None]
    return min(min(row_alignment(matrix), LANE_BYTES) // matrix.element_size() for matrix in given)


class _Recorder(NamedTuple):
    record: Callable[[object, tuple[int, ...], dict, Settings], None]
    lanes: int


_recorder: _Recorder | None = None


def launch(kernel: object, grid: tuple[int, ...], settings: Settings, device: torch.device, **arguments: object) -> None:
    """Run ``kernel`` over ``grid`` on ``device``, whichever device is current."""
    arguments.update(settings.constants)
    if _recorder is not None:
        _recorder.record(kernel, grid, arguments, settings)
        return
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        kernel[grid](**arguments, **settings.options(amd=bool(torch.version.hip)))


@contextmanager
def recording(record: Callable[[object, tuple[int, ...], dict, Settings], None], lanes: int) -> Iterator[None]:
    """Inside the block, launches are passed to ``record`` instead of being run, with warps of ``lanes`` threads."""
    global _recorder
    previous, _recorder = _recorder, _Recorder(record, lanes)
    try:
        yield
    finally:
        _recorder = previous
