"""A batch as PyGAS computes it, in plain torch: batch and halo concatenated, features dropped of all rows, aggregated."""

import math
from collections.abc import Callable
from itertools import count
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rest_triton.kernels._hash import mix64
from rest_triton.ops.hashing import feature_kept
from rest_triton.sampling.batch import Batch

from ..history.runs import Run
from ..nn.test_norm import dense

# The models of PyGAS's paper that these functions write out. "exact" computes the halo's encoded features, too.
MODELS: dict[str, dict[str, Any]] = {
    "gcn": dict(model="gcn"),
    "gcn-norm": dict(model="gcn-norm"),
    "gcn-linear": dict(model="gcn-linear"),
    "appnp": dict(model="appnp"),
    "gcnii": dict(model="gcnii"),
    "gcn-linear, exact": dict(model="gcn-linear", first="exact"),
    "appnp, exact": dict(model="appnp", first="exact"),
    "gcnii, exact": dict(model="gcnii", first="exact"),
}


def kept(run: Run, step: int, number: int, nodes: Tensor, width: int, draw: int = 0) -> Tensor:
    """bool [K, width]: the mask of the forward's n-th dropout, counted from 1, for rows of ``nodes``."""
    seed = mix64(mix64(mix64(run.engine.inputs.seed + step) + draw) + number) >> 1
    return feature_kept(seed, nodes, width, run.config.dropout)


class PyGAS:
    """One training forward of a batch. The rows in the tables are read when it is made.

    Args:
        drops: whether the halo's rows from tables are dropped, too. running: BatchNorm by running statistics.

    ``recorded`` has the rows of the batch for each table, before dropout.
    """

    def __init__(
        self, run: Run, batch: Batch, step: int, *, draw: int = 0, drops: bool = True, running: bool = False
    ) -> None:
        self.run, self.step, self.draw, self.drops, self.running = run, step, draw, drops, running
        self.own, self.nodes = len(batch), torch.cat([batch.rows, batch.halo(run.data.adj)])
        self.pulled = iter([table.rows[self.nodes[self.own :]].float() for table in run.history.tables])
        self.matrix = dense(run)[batch.rows][:, self.nodes]
        self.numbers, self.recorded = count(1), list[Tensor]()
        self.drops_first = drops or run.config.first == "exact"  # rows that are computed always have dropout

    def drop(self, h: Tensor, *, all_rows: bool = True) -> Tensor:
        p, nodes = self.run.config.dropout, self.nodes[: len(h)]
        mask = kept(self.run, self.step, next(self.numbers), nodes, h.shape[1], self.draw)
        if not all_rows:
            mask[self.own :] = True
            p = torch.full((len(h), 1), p)
            p[self.own :] = 0.0
        return torch.where(mask, h / (1 - p), 0)

    def push_and_pull(self, h: Tensor) -> Tensor:
        self.recorded.append(h[: self.own].detach())
        return torch.cat([h[: self.own], next(self.pulled)])

    def norm(self, norms: Any, layer: int, h: Tensor) -> Tensor:
        if len(norms) == 0:
            return h
        of = norms[layer]
        mean, var = (of.running_mean.clone(), of.running_var.clone()) if self.running else (None, None)
        return F.batch_norm(h, mean, var, of.weight, of.bias, training=not self.running, eps=of.eps)

    def __call__(self) -> Tensor:
        """[R, C]: the result."""
        model: Any = self.run.model
        x = self.run.data.x[self.nodes]
        x = self.drop(x) if model.feature_dropout > 0 else x
        return {"gcn": self.gcn, "appnp": self.appnp, "gcnii": self.gcnii}[self.run.config.model](model, x)

    def first(self, h: Tensor) -> Tensor:
        """Encoded features: the halo's are pulled, or computed."""
        return h if self.run.config.first == "exact" else self.push_and_pull(h)

    def layers(self, model: Any, x: Tensor, layer: Callable[[int, Tensor], Tensor], decode: Any) -> Tensor:
        for number in range(model.num_layers):
            h = layer(number, x)
            if number + 1 < model.num_layers:
                x = self.drop(self.push_and_pull(h), all_rows=self.drops)
        return h if decode is None else decode(self.drop(h))

    def gcn(self, model: Any, x: Tensor) -> Tensor:
        if model.linear:
            x = self.drop(self.first(model.lins[0](x).relu()), all_rows=self.drops_first)

        def layer(number: int, x: Tensor) -> Tensor:
            conv = model.convs[number]
            h = self.matrix @ x @ conv.lin.weight.t() + conv.bias
            if number == model.num_layers - 1 and not model.linear:
                return h
            h = self.norm(model.bns, number, h)
            return (h + x[: self.own] if model.residual and (model.linear or number > 0) else h).relu()

        return self.layers(model, x, layer, model.lins[1] if model.linear else None)

    def gcnii(self, model: Any, x: Tensor) -> Tensor:
        x = self.first(model.lins[0](x).relu())
        h0, x = x[: self.own], self.drop(x, all_rows=self.drops_first)

        def layer(number: int, x: Tensor) -> Tensor:
            z = (1 - model.alpha) * (self.matrix @ x) + model.alpha * h0
            beta = math.log(model.theta / (number + 1) + 1)
            return ((1 - beta) * z + beta * z @ model.convs[number].weight1).relu()

        return self.layers(model, x, layer, model.lins[1])

    def appnp(self, model: Any, x: Tensor) -> Tensor:
        """PyGAS drops nothing between propagations."""
        for number, lin in enumerate(model.lins[:-1]):
            x = self.drop(self.norm(model.bns, number, lin(x)).relu())
        x = self.first(model.lins[-1](x))
        h0 = x[: self.own]
        for number in range(model.num_layers):
            h = (1 - model.alpha) * (self.matrix @ x) + model.alpha * h0
            x = self.push_and_pull(h) if number + 1 < model.num_layers else x
        return h
