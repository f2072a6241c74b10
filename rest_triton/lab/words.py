"""Sentences about results. They say what was measured, and no more."""

from collections.abc import Sequence
from pathlib import Path

from ..utils.text import duration
from .plan import sentence
from .results import Outcome, Results, Spread
from .tables import cell, markdown

STAND_IN = "arxiv30"  # its features are not those of ogbn-arxiv


def dataset(name: str) -> str:
    short = Path(name).stem if name.endswith(".npz") else name
    return f"{short} (stand-in features)" if STAND_IN in short else short


def counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def opening(results: Results) -> str:
    """What was run, with how many seeds, and whether evaluation wrote the histories."""
    base, groups = results.base, results.groups.values()
    counts = sorted({len(group) for group in groups})
    seeds = counted(counts[0], "seed") if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds"
    spread = "mean ± unbiased standard deviation over seeds" if counts[-1] > 1 else "one seed, so no spread is known"
    text = f"On {dataset(base.config.dataset)}, with {seeds} of each setting ({spread}); base: {sentence(base.config)}."
    wrote = base.config.eval_updates_history
    text += f" Evaluation {'wrote the histories, too' if wrote else 'did not write the histories'}."
    gone = sum(outcome.diverged for outcome in results.outcomes)
    if gone:
        text += (
            f" The loss of {counted(gone, 'run')} was not finite: {'it is' if gone == 1 else 'they are'} not in the means."
        )
    if len(results.outcomes) < results.planned:
        text += f" {len(results.outcomes)} of {results.planned} runs have ended; the others are not in these figures."
    return text


def difference(results: Results, group: Sequence[Outcome], other: Sequence[Outcome]) -> str:
    """How much better ``group`` is than ``other``, in points: at the best validation, and late in training, where what is
    held against the spread of pairs is not one epoch's score."""
    best, late = (results.gain(group, other, name) for name in ("test", "late"))
    if best is None or late is None:
        return "no seed in common"
    text = f"{100 * best.mean:+.2f} points, late in training {100 * late.mean:+.2f}"
    if late.std is None:
        return f"{text}, of single seeds"
    return f"{text}, {'more than' if beyond(late) else 'within'} the spread of pairs ({100 * late.std:.2f})"


def beyond(gain: Spread) -> bool:
    """Whether a difference is more than the standard deviation of the pairs' differences."""
    return gain.std is not None and abs(gain.mean) > gain.std


def against(results: Results, group: Sequence[Outcome], others: Sequence[Sequence[Outcome]], name: str = "test") -> str:
    """Each of ``others`` against ``group``, by the label that tells them apart."""
    ours = results.spread(group, name)
    if ours is None:
        return ""
    parts = []
    for other in others:
        theirs = results.spread(other, name)
        if theirs is not None:
            parts.append(f"{title(other)} {cell(name, theirs)} ({difference(results, other, group)})")
    return f"{title(group)} {cell(name, ours)} %" + (f"; against it {listed(parts)}" if parts else "")


def title(group: Sequence[Outcome]) -> str:
    """The name of its method, or its first label."""
    labels = group[0].case.labels
    return str(labels.get("method", next(iter(labels.values()))))


def costs(results: Results, groups: Sequence[Sequence[Outcome]]) -> str:
    """Age and time of an epoch, where they are known."""
    parts = []
    for group in groups:
        age, epoch = results.spread(group, "age"), results.spread(group, "epoch_seconds")
        known = [] if epoch is None else [duration(epoch.mean)]
        known += [] if age is None else [f"rows {age.mean:.1f} steps old"]
        if known:
            parts.append(f"{title(group)} {', '.join(known)}")
    return f"An epoch of training took, and rows were on average: {'; '.join(parts)}." if parts else ""


def write(results: Results) -> str:
    """results.md."""
    study = results.study
    if not results.outcomes:
        return f"# {study.name}\n\nNo run has ended yet.\n"
    told = "\n".join(f"- {text}" for text in study.tell(results) if text)
    machines = {str(o.run.summary["machine"]) for o in results.outcomes if "machine" in o.run.summary}
    where = f"Scores in percent ({results.metric}, by exact inference unless said otherwise). "
    where += (
        f"Times are of {listed(sorted(machines))}, without evaluations; what else ran there is not known."
        if machines
        else ""
    )
    asked = f"{study.question[0].upper()}{study.question[1:]}" + (f" (the paper's {study.paper})" if study.paper else "")
    name = dataset(results.base.config.dataset)
    parts = [f"# {study.name} on {name}", f"{asked}.", opening(results), told, markdown(results, study.measures), where]
    return "\n\n".join(part for part in parts if part) + "\n"
