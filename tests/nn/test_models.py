"""The models are the published ones: weights go to and from models built of PyG's layers, and give the same outputs."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import BatchNorm1d, Linear, Module, ModuleList

from rest_triton.data.convert import to_pyg
from rest_triton.nn import APPNP, GCN, GCNII, parameter_groups

from ..history.runs import CLASSES, FEATURES, Run


class PygGCN(Module):
    def __init__(self, layers: int, linear: bool, norm: bool, residual: bool) -> None:
        from torch_geometric.nn import GCNConv

        super().__init__()
        widths = [16] * (layers + 1) if linear else [FEATURES, *[16] * (layers - 1), CLASSES]
        self.lins = ModuleList([Linear(FEATURES, 16), Linear(16, CLASSES)] if linear else [])
        self.convs = ModuleList(GCNConv(a, b) for a, b in pairwise(widths))
        self.bns = ModuleList(BatchNorm1d(16) for _ in range(layers if linear else layers - 1)) if norm else ModuleList()
        self.residual = residual

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        h = self.lins[0](x).relu() if len(self.lins) else x
        for layer, conv in enumerate(self.convs):
            u = conv(h, edges)
            if layer == len(self.convs) - 1 and not len(self.lins):
                return u
            u = self.bns[layer](u) if len(self.bns) else u
            h = (u + h if self.residual and u.shape == h.shape else u).relu()
        return self.lins[1](h)


class PygAPPNP(Module):
    def __init__(self, layers: int, mlp: int, norm: bool) -> None:
        from torch_geometric.nn import APPNP

        super().__init__()
        widths = [FEATURES, *[16] * (mlp - 1), CLASSES]
        self.lins = ModuleList(Linear(a, b) for a, b in pairwise(widths))
        self.bns = ModuleList(BatchNorm1d(16) for _ in widths[1:-1]) if norm else ModuleList()
        self.propagate = APPNP(K=layers, alpha=0.2)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        for i, lin in enumerate(self.lins[:-1]):
            x = lin(x)
            x = (self.bns[i](x) if len(self.bns) else x).relu()
        return self.propagate(self.lins[-1](x), edges)


class PygGCNII(Module):
    def __init__(self, layers: int, shared: bool, norm: bool, residual: bool) -> None:
        from torch_geometric.nn import GCN2Conv

        super().__init__()
        self.lins = ModuleList([Linear(FEATURES, 16), Linear(16, CLASSES)])
        self.convs = ModuleList(
            GCN2Conv(16, alpha=0.2, theta=0.7, layer=layer + 1, shared_weights=shared) for layer in range(layers)
        )
        self.bns = ModuleList(BatchNorm1d(16) for _ in range(layers)) if norm else ModuleList()
        self.residual = residual

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        h = first = self.lins[0](x).relu()
        for layer, conv in enumerate(self.convs):
            u = conv(h, first, edges)
            u = self.bns[layer](u) if len(self.bns) else u
            h = (u + h if self.residual else u).relu()
        return self.lins[1](h)


SIZES: dict[str, Any] = dict(in_channels=FEATURES, hidden_channels=16, out_channels=CLASSES)
PAIRS = {
    "gcn": lambda: (GCN(**SIZES, num_layers=3), PygGCN(3, False, False, False)),
    "gcn, one layer": lambda: (GCN(**SIZES, num_layers=1), PygGCN(1, False, False, False)),
    "gcn, everything": lambda: (
        GCN(**SIZES, num_layers=3, batch_norm=True, residual=True, linear=True), PygGCN(3, True, True, True),
    ),
    "gcn, norm and residual": lambda: (
        GCN(**SIZES, num_layers=4, batch_norm=True, residual=True), PygGCN(4, False, True, True),
    ),
    "appnp": lambda: (APPNP(**SIZES, num_layers=4, alpha=0.2), PygAPPNP(4, 2, False)),
    "appnp, four layers and norm": lambda: (
        APPNP(**SIZES, num_layers=2, alpha=0.2, mlp_layers=4, batch_norm=True), PygAPPNP(2, 4, True),
    ),
    "gcnii": lambda: (GCNII(**SIZES, num_layers=4, alpha=0.2, theta=0.7), PygGCNII(4, True, False, False)),
    "gcnii, everything": lambda: (
        GCNII(**SIZES, num_layers=3, alpha=0.2, theta=0.7, shared_weights=False, batch_norm=True, residual=True),
        PygGCNII(3, False, True, True),
    ),
}  # fmt: skip


def randomised(model: Module) -> Module:
    """Also statistics of a BatchNorm, which are zeros and ones at birth."""
    with torch.no_grad():
        for value in model.state_dict().values():
            if value.is_floating_point():
                value.copy_(torch.rand_like(value) - (0.5 if value.dim() > 1 else 0.0))
    return model


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("direction", ["from PyG", "to PyG"])
def test_weights_go_to_and_from_pyg(name: str, direction: str) -> None:
    torch.manual_seed(0)
    ours, theirs = PAIRS[name]()
    source, target = (theirs, ours) if direction == "from PyG" else (ours, theirs)
    target.load_state_dict(randomised(source).state_dict())  # strict: the names agree, too
    run = Run(ours)
    x, edges = run.data.x, to_pyg(run.graph).edge_index
    with torch.no_grad():
        expected = theirs.eval()(x, edges)
    torch.testing.assert_close(run.engine.exact(), expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


def test_widths_of_tables() -> None:
    assert Run("gcn").model.history_dims == [16, 16] and Run("appnp").model.history_dims == [CLASSES] * 4
    assert Run("gcnii").model.history_dims == [16] * 4 and Run("gcn-linear").model.history_dims == [16] * 2


def test_parameter_groups() -> None:
    """As in PyGAS: what aggregates sits between is one group, what is outside of them the other."""
    expected = {"gcn": 2 * 2 + 2, "gcn-linear": 2 * 2 + 4, "appnp": 2 + 2, "gcnii": 4 + 4}
    inner = {"gcn": 4, "gcn-linear": 4, "appnp": 2, "gcnii": 4}
    for name, count in expected.items():
        model = Run(name).model
        reg, nonreg = parameter_groups(model)
        assert (len(reg), len(nonreg)) == (inner[name], count - inner[name]), name
    own = Linear(3, 4)
    assert [len(group) for group in parameter_groups(own)] == [2, 0]


@pytest.mark.parametrize("model", ["gcn", "appnp", "gcnii"])
def test_no_layers_are_refused(model: str) -> None:
    kind = {"gcn": GCN, "appnp": APPNP, "gcnii": GCNII}[model]
    with pytest.raises(ValueError, match="num_layers is 0"):
        kind(**SIZES, num_layers=0)
