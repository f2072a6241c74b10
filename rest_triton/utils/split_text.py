"""Splits as text: ``random:0.6/0.2/0.2``, ``per-class:20/500/1000``, or the path of an .npz with masks."""

from dataclasses import dataclass

from .errors import UserError

FORMS = "random:0.6/0.2/0.2, per-class:20/500/1000, or the path of an .npz with masks"
REST = "rest"  # instead of the last number: all other labelled nodes


@dataclass(frozen=True)
class SplitText:
    """A split to make.

    Args:
        kind: ``random``, ``per-class`` or ``file``. parts: train, validation and test: shares of the labelled nodes; or
            nodes of each class, nodes, nodes. None in the last place: all others. seed: of the draw. path: of a file.
    """

    kind: str
    parts: tuple[float | None, ...] = ()
    seed: int = 0
    path: str = ""


def names_a_split(value: object) -> bool:
    """Whether a setting is the text of a split, not a number. UserError if it is neither."""
    if not isinstance(value, str) or value.lstrip("-").isdigit():
        return False
    parse_split(value)
    return True


def parse_split(text: str) -> SplitText:
    """The split that a text names: ``random:TRAIN/VAL/TEST[@SEED]``, ``per-class:TRAIN/VAL/TEST[@SEED]``, or a path.

    UserError if it names none.
    """
    if text.endswith(".npz"):
        return SplitText("file", path=text)
    kind, _, rest = text.partition(":")
    numbers, _, seed = rest.partition("@")
    given = numbers.split("/")
    wrong = UserError(f"split is {text!r}; it must be a number, {FORMS}")
    if kind not in ("random", "per-class") or len(given) != 3 or not (seed or "0").isdigit():
        raise wrong
    try:
        known = [float(part) for part in given[: 2 if given[2] == REST else 3]]
    except ValueError:
        raise wrong from None
    shares = kind == "random"
    if any(part < 0 or (not shares and part != int(part)) for part in known) or known[0] == 0 or known[1] == 0:
        raise wrong
    if shares and sum(known) > 1 + 1e-9:
        raise UserError(f"split is {text!r}; its shares add up to {sum(known):g}, and there is 1 to divide")
    return SplitText(kind, (*known, *[None] * (3 - len(known))), int(seed or 0))
