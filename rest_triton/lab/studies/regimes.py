"""In which regimes staleness hurts at all: from a base, one factor at a time."""

from typing import Any

from ..pictures import Dots, dots
from ..results import Outcome, Results, Spread
from ..study import FULL, GAS, Base, Case, Study
from ..tables import cell
from ..words import beyond, difference, listed, title

CLUSTERS = ("batch_size", "num_parts")  # what full batch does not depend on


def _regimes(base: Base) -> dict[tuple[str, str], dict[str, Any]]:
    """Settings by (factor, value)."""
    c = base.config
    share = c.batch_size / c.num_parts
    values: dict[str, tuple[list[Any], list[Any]]] = {
        "batch_size": ([1, min(4 * c.batch_size, c.num_parts // 2)], [1]),
        "num_parts": ([max(2, c.num_parts // 4), 4 * c.num_parts], [4 * c.num_parts]),
        "num_layers": ([2, 5, 8], [6]),
        "lr": ([c.lr / 10, 5 * c.lr], [5 * c.lr]),
        "dropout": ([0.0], [0.0]),
        "batch_norm": ([not c.batch_norm], [not c.batch_norm]),
    }
    found: dict[tuple[str, str], dict[str, Any]] = {("base", ""): {}}
    for name, (full, quick) in values.items():
        for value in quick if base.quick else full:
            if value == getattr(c, name) or (name == "batch_size" and value < 1):
                continue
            settings = {name: value}
            if name == "num_parts":
                settings["batch_size"] = max(1, round(share * value))
            found[name, f"{value:g}" if not isinstance(value, bool) else ("on" if value else "off")] = settings
    return found


def _cases(base: Base) -> list[Case]:
    often = {} if "error_every" in base.given else dict(error_every=base.config.eval_every)
    return [
        base.case({"factor": factor, "value": value, "method": method}, **(settings | changes | often))
        for (factor, value), changes in _regimes(base).items()
        for method, settings in base.methods((1, 2, 4)).items()
        if not (method == FULL and factor in CLUSTERS)
    ]


def _full(results: Results, factor: str, value: str) -> list[Outcome]:
    where = dict(factor="base", value="") if factor in CLUSTERS else dict(factor=factor, value=value)
    found = results.where(method=FULL, **where)
    return found[0] if found else []


def _rows(results: Results) -> list[tuple[str, str]]:
    return list(dict.fromkeys((o.case.labels["factor"], o.case.labels["value"]) for o in results.outcomes))


def _name(factor: str, value: str) -> str:
    names = {"batch_size": "clusters in a batch", "num_parts": "clusters", "num_layers": "layers", "lr": "learning rate",
             "batch_norm": "BatchNorm"}  # fmt: skip
    return factor if factor == "base" else f"{names.get(factor, factor)} {value}"


def _draw(results: Results) -> dict[str, bytes]:
    rows = _rows(results)
    panels = []
    for name, text in (
        ("test", "at the best validation"),
        ("late", "late in training"),
        ("stale_test", "from stale tables"),
    ):
        series: dict[str, list[tuple[int, Spread]]] = {}
        for at, (factor, value) in enumerate(rows):
            reference = results.spread(_full(results, factor, value), "test")
            for group in results.where(factor=factor, value=value):
                spread = results.spread(group, name)
                if title(group) != FULL and spread is not None and reference is not None:
                    series.setdefault(title(group), []).append(
                        (at, Spread(spread.mean - reference.mean, spread.std, spread.count))
                    )
        panels.append(Dots(text, series))
    if not any(panel.series for panel in panels):
        return {}
    labels = [_name(factor, value) for factor, value in rows]
    return {"regimes.png": dots(panels, labels, f"test {results.metric} minus full batch's (points)")}


def _tell(results: Results) -> list[str]:
    told = []
    for factor, value in _rows(results):
        groups = results.where(factor=factor, value=value)
        full, gas = _full(results, factor, value), next((g for g in groups if title(g) == GAS), [])
        known, parts = results.spread(full, "test"), []
        if known is not None:
            parts.append(f"full batch {cell('test', known)}")
        for group in groups:
            ours, stale = results.spread(group, "test"), results.spread(group, "stale_test")
            if title(group) == FULL or ours is None:
                continue
            text, other = f"{title(group)} {cell('test', ours)}", full if title(group) == GAS else gas
            if other:
                text += f" (against {title(other)} {difference(results, group, other)})"
            parts.append(text + ("" if stale is None else f", from stale tables {cell('stale_test', stale)}"))
        if parts:
            told.append(f"{_name(factor, value)[0].upper()}{_name(factor, value)[1:]}: {'; '.join(parts)}.")
    return [*told, _where_it_hurts(results)]


def _where_it_hurts(results: Results) -> str:
    """The regimes in which GAS is below full batch late in training by more than the spread of pairs."""
    below, known = [], 0
    for factor, value in _rows(results):
        gas = next(iter(results.where(factor=factor, value=value, method=GAS)), [])
        gain = results.gain(gas, _full(results, factor, value), "late")
        if gain is not None and gain.std is not None:
            known += 1
            below += [_name(factor, value)] if gain.mean < 0 and beyond(gain) else []
    if not known:
        return "With one seed it cannot be said where a difference exceeds the spread of pairs."
    text = f"In {len(below)} of {known} regimes GAS was below full batch late in training by more than the spread of pairs"
    return f"{text}: {listed(below)}." if below else f"{text}."


REGIMES = Study(
    "regimes", "", "where staleness hurts: one factor at a time, scores by exact inference and from stale tables", _cases,
    ("test", "late", "stale_test", "age", "error", "epoch_seconds"), _draw, _tell, seeds=(3, 1), epochs=(40, 12),
)  # fmt: skip
