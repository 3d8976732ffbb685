"""Windows from leased to released, whatever happens in whatever order."""

import random

import pytest
from control_world import World
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from order import Source, plans, simulate, source_lists

from meshfeed.pipeline.plan.config import OnEnd, Remainder
from meshfeed.pipeline.plan.errors import DisagreementError
from meshfeed.pipeline.plan.feed_state import FeedState, WindowKey
from meshfeed.pipeline.plan.grants import GrantBook, GrantLimits
from meshfeed.pipeline.plan.schedule import Schedule

LIMIT = 200


class AnyOrder(RuleBasedStateMachine):
    """Leases, completions, writes, grants, acknowledgements, losses and openings, interleaved."""

    @initialize(
        sources=source_lists(),
        batch_size=st.integers(1, 6),
        processes=st.integers(1, 4),
        nodes=st.lists(st.integers(1, 3), min_size=1, max_size=3),
        extra=st.sampled_from([0, 0, 60, 10_000]),
        remainder=st.sampled_from(Remainder),
        max_steps=st.sampled_from([None, None, 3, 12]),
        prefetch=st.integers(1, 3),
    )
    def start(self, sources, batch_size, processes, nodes, extra, remainder, max_steps, prefetch):
        settings_ = {"batch_size": batch_size, "processes": processes, "nodes": nodes}
        settings_ |= {"remainder": remainder, "max_steps": max_steps, "prefetch": prefetch}
        smallest = World(sources, **settings_).smallest
        self.world = World(sources, budget=smallest + extra, **settings_)

    @rule()
    def assign(self):
        self.world.assign()

    @precondition(lambda self: self.world.running())
    @rule(random=st.randoms(use_true_random=False))
    def complete(self, random):
        self.world.complete(*random.choice(self.world.running()))

    @rule(random=st.randoms(use_true_random=False))
    def complete_again(self, random):
        held = [(n, k) for n, node in self.world.nodes.items() for k in node.held]
        if held:
            self.world.complete(*random.choice(held))

    @rule(random=st.randoms(use_true_random=False))
    def complete_late(self, random):
        """A node reports that has lost the window, or never had it."""
        known = [*self.world.published, *(key for _, key in self.world.running())]
        if known:
            self.world.complete(97, random.choice(known))

    @rule()
    def write(self):
        self.world.write()

    @rule()
    def advance(self):
        self.world.advance()

    @rule(random=st.randoms(use_true_random=False), steps=st.integers(1, 8))
    def take(self, random, steps):
        process = random.randrange(len(self.world.hosts))
        for _ in range(steps):
            self.world.take(process)

    @rule(random=st.randoms(use_true_random=False))
    def acknowledge(self, random):
        self.world.acknowledge(random.randrange(len(self.world.hosts)))

    @rule(random=st.randoms(use_true_random=False))
    def lose_node(self, random):
        self.world.lose_node(random.choice(sorted(self.world.nodes)))

    @rule()
    def barrier(self):
        step = self.world.state.grants.close()
        assert step == max(host.granted for host in self.world.hosts)
        assert self.world.state.last_step == step

    @rule(random=st.randoms(use_true_random=False), processes=st.integers(1, 3))
    def open_again(self, random, processes):
        world = self.world
        steps = [
            host.taken for host in world.hosts if host.taken * world.batch_size >= world.first_row
        ]
        step = random.choice(steps)
        row = min(step * world.batch_size, world.replica.known_rows)
        world.open(processes, world.replica.cursor(row, step))

    @invariant()
    def holds(self):
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self):
        """From here on everything works: the feed ends, and nothing is left."""
        if not hasattr(self, "world"):
            return
        world = self.world
        world.run(random.Random(0), LIMIT)
        if world.ended and world.state.total_steps == world.state.last_step:
            assert not world.state.held()
            assert world.book.used_bytes == 0
            world.assign()
            assert not world.running()


AnyOrder.TestCase.settings = settings(max_examples=120, stateful_step_count=60, deadline=None)
TestAnyOrder = AnyOrder.TestCase


