"""PyG's layers with histories, and the command line for them.

python examples/pyg_layer.py --dataset synthetic:arxiv@0.05 --method gas+rest --epochs 5
"""

from itertools import pairwise

from torch.nn import ModuleList
from torch_geometric.nn import GATv2Conv

import rest_triton as rt
from rest_triton.train import main


class GATv2(rt.HistoryGNN):
    normalise = "sum"  # the graph's own edges

    def __init__(self, in_channels, hidden_channels, out_channels, num_layers, dropout=0.0):
        dims = [in_channels, *[hidden_channels] * (num_layers - 1), out_channels]
        super().__init__(history_dims=dims[1:-1])
        self.convs = ModuleList(rt.PyGLayer(GATv2Conv(a, b)) for a, b in pairwise(dims))
        self.dropout = dropout

    def layer(self, layer, ctx):
        h = self.convs[layer](ctx)
        return h if layer == self.num_layers - 1 else ctx.output(h, dropout=self.dropout)


if __name__ == "__main__":
    main(model=GATv2)  # every flag, method, report and checkpoint of rest_triton.train
