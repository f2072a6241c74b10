"""Event files, read back by a reader that shares nothing with the writer."""

import math
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rest_triton.training.events import EventWriter, crc32c


def bitwise_crc32c(data: bytes) -> int:
    """Division by the polynomial one bit at a time, without a table."""
    crc = (1 << 32) - 1
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc // 2 ^ 0x82F63B78 * (crc % 2)
    return crc ^ (1 << 32) - 1


def unmasked(stored: int) -> int:
    rotated = (stored - 0xA282EAD8) % (1 << 32)
    return (rotated << 15 | rotated >> 17) % (1 << 32)


def records(path: Path) -> Iterator[bytes]:
    data, at = path.read_bytes(), 0
    while at < len(data):
        length, check = struct.unpack_from("<QI", data, at)
        assert unmasked(check) == bitwise_crc32c(data[at : at + 8])
        content = data[at + 12 : at + 12 + length]
        assert len(content) == length
        (check,) = struct.unpack_from("<I", data, at + 12 + length)
        assert unmasked(check) == bitwise_crc32c(content)
        yield content
        at += 16 + length


def varint(data: bytes, at: int) -> tuple[int, int]:
    value, shift = 0, 0
    while True:
        value |= (data[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 128:
            return value, at


def message(data: bytes) -> Iterator[tuple[int, Any]]:
    """(number, value) of the fields of a protobuf message."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        number, kind = divmod(key, 8)
        if kind == 0:
            value, at = varint(data, at)
            yield number, value
        elif kind == 2:
            length, at = varint(data, at)
            yield number, data[at : at + length]
            at += length
        else:
            layout, size = {1: ("<d", 8), 5: ("<f", 4)}[kind]
            yield number, struct.unpack_from(layout, data, at)[0]
            at += size


def read(path: Path) -> list[tuple[float, int, dict[str, float]]]:
    """(wall time, step, values) of each event after the first, which says the version."""
    first, *others = records(path)
    version = dict(message(first))
    assert version.keys() == {1, 3} and version[3] == b"brain.Event:2" and abs(version[1] - time.time()) < 600
    events = []
    for content in others:
        event = dict(message(content))
        assert event.keys() == {1, 2, 5}
        step = event[2] - (1 << 64) if event[2] >> 63 else event[2]
        pairs = [dict(message(value)) for number, value in message(event[5]) if number == 1]
        events.append((event[1], step, {pair[1].decode(): pair[2] for pair in pairs}))
    return events


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0),
        (b"a", 0xC1D04330),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
    ],
)
def test_known_checksums(data: bytes, expected: int) -> None:
    assert crc32c(data) == expected == bitwise_crc32c(data)


def test_values_come_back_as_float32(tmp_path: Path) -> None:
    with EventWriter(tmp_path) as events:
        events.scalars(1, {"loss": 0.1, "accuracy/val": 2.0**-140}, wall_time=1234.5678)
        events.scalars(2, {})
        events.scalars(3, {"größe 尺": -1e30, "long " * 60: 7})
    (wall, first, values), (_, second, empty), (_, third, others) = read(events.path)
    assert (wall, first, second, third) == (1234.5678, 1, 2, 3)
    assert values == {"loss": struct.unpack("f", struct.pack("f", 0.1))[0], "accuracy/val": 2.0**-140} and empty == {}
    assert others == {"größe 尺": struct.unpack("f", struct.pack("f", -1e30))[0], "long " * 60: 7.0}


def test_now_is_the_default_time(tmp_path: Path) -> None:
    begin = time.time()
    with EventWriter(tmp_path) as events:
        events.scalars(0, {"loss": 1.0})
    assert begin <= read(events.path)[0][0] <= time.time()


def test_values_that_are_not_finite(tmp_path: Path) -> None:
    given = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf, "above float32": 1e300, "below float32": -1e300}
    with EventWriter(tmp_path) as events:
        events.scalars(0, given)
    ((_, _, values),) = read(events.path)
    assert math.isnan(values.pop("nan"))
    assert values == {"inf": math.inf, "-inf": -math.inf, "above float32": math.inf, "below float32": -math.inf}


@pytest.mark.parametrize("step", [0, 1, 127, 128, 16383, 16384, 10**12, 2**63 - 1, -1, -(2**63)])
def test_steps(step: int, tmp_path: Path) -> None:
    with EventWriter(tmp_path) as events:
        events.scalars(step, {"loss": 1.0})
    assert [s for _, s, _ in read(events.path)] == [step]


def test_name_of_the_file(tmp_path: Path) -> None:
    begin = int(time.time())
    first, second = EventWriter(tmp_path / "new" / "folder"), EventWriter(tmp_path / "new" / "folder")
    kind, of, what, rest = first.path.name.split(".", 3)
    seconds, host = rest.split(".", 1)
    assert (kind, of, what) == ("events", "out", "tfevents") and begin <= int(seconds) <= time.time()
    assert host == f"{socket.gethostname()}.{os.getpid()}"
    first.scalars(1, {"a": 1.0})
    second.scalars(2, {"b": 2.0})
    for writer in (first, second):
        writer.close()
    assert read(first.path)[0][1:] == (1, {"a": 1.0}) and read(second.path)[0][1:] == (2, {"b": 2.0})


def test_a_killed_run_keeps_what_it_wrote(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys; from rest_triton.training.events import EventWriter; e = EventWriter(sys.argv[1]);"
        "[e.scalars(s, {'loss': 1 / (s + 1)}) for s in range(3)]; os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", program, str(tmp_path)]).returncode == -signal.SIGKILL
    (path,) = tmp_path.iterdir()
    assert [step for _, step, _ in read(path)] == [0, 1, 2]
