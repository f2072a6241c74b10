"""Results of a session, for the commands that draw and compare them."""

from pathlib import Path
from typing import Any

from .results import Record, read


def load(path: Path) -> tuple[dict[str, Any], list[Record]]:
    """(machine, records), of which there is at least one; ValueError or OSError with a way out otherwise."""
    if path.suffix == ".csv":
        raise ValueError(f"{path} does not say on what machine it was measured; name the .json beside it")
    try:
        machine, records = read(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}); name a .json that bench/ wrote") from None
    if not isinstance(machine, dict):
        raise ValueError(f"{path} names no machine but {machine!r}; name a .json that bench/ wrote")
    if machine.get("tiny"):
        raise ValueError(f"{path} is of tiny shapes, whose times mean nothing; measure with pytest bench/ --benchmark-only")
    if not records:
        raise ValueError(f"{path} holds no records; pytest bench/ --benchmark-only measures some")
    for record in records:
        for value in (record.seconds, record.noise, record.memory, record.x):
            if not isinstance(value, (int, float, type(None))):
                raise ValueError(f"{path} holds {value!r} where a number belongs ({named(record)}); measure again")
    return machine, records


def is_ours(record: Record) -> bool:
    """Whether our code decides its time: "ours", "ours + REST" …, or one of the parts of an epoch of ours."""
    if record.mode in ("part", "overhead"):
        return not record.case.endswith(")") or "ours" in record.case
    return "ours" in record.what


def is_scale(record: Record) -> bool:
    """Whether it is no alternative: what the machine can do at best, or something that is there for scale."""
    return record.what.startswith("limit: ") or record.what.endswith("for scale")


def named(record: Record) -> str:
    """What a person calls it, in one line."""
    at = "" if record.x is None else f" at {record.x:g}"
    return f"{record.bench}, {record.case}{at}: {record.what}, {record.mode}"


def duration(seconds: float) -> str:
    unit, name = (1, "s") if seconds >= 0.9995 else (1e-3, "ms") if seconds >= 0.9995e-3 else (1e-6, "µs")
    return f"{three_digits(seconds / unit)} {name}"


def size(count: float) -> str:
    for power, name in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if count >= 1 << power:
            return f"{three_digits(count / (1 << power))} {name}"
    return f"{count:.0f} B"


def three_digits(value: float) -> str:
    """1.30, 13.0, 130, 1300: as many for each, so that none looks more exact than another."""
    return f"{value:.0f}" if value >= 99.95 else f"{value:#.3g}"
