"""The edge cut of clusters, on a CPU."""

import torch

from .intrinsics import load_i32, load_i64, load_index, next_ticket, store_i64
from .pool import Task, chunk_size

COUNT, CHUNK = 1, 2
ROWPTR, COL, COL_WIDE, CLUSTER, CUT_COUNTS = range(3, 8)


@Task
def cut_task(block):
    """counts[t] = edges of the t-th chunk of rows whose ends are in different clusters."""
    count, chunk, rowptr, col, wide = block[COUNT], block[CHUNK], block[ROWPTR], block[COL], block[COL_WIDE]
    cluster = block[CLUSTER]
    while True:
        ticket = next_ticket(block)
        begin = ticket * chunk
        if begin >= count:
            break
        cut = 0
        for g in range(begin, min(begin + chunk, count)):
            own = load_i32(cluster + 4 * g)
            for k in range(load_i64(rowptr + 8 * g), load_i64(rowptr + 8 * g + 8)):
                cut += load_i32(cluster + 4 * load_index(col, wide, k)) != own
        store_i64(block[CUT_COUNTS] + 8 * ticket, cut)


def cut_edges(rowptr: torch.Tensor, col: torch.Tensor, cluster: torch.Tensor) -> int:
    """The number of edges between different clusters. cluster: int32[N]."""
    count = rowptr.numel() - 1
    if col.numel() == 0:
        return 0
    chunk = chunk_size(count, 64, 4096)
    counts = torch.empty(-(-count // chunk), dtype=torch.int64)
    cut_task.launch(count, chunk, rowptr, col, int(col.dtype == torch.int64), cluster, counts)
    return int(counts.sum())
