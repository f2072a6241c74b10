"""How many rows around a batch of clusters are read for each of its own."""

from torch import Tensor

from ..ops import Adjacency
from .batch import ClusterBatches

BATCHES = 8  # that are counted at most: an epoch of a large graph has hundreds, and they differ little


def halo_per_row(adj: Adjacency, ptr: Tensor, batch_size: int) -> float:
    """Rows of halos divided by rows of batches, over the first batches of the epoch 0 of seed 0.

    Args:
        adj: the graph, in the order of its clusters. ptr: int64[K+1], their bounds. batch_size: clusters in a batch.
    """
    batches = ClusterBatches(ptr, batch_size, device=adj.rowptr.device).epoch(0)[:BATCHES]
    return sum(batch.halo(adj).numel() for batch in batches) / sum(map(len, batches))
