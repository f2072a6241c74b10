"""Curves for TensorBoard, without its package: event files hold records of a few protobuf fields, written here by hand.

A record is its length (uint64), a checksum of the length, the bytes, and a checksum of the bytes, little-endian all of it.
"""

import os
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path

VERSION = "brain.Event:2"
_POLYNOMIAL = 0x82F63B78  # Castagnoli's, lowest bit first
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # protobuf's kinds of fields

_TABLE = list(range(256))
for _ in range(8):
    _TABLE = [crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0) for crc in _TABLE]


def crc32c(data: bytes) -> int:
    """Castagnoli's checksum: ``crc32c(b"123456789") == 0xE3069283``. Byte by byte: records are small."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def _masked(data: bytes) -> bytes:
    """The checksum as it is stored: rotated and shifted, so that a checksum over checksums stays a good one."""
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1  # a negative int64 is its two's complement
    low, rest = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + _varint(rest) if rest else bytes([low])


def _field(number: int, kind: int, content: bytes) -> bytes:
    length = _varint(len(content)) if kind == _BYTES else b""
    return _varint(number << 3 | kind) + length + content


def _float32(value: float) -> bytes:
    try:
        return struct.pack("<f", value)
    except OverflowError:  # beyond float32: infinite, as in any conversion
        return struct.pack("<f", float("inf") if value > 0 else float("-inf"))


def _summary(values: Mapping[str, float]) -> bytes:
    each = (_field(1, _BYTES, tag.encode()) + _field(2, _FIXED32, _float32(value)) for tag, value in values.items())
    return b"".join(_field(1, _BYTES, value) for value in each)


class EventWriter:
    """A new event file in ``folder``, which is made if it is not there. Each record reaches the operating system at once: a
    run that is killed keeps what it wrote.

    Example::

        with EventWriter(run / "events") as events:
            events.scalars(step, {"loss": loss, "accuracy/val": 0.71})
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        now = time.time()
        name = f"events.out.tfevents.{int(now)}.{socket.gethostname()}.{os.getpid()}"
        number = len(list(Path(folder).glob(f"{name}*")))  # a second writer in the same second: not into the same file
        self.path = Path(folder) / (f"{name}.{number}" if number else name)
        self._file = self.path.open("xb")
        self._append(now, _field(3, _BYTES, VERSION.encode()))

    def _append(self, wall_time: float, rest: bytes) -> None:
        event = _field(1, _FIXED64, struct.pack("<d", wall_time)) + rest
        length = struct.pack("<Q", len(event))
        self._file.write(length + _masked(length) + event + _masked(event))
        self._file.flush()

    def scalars(self, step: int, values: Mapping[str, float], wall_time: float | None = None) -> None:
        """Append the values of a step, by tag; they are stored as float32, NaN and infinities as they are. ``wall_time``:
        seconds since 1970, by default now."""
        what = _field(2, _VARINT, _varint(step)) + _field(5, _BYTES, _summary(values))
        self._append(time.time() if wall_time is None else wall_time, what)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> "EventWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
