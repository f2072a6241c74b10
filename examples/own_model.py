"""A model of your own, trained with REST in your own loop, from PyG's Data. Run: python examples/own_model.py"""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch.nn import Linear, ModuleList
from torch_geometric.data import Data
from torch_geometric.utils import stochastic_blockmodel_graph

import rest_triton as rt


class SAGE(rt.HistoryGNN):
    normalise = "mean"  # propagate() takes the mean over neighbours

    def __init__(self, dims):
        super().__init__(history_dims=dims[1:-1])
        self.lins = ModuleList(Linear(2 * a, b) for a, b in pairwise(dims))

    def layer(self, layer, ctx):
        u = self.lins[layer](torch.cat([ctx.h, ctx.propagate()], 1))
        return u if layer == self.num_layers - 1 else ctx.output(u, dropout=0.3)


torch.manual_seed(0)
y = torch.arange(5).repeat_interleave(400)  # five groups of nodes, most edges inside of them
edges = stochastic_blockmodel_graph([400] * 5, 0.002 + 0.02 * torch.eye(5))
x = F.one_hot(y, 5) + torch.randn(2000, 5)
data = rt.from_pyg(Data(x=x, y=y, edge_index=edges, train_mask=torch.rand(2000) < 0.3))

model = SAGE([5, 64, 64, 5])
loader = rt.ClusterLoader(data, num_parts=20, batch_size=4)
history = rt.History(data.num_nodes, model.history_dims, dtype=torch.bfloat16)
rest = rt.REST(model, loader, history, frequency=1)  # frequency=0: GAS
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(10):
    for batch in loader:
        out = rest(batch)  # refresh, forward, write the batch's rows
        loss = F.cross_entropy(out[batch.train_mask], batch.y[batch.train_mask])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
right = rest.inference().argmax(1) == data.y  # exact, layer by layer
print(f"loss {loss:.3f}, accuracy on the other nodes {right[~data.train_mask].float().mean():.3f}")
