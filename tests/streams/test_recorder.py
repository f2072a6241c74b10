"""Recording: what is logged of a program."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from rest_triton.history.streams import COMPUTE, IO, Resource, SyncStreams
from rest_triton.ops import Adjacency, activate, gather_rows, history_spmm, scatter_rows

from .programs import recorded
from .recorder import Op, Recording, Span


def ops(streams: Recording) -> list[Op]:
    return [record for record in streams.log if isinstance(record, Op)]


def test_a_log_names_streams_ops_and_memory() -> None:
    x, table = torch.ones(3), torch.zeros(4, 3)
    with Recording() as streams:
        y = x * 2
        with streams.on(IO):
            table[1:3].copy_(y.expand(2, 3))
        total = table.sum().item()
    table.add_(1)  # not any more
    multiply, copy, add, item = ops(streams)
    assert [op.stream for op in ops(streams)] == [COMPUTE, IO, COMPUTE, COMPUTE] and total == 12
    assert (multiply.name, copy.name) == ("aten.mul.Tensor", "aten.copy_.default")
    assert multiply.reads == {Span.of(x)} and multiply.writes == {Span.of(y)}
    assert copy.reads == {Span.of(y)} and copy.writes == {Span.of(table[1:3])} and copy.allocates == ()
    assert add.reads == {Span.of(table)} and item.reads == add.writes and item.writes == frozenset()
    assert copy.where.startswith("test_recorder.py:")
    begin = table.data_ptr()
    assert Span.of(table[:, 1]) == (begin, begin + 4, begin + 44)  # what is between its rows as well


def test_views_are_no_work() -> None:
    x = torch.ones(2, 3, 4, requires_grad=True)
    views: list[Callable[[], object]] = [
        lambda: x.view(6, 4), lambda: x.detach(), lambda: x[0, 1:], lambda: x.split(1), lambda: x.detach().view(6, 4).t_(),
        lambda: torch.ops.aten._unsafe_view(x, [24]), lambda: torch.from_numpy(np.zeros(3)), lambda: x[:0].mul(2),
    ]  # fmt: skip
    for view in views:
        assert ops(recorded(lambda _, view=view: view())) == []


def test_what_ops_write() -> None:
    """Lists, several results, results beside written arguments, and a schema that does not tell."""
    a, b, mean, var = torch.ones(3), torch.ones(2), torch.zeros(2), torch.ones(2)
    x, table, rows = torch.ones(4, 2), torch.zeros(9, 2), torch.arange(4)

    def last(run: Callable[[], object]) -> tuple[set[int], set[int]]:
        op = ops(recorded(lambda _: run()))[-1]
        return {s.first for s in op.reads}, {s.first for s in op.writes}

    def at(*tensors: Tensor) -> set[int]:
        return {t.data_ptr() for t in tensors}

    assert last(lambda: torch._foreach_add_([a, b], 1)) == (set(), at(a, b))
    reads, writes = last(lambda: torch.sort(x))
    assert reads == at(x) and len(writes) == 2
    assert last(lambda: scatter_rows(table, rows, x)) == (at(rows, x), at(table))
    reads, writes = last(lambda: activate(x, rows=rows, history=table))
    assert reads == at(rows, x) and len(writes) == 2 and writes > at(table)
    for training in (True, False):
        reads, writes = last(lambda t=training: torch.nn.functional.batch_norm(x, mean, var, training=t))
        assert (at(mean, var) <= writes) == training and (at(mean, var) <= reads) != training
    assert len(ops(recorded(lambda _: torch.tensor([1, 2])))) == 1


def test_backward_of_our_ops_is_seen() -> None:
    adj = Adjacency(torch.tensor([0, 2, 3, 4]), torch.tensor([1, 2, 0, 0], dtype=torch.int32)).undirected()
    rows, position = torch.arange(3), torch.arange(3, dtype=torch.int32)
    x, table = torch.randn(3, 4, requires_grad=True), torch.zeros(3, 4)

    def program(streams: Recording) -> None:
        h = activate(history_spmm(adj, rows, position, x), history=table, dropout=0.5, seed=3)
        gather_rows(h, torch.tensor([0, 0])).sum().backward()

    seen = [op.name.removeprefix("rest_triton.") for op in ops(recorded(program))]
    ours = ["history_spmm", "activate", "gather_rows", "activate_backward", "history_spmm"]
    assert [name for name in seen if not name.startswith("aten")] == [f"{name}.default" for name in ours]
    assert "aten.index_add_.default" in seen  # from the backward of gather_rows, which is written in Python


def test_what_a_log_cannot_follow_is_refused() -> None:
    with pytest.raises(RuntimeError, match="resized memory from 12 to 4000 bytes"):
        recorded(lambda _: torch.ones(3).resize_(1000))
    resource = Resource("table")
    SyncStreams().submit(IO, lambda: None, writes=[resource])
    with pytest.raises(ValueError, match="is not in this log; begin a recording with new resources"):
        recorded(lambda streams: streams.submit(COMPUTE, lambda: None, reads=[resource]))
