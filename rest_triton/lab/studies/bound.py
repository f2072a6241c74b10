r"""Measurements for Theorem 1 of the REST paper: errors of gradients, and the theorem's right-hand side.

.. math:: ‖∇L_θ(h̃^L_v) - ∇L_θ(h^L_v)‖ ≤ ε \sum_{l=1}^L (\prod_{k=l+1}^L α^k) β^l |N(v)| ‖L̃_v‖ ‖h̄^{l-1} - h^{l-1}‖

This form follows from the proof in Appendix A; the paper's statement has all factors within the product. The sum is over
the layers that read a history.

    measured    ‖h̄ - h‖ of each table; the gradients; ‖h̃ - h‖ of the results; the spectral norm of each layer's weights with
                BatchNorm's scale (running statistics); |N(v)| and ‖L̃_v‖, the number and the 2-norm of v's edge weights
    bounded     ReLU by 1; the normalised adjacency's spectral norm by 1 for undirected graphs, and by the root of its
                largest row sum times its largest column sum for others; α and β of a layer by the product of these
    estimated   ε, the Lipschitz constant of the gradient as a function of the results: the largest ‖g(stale) - g(fresh)‖ /
                ‖h̃ - h‖ over the measured batches, the smallest ε that the theorem's assumption allows for them

Norms are over all rows of a batch as one vector. The *paper's form* takes the farthest row of the batch's halo for
‖h̄ - h‖, since the inequality holds for every v. The *sharp form* has the measured ‖Â (h̄ - h)‖ for |N(v)| ‖L̃_v‖ ‖h̄ - h‖.
The theorem covers staleness only; :class:`rest_triton.training.staleness.GradientError` also has the other error.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from ...methods.loss import mean_loss
from ...nn import APPNP, GCN, GCNII
from ...ops import Adjacency
from ...training.staleness import gradient_errors
from ...utils.errors import UserError
from ...utils.files import write_whole
from ..ended import last_state, remove_tables
from ..pictures import Panel, draw
from ..study import Base, Cases, Results, Run, Spread, Study

LEAVES = "gradients.json"
MOST = 16  # the number of measured batches: each takes a forward and backward over the whole graph


@dataclass(frozen=True)
class Constants:
    """Lipschitz constants of a model.

    Args:
        layers: of each layer that reads a table, in order, without its aggregate. tail: of the layers after the last.
        adjacency: of an aggregate.
    """

    layers: list[float]
    tail: float
    adjacency: float

    def total(self, terms: Sequence[float]) -> float:
        """The sum over layers of a term times the constants of its layer and all later ones."""
        total = 0.0
        for own, term in zip(self.layers, terms, strict=True):
            total = own * (self.adjacency * total + term)
        return self.tail * total


@torch.no_grad()
def constants(model: Module, adj: Adjacency, *, directed: bool, exact_first: bool = False) -> Constants:
    """The constants of a GCN, APPNP or GCNII without residual connections. exact_first: its first layer reads no table."""
    tail, layers = 1.0, list[float]()
    if isinstance(model, GCN) and not model.residual:
        for layer, conv in list(enumerate(model.convs))[0 if model.linear else 1 :]:
            last = layer == len(model.convs) - 1 and not model.linear
            layers.append(_largest(conv.lin.weight.t(), () if last else model.bns, layer))  # type: ignore[union-attr,operator]
        tail = _largest(model.lins[1].weight.t()) if model.linear else 1.0  # type: ignore[operator]
    elif isinstance(model, APPNP):
        layers = [1 - model.alpha] * model.num_layers
    elif isinstance(model, GCNII) and not model.residual:
        for layer, conv in enumerate(model.convs):
            beta, weight = math.log(model.theta / (layer + 1) + 1), conv.weight1
            mixed = (1 - beta) * torch.eye(len(weight), device=weight.device) + beta * weight  # type: ignore[arg-type,operator]
            layers.append((1 - model.alpha) * _largest(mixed, model.bns, layer))
        tail = _largest(model.lins[1].weight.t())  # type: ignore[operator]
    else:
        raise UserError(f"the constants of {type(model).__name__} are not known, or not with --residual; study gcn, appnp "
                        "or gcnii without it")  # fmt: skip
    return Constants(layers[1:] if exact_first else layers, tail, _adjacency_norm(adj, directed))


def _largest(weight: Tensor, norms: Any = (), layer: int = 0) -> float:
    """The spectral norm of ``x -> norm(x weight)``; weight [in, out]."""
    if len(norms):
        scale = torch.rsqrt(norms[layer].running_var + norms[layer].eps)
        weight = weight * (scale if norms[layer].weight is None else scale * norms[layer].weight)
    return float(torch.linalg.matrix_norm(weight.float(), 2))


def _edges(adj: Adjacency) -> tuple[Tensor, Tensor, Tensor]:
    """(row, column, weight) of every edge."""
    row = torch.repeat_interleave(torch.arange(adj.num_nodes, device=adj.rowptr.device), adj.rowptr.diff())
    col = adj.col.long()
    weight = torch.ones(adj.num_edges, device=row.device)
    for scale, at in ((adj.row_scale, row), (adj.col_scale, col)):
        weight = weight if scale is None else weight * scale[at]
    if adj.edge_weight is not None:
        weight = weight * (adj.edge_weight if adj.edge_id is None else adj.edge_weight[adj.edge_id.long()])
    return row, col, weight


def _adjacency_norm(adj: Adjacency, directed: bool) -> float:
    if not directed:
        return 1.0
    row, col, weight = _edges(adj)
    sums = [weight.new_zeros(adj.num_nodes).index_add_(0, at, weight.abs()) for at in (row, col)]
    return float(sums[0].max() * sums[1].max()) ** 0.5


@torch.no_grad()
def neighbourhoods(adj: Adjacency) -> Tensor:
    """float32[N]: ``|N(v)| ‖L̃_v‖``."""
    row, _, weight = _edges(adj)
    return adj.rowptr.diff() * weight.new_zeros(adj.num_nodes).index_add_(0, row, weight.square()).sqrt()


def sums(known: Constants, aggregate: Sequence[float], farthest: Sequence[float], near: Tensor) -> tuple[float, float]:
    """(the sharp form's sum, the paper's form's sum), both without ε: bounds of ``‖h̃ - h‖`` of a batch.

    Args:
        aggregate, farthest: see :class:`rest_triton.training.staleness.GradientError`.
        near: :func:`neighbourhoods` of the rows of the batch.
    """
    many = float(near.norm())
    return known.total(aggregate), known.total([many * far for far in farthest])


def measure(run: Run) -> None:
    """Measure gradients with the run's last weights and tables, write gradients.json, and remove the large tables."""
    config, folder = run.config, run.folder
    batches: list[dict[str, Any]] = []
    with last_state(config, folder) as trainer:
        loaded, exact_first = trainer.loaded, trainer.config.first == "exact"
        known = constants(trainer.model, loaded.adj, directed=bool(loaded.graph.directed), exact_first=exact_first)
        near, loss = neighbourhoods(loaded.adj), partial(mean_loss, loaded.graph, device=trainer.device)
        for batch, error in gradient_errors(trainer.engine, trainer.method.cover()[:MOST], loss, trainer.step):
            sharp, papers = sums(known, error.aggregate, error.farthest, near[batch.rows])
            batches.append(asdict(error) | {"sharp": sharp, "paper": papers, "nodes": len(batch)})
    content = {"columns": _means(batches), "constants": asdict(known), "batches": batches}
    write_whole(folder / LEAVES, json.dumps(content, indent=1).encode())
    remove_tables(folder)


def _means(batches: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The study's columns, as means over batches."""
    if not batches:
        return {}
    means = {
        name: mean(one[name] for one in batches) for name in ("norm", "error", "stale", "cut", "output", "sharp", "paper")
    }
    epsilon = max((one["stale"] / one["output"] for one in batches if one["output"] > 0), default=0.0)
    return {
        **{f"gradient_{name}": means[name] for name in ("norm", "error", "stale", "cut", "output")},
        **{f"relative_{name}": means[name] / (means["norm"] or math.inf) for name in ("error", "stale", "cut")},
        **{f"halo_{table}": mean(one["mean"][table] for one in batches) for table in range(len(batches[0]["mean"]))},
        **{f"bound_{name}": epsilon * means[name] for name in ("sharp", "paper")},
        "epsilon": epsilon,
    }


@cache
def gradients(folder: Path) -> dict[str, Any]:
    """The content of a run's gradients.json, by :func:`measure`."""
    return json.loads((folder / LEAVES).read_text())


def _column(name: str) -> Callable[[Run], float | None]:
    return lambda run: gradients(run.folder)["columns"].get(name)


GRADIENTS = {
    name: _column(name)
    for name in ("relative_error", "relative_stale", "relative_cut", "halo_0", "halo_1", "halo_2", "gradient_norm",
                 "gradient_error", "gradient_stale", "gradient_cut", "gradient_output", "bound_sharp", "bound_paper",
                 "epsilon")
}  # fmt: skip


def _cases(base: Base) -> Cases:
    whole, cases = base.config.epochs, Cases()
    for length in [whole] if "epochs" in base.given else sorted({max(1, whole // 4), whole}):
        kept = dict(save_history=True, checkpoint_every=max(1, length // 2), eval_every=min(length, base.config.eval_every))
        for method, settings in base.methods((1, 4), full=False).items():
            cases[length, method] = settings | dict(epochs=length) | kept
    return cases


def _picture(results: Results) -> bytes:
    """A point for each batch."""
    panels: dict[str, Panel] = {}
    for run in (run for run in results.runs if run.row):
        measured = gradients(run.folder)
        for batch in measured["batches"]:
            places = {f"mean staleness of the halo, table {table}": value for table, value in enumerate(batch["mean"][:2])}
            for x, value in (
                places | {"right-hand side (sharp form)": measured["columns"]["epsilon"] * batch["sharp"]}
            ).items():
                panel = panels.setdefault(x, Panel(x, "gradient error by stale rows", {}, joined=False))
                panel.lines.setdefault(run.method, []).append((value, Spread(batch["stale"])))
    return draw(list(panels.values()))


BOUND = Study(
    "bound", "errors of gradients against staleness, and the theorem's right-hand side (Theorem 1)", ("epochs", "method"),
    _cases, GRADIENTS, _picture, epochs=(40, 12), seeds=(2, 1), after=measure, leaves=LEAVES,
)  # fmt: skip
