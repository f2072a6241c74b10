"""The origin of a loss that is NaN or infinite."""

from collections.abc import Callable

import torch
from torch import Tensor

from ..methods.engine import Engine
from ..sampling.batch import Batch


class NotFinite(ArithmeticError):
    """A loss is NaN or infinite. where: the first tensor that is."""

    def __init__(self, step: int, where: str) -> None:
        super().__init__(f"the loss of step {step} is not finite: {where}")
        self.step, self.where = step, where


def diagnose(engine: Engine, batch: Batch, step: int, loss_of: Callable[[Tensor], Tensor | None]) -> NotFinite:
    """Find the first tensor that is not finite: a weight, a row of a table that the batch reads, or a layer's result.

    The forward runs again, and each result is checked.
    """
    for name, parameter in engine.model.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            return NotFinite(step, f"the weights {name} are not, since the update of step {step - 1}")
    cached = [sample.places for sample in batch.samples or () if sample is not None and sample.places is not None]
    halo = cached[-1] if cached else batch.halo(engine.inputs.adj)
    for number, table in enumerate(engine.history.tables):
        rows = table.rows[halo.to(table.rows.device)]
        bad = torch.nonzero(~torch.isfinite(rows.float()).all(1))
        if bad.numel():
            return NotFinite(step, f"{bad.shape[0]} rows of history table {number} are not, which the batch reads")
    first: list[str] = []

    def watch(what: str, h: Tensor) -> None:
        if not first and not bool(torch.isfinite(h.detach()).all()):
            first.append(what)

    hooks = [
        module.register_forward_hook(lambda module, args, out, name=name: watch(f"layer {name}", out))
        for name, module in engine.model.named_modules()
        if isinstance(module, torch.nn.Linear)
    ]
    try:
        engine.train(batch, step, lambda logits: None, probe=watch)
    finally:
        for hook in hooks:
            hook.remove()
    return NotFinite(step, f"the {first[0]} is the first that is not" if first else "only the loss itself is not")
