"""Costs of refreshes and other means against staleness: F, refresh batch, learning rate, accumulation."""

from typing import Any

from ..pictures import along, curves, draw
from ..results import columns
from ..study import GAS, Base, Cases, Labels, Study


def _rest(f: int | str, **settings: Any) -> dict[str, Any]:
    return dict(method="gas+rest", frequency=f) | settings


def _frequency(base: Base) -> Cases:
    oldest, cases = dict(refresh_order="oldest"), Cases({(GAS,): dict(method="gas")})
    cases |= {(f"REST F={f}",): _rest(f) for f in base.axis("frequency", (1, 2, 3, 4, 5), (1, 3, 5))}
    cases |= {(f"REST F={f}, oldest first",): _rest(f, **oldest) for f in base.axis("frequency", (1, 3), (1,))}
    if "frequency" not in base.given:
        batches = -(-base.config.num_parts // base.config.batch_size)
        # Half of the rows' age without refreshes, which is about half an epoch, unless a flag sets the target.
        target = {} if base.given & {"target_age", "target_drift"} else dict(target_age=batches / 4)
        cases["REST F=auto",] = _rest("auto", **target)
        cases["REST F=auto, oldest first",] = _rest("auto", **target, **oldest)
    return cases


FREQUENCY = Study(
    "frequency", "REST with F refreshes per step, in random order or oldest rows first (Appendix C)", ("method",),
    _frequency, columns("val", "test", "late", "age", "frequency", "epoch_seconds", "memory"),
    lambda results: draw([curves(results.groups, "seconds", "val"), curves(results.groups, "epoch", "age")]),
    apart=True, seeds=(3, 1),
)  # fmt: skip


def _refresh_batch(base: Base) -> Cases:
    cases = Cases()
    for model, own in (base.models() if not base.quick else {base.config.model: {}}).items():
        cases[model, GAS] = own | dict(method="gas")
        for size in base.axis("refresh_batch", ("same", "half", "full")):
            cases[model, f"REST, {size}"] = own | _rest(1, refresh_batch=size)
    return cases


REFRESH_BATCH = Study(
    "refresh-batch", "a refresh per step of as many clusters as a batch has, of half, of all (Appendix O)",
    ("model", "method"), _refresh_batch, columns("val", "test", "late", "age", "epoch_seconds", "memory"),
    lambda results: draw([along(results, "method", "test", model=model) for model in results.values("model")]),
    apart=True, seeds=(3, 1),
)  # fmt: skip


def _learning_rate(base: Base) -> Cases:
    rate = base.config.lr
    cases = Cases({(GAS, rate): dict(method="gas")})
    for f in base.axis("frequency", (2, 5)):
        cases[f"REST F={f}", rate] = _rest(f)
        cases[f"GAS, rate / {f}", rate / f] = dict(method="gas", lr=rate / f)
    return cases


def _slower(labels: Labels) -> Labels:
    """REST with F is compared with the learning rate divided by F, the others with GAS."""
    _, rest, f = str(labels["method"]).partition("REST F=")
    return dict(method=f"GAS, rate / {f}") if rest else dict(method=GAS)


LEARNING_RATE = Study(
    "learning-rate", "REST with F, and GAS with a learning rate divided by F (Appendix L)", ("method", "lr"), _learning_rate,
    columns("val", "test", "late", "best_epoch", "age", "train_seconds"),
    lambda results: draw([curves(results.groups, x, "test") for x in ("epoch", "seconds")]),
    seeds=(3, 2), reference=_slower,
)  # fmt: skip


def _statistics(base: Base) -> Cases:
    norms, cases = dict(batch={}, running=dict(refresh_norm="running"), eval=dict(refresh_mode="eval")), Cases()
    for dropped in base.axis("history_dropout", (False, True)):
        also = ", rows dropped" if dropped else ""
        cases[f"GAS{also}",] = dict(method="gas", history_dropout=dropped)
        for name, method in {"REST": "gas+rest", "REST-IS": "gas+rest-is"}.items():
            for norm, settings in norms.items():
                cases[f"{name}, {norm}{also}",] = dict(method=method, history_dropout=dropped) | settings
    return cases


STATISTICS = Study(
    "statistics", "BatchNorm of refreshes (batch, running, eval), and dropout of the rows that are read from tables",
    ("method",), _statistics, columns("val", "test", "late", "stale_test", "error", "epoch_seconds"),
    lambda results: draw([along(results, "method", name) for name in ("test", "late", "error")]),
    seeds=(5, 1), epochs=(20, 8), settings=dict(error_every=4), reference=lambda labels: dict(method=GAS),
)  # fmt: skip


def _accumulation(base: Base) -> Cases:
    cases = Cases({(GAS,): dict(method="gas")})
    for f in base.axis("frequency", (1, 3), (1,)):
        cases[f"REST F={f}",] = _rest(f)
        cases[f"GAS, {f + 1} batches accumulated",] = dict(method="gas", accumulate=f + 1)  # as many forwards per update
    return cases


ACCUMULATION = Study(
    "accumulation", "REST, and gradients accumulated over as many forwards (Appendix N)", ("method",), _accumulation,
    columns("test", "late", "age", "epoch_seconds", "step_seconds", "memory"),
    lambda results: draw([along(results, "method", name) for name in ("memory", "epoch_seconds", "step_seconds")]),
    apart=True, seeds=(2, 1), epochs=(20, 5),
)  # fmt: skip

EFFICIENCY = Study(
    "efficiency", "peak memory, and training time to a validation score that all runs reach (Appendix B)",
    ("batch_size", "method"), lambda base: base.sized(base.batch_sizes(), eval_every=1),
    columns("val", "test", "late", "target_epoch", "target_seconds", "epoch_seconds", "memory"),
    lambda results: draw([along(results, "batch_size", name) for name in ("memory", "target_seconds")]),
    apart=True, seeds=(3, 1),
)  # fmt: skip
