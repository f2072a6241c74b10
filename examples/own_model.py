"""A model of your own, trained with REST in your own loop, from PyG's Data. Run: python examples/own_model.py"""

import torch
import torch.nn.functional as F
from torch.nn import Linear, ModuleList
from torch_geometric.data import Data
from torch_geometric.utils import stochastic_blockmodel_graph as block_model

import rest_triton as rt


class SAGE(rt.HistoryGNN):
    normalise = "mean"  # propagate() takes the mean over neighbours

    def __init__(self):
        super().__init__(history_dims=[64, 64])  # tables for the inputs of layers 1 and 2
        self.lins = ModuleList([Linear(2 * 5, 64), Linear(2 * 64, 64), Linear(2 * 64, 5)])

    def layer(self, layer, ctx):
        u = self.lins[layer](torch.cat([ctx.h, ctx.propagate()], 1))
        return u if layer == 2 else ctx.output(u, dropout=0.3)


y, edges = torch.arange(5).repeat_interleave(400), block_model([400] * 5, 0.002 + 0.02 * torch.eye(5))
x = F.one_hot(y, 5) + torch.randn(2000, 5)
data = rt.from_pyg(Data(x=x, y=y, edge_index=edges, train_mask=torch.rand(2000) < 0.3))
model = SAGE()
loader = rt.ClusterLoader(data, num_parts=20, batch_size=4)
history = rt.History(data.num_nodes, model.history_dims, dtype=torch.bfloat16)
rest = rt.REST(model, loader, history, frequency=1)  # frequency=0: GAS
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(10):
    for batch in loader:
        loss = F.cross_entropy(rest(batch)[batch.train_mask], batch.y[batch.train_mask])  # refresh, forward, write rows
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
right = (rest.inference().argmax(1) == data.y)[~data.train_mask]  # exact, layer by layer
print(f"loss {loss:.3f}, accuracy on the other nodes {right.float().mean():.3f}")
