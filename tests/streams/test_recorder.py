"""Recording: what is logged, and which programs it takes to be in order."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from rest_triton.history.streams import COMPUTE, IO, REFRESH, WRITER, Resource, SyncStreams
from rest_triton.ops import Adjacency, activate, gather_rows, history_spmm, scatter_rows
from tests.streams.ordering import check
from tests.streams.recorder import Op, Recording, Span

from .programs import Everything, recorded


def ops(streams: Recording) -> list[Op]:
    return [record for record in streams.log if isinstance(record, Op)]


def names(streams: Recording) -> list[str]:
    return [op.name for op in ops(streams)]


def test_a_log_names_lanes_ops_and_memory() -> None:
    x, table = torch.ones(3), torch.zeros(4, 3)
    with Recording() as streams:
        y = x * 2
        with streams.on(IO):
            table[1:3].copy_(y.expand(2, 3))
        total = table.sum().item()
    table.add_(1)  # not any more
    multiply, copy, add, item = ops(streams)
    assert [op.stream for op in ops(streams)] == [COMPUTE, IO, COMPUTE, COMPUTE] and total == 12
    assert (multiply.name, copy.name, item.name) == (
        "aten.mul.Tensor",
        "aten.copy_.default",
        "aten._local_scalar_dense.default",
    )
    assert multiply.reads == {Span.of(x)} and multiply.writes == {Span.of(y)}
    assert copy.reads == {Span.of(y)} and copy.writes == {Span.of(table[1:3])} and copy.allocates == ()
    assert add.reads == {Span.of(table)} and item.reads == add.writes and item.writes == frozenset()
    assert copy.where.startswith("test_recorder.py:")


def test_span() -> None:
    table = torch.zeros(4, 3)
    begin = table.data_ptr()
    assert Span.of(table) == (begin, begin, begin + 48)
    assert Span.of(table[1:3]) == (begin, begin + 12, begin + 36)
    assert Span.of(table[:, 1]) == (begin, begin + 4, begin + 44)  # what is between its rows as well
    assert Span.of(table[1].expand(9, 3)) == (begin, begin + 12, begin + 24)
    empty = Span.of(table[:0])
    assert empty.first == empty.end


def test_views_are_no_work() -> None:
    x = torch.ones(2, 3, 4, requires_grad=True)
    views: list[Callable[[], object]] = [
        lambda: x.view(6, 4), lambda: x.detach(), lambda: x[0, 1:], lambda: x.transpose(0, 1), lambda: x.split(1),
        lambda: torch.ops.aten._unsafe_view(x, [24]), lambda: x.detach().view(6, 4).t_(),
        lambda: torch.from_numpy(np.zeros(3)),
        lambda: torch.zeros(0).view(0, 3), lambda: x[:0].mul(2), lambda: x.data.unbind(),
    ]  # fmt: skip
    for view in views:
        assert names(recorded(lambda _, view=view: view())) == []


def test_what_ops_write() -> None:
    """Lists, several results, results beside written arguments, nothing at all, and a schema that does not tell."""
    a, b, mean, var = torch.ones(3), torch.ones(2), torch.zeros(2), torch.ones(2)
    x, table, rows = torch.ones(4, 2), torch.zeros(9, 2), torch.arange(4)

    def last(run: Callable[[], object]) -> tuple[set[int], set[int]]:
        op = ops(recorded(lambda _: run()))[-1]
        return {s.first for s in op.reads}, {s.first for s in op.writes}

    def at(*tensors: Tensor) -> set[int]:
        return {t.data_ptr() for t in tensors}

    assert last(lambda: torch._foreach_add_([a, b], 1)) == (set(), at(a, b))
    assert last(lambda: a.add_(a)) == (set(), at(a))
    reads, writes = last(lambda: torch._foreach_mul([a, b], 2))
    assert reads == at(a, b) and len(writes) == 2 and not writes & reads
    reads, writes = last(lambda: torch.sort(x))
    assert reads == at(x) and len(writes) == 2
    assert last(lambda: torch.add(a, 1, out=b.new_zeros(3)))[0] == at(a)
    assert last(lambda: torch.equal(a, b.new_ones(3)))[0] >= at(a)
    assert last(lambda: scatter_rows(table, rows, x)) == (at(rows, x), at(table))
    reads, writes = last(lambda: activate(x, rows=rows, history=table))
    assert reads == at(rows, x) and len(writes) == 2 and writes > at(table)
    for training in (True, False):
        reads, writes = last(lambda t=training: torch.nn.functional.batch_norm(x, mean, var, training=t))
        assert (at(mean, var) <= writes) == training and (at(mean, var) <= reads) != training
    nothing = torch.zeros(0, dtype=torch.int64)
    assert last(lambda: x.index_select(0, nothing)) == (at(x), set())  # no view, although its result has nobody's memory
    literal = ops(recorded(lambda _: torch.tensor([1, 2])))
    assert len(literal) == 1 and len(literal[0].allocates) == 1


def test_memory_that_moves_is_refused() -> None:
    with pytest.raises(RuntimeError, match="resized memory from 12 to 4000 bytes"):
        recorded(lambda _: torch.ones(3).resize_(1000))


def test_events_of_other_lanes_are_refused() -> None:
    resource = Resource("table")
    SyncStreams().submit(IO, lambda: None, writes=[resource])
    with pytest.raises(ValueError, match="is not in this log; begin a recording with new resources"):
        recorded(lambda streams: streams.submit(COMPUTE, lambda: None, reads=[resource]))
    resource = Resource("table")
    recorded(lambda streams: streams.submit(IO, lambda: None, writes=[resource]))
    for earlier in (0, 1):  # records, none of them an event
        with pytest.raises(ValueError, match="is not in this log"), Recording() as streams:
            torch.ones(earlier)
            streams.submit(COMPUTE, lambda: None, reads=[resource])


PAIRS = {
    "reads what was written": (lambda t: t.fill_(1), lambda t: t.sum()),
    "writes what was read": (lambda t: t.sum(), lambda t: t.fill_(1)),
    "writes what was written": (lambda t: t.fill_(1), lambda t: t.fill_(2)),
}


@pytest.mark.parametrize("there, back", [(COMPUTE, IO), (IO, COMPUTE), (REFRESH, WRITER), (WRITER, COMPUTE)])
@pytest.mark.parametrize("kind", PAIRS)
def test_two_uses_of_a_table(kind: str, there: str, back: str) -> None:
    first, second = PAIRS[kind]
    table = torch.zeros(4)

    def program(streams: Recording, marked: str = "after", waits: str = "before") -> None:
        with streams.on(there):
            event = streams._mark()
            first(table)
            event = streams._mark() if marked == "after" else event
        with streams.on(back):
            if waits == "before":
                streams._wait(event)
            second(table)
            if waits == "after":
                streams._wait(event)

    assert check(recorded(program).log) == []
    for mistake in ({"marked": "too early"}, {"waits": "after"}, {"waits": "never"}):
        (message,) = check(recorded(lambda streams, m=mistake: program(streams, **m)).log)
        assert f" {kind} by {there}: aten." in message and message.startswith(f"{back}: aten.")
        assert f"{back} has not waited for that" in message and message.count("test_recorder.py:") == 2


def test_readers_do_not_wait_for_each_other() -> None:
    table = torch.ones(4)

    def program(streams: Recording) -> None:
        for stream in (COMPUTE, REFRESH, IO, WRITER):
            with streams.on(stream):
                table.sum()

    assert check(recorded(program).log) == []


def test_one_lane_needs_no_events_and_two_tables_neither() -> None:
    table, other, wide = torch.ones(4), torch.ones(8), torch.ones(4, 2)

    def program(streams: Recording) -> None:
        table.mul_(2)
        wide[:, 0].mul_(wide[:, 1])  # reads between what it writes
        other[:4].mul_(table)
        with streams.on(IO):
            other[4:].mul_(2)
            other[4:].sum()

    assert check(recorded(program).log) == []


def test_parts_of_a_table_conflict_where_they_overlap() -> None:
    table = torch.ones(9, 2)

    def races(ours: slice, theirs: slice) -> int:
        def program(streams: Recording) -> None:
            table[ours].mul_(2)
            with streams.on(IO):
                table[theirs].mul_(2)

        return len(check(recorded(program).log))

    assert races(slice(0, 4), slice(4, 9)) == 0 and races(slice(0, 5), slice(4, 9)) == 1
    assert races(slice(0, 9), slice(4, 5)) == 1 and races(slice(4, 5), slice(0, 9)) == 1


def test_memory_shared_with_numpy_is_the_same_memory() -> None:
    array = np.zeros(10, dtype=np.float32)

    def program(streams: Recording) -> None:
        torch.from_numpy(array).fill_(1)
        with streams.on(IO):
            torch.from_numpy(array[5:]).sum()

    assert len(check(recorded(program).log)) == 1


@pytest.mark.parametrize("last", [True, False])
def test_order_through_a_third_lane(last: bool) -> None:
    table = torch.ones(4)

    def program(streams: Recording) -> None:
        table.mul_(2)
        event = streams._mark()
        with streams.on(REFRESH):
            streams._wait(event)
            event = streams._mark()
        with streams.on(IO):
            if last:
                streams._wait(event)
            table.mul_(2)

    assert len(check(recorded(program).log)) == (0 if last else 1)


def test_an_order_with_the_last_op_is_not_one_with_the_next() -> None:
    table = torch.ones(4)

    def program(streams: Recording) -> None:
        table.mul_(2)
        event = streams._mark()
        table.mul_(3)  # nobody waits for this one
        with streams.on(IO):
            streams._wait(event)
            table.sum()

    (message,) = check(recorded(program).log)
    assert "reads what was written by compute: aten.mul_.Tensor" in message and "record 2)" in message


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("stream", [IO, WRITER])
def test_handing_over(stream: str, keeps: bool, waits: bool) -> None:
    def program(streams: Recording) -> Tensor:
        h = torch.ones(4)
        event = streams._mark()
        with streams.on(stream):
            if waits:
                streams._wait(event)
            if keeps:
                streams._record_stream(h[1:])  # the same storage
            h.sum()
            h.sum()
        return h

    messages = check(recorded(program).log)
    late = [m for m in messages if "reads what was written by compute" in m]
    lost = [m for m in messages if "uses memory allocated by compute: aten.ones.default" in m and "has not kept it" in m]
    assert len(late) == (0 if waits else 2)
    assert len(lost) == (0 if keeps or stream == WRITER else 1)  # once for two sums
    assert len(messages) == len(late) + len(lost)


def test_keeping_is_for_the_lane_that_uses() -> None:
    def program(streams: Recording) -> Tensor:
        h = torch.ones(4)
        streams.submit(REFRESH, h.sum, inputs=[h])
        event = streams._mark()
        with streams.on(IO):
            streams._wait(event)
            h.sum()
        return h

    with Recording() as streams:
        h = program(streams)
    (message,) = check(streams.log)
    assert "io has not kept it" in message
    assert check(streams.log, known=[h[2:]]) == []


def test_backward_of_our_ops_is_seen() -> None:
    adj = Adjacency(torch.tensor([0, 2, 3, 4]), torch.tensor([1, 2, 0, 0], dtype=torch.int32)).undirected()
    rows, position = torch.arange(3), torch.arange(3, dtype=torch.int32)
    x, table = torch.randn(3, 4, requires_grad=True), torch.zeros(3, 4)

    def program(streams: Recording) -> None:
        h = activate(history_spmm(adj, rows, position, x), history=table, dropout=0.5, seed=3)
        gather_rows(h, torch.tensor([0, 0])).sum().backward()

    seen = names(recorded(program))
    assert [n for n in seen if n.startswith("rest_triton")] == [
        "rest_triton.history_spmm.default", "rest_triton.activate.default", "rest_triton.gather_rows.default",
        "rest_triton.activate_backward.default", "rest_triton.history_spmm.default",
    ]  # fmt: skip
    assert "aten.index_add_.default" in seen  # from the backward of gather_rows, which is written in Python


def test_a_program_with_guards_is_in_order() -> None:
    streams = recorded(Everything())
    assert {op.stream for op in ops(streams)} == {COMPUTE, REFRESH, IO, WRITER}
    assert check(streams.log) == []
