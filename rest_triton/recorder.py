"""Whether lanes wait for each other where they must: found out without a GPU.

:class:`Recording` runs a program on a CPU in the order in which it submits its work, and logs what each lane was given: all
torch ops (forward, backward, optimizer) with the bytes that they read and write, all events and waits. Streams would be
given the same, and of their order only this would be certain:

    a before b   if both are on one lane, a first
    a before b   if an event marks a's lane after a, and b's lane waits for it before b
    a before c   if a is before b and b before c

:func:`check` finds ops that need an order and have none. :func:`replay` runs the log in another order that the rules allow.

What goes past torch is not seen: NumPy, files, ``tolist``. Numbers taken out of tensors (``item``) stay those of the
recording; that the host waited for them counts for nothing. Backward is taken to run on the lane that asks for it, which is
where streams run it if its forward ran there.
"""

import random
import sys
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from . import lanes as _lanes
from .lanes import WRITER, Event, Lanes

_EMPTY = {f"aten::{name}" for name in ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")}
#: Code that is between an op and the line that a person would call its place.
_BETWEEN = (str(Path(torch.__file__).parent), str(Path(__file__).parent / "ops"), __file__, _lanes.__file__)


class Span(NamedTuple):
    """Addresses from a tensor's first byte to behind its last, and where the storage begins that they are a part of. A log
    holds all that it speaks of, so no address in it is used twice."""

    storage: int
    first: int
    end: int

    @classmethod
    def of(cls, tensor: Tensor) -> "Span":
        first, reach = tensor.data_ptr(), sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
        end = first + (reach + 1) * tensor.element_size() if tensor.numel() > 0 else first
        return cls(tensor.untyped_storage().data_ptr(), first, end)


@dataclass(frozen=True, eq=False)
class Op:
    """A torch op. What it allocates, it also writes: memory may come from work that its lane has not finished."""

    lane: str
    name: str
    where: str
    reads: frozenset[Span]
    writes: frozenset[Span]
    allocates: tuple[Tensor, ...] = field(repr=False)
    run: Callable[[], None] = field(repr=False)  # once more, into the same memory


@dataclass(frozen=True)
class Mark:
    """An event; its handle is the index of this in the log."""

    lane: str


@dataclass(frozen=True)
class Wait:
    lane: str
    event: Event


@dataclass(frozen=True, eq=False)
class Keep:
    lane: str
    storage: torch.UntypedStorage


Record = Op | Mark | Wait | Keep


class OutOfOrder(RuntimeError):
    """An op that worked when it was recorded failed, or gave another shape, in the order of a replay."""


class Recording(Lanes):
    """Lanes that log what they are given. Everything runs at once, so that the program computes what it always does.

    Example::

        with Recording() as lanes:
            h = x * 2
            lanes.submit(IO, lambda: table.copy_(h), writes=[guard], takes=[h])
            y = lanes.submit(COMPUTE, lambda: table.sum(), reads=[guard])
        assert check(lanes.log) == []
    """

    def __init__(self) -> None:
        super().__init__()
        self.log: list[Record] = []
        self._listener = _Listener(self)

    def __enter__(self) -> "Recording":
        self._listener.__enter__()
        return self

    def __exit__(self, *failure: Any) -> None:
        self._listener.__exit__(*failure)

    def _mark(self) -> Event:
        self.log.append(Mark(self.current))
        return Event(self.current, len(self.log) - 1)

    def _wait(self, event: Event) -> None:
        mine = isinstance(event.handle, int) and event.handle < len(self.log)
        if not mine or self.log[event.handle] != Mark(event.lane):
            raise ValueError(f"{event} is not in this log; begin a recording with new guards")
        self.log.append(Wait(self.current, event))

    def _keep(self, tensor: Tensor) -> None:
        self.log.append(Keep(self.current, tensor.untyped_storage()))


class _Listener(TorchDispatchMode):
    """Sees every op below autograd. What an op does inside is not seen: its schema says what it writes."""

    def __init__(self, lanes: Recording) -> None:
        super().__init__()
        self.lanes = lanes

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        result, op = _observe(self.lanes.current, func, args, kwargs or {})
        if op is not None:
            self.lanes.log.append(op)
        return result


def _observe(lane: str, func: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[Any, Op | None]:
    """Runs an op. Its result, and what to log of it: None if it moves no data."""
    storages = [t.untyped_storage() for t in _tensors((args, kwargs))]
    sizes = [s.nbytes() for s in storages]
    # The program may go on to change the shape or .data of a tensor: these remain what they are now.
    args_now, kwargs_now = tree_map_only(Tensor, Tensor.detach, (args, kwargs))
    read, written = _touched(func, args_now, kwargs_now)
    repeat = _repeatable(func, args_now, kwargs_now)
    result = func(*args, **kwargs)
    for storage, size in zip(storages, sizes, strict=True):
        if storage.nbytes() != size:
            raise RuntimeError(
                f"{func} resized memory from {size} to {storage.nbytes()} bytes; a log cannot follow: allocate a new tensor"
            )
    results, taken = _tensors(result), {s.data_ptr() for s in storages} - {0}  # 0: no memory at all
    # Judged by memory: the schema of _unsafe_view does not say that it is one.
    new = [n for n, t in enumerate(results) if t.untyped_storage().data_ptr() not in taken]
    made = tuple(results[n].detach() for n in new)
    run = _writing(made, new, repeat)
    # torch.tensor shows its result to lift_fresh. So does from_numpy, but that memory is not torch's, and not new.
    if func is torch.ops.aten.lift_fresh.default and storages[0].resizable():
        made, literal = (result.detach(),), result.detach().clone()
        run = _writing(made, [0], lambda: literal)
    elif torch.Tag.inplace_view in func.tags or (results and not new and not written):
        return result, None
    elif func._schema.name in _EMPTY:
        run = partial(_forget, made)
    writes = _not_empty(written | {Span.of(t) for t in made})
    reads = _not_empty(read) - writes
    if not reads and not writes:
        return result, None
    return result, Op(lane, str(func), _where(), reads, writes, made, run)


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _not_empty(spans: Iterable[Span]) -> frozenset[Span]:
    return frozenset(s for s in spans if s.first < s.end)


def _touched(func: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[set[Span], set[Span]]:
    """What an op reads and what it writes of its arguments."""
    reads: set[Span] = set()
    writes: set[Span] = set()
    names = [argument.name for argument in func._schema.arguments]
    named = dict(zip(names, args, strict=False)) | kwargs
    for argument in func._schema.arguments:
        written = argument.alias_info is not None and argument.alias_info.is_write
        if func._schema.name == "aten::native_batch_norm" and argument.name in ("running_mean", "running_var"):
            written = named["training"]  # older than the marks in schemas, and without them
        (writes if written else reads).update(map(Span.of, _tensors(named.get(argument.name))))
    return reads, writes


def _repeatable(func: Any, args: tuple, kwargs: dict[str, Any]) -> Callable[[], Any]:
    """The call again, with the random numbers that it would draw now."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return lambda: func(*args, **kwargs)
    generator = kwargs.get("generator") or torch.default_generator
    drawn = generator.get_state()

    def repeat() -> Any:
        after = generator.get_state()
        generator.set_state(drawn)
        try:
            return func(*args, **kwargs)
        finally:
            generator.set_state(after)

    return repeat


def _writing(made: Sequence[Tensor], new: Sequence[int], call: Callable[[], Any]) -> Callable[[], None]:
    """A call whose results that are new, by number, go to where those of the recording are."""

    def run() -> None:
        results = _tensors(call())
        for into, number in zip(made, new, strict=True):
            value = results[number]
            if value.shape != into.shape:  # copy_ would repeat a row
                raise ValueError(f"its result is {tuple(value.shape)}, recorded was {tuple(into.shape)}")
            into.copy_(value)

    return run


def _forget(tensors: Iterable[Tensor]) -> None:
    """NaN in place of values; 0 in place of integers: kernels that do not check an index must survive it."""
    for tensor in tensors:
        tensor.fill_(float("nan") if tensor.is_floating_point() or tensor.is_complex() else 0)


def _where() -> str:
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(_BETWEEN) and frame.f_back is not None:
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def check(log: Sequence[Record], known: Iterable[Tensor] = ()) -> list[str]:
    """What is wrong with the order of a program, for people to read. Nothing, if the list is empty.

    Of two ops on different lanes that touch a common byte, one of them writing it, the one that the program submitted first
    must be before the other. And a stream that uses memory which another one allocated must keep it, or the allocator
    may give it away too early. (The writer is no stream but a thread: it holds what it uses.)

    Args:
        known: tensors that are never given away, so that nobody need keep them. What no op of the log allocated is known.

    The cost is linear in the ops, times the pieces into which the others cut what an op touches.
    """
    checker = _Checker(log, {Span.of(tensor).storage for tensor in known})
    for index, record in enumerate(log):
        checker.take(index, record)
    return checker.messages


class _Checker:
    """Vector clocks: for each lane, the last op of each other lane that all it does from now on comes after."""

    def __init__(self, log: Sequence[Record], known: set[int]) -> None:
        self.log, self.known = log, known
        self.messages: list[str] = []
        self.clock: dict[str, dict[str, int]] = defaultdict(dict)
        self.clock_at: dict[int, dict[str, int]] = {}  # by the index of a mark
        self.cuts = sorted({cut for op in log if isinstance(op, Op) for span in op.reads | op.writes for cut in span[1:]})
        # By piece of memory, lane, and whether it wrote: the last op. What comes after it comes after all before it, too.
        self.uses: dict[int, dict[tuple[str, bool], int]] = defaultdict(dict)
        self.allocated: dict[int, int] = {}
        self.kept: set[tuple[str, int]] = set()

    def take(self, index: int, record: Record) -> None:
        clock = self.clock[record.lane]
        if isinstance(record, Mark):
            self.clock_at[index] = dict(clock)
        elif isinstance(record, Wait):
            for lane, last in self.clock_at[record.event.handle].items():
                clock[lane] = max(last, clock.get(lane, -1))
        elif isinstance(record, Keep):
            self.kept.add((record.lane, record.storage.data_ptr()))
        else:
            self._order(index, record, clock)
            self._memory(index, record)
            clock[record.lane] = index

    def _order(self, index: int, op: Op, clock: dict[str, int]) -> None:
        missing: dict[int, tuple[str, str]] = {}
        for writes, spans in ((True, op.writes), (False, op.reads)):
            for span in spans:
                for piece in self.cuts[bisect_left(self.cuts, span.first) : bisect_left(self.cuts, span.end)]:
                    uses = self.uses[piece]
                    for (lane, written), last in uses.items():
                        if lane != op.lane and (writes or written) and clock.get(lane, -1) < last:
                            verbs = "writes" if writes else "reads", "written" if written else "read"
                            missing.setdefault(last, verbs)
                    uses[op.lane, writes] = index
        for last, (does, was) in sorted(missing.items()):
            self.messages.append(
                f"{self._name(index)} {does} what was {was} by {self._name(last)}, and {op.lane} has not waited for that; "
                "submit both with one guard, or hand the tensor over with takes"
            )

    def _memory(self, index: int, op: Op) -> None:
        for tensor in op.allocates:
            self.allocated[Span.of(tensor).storage] = index
        for storage in {span.storage for span in op.reads | op.writes} & self.allocated.keys() - self.known:
            by = self.allocated[storage]
            lanes = {op.lane, self.log[by].lane}
            if len(lanes) == 2 and WRITER not in lanes and (op.lane, storage) not in self.kept:
                self.kept.add((op.lane, storage))  # said once
                self.messages.append(
                    f"{self._name(index)} uses memory allocated by {self._name(by)}, and {op.lane} has not kept it: it may "
                    f"be given away before that is done; hand the tensor over from {self.log[by].lane} with takes"
                )

    def _name(self, index: int) -> str:
        op = self.log[index]
        assert isinstance(op, Op)
        return f"{op.lane}: {op.name} ({op.where}, record {index})"


def replay(log: Sequence[Record], state: Sequence[Tensor], seed: int) -> None:
    """Run the ops of a log again, in a random order that its lanes and events allow, in the same memory.

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
    # Changing lanes at each op keeps them abreast; a lane that runs until it has to wait gets furthest ahead.
    stay = draw.choice((0.0, 0.9, 1.0))
    todo: dict[str, deque[int]] = defaultdict(deque)
    for index, record in enumerate(log):
        todo[record.lane].append(index)
    marked: set[int] = set()

    def may_run(record: Record) -> bool:
        return not isinstance(record, Wait) or record.event.handle in marked

    lane = ""
    with torch.inference_mode():  # also writes tensors that were made in it
        for record in log:
            if isinstance(record, Op):
                _forget(record.allocates)
        while ready := [name for name, indices in todo.items() if indices and may_run(log[indices[0]])]:
            if lane not in ready or draw.random() >= stay:
                lane = draw.choice(ready)
            index = todo[lane].popleft()
            record = log[index]
            if isinstance(record, Mark):
                marked.add(index)
            elif isinstance(record, Op):
                try:
                    record.run()
                except Exception as error:
                    raise OutOfOrder(f"{lane}: {record.name} ({record.where}) failed with seed {seed}: {error}") from error


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

        assert interleavings(lambda lanes: step(lanes, batch), [*model.parameters(), *tables], range(20)) == []
    """
    begin = [tensor.detach().clone() for tensor in state]
    with Recording() as lanes:
        program(lanes)
    end = [tensor.detach().clone() for tensor in state]
    different = []
    for seed in seeds:
        _restore(state, begin)
        try:
            replay(lanes.log, state, seed)
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