@settings(max_examples=60, deadline=None)
@given(source_lists(), st.integers(1, 5), st.integers(0, 1 << 32))
def test_all_rows_of_a_feed_are_given_once_in_the_order_of_the_plain_simulation(
    sources, batch_size, seed
) -> None:
    expected, ends = simulate(sources, LIMIT)
    world = World(sources, batch_size=batch_size, nodes=(1, 2))
    world.run(random.Random(seed), LIMIT // batch_size)
    known = min(world.replica.known_rows, LIMIT)
    places = world.replica.locate(0, known)
    assert list(zip(*(p.tolist() for p in places), strict=True)) == expected[:known]
    assert world.ended == (ends and len(expected) <= known)


def state_of(windows=((3, 3, 3, 3),), *, batch_size=2, max_steps=None, processes=1, **source):
    sources = [Source(1.0, windows, **source)]
    return FeedState(
        Schedule(plans(sources)),
        batch_size=batch_size,
        remainder=Remainder.PAD,
        max_steps=max_steps,
        grants=GrantBook(processes, 0, GrantLimits(prefetch=1, gather_seconds=0.0)),
        rows_estimate=[3],
        most_rows=[3],
    )


def run_window(state, window, node=0, rows=3):
    done = state.completed(WindowKey(0, 0, window), rows, rows, node)
    return state.publish(done.publications), done.moved


def lease(state, node=0, count=1):
    keys = []
    for _ in range(count):
        key = state.next_lease()
        assert key is not None
        state.leased(key, node)
        keys.append(key)
    return keys


def test_a_lost_published_window_stops_grants_at_its_rows_and_is_told_as_moved() -> None:
    state = state_of()
    lease(state, count=4)
    for window in range(4):
        run_window(state, window)
    assert state.ready_steps == state.total_steps == 6
    state.lost([WindowKey(0, 0, 1)])
    assert state.ready_steps == 1  # rows 0 to 2 are there, the second step needs row 3
    assert state.holder(WindowKey(0, 0, 1)) == -1
    # Leasing is finished, the lost window is leased again all the same, and only that.
    assert state.next_lease() == state.next_urgent() == WindowKey(0, 0, 1)
    state.leased(WindowKey(0, 0, 1), 5)
    assert state.next_lease() is None
    assert state.ready_steps == 1
    unneeded, moved = run_window(state, 1, node=5)
    assert (unneeded, moved) == ([], True)
    assert state.ready_steps == 6
    assert state.holder(WindowKey(0, 0, 1)) == 5


def test_a_lost_window_that_was_granted_is_urgent_however_far_it_is_ahead() -> None:
    """A host that fetches several steps at once cannot take the first without the last."""
    state = state_of(windows=((2,) * 60,), batch_size=2)
    lease(state, count=60)
    for window in range(60):
        run_window(state, window, rows=2)
    for second in range(8):
        state.grants.advance(state.ready_steps, float(second))
        state.acknowledge(0, min(4 * second, state.grants.granted), float(second))
    floor, granted = state.grants.floor, state.grants.granted
    assert granted > floor + state.grants.least_depth + 2
    state.lost([WindowKey(0, 0, granted - 1), WindowKey(0, 0, granted)])
    assert state.next_urgent() == WindowKey(0, 0, granted - 1)
    state.leased(WindowKey(0, 0, granted - 1), 1)
    assert state.next_urgent() is None
    assert state.next_lease() == WindowKey(0, 0, granted)


def test_a_window_taken_before_the_opening_is_not_held() -> None:
    """The cursor lies behind the last row of its window, which is run again for its row count."""
    sources = [Source(1.0, ((4, 4, 4),))]
    world = World(sources, batch_size=4, processes=1)
    world.run(random.Random(0), 1)
    world.open(1, world.replica.cursor(4, 1))
    assert world.state.next_urgent() == WindowKey(0, 0, 0)
    world.assign()
    world.complete(0, WindowKey(0, 0, 0))
    world.write()
    assert WindowKey(0, 0, 0) not in world.state.held()
    world.check()


def test_a_lost_window_that_is_released_meanwhile_is_not_run_again() -> None:
    state = state_of()
    lease(state, count=4)
    for window in range(4):
        run_window(state, window)
    state.grants.advance(state.ready_steps, 0.0)
    state.lost([WindowKey(0, 0, 0)])
    assert state.acknowledge(0, 2, 1.0) == [WindowKey(0, 0, 0)]
    assert state.next_lease() is None
    assert state.ready_steps == 6


def test_a_window_lost_on_its_way_to_the_ledger_is_published_once() -> None:
    state = state_of()
    lease(state, count=4)
    done = state.completed(WindowKey(0, 0, 0), 3, 3, 0)
    state.lost([WindowKey(0, 0, 0)])
    assert state.publish(done.publications) == []
    assert state.holder(WindowKey(0, 0, 0)) == -1
    assert state.ready_steps == 0
    assert state.next_lease() == WindowKey(0, 0, 0)
    state.leased(WindowKey(0, 0, 0), 7)
    again = state.completed(WindowKey(0, 0, 0), 3, 3, 7)
    assert (again.publications, again.moved) == ([], True)
    assert state.ready_steps == 1


def test_a_second_run_with_other_rows_is_a_disagreement() -> None:
    state = state_of()
    lease(state, count=2)
    state.completed(WindowKey(0, 0, 1), 3, 3, 0)
    state.lost([WindowKey(0, 0, 1)])
    state.leased(WindowKey(0, 0, 1), 1)
    with pytest.raises(DisagreementError, match="3 rows once and 2 now"):
        state.completed(WindowKey(0, 0, 1), 2, 3, 1)


def test_late_and_repeated_completions_count_for_nothing() -> None:
    state = state_of()
    lease(state, count=2)
    assert state.completed(WindowKey(0, 0, 0), 3, 3, 9).publications == []
    assert len(state.completed(WindowKey(0, 0, 0), 3, 3, 0).publications) == 1
    assert state.completed(WindowKey(0, 0, 0), 3, 3, 0).publications == []
    assert state.completed(WindowKey(0, 3, 0), 3, 3, 0).publications == []


def test_only_what_the_last_step_needs_is_leased() -> None:
    """max_steps=2 of 2 rows need two of the windows; the others are not run."""
    state = state_of(max_steps=2)
    assert lease(state, count=2) == [WindowKey(0, 0, 0), WindowKey(0, 0, 1)]
    assert state.next_lease() is None
    run_window(state, 0)
    run_window(state, 1)
    assert state.total_steps == 2
    assert state.next_urgent() is None


def test_at_the_end_everything_is_released_though_not_all_was_taken() -> None:
    state = state_of(windows=((3, 3, 3),), batch_size=2, processes=2, epochs=1)
    state._remainder = Remainder.DROP  # 9 rows: the last one fills no step
    lease(state, count=3)
    for window in range(3):
        run_window(state, window)
    assert state.total_steps == 4
    state.grants.advance(state.ready_steps, 0.0, ended=True)
    assert state.acknowledge(0, 4, 1.0) == []
    assert state.acknowledge(1, 4, 1.0) == [WindowKey(0, 0, w) for w in range(3)]
    assert state.held() == []


def test_the_end_drops_what_was_leased_behind_it() -> None:
    """One source stops the feed; windows of the other that lie behind are not waited for."""
    sources = [
        Source(1.0, ((2,),), 1, OnEnd.STOP),
        Source(1.0, ((2, 2, 2, 2),), None, OnEnd.CONTINUE),
    ]
    world = World(sources, budget=10_000, nodes=(4,), processes=1, batch_size=2)
    world.assign()
    assert len(world.running()) == 8
    for key in (WindowKey(1, 0, 0), WindowKey(1, 0, 1), WindowKey(0, 0, 0)):
        world.complete(0, key)
    world.write()
    assert world.state.total_steps == 2
    assert set(world.state.held()) == {WindowKey(0, 0, 0), WindowKey(1, 0, 0)}
    world.assign()
    assert world.running() == []
    world.check()


def test_a_source_that_gives_no_row_for_long_gets_all_readers_and_then_its_share() -> None:
    empty_first = ((0,) * 300 + (4,) * 40,)
    sources = [Source(1.0, empty_first, 1), Source(1.0, ((4,) * 40,), 1)]
    world = World(sources, nodes=(4, 4), batch_size=4, processes=2)
    world.run(random.Random(1), 1000)
    assert world.ended
    assert world.book.used_bytes == 0


def test_memory_of_the_state_stays_flat_over_many_windows() -> None:
    sources = [Source(1.0, ((4,) * 50,), None), Source(2.0, ((4,) * 50,), None)]
    world = World(sources, nodes=(2,), batch_size=8, processes=2, budget=1000)
    world.run(random.Random(2), 300)
    first = sum(len(rows._bounds.values) for rows in world.state.schedule._rows)
    world.run(random.Random(2), 1500)
    bounds = [len(rows._bounds.values) for rows in world.state.schedule._rows]
    assert sum(bounds) <= max(2 * first, 400)
    assert len(world.state.held()) < 60
