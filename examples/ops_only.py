"""The ops alone: aggregate fresh and historical rows, activate, and write the history. Run: python examples/ops_only.py"""

import torch

from rest_triton.ops import Adjacency, activate, history_spmm

N, width = 10_000, 128
col = torch.randint(0, N, (N * 8,), dtype=torch.int32)
rowptr = torch.arange(0, N * 8 + 1, 8)
scale = torch.full((N,), 8**-0.5)
adj = Adjacency(rowptr, col, row_scale=scale, col_scale=scale).with_reverse()

table = torch.randn(N, width).bfloat16()  # the last known embeddings of all nodes
position = ~torch.arange(N, dtype=torch.int32)  # every node is read from its own row of the table
rows = torch.arange(500)  # the batch
position[rows] = torch.arange(500, dtype=torch.int32)  # except its nodes: they are rows of x

x = torch.randn(500, width, requires_grad=True)
z = history_spmm(adj, rows, position, x, table)  # [500, 128], over all neighbours
y = activate(z, dropout=0.5, seed=1, rows=rows, history=table)  # ReLU, write to the table, dropout
y.sum().backward()  # the same op on the reverse graph
print(f"result {list(y.shape)}, gradient of x {list(x.grad.shape)} with norm {float(x.grad.norm()):.2f}")
