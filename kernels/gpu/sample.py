"""Sampling: sample_neighbours, place_nodes and transpose.

The sample is Floyd's, as in the definition. Only its test for repetitions goes draw by draw: a program has the numbers drawn
so far in registers, for several rows at a time. A number's rank grows with every smaller one that is drawn later, so that
it is stored in its place without a sort. Bytes: 8 per row for each of its arrays, and 8 per edge of the sample.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .._hash import seed_key
from .hashing import counter_hash
from .launch import MOST_DRAWS, flag_settings, lanes, launch, mark_settings, sample_settings

_RUNTIME = ["count", "fanout", "key", "edges"]
_POINTERS = ["edge_ptr", "rowptr_ptr", "rows_ptr", "begin_ptr", "flag_ptr", "position_ptr", "nodes_ptr"]

UNDRAWN = tl.constexpr(2**31 - 1)  # above every number that is drawn


@triton.jit
def _draw(b_word, i, b_last):
    """Draw i of each row, uniform in 0 .. b_last, int32. b_word: the hash of the row."""
    b_upper = counter_hash(b_word, tl.zeros_like(b_last) + i) >> 32
    return ((b_upper * (b_last + 1).to(tl.uint64)) >> 32).to(tl.int32)


@triton.jit(do_not_specialize=_RUNTIME, do_not_specialize_on_alignment=_POINTERS)
def sample_neighbours_kernel(
    edge_ptr, rowptr_ptr, rows_ptr, begin_ptr, count: tl.int64, fanout: tl.int32, key: tl.int64,
    BLOCK_R: tl.constexpr, EDGES: tl.constexpr,
):  # fmt: skip
    """The samples of BLOCK_R rows, each of at most EDGES edges, from edge[begin[i]] on."""
    o_r = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    m_r = o_r < count
    g = tl.load(rows_ptr + o_r, mask=m_r, other=0)
    b_first = tl.load(rowptr_ptr + g, mask=m_r, other=0)
    b_degree = (tl.load(rowptr_ptr + g + 1, mask=m_r, other=0) - b_first).to(tl.int32)
    b_begin = tl.load(begin_ptr + o_r, mask=m_r, other=0)
    b_word = counter_hash(key, g)
    o_d = tl.arange(0, EDGES)[None, :]
    b_chosen = tl.full([BLOCK_R, EDGES], UNDRAWN, tl.int32)
    b_rank = tl.zeros([BLOCK_R, EDGES], tl.int32) + o_d
    draws = tl.where(tl.max(b_degree, axis=0) > fanout, fanout, 0)
    for i in range(0, draws):
        b_last = b_degree - fanout + i
        b_drawn = _draw(b_word, i, b_last)
        b_taken = tl.max((b_chosen == b_drawn[:, None]).to(tl.int32), axis=1) > 0
        b_below = tl.sum((b_chosen < b_drawn[:, None]).to(tl.int32), axis=1)
        # b_last is above all numbers before it.
        b_next = tl.where(b_taken, b_last, b_drawn)[:, None]
        b_rank = tl.where(o_d == i, tl.where(b_taken, i, b_below)[:, None], b_rank + (b_chosen > b_next).to(tl.int32))
        b_chosen = tl.where(o_d == i, b_next, b_chosen)
    m_many = (b_degree > fanout)[:, None]
    b_chosen = tl.where(m_many, b_chosen, o_d)
    b_rank = tl.where(m_many, b_rank, o_d)
    m = o_d < tl.minimum(b_degree, fanout)[:, None]
    tl.store(edge_ptr + b_begin[:, None] + b_rank, b_first[:, None] + b_chosen, mask=m)


@triton.jit(do_not_specialize=_RUNTIME, do_not_specialize_on_alignment=_POINTERS)
def flag_neighbours_kernel(
    flag_ptr, rows_ptr, begin_ptr, count: tl.int64, fanout: tl.int32, key: tl.int64, BLOCK_R: tl.constexpr
):  # fmt: skip
    """flag[begin[i] + c] = 1 for every number c in the sample of row i, one row per lane."""
    o_r = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    m_r = o_r < count
    b_begin = tl.load(begin_ptr + o_r, mask=m_r, other=0)
    b_degree = (tl.load(begin_ptr + o_r + 1, mask=m_r, other=0) - b_begin).to(tl.int32)
    b_word = counter_hash(key, tl.load(rows_ptr + o_r, mask=m_r, other=0))
    m_many = b_degree > fanout
    draws = tl.where(tl.max(b_degree, axis=0) > fanout, fanout, 0)
    for i in range(0, draws):
        b_last = b_degree - fanout + i
        b_drawn = _draw(b_word, i, b_last)
        # A lane reads what it has stored itself, so that no barrier is needed.
        b_taken = tl.load(flag_ptr + b_begin + b_drawn, mask=m_many, other=0) != 0
        b_next = tl.where(b_taken, b_last, b_drawn)
        tl.store(flag_ptr + b_begin + b_next, tl.full([BLOCK_R], 1, tl.uint8), mask=m_many)


@triton.jit(do_not_specialize=_RUNTIME, do_not_specialize_on_alignment=_POINTERS)
def mark_unplaced_kernel(flag_ptr, position_ptr, nodes_ptr, count: tl.int64, EDGES: tl.constexpr):
    """flag[c] = 1 for every one of the nodes without a position. Several programs may set one flag: to the same byte."""
    o_e = tl.program_id(0).to(tl.int64) * EDGES + tl.arange(0, EDGES)
    m_e = o_e < count
    b_node = tl.load(nodes_ptr + o_e, mask=m_e, other=0)
    b_position = tl.load(position_ptr + b_node, mask=m_e, other=0)
    tl.store(flag_ptr + b_node, tl.full([EDGES], 1, tl.uint8), mask=b_position < 0)


def sample_neighbours(rowptr: Tensor, rows: Tensor, fanout: int, seed: int) -> tuple[Tensor, Tensor]:
    """(rowptr, edge) of a sample of at most ``fanout`` edges of each row. Its size depends on the data: the host waits.

    Above ``MOST_DRAWS`` the numbers of a row do not fit the registers: a flag of one byte per edge of the rows has them.
    """
    begin = rowptr[rows]
    degree = rowptr[rows + 1] - begin
    kept = degree.clamp(max=fanout)
    sampled = _starts(kept)
    if fanout > MOST_DRAWS:
        return sampled, _flagged(rows, begin, degree, kept, fanout, seed)
    edge = rows.new_empty(int(sampled[-1]))
    if edge.numel():
        settings = sample_settings(fanout)
        launch(
            sample_neighbours_kernel, (triton.cdiv(rows.numel(), settings.BLOCK_R),), settings, rows.device,
            edge_ptr=edge, rowptr_ptr=rowptr, rows_ptr=rows, begin_ptr=sampled, count=rows.numel(), fanout=fanout,
            key=seed_key(seed),
        )  # fmt: skip
    return sampled, edge


def _flagged(rows: Tensor, begin: Tensor, degree: Tensor, kept: Tensor, fanout: int, seed: int) -> Tensor:
    """The edges of the sample, by flags of all edges of the rows."""
    starts = _starts(degree)
    total = int(starts[-1])
    flag = torch.repeat_interleave((degree <= fanout).to(torch.uint8), degree, output_size=total)
    if total:
        fanout = min(fanout, 2**31 - 1)  # no row has more edges
        settings = flag_settings(lanes())
        launch(
            flag_neighbours_kernel, (triton.cdiv(rows.numel(), settings.BLOCK_R),), settings, rows.device,
            flag_ptr=flag, rows_ptr=rows, begin_ptr=starts, count=rows.numel(), fanout=fanout, key=seed_key(seed),
        )  # fmt: skip
    edge = flag.nonzero().view(-1)
    return edge + torch.repeat_interleave(begin - starts[:-1], kept, output_size=edge.numel())


def _starts(counts: Tensor) -> Tensor:
    return torch.nn.functional.pad(counts.cumsum(0), (1, 0))


def place_nodes(position: Tensor, nodes: Tensor, first: int) -> tuple[Tensor, Tensor]:
    """Nodes without a position get the next ones in ascending order: (these nodes, the positions of all of ``nodes``).

    As in halo, a flag per node is compacted, and the host waits for the number.
    """
    flag = torch.zeros(position.numel(), dtype=torch.uint8, device=position.device)
    if nodes.numel():
        settings = mark_settings()
        launch(
            mark_unplaced_kernel, (triton.cdiv(nodes.numel(), settings.EDGES),), settings, position.device,
            flag_ptr=flag, position_ptr=position.contiguous(), nodes_ptr=nodes, count=nodes.numel(),
        )  # fmt: skip
    fresh = flag.nonzero().view(-1)
    position[fresh] = torch.arange(first, first + fresh.numel(), dtype=position.dtype, device=position.device)
    return fresh, position.index_select(0, nodes)


def transpose(rowptr: Tensor, col: Tensor, columns: int) -> tuple[Tensor, Tensor]:
    """(rowptr, row) of the edges by column, with ascending rows. The host does not wait.

    Torch's stable radix sort does it, in four passes that each read and write a column and a 64-bit index: 100 bytes per
    edge, by arithmetic. Counting with atomics would read less, but the order in a column would differ from run to run.
    """
    ordered, order = torch.sort(col, stable=True)
    bounds = torch.searchsorted(ordered, torch.arange(columns + 1, dtype=col.dtype, device=col.device))
    return bounds, torch.searchsorted(rowptr, order, right=True, out_int32=True) - 1
