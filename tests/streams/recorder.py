"""What each stream was given, as a log: made on a CPU, without a GPU.

:class:`Recording` runs a program on a CPU in the order in which it submits its work, and logs what each stream was given:
all torch ops (forward, backward, optimizer) with the bytes that they read and write, all events and waits.
CudaStreams would be given the same, and of their order only this would be certain:

    a before b   if both are on one stream, a first
    a before b   if an event marks a's stream after a, and b's stream waits for it before b
    a before c   if a is before b and b before c

``ordering.py`` says whether that is enough.

What goes past torch is not seen: NumPy, files, ``tolist``. Numbers taken out of tensors (``item``) stay those of the
recording; that the host waited for them counts for nothing. Backward is taken to run on the stream that asks for it, which
is where streams run it if its forward ran there.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

import rest_triton
from rest_triton.history import streams as _streams
from rest_triton.history.streams import Event, Streams

_EMPTY = {f"aten::{name}" for name in ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")}
#: Code between an op and the line of the program that asked for it.
_BETWEEN = (str(Path(torch.__file__).parent), str(Path(rest_triton.__file__).parent / "ops"), __file__, _streams.__file__)


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
    """A torch op. What it allocates, it also writes: memory may come from work that its stream has not finished."""

    stream: str
    name: str
    where: str
    reads: frozenset[Span]
    writes: frozenset[Span]
    allocates: tuple[Tensor, ...] = field(repr=False)
    run: Callable[[], None] = field(repr=False)  # once more, into the same memory


@dataclass(frozen=True)
class Mark:
    """An event; its handle is the index of this in the log."""

    stream: str


@dataclass(frozen=True)
class Wait:
    stream: str
    event: Event


@dataclass(frozen=True, eq=False)
class Keep:
    stream: str
    storage: torch.UntypedStorage


Record = Op | Mark | Wait | Keep


class Recording(Streams):
    """Streams that log what they are given. Everything runs at once, so that the program computes what it always does.

    Example::

        with Recording() as streams:
            h = x * 2
            streams.submit(IO, lambda: table.copy_(h), writes=[resource], inputs=[h])
            y = streams.submit(COMPUTE, lambda: table.sum(), reads=[resource])
        assert check(streams.log) == []
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
        if not mine or self.log[event.handle] != Mark(event.stream):
            raise ValueError(f"{event} is not in this log; begin a recording with new resources")
        self.log.append(Wait(self.current, event))

    def _record_stream(self, tensor: Tensor) -> None:
        self.log.append(Keep(self.current, tensor.untyped_storage()))


class _Listener(TorchDispatchMode):
    """Sees every op below autograd. What an op does inside is not seen: its schema says what it writes."""

    def __init__(self, streams: Recording) -> None:
        super().__init__()
        self.streams = streams

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        result, op = _observe(self.streams.current, func, args, kwargs or {})
        if op is not None:
            self.streams.log.append(op)
        return result


def _observe(stream: str, func: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[Any, Op | None]:
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
        run = partial(forget, made)
    writes = _not_empty(written | {Span.of(t) for t in made})
    reads = _not_empty(read) - writes
    if not reads and not writes:
        return result, None
    return result, Op(stream, str(func), _where(), reads, writes, made, run)


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


def forget(tensors: Iterable[Tensor]) -> None:
    """NaN in place of values; 0 in place of integers: kernels that do not check an index must survive it."""
    for tensor in tensors:
        tensor.fill_(float("nan") if tensor.is_floating_point() or tensor.is_complex() else 0)


def _where() -> str:
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(_BETWEEN) and frame.f_back is not None:
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
