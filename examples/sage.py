"""A model of one's own: GraphSAGE (Hamilton et al., 2017) with mean aggregation. All methods and commands work with it.

python examples/sage.py --dataset synthetic:arxiv@0.1 --method gas+rest --epochs 10
"""

from torch.nn import Linear, Module, ModuleList

from rest_triton.train import main


class SAGE(Module):
    normalise = "mean"  # of the neighbours; "gcn" is the default

    def __init__(self, in_channels, hidden_channels, out_channels, num_layers, dropout=0.0):
        super().__init__()
        self.dropout = dropout
        self.start = Linear(in_channels, hidden_channels)
        self.neighbours = ModuleList(Linear(hidden_channels, hidden_channels) for _ in range(num_layers))
        self.itself = ModuleList(Linear(hidden_channels, hidden_channels) for _ in range(num_layers))
        self.end = Linear(hidden_channels, out_channels)
        self.widths = [hidden_channels] * num_layers  # of the tables: what each layer reads of its neighbours

    def forward(self, view):
        h = view.start(lambda view: view.activate(None, self.start(view.features())))  # table 0
        for layer in view.layers(len(self.neighbours)):
            z = self.neighbours[layer](view.aggregate(layer, h)) + self.itself[layer](view.rows(layer, h))
            last = layer == len(self.neighbours) - 1
            h = view.activate(None if last else layer + 1, z, dropout=self.dropout)  # and the next table
            if last:
                return self.end(h)


if __name__ == "__main__":
    main(model=SAGE)
