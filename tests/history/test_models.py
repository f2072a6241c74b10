"""The models are the published ones: the same outputs as PyG's layers with the same weights, on a full graph."""

import torch
import torch.nn.functional as F

from rest_triton.convert import to_pyg

from .runs import CLASSES, FEATURES, Run


def exact(run: Run) -> torch.Tensor:
    return run.engine.exact()


def test_gcn() -> None:
    from torch_geometric.nn import GCNConv

    run = Run("gcn")
    h, edges = run.engine.scene.x, to_pyg(run.graph).edge_index
    for layer, lin in enumerate(run.model.lins):
        conv = GCNConv(lin.in_features, lin.out_features)
        conv.lin.weight.data, conv.bias.data = lin.weight.data, lin.bias.data
        h = conv(h, edges)
        h = h.relu() if layer < 2 else h
    torch.testing.assert_close(exact(run), h, rtol=1e-4, atol=1e-5)


def test_appnp() -> None:
    from torch_geometric.nn import APPNP

    run = Run("appnp")
    lins: list[torch.nn.Linear] = list(run.model.lins)
    h = lins[1](lins[0](run.engine.scene.x).relu())
    expected = APPNP(K=4, alpha=0.1)(h, to_pyg(run.graph).edge_index)
    torch.testing.assert_close(exact(run), expected, rtol=1e-4, atol=1e-5)


def gcnii(run: Run, shared: bool) -> torch.Tensor:
    from torch_geometric.nn import GCN2Conv

    model, edges = run.model, to_pyg(run.graph).edge_index
    lins: list[torch.nn.Linear] = list(model.lins)
    h = first = lins[0](run.engine.scene.x).relu()
    for layer, weight in enumerate(model.weights1):
        conv = GCN2Conv(16, alpha=0.1, theta=0.5, layer=layer + 1, shared_weights=shared)
        conv.weight1.data = weight.data
        if not shared:
            conv.weight2.data = model.weights2[layer].data
        h = conv(h, first, edges)
        if model.norms is not None:
            norm = model.norms[layer]
            h = F.batch_norm(h, norm.running_mean, norm.running_var, norm.weight, norm.bias)
        h = h.relu()
    return lins[1](h)


def test_gcnii() -> None:
    run = Run("gcnii")
    torch.testing.assert_close(exact(run), gcnii(run, True), rtol=1e-4, atol=1e-5)
    separate = Run("gcnii-norm")
    torch.testing.assert_close(exact(separate), gcnii(separate, False), rtol=1e-4, atol=1e-5)


def test_widths_of_tables() -> None:
    assert Run("gcn").model.widths == [16, 16] and Run("appnp").model.widths == [CLASSES] * 4
    assert Run("gcnii").model.widths == [16] * 4 and FEATURES == 12
