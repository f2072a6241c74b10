"""Whether streams wait for each other where they must, found out from a log of what they were given.

:func:`check` finds ops that need an order and have none. :func:`replay` runs a log in another order that its events allow,
and :func:`interleavings` says whether the result is still the same, to the bit.
"""

import random
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from rest_triton.history.streams import WRITER

from .recorder import Keep, Mark, Op, Record, Recording, Span, Wait, forget


class OutOfOrder(RuntimeError):
    """An op that worked when it was recorded failed, or gave another shape, in the order of a replay."""


def check(log: Sequence[Record], known: Iterable[Tensor] = ()) -> list[str]:
    """What is wrong with the order of a program, for people to read. Nothing, if the list is empty.

    Of two ops on different streams that touch a common byte, one of them writing it, the one that the program submitted
    first must be before the other. And a stream that uses memory which another one allocated must keep it, or the allocator
    may give it away too early. (The writer is no stream but a thread: it holds what it uses.)

    Args:
        known: tensors that are never given away, so that no stream need keep them. What no op of the log allocated is known.

    The cost is linear in the ops, times the pieces into which the others cut what an op touches.
    """
    checker = _Checker(log, {Span.of(tensor).storage for tensor in known})
    for index, record in enumerate(log):
        checker.take(index, record)
    return checker.messages


class _Checker:
    """Vector clocks: for each stream, the last op of each other stream that all it does from now on comes after."""

    def __init__(self, log: Sequence[Record], known: set[int]) -> None:
        self.log, self.known = log, known
        self.messages: list[str] = []
        self.clock: dict[str, dict[str, int]] = defaultdict(dict)
        self.clock_at: dict[int, dict[str, int]] = {}  # by the index of a mark
        self.cuts = sorted({cut for op in log if isinstance(op, Op) for span in op.reads | op.writes for cut in span[1:]})
        # By piece of memory, stream, and whether it wrote: the last op. What comes after it comes after all before it, too.
        self.uses: dict[int, dict[tuple[str, bool], int]] = defaultdict(dict)
        self.allocated: dict[int, int] = {}
        self.kept: set[tuple[str, int]] = set()

    def take(self, index: int, record: Record) -> None:
        clock = self.clock[record.stream]
        if isinstance(record, Mark):
            self.clock_at[index] = dict(clock)
        elif isinstance(record, Wait):
            for stream, last in self.clock_at[record.event.handle].items():
                clock[stream] = max(last, clock.get(stream, -1))
        elif isinstance(record, Keep):
            self.kept.add((record.stream, record.storage.data_ptr()))
        else:
            self._order(index, record, clock)
            self._memory(index, record)
            clock[record.stream] = index

    def _order(self, index: int, op: Op, clock: dict[str, int]) -> None:
        missing: dict[int, tuple[str, str]] = {}
        for writes, spans in ((True, op.writes), (False, op.reads)):
            for span in spans:
                for piece in self.cuts[bisect_left(self.cuts, span.first) : bisect_left(self.cuts, span.end)]:
                    uses = self.uses[piece]
                    for (stream, written), last in uses.items():
                        if stream != op.stream and (writes or written) and clock.get(stream, -1) < last:
                            verbs = "writes" if writes else "reads", "written" if written else "read"
                            missing.setdefault(last, verbs)
                    uses[op.stream, writes] = index
        for last, (does, was) in sorted(missing.items()):
            self.messages.append(
                f"{self._name(index)} {does} what was {was} by {self._name(last)}, and {op.stream} has not waited for that; "
                "submit both with one resource, or hand the tensor over with inputs"
            )

    def _memory(self, index: int, op: Op) -> None:
        for tensor in op.allocates:
            self.allocated[Span.of(tensor).storage] = index
        for storage in {span.storage for span in op.reads | op.writes} & self.allocated.keys() - self.known:
            by = self.allocated[storage]
            streams = {op.stream, self.log[by].stream}
            if len(streams) == 2 and WRITER not in streams and (op.stream, storage) not in self.kept:
                self.kept.add((op.stream, storage))  # said once
                self.messages.append(
                    f"{self._name(index)} uses memory allocated by {self._name(by)}, and {op.stream} has not kept it: it "
                    f"may be given away before that is done; hand the tensor over from {self.log[by].stream} with inputs"
                )

    def _name(self, index: int) -> str:
        op = self.log[index]
        assert isinstance(op, Op)
        return f"{op.stream}: {op.name} ({op.where}, record {index})"


