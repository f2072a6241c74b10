"""The checker complains of an order that is missing, and a log run again in legal orders tells the same."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import rest_triton.history.streams as module
from rest_triton.history.streams import COMPUTE, IO, REFRESH, WRITER, Resource
from rest_triton.ops import Adjacency, activate, history_spmm, scatter_rows

from .mutants import installed, mutants
from .ordering import OutOfOrder, check, interleavings, replay
from .programs import Everything, recorded
from .recorder import Recording

PAIRS = {
    "reads what was written": (lambda t: t.fill_(1), lambda t: t.sum()),
    "writes what was read": (lambda t: t.sum(), lambda t: t.fill_(1)),
    "writes what was written": (lambda t: t.fill_(1), lambda t: t.fill_(2)),
}


@pytest.mark.parametrize("there, back", [(COMPUTE, IO), (REFRESH, WRITER)])
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
        assert f"{back} has not waited for that" in message and message.count("test_ordering.py:") == 2


def test_only_bytes_that_overlap_and_are_written_need_an_order() -> None:
    table = torch.ones(9, 2)

    def races(ours: slice, theirs: slice, write: bool = True) -> int:
        def program(streams: Recording) -> None:
            table[ours].mul_(2) if write else table[ours].sum()
            with streams.on(IO):
                table[theirs].mul_(2) if write else table[theirs].sum()

        return len(check(recorded(program).log))

    assert races(slice(0, 4), slice(4, 9)) == 0 and races(slice(0, 5), slice(4, 9)) == 1
    assert races(slice(0, 9), slice(4, 5)) == 1 and races(slice(4, 5), slice(0, 9)) == 1
    assert races(slice(0, 9), slice(0, 9), write=False) == 0


@pytest.mark.parametrize("last", [True, False])
def test_order_through_a_third_stream(last: bool) -> None:
    """And what follows the event is not ordered by it."""
    table, other = torch.ones(4), torch.ones(4)

    def program(streams: Recording) -> None:
        table.mul_(2)
        event = streams._mark()
        other.mul_(2)
        with streams.on(REFRESH):
            streams._wait(event)
            event = streams._mark()
        with streams.on(IO):
            if last:
                streams._wait(event)
            table.mul_(2)
            other.sum()

    messages = check(recorded(program).log)
    assert len(messages) == (1 if last else 2) and "reads what was written by compute: aten.mul_.Tensor" in messages[-1]


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("stream", [IO, WRITER])
def test_handing_over(stream: str, keeps: bool, waits: bool) -> None:
    with Recording() as streams:
        h = torch.ones(4)
        event = streams._mark()
        with streams.on(stream):
            if waits:
                streams._wait(event)
            if keeps:
                streams._record_stream(h[1:])  # the same storage
            h.sum()
            h.sum()
    messages = check(streams.log)
    late = [m for m in messages if "reads what was written by compute" in m]
    lost = [m for m in messages if "uses memory allocated by compute: aten.ones.default" in m and "has not kept it" in m]
    assert len(late) == (0 if waits else 2)
    assert len(lost) == (0 if keeps or stream == WRITER else 1)  # once for two sums
    assert len(messages) == len(late) + len(lost)
    assert check(streams.log, known=[h[2:]]) == late


def test_a_program_in_order_has_one_result() -> None:
    program, alone = Everything(), Everything()
    assert interleavings(program, program.state, range(40)) == []
    assert check(recorded(alone).log) == []
    for tensor, expected in zip(program.state, alone.state, strict=True):
        assert torch.equal(tensor, expected)  # the state is left as the program made it


@pytest.mark.parametrize("wait", ["self._wait_for(stream, reads, writes)", "self._wait(handed)", "self._wait(event)"])
def test_a_program_that_does_not_wait_has_several(wait: str) -> None:
    (mutant,) = [m for what, m in mutants(module, ["Streams"]) if what.endswith(wait)]
    with installed(module, mutant):
        program = Everything()
        assert interleavings(program, program.state, range(40)) != []


def test_no_stream_is_always_first() -> None:
    """Without waiting, orders in which io is late are met, and ones in which it is early; what is not there yet is NaN."""
    table, copies, total = torch.zeros(1), torch.zeros(3), torch.zeros(1)

    def program(streams: Recording) -> None:
        for step in range(3):
            streams.submit(COMPUTE, lambda: table.add_(1))
            streams.submit(IO, lambda n=step: copies[n].copy_(table[0]))
        h = torch.ones(1) * 2
        streams.submit(IO, lambda: total.add_(h))

    streams = recorded(program)
    seen, totals = set(), set()
    for seed in range(100):
        table.zero_(), copies.fill_(-1), total.zero_()
        replay(streams.log, [table, copies, total], seed)
        seen.add(tuple(copies.tolist()))
        totals.add(str(float(total)))
    assert {(0, 0, 0), (3, 3, 3), (1, 2, 3)} <= seen and totals == {"2.0", "nan"}
    assert all(list(s) == sorted(s) for s in seen)  # each stream by itself stays in order


def test_what_is_written_must_be_in_state() -> None:
    table, stamp = torch.zeros(4, 2), torch.zeros(4, dtype=torch.int32)
    streams = recorded(lambda _: scatter_rows(table, torch.arange(2), torch.ones(2, 2), stamp=stamp, step=3))
    table.zero_()
    for state in ([table], [stamp], [table[:3], stamp]):
        with pytest.raises(
            ValueError, match=r"scatter_rows.default \(test_ordering.py:\d+\) writes \d+ bytes .* not in state"
        ):
            replay(streams.log, state, 0)
    assert not table.any()  # refused before anything ran


def test_a_result_of_another_shape_is_out_of_order() -> None:
    flags, found = torch.zeros(4), torch.zeros(4)

    def program(streams: Recording) -> None:
        flags[1:3] = 1
        with streams.on(IO):
            found.index_fill_(0, flags.nonzero().view(-1), 1.0)

    streams = recorded(program)
    flags.zero_()
    with pytest.raises(OutOfOrder, match=r"io: aten.nonzero.default \(.*\) failed with seed \d+: its result is \(0, 1\)"):
        for seed in range(40):
            flags.zero_()
            replay(streams.log, [flags, found], seed)


def test_every_kind_of_op_gives_the_same_bits() -> None:
    """Literals that are changed, memory that was not written, random numbers, views in disguise, lists, NaN and -0."""
    state = torch.linspace(0, 1, 10)

    def program(streams: Recording) -> None:
        literal = torch.tensor([1.0, -0.0])
        state[:2] += literal.mul_(3)
        memory = torch.empty(4)
        memory[:2] = literal
        state[2:4] += memory[:2]
        state.add_(torch.rand(10) + torch.zeros(10).normal_(generator=torch.Generator().manual_seed(3)))
        shifted = torch.ones(2, 3)
        shifted.t_()
        shifted.data = shifted.cumsum(0)
        state[:6] += shifted.reshape(-1)
        torch._foreach_mul_([state[:1], state[1:]], [torch.tensor(2.0), torch.tensor(3.0)])
        state[torch.tensor([True, False] * 5)] *= state.max() / 100
        state[0] = torch.nan

    assert interleavings(program, [state], range(3)) == []


@pytest.mark.parametrize("guarded", [True, False])
def test_training(guarded: bool) -> None:
    """Forward, backward and steps on compute, beside a refresh that reads the weights and writes the table."""
    torch.manual_seed(1)
    lin, norm = torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)
    optimizer = torch.optim.Adam([*lin.parameters(), *norm.parameters()], lr=0.1)
    adj = Adjacency(torch.tensor([0, 2, 3, 4]), torch.tensor([1, 2, 0, 0], dtype=torch.int32)).undirected()
    rows, position, nodes = torch.arange(2), torch.tensor([0, 1, -3], dtype=torch.int32), torch.arange(3)
    x, y, table = torch.randn(3, 3), torch.tensor([2, 0]), torch.zeros(3, 4)

    def program(streams: Recording) -> None:
        weights, rows_of = Resource("weights"), Resource("table")

        def train() -> None:
            h = activate(norm(lin(x[:2])), dropout=0.3, seed=5)
            F.cross_entropy(history_spmm(adj, rows, position, h, table), y).backward()

        def refresh() -> None:
            with torch.no_grad():
                scatter_rows(table, nodes, history_spmm(adj, nodes, ~nodes.int(), None, lin(x)))

        def update() -> None:
            optimizer.step()
            optimizer.zero_grad()

        for _ in range(3):
            streams.submit(REFRESH, refresh, reads=[weights] if guarded else [], writes=[rows_of])
            streams.submit(COMPUTE, train, reads=[rows_of], writes=[])
            streams.submit(COMPUTE, update, writes=[weights])

    assert (check(recorded(program).log) == []) == guarded
    slots = [v for s in optimizer.state.values() for v in s.values() if isinstance(v, Tensor)]  # made by now
    state = [*lin.parameters(), *norm.parameters(), *norm.buffers(), table, *slots]
    assert (interleavings(program, state, range(12)) == []) == guarded
