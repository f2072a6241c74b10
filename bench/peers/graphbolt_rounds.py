"""GraphBolt, DGL's newer loader: an epoch's sampling."""

from types import SimpleNamespace

import dgl.graphbolt as gb
import torch
from protocol import Counts, Round, serve


def sampling(given: SimpleNamespace) -> Round:
    graph = gb.fused_csc_sampling_graph(given.rowptr.long(), given.col.long())
    items = gb.ItemSet(given.train.long(), names="seed_nodes")
    batches = gb.ItemSampler(items, batch_size=given.batch_nodes, shuffle=True)
    loader = gb.DataLoader(batches.sample_neighbor(graph, [torch.tensor([fanout]) for fanout in given.fanouts]))

    def run() -> Counts:
        samples = [sample.sampled_csc for batch in loader for sample in batch.sampled_subgraphs]
        rows = sum(sample.indptr.numel() - 1 for sample in samples)
        return dict(edges=sum(sample.indices.numel() for sample in samples), rows=rows)

    return run


if __name__ == "__main__":
    serve({"sampling": sampling})