def replay(log: Sequence[Record], state: Sequence[Tensor], seed: int) -> None:
    """Run the ops of a log again, in a random order that its streams and events allow, in the same memory.

    Args:
        state: every tensor from before the recording that the program writes, already put back to what it was then.
        seed: each has its own order.

    What the program allocated begins as NaN, integers as 0: what an op reads too early is not there from the last time.

    Raises:
        ValueError: the program writes a tensor that is neither its own nor in ``state``.
        OutOfOrder: an op cannot run in this order: it read something that was not there yet.
    """
    _check_state(log, state)
    draw = random.Random(seed)
    # Changing streams at each op keeps them abreast; a stream that runs until it has to wait gets furthest ahead.
    stay = draw.choice((0.0, 0.9, 1.0))
    todo: dict[str, deque[int]] = defaultdict(deque)
    for index, record in enumerate(log):
        todo[record.stream].append(index)
    marked: set[int] = set()

    def may_run(record: Record) -> bool:
        return not isinstance(record, Wait) or record.event.handle in marked

    stream = ""
    with torch.inference_mode():  # also writes tensors that were made in it
        for record in log:
            if isinstance(record, Op):
                forget(record.allocates)
        while ready := [name for name, indices in todo.items() if indices and may_run(log[indices[0]])]:
            if stream not in ready or draw.random() >= stay:
                stream = draw.choice(ready)
            index = todo[stream].popleft()
            record = log[index]
            if isinstance(record, Mark):
                marked.add(index)
            elif isinstance(record, Op):
                try:
                    record.run()
                except Exception as error:
                    raise OutOfOrder(f"{stream}: {record.name} ({record.where}) failed with seed {seed}: {error}") from error


def _check_state(log: Sequence[Record], state: Sequence[Tensor]) -> None:
    ops = [record for record in log if isinstance(record, Op)]
    own = {Span.of(tensor).storage for op in ops for tensor in op.allocates}
    given = [Span.of(tensor) for tensor in state]
    for op in ops:
        for span in op.writes:
            if span.storage not in own and not any(s.first <= span.first and span.end <= s.end for s in given):
                raise ValueError(
                    f"{op.name} ({op.where}) writes {span.end - span.first} bytes of a tensor that is not in state; "
                    "put everything there that the program writes, and restore it before each replay"
                )


def interleavings(program: Callable[[Recording], object], state: Sequence[Tensor], seeds: Iterable[int]) -> list[int]:
    """Run a program, and its log in a random order for each seed. Which seeds led to another ``state``, to the bit?

    Afterwards ``state`` is what the program made of it.

    Example::

        assert interleavings(lambda streams: step(streams, batch), [*model.parameters(), *tables], range(20)) == []
    """
    begin = [tensor.detach().clone() for tensor in state]
    with Recording() as streams:
        program(streams)
    end = [tensor.detach().clone() for tensor in state]
    different = []
    for seed in seeds:
        _restore(state, begin)
        try:
            replay(streams.log, state, seed)
        except OutOfOrder:
            different.append(seed)
            continue
        if not all(torch.equal(_bits(tensor), _bits(value)) for tensor, value in zip(state, end, strict=True)):
            different.append(seed)
    _restore(state, end)
    return different


def _restore(state: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for tensor, value in zip(state, values, strict=True):
        tensor.detach().copy_(value)


def _bits(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().view(-1).view(torch.uint8)  # NaN is not equal to itself, and -0 is equal to 0
