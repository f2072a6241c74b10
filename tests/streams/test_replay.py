"""Logs run again in other orders: the same bits if the program is in order, other ones for some if it is not."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import rest_triton.history.streams
from rest_triton.history.streams import COMPUTE, IO, REFRESH, Resource
from rest_triton.ops import Adjacency, activate, history_spmm, scatter_rows
from tests.streams.ordering import OutOfOrder, check, interleavings, replay
from tests.streams.recorder import Recording

from .mutants import installed, mutants
from .programs import Everything, recorded

SEEDS = range(40)


def test_a_program_in_order_has_one_result() -> None:
    program = Everything()
    assert interleavings(program, program.state, SEEDS) == []
    alone, reference = Everything(), Everything()
    recorded(alone)
    for tensor, expected in zip(program.state, alone.state, strict=True):
        assert torch.equal(tensor, expected)  # the state is left as the program made it
    assert not torch.equal(program.table, reference.table)


@pytest.mark.parametrize("wait", ["self._wait_for(stream, reads, writes)", "self._wait(handed)", "self._wait(event)"])
def test_a_program_that_does_not_wait_has_several(wait: str) -> None:
    (mutant,) = [m for what, m in mutants(rest_triton.history.streams, ["Streams"]) if what.endswith(wait)]
    with installed(rest_triton.history.streams, mutant):
        program = Everything()
        different = interleavings(program, program.state, SEEDS)
    assert different != []
    recorded(alone := Everything())
    for tensor, expected in zip(program.state, alone.state, strict=True):
        assert torch.equal(tensor, expected)  # again what the program made of it


@pytest.mark.parametrize("waits", [True, False])
def test_neither_lane_is_always_first(waits: bool) -> None:
    """Without waiting, orders in which io is late are met, and ones in which it is early."""
    table, copies = torch.zeros(1), torch.zeros(3)

    def program(streams: Recording) -> None:
        resource = Resource("table")
        for step in range(3):
            streams.submit(COMPUTE, lambda: table.add_(1), writes=[resource])
            streams.submit(IO, lambda n=step: copies[n].copy_(table[0]), reads=[resource] if waits else [])

    streams = recorded(program)
    seen = set()
    for seed in range(100):
        table.zero_()
        copies.fill_(-1)
        replay(streams.log, [table, copies], seed)
        seen.add(tuple(copies.tolist()))
    if waits:
        assert seen == {(1, 2, 3)}
    else:
        assert {(0, 0, 0), (3, 3, 3), (1, 2, 3)} <= seen
        assert all(list(s) == sorted(s) for s in seen)  # each stream by itself stays in order


def test_a_seed_is_an_order() -> None:
    table = torch.zeros(1)
    order: list[str] = []

    def program(streams: Recording) -> None:
        for _ in range(8):
            for stream in (COMPUTE, IO, REFRESH):
                with streams.on(stream):
                    table.add_(1)

    streams = recorded(program)
    for record in streams.log:
        object.__setattr__(record, "run", lambda stream=record.stream: order.append(stream))

    def drawn(seed: int) -> list[str]:
        order.clear()
        replay(streams.log, [table], seed)
        return order.copy()

    orders = [drawn(seed) for seed in range(20)]
    assert [drawn(seed) for seed in range(20)] == orders
    assert len({tuple(o) for o in orders}) > 10 and all(len(o) == 24 for o in orders)


def test_values_of_the_last_time_are_gone() -> None:
    """Read before it is written, an intermediate result is NaN, although the memory held the right value."""
    total = torch.zeros(3)

    def program(streams: Recording) -> None:
        h = torch.ones(3) * 2
        with streams.on(IO):
            total.add_(h)

    streams = recorded(program)
    ends = set()
    for seed in SEEDS:
        total.zero_()
        replay(streams.log, [total], seed)
        ends.add(str(total.tolist()))
    assert ends == {"[2.0, 2.0, 2.0]", "[nan, nan, nan]"}


def test_memory_that_nobody_wrote_is_nan() -> None:
    state = torch.zeros(3)
    streams = recorded(lambda _: state.copy_(torch.empty(3)))
    replay(streams.log, [state], 0)
    assert state.isnan().all()


def test_the_same_means_the_same_bits() -> None:
    """NaN is what it was, and -0 is not 0."""
    state = torch.tensor([float("nan"), 1.0])
    assert interleavings(lambda streams: state.mul_(2), [state], range(3)) == []

    def race(streams: Recording) -> None:
        state.fill_(0.0)
        with streams.on(IO):
            state.fill_(-0.0)

    assert interleavings(race, [state], SEEDS) != []


def test_results_of_another_shape_are_out_of_order() -> None:
    flags, found = torch.zeros(4), torch.zeros(4)

    def program(streams: Recording) -> None:
        flags[1:3] = 1
        with streams.on(IO):
            found.index_fill_(0, flags.nonzero().view(-1), 1.0)

    with pytest.raises(
        OutOfOrder, match=r"io: aten.nonzero.default \(test_replay.py:\d+\) failed with seed \d+: its result is \(0, 1\)"
    ):
        streams = recorded(program)
        for seed in SEEDS:
            flags.zero_()
            replay(streams.log, [flags, found], seed)
    flags.zero_()
    assert interleavings(program, [flags, found], SEEDS) != []


def test_what_is_written_must_be_in_state() -> None:
    table, stamp = torch.zeros(4, 2), torch.zeros(4, dtype=torch.int32)
    streams = recorded(lambda _: scatter_rows(table, torch.arange(2), torch.ones(2, 2), stamp=stamp, step=3))
    replay(streams.log, [table, stamp], 0)
    table.zero_()
    for state in ([table], [stamp], [table[:3], stamp]):
        with pytest.raises(
            ValueError, match=r"scatter_rows.default \(test_replay.py:\d+\) writes \d+ bytes .* not in state"
        ):
            replay(streams.log, state, 0)
    assert not table.any()  # refused before anything ran


def anything_goes(state: Tensor) -> None:
    """Literals that are changed, memory nobody wrote, random numbers, dtypes, shapes that change, views in disguise."""
    literal = torch.tensor([1.0, 2.0])
    literal.mul_(3)
    state[:2] += literal
    memory = torch.empty(4)
    memory[:2] = literal
    state[2:4] += memory[:2]
    state += torch.rand(10) + torch.zeros(10).normal_(generator=torch.Generator().manual_seed(3))
    state[4:6].copy_(torch.arange(2, dtype=torch.float64) * 1.5)
    shifted = torch.ones(2, 3)
    shifted.t_()
    shifted.data = shifted.cumsum(0)
    state[:6] += shifted.reshape(-1)
    state += (torch.ones(1, 2, 3) @ torch.full((3, 10), 0.1)).sum((0, 1))
    torch._foreach_mul_([state[:1], state[1:]], [torch.tensor(2.0), torch.tensor(3.0)])
    state[torch.tensor([True, False] * 5)] *= state.max() / 100
    with torch.inference_mode():
        state += torch.ones(10).add_(2)
    with torch.no_grad():
        torch.sin(state, out=state)


def test_every_kind_of_op_gives_the_same_bits() -> None:
    torch.manual_seed(0)
    state = torch.linspace(0, 1, 10)
    before = torch.get_rng_state()
    assert interleavings(lambda streams: anything_goes(state), [state], range(3)) == []
    assert torch.isfinite(state).all()
    after = torch.get_rng_state()
    torch.set_rng_state(before)
    anything_goes(other := torch.linspace(0, 1, 10))
    assert torch.equal(other, state) and torch.equal(torch.get_rng_state(), after)


def test_a_replay_draws_no_random_numbers_of_its_own() -> None:
    state = torch.zeros(3)
    streams = recorded(lambda _: state.uniform_())
    torch.manual_seed(5)
    before = torch.get_rng_state()
    replay(streams.log, [state], 0)
    assert torch.equal(torch.get_rng_state(), before)


OPTIMIZERS: dict[str, Callable[[list[Tensor]], torch.optim.Optimizer]] = {
    "sgd": lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9),
    "sgd, foreach": lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9, foreach=True),
    "adam": lambda weights: torch.optim.Adam(weights, lr=0.1),
    "adam, foreach": lambda weights: torch.optim.Adam(weights, lr=0.1, foreach=True),
    "adam, fused": lambda weights: torch.optim.Adam(weights, lr=0.1, fused=True),
}


@pytest.mark.parametrize("guarded", [True, False])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_training(optimizer: str, guarded: bool, threads: Callable[[int], None]) -> None:
    """Forward, backward and steps on compute, beside a refresh that reads the weights and writes the table."""
    threads(1)  # so little work is not worth more
    torch.manual_seed(1)
    lin, norm = torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)
    step_of = OPTIMIZERS[optimizer]([*lin.parameters(), *norm.parameters()])
    adj = Adjacency(torch.tensor([0, 2, 3, 4]), torch.tensor([1, 2, 0, 0], dtype=torch.int32)).undirected()
    rows, position, everyone = torch.arange(2), torch.tensor([0, 1, -3], dtype=torch.int32), torch.arange(3)
    outside = ~torch.arange(3, dtype=torch.int32)
    x, y, table = torch.randn(3, 3), torch.tensor([2, 0]), torch.zeros(3, 4)

    def program(streams: Recording) -> None:
        weights, rows_of = Resource("weights"), Resource("table")

        def train() -> None:
            h = activate(norm(lin(x[:2])), dropout=0.3, seed=5)
            F.cross_entropy(history_spmm(adj, rows, position, h, table), y).backward()

        def refresh() -> None:
            with torch.no_grad():
                scatter_rows(table, everyone, history_spmm(adj, everyone, outside, None, lin(x)))

        def update() -> None:
            step_of.step()
            step_of.zero_grad()

        for _ in range(3):
            streams.submit(REFRESH, refresh, reads=[weights] if guarded else [], writes=[rows_of])
            streams.submit(COMPUTE, train, reads=[rows_of], writes=[])
            streams.submit(COMPUTE, update, writes=[weights])

    assert (check(recorded(program).log) == []) == guarded
    state = [*lin.parameters(), *norm.parameters(), *norm.buffers(), table]
    for slots in step_of.state.values():  # made by now
        state += [value for value in slots.values() if isinstance(value, Tensor)]
    begin = [tensor.detach().clone() for tensor in state]
    different = interleavings(program, state, range(12))
    assert (different == []) == guarded
    assert all(not torch.equal(now, then) for now, then in zip(state, begin, strict=True))


def test_state_that_was_there_before() -> None:
    """Optimizer state and gradients from before the recording belong to the state, and are asked for."""
    weight = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.Adam([weight], lr=0.1)

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        (weight * torch.tensor([1.0, -2.0, 3.0])).sum().backward()
        optimizer.step()

    step()
    kept = [t for t in optimizer.state[weight].values() if isinstance(t, Tensor)]
    assert weight.grad is not None and len(kept) == 3
    assert interleavings(lambda streams: step(), [weight, weight.grad, *kept], range(3)) == []
    with pytest.raises(ValueError, match="not in state"):
        interleavings(lambda streams: step(), [weight, *kept], range(1))
