"""A feed's desk: the ledger in order and before any grant, hosts that all know the same."""

import dataclasses
import random

import pytest
from desk_world import FEED, DeskWorld, rows_of, spec_of
from hypothesis import given, settings
from hypothesis import strategies as st

from meshfeed.actors.control.feed_desk import FeedDesk
from meshfeed.actors.control.feed_needs import feed_need
from meshfeed.actors.messages import WindowReport
from meshfeed.pipeline.plan.budget import smallest_budget
from meshfeed.pipeline.plan.config import OnEnd
from meshfeed.pipeline.plan.errors import DisagreementError, StaleGenerationError
from meshfeed.pipeline.plan.feed_state import WindowKey
from meshfeed.pipeline.plan.grants import GrantLimits
from meshfeed.pipeline.plan.ledger import Ledger

SEEDS = st.integers(0, 1 << 32)
SOME_RUNS = settings(max_examples=30, deadline=None)


def ledger_windows(world):
    return [WindowKey(*w) for w in _entries(world.ledger, ("source", "epoch", "window"))]


def _entries(ledger, names):
    entries = ledger.read(0, ledger.num_entries)
    return zip(*(entries[name].tolist() for name in names), strict=True)


@SOME_RUNS
@given(SEEDS, st.integers(1, 4), st.integers(1, 3), st.integers(1, 12))
def test_the_ledger_has_every_window_once_in_order_and_hosts_heard_all(
    tmp_path_factory, seed, hosts, nodes, batch_size
) -> None:
    spec = spec_of(batch_size=batch_size, epochs=2)
    world = DeskWorld(tmp_path_factory.mktemp("run"), spec, hosts=hosts, nodes=nodes)
    world.run(random.Random(seed))
    windows = ledger_windows(world)
    lookup = spec.epochs()
    for source in range(2):
        own = [w for w in windows if w.source == source]
        assert own == [
            WindowKey(source, e, w) for e in range(2) for w in range(lookup.count(source, e))
        ]
    total = sum(rows_of(w) for w in windows)
    assert [world.ledger.find(*w).rows for w in windows] == [rows_of(w) for w in windows]
    for host in world.hosts:
        world.poll(host)
        assert sorted(host.events) == sorted(windows)
        assert host.schedule.total_rows == total
        assert host.taken == -(-total // batch_size)
    assert world.book.used_bytes == 0
    assert world.state.held() == []
    assert all(not tally.windows_again for tally in world.desk.tallies)


@SOME_RUNS
@given(SEEDS, st.integers(1, 9), st.integers(1, 3))
def test_opened_again_at_any_step_the_rest_is_the_same(tmp_path_factory, seed, step, hosts) -> None:
    world = DeskWorld(tmp_path_factory.mktemp("run"), spec_of())
    world.run(random.Random(seed), step)
    step = min(host.taken for host in world.hosts)
    cursor = world.hosts[0].schedule.cursor(8 * step, step).to_json()
    fresh = DeskWorld(tmp_path_factory.mktemp("fresh"), spec_of(), hosts=1)
    fresh.run(random.Random(seed))
    world.open(hosts, cursor)
    world.run(random.Random(seed))
    expected = fresh.hosts[0].schedule
    rows = expected.total_rows
    for host in world.hosts:
        world.poll(host)
        for a, b in zip(
            host.schedule.locate(8 * step, rows), expected.locate(8 * step, rows), strict=True
        ):
            assert a.tolist() == b.tolist()
    assert world.book.used_bytes == 0
    # The ledger has each window once, also those that ran twice.
    windows = ledger_windows(world)
    assert len(set(windows)) == len(windows) == fresh.ledger.num_entries


@SOME_RUNS
@given(SEEDS)
def test_hosts_hear_where_windows_of_a_lost_node_lie_now(tmp_path_factory, seed) -> None:
    world = DeskWorld(tmp_path_factory.mktemp("run"), spec_of(windows=30), extra_budget=20_000)
    chance = random.Random(seed)
    for number in range(4):
        world.run(chance, min(h.taken for h in world.hosts) + chance.randint(1, 5))
        if world.ended:
            break
        world.lose_node(chance.choice(sorted(world.running)), 10 + number)
    world.run(chance)
    assert world.book.used_bytes == 0
    windows = ledger_windows(world)
    assert len(set(windows)) == len(windows)
    assert sum(tally.rows for tally in world.desk.tallies) == sum(map(rows_of, windows))


def run_one(world, window, node=0, *, rows=None, digest=5, source=0):
    key = WindowKey(source, 0, window)
    rows = rows_of(key) if rows is None else rows
    report = WindowReport(feed=FEED, key=key, rows=rows, records=9, digest=digest)
    world.desk.completed(node, [report])


def leased(world, count):
    keys = []
    while len(keys) < count:
        key = world.state.next_lease()
        world.state.leased(key, 0)
        keys.append(key)
    return keys


def test_a_moved_window_is_told_after_its_publication_and_wakes_who_waits(tmp_path) -> None:
    world = DeskWorld(tmp_path, spec_of(weights=(1.0,)), hosts=2)
    leased(world, 5)
    for window in range(5):
        run_one(world, window)
    world.write()
    host = world.hosts[0]
    world.poll(host)
    news = world.desk.news
    world.state.lost([WindowKey(0, 0, 2)])
    assert not world.desk.moved_since(host.since)
    world.state.leased(WindowKey(0, 0, 2), 3)
    run_one(world, 2, node=3)
    assert world.desk.take() is None  # its row count is in the ledger already
    assert world.desk.news != news
    assert world.desk.moved_since(host.since)
    world.poll(host)
    assert host.node_of[WindowKey(0, 0, 2)] == 3
    assert not world.desk.moved_since(host.since)
    late = world.hosts[1]
    world.poll(late)
    assert late.node_of == host.node_of


def test_nothing_is_granted_before_it_is_durable(tmp_path) -> None:
    world = DeskWorld(tmp_path, spec_of(weights=(1.0,)), hosts=1)
    leased(world, 4)
    for window in (3, 2, 1, 0):
        run_one(world, window)
    writing = world.desk.take()
    assert [p.key.window for p in writing.publications] == [0, 1, 2, 3]
    assert world.state.ready_steps == 0
    world.desk.write(writing)
    assert Ledger(world.ledger.path, "desk", read_only=True).num_entries == 4
    assert world.state.ready_steps == 0
    world.desk.publish(writing)
    assert world.state.ready_steps == (0 + 3 + 6 + 9) // 8


def test_windows_that_run_while_the_ledger_is_written_wait_for_the_next_write(tmp_path) -> None:
    world = DeskWorld(tmp_path, spec_of(weights=(1.0,)), hosts=1)
    leased(world, 4)
    run_one(world, 0)
    writing = world.desk.take()
    run_one(world, 1)
    world.desk.write(writing)
    run_one(world, 2)
    assert world.desk.publish(writing) == [WindowKey(0, 0, 0)]  # it has no row
    after = world.desk.take()
    assert [p.key.window for p in after.publications] == [1, 2]
    world.desk.write(after)
    assert world.ledger.num_entries == 3


def test_windows_behind_the_end_that_were_on_their_way_to_the_ledger_are_nothing(tmp_path) -> None:
    world = DeskWorld(tmp_path, spec_of(weights=(1.0,)), hosts=1, max_steps=1)
    keys = leased(world, 2)
    world.state.leased(WindowKey(0, 0, 2), 0)
    world.state.leased(WindowKey(0, 0, 3), 0)
    assert keys == [WindowKey(0, 0, 0), WindowKey(0, 0, 1)]
    for window in range(3):
        run_one(world, window)
    writing = world.desk.take()
    run_one(world, 3)
    world.desk.write(writing)
    assert world.desk.publish(writing) == [WindowKey(0, 0, 0), WindowKey(0, 0, 3)]
    assert world.state.total_steps == 1  # 3 and 6 rows are enough for it
    behind = world.desk.take()
    world.desk.write(behind)
    assert world.desk.publish(behind) == []
    host = world.hosts[0]
    world.poll(host)
    assert host.events == [WindowKey(0, 0, w) for w in range(3)]
    assert host.granted == 1
    host.taken = 1
    world.poll(host)
    assert world.state.held() == []


def test_a_feed_opened_again_while_its_ledger_is_written_goes_on(tmp_path) -> None:
    world = DeskWorld(tmp_path, spec_of(weights=(1.0,)), hosts=1)
    leased(world, 3)
    for window in range(3):
        run_one(world, window)
    writing = world.desk.take()
    world.open(2, None)
    leased(world, 3)
    run_one(world, 0)
    world.desk.write(writing)
    assert world.desk.publish(writing) == []  # of the opening that has ended
    run_one(world, 1)
    again = world.desk.take()
    assert [p.key.window for p in again.publications] == [0, 1]
    assert again.entries == []
    world.desk.write(again)
    world.desk.publish(again)
    assert world.ledger.num_entries == 3
    assert world.desk.tallies[0].windows_again == 2


@pytest.mark.parametrize(
    ("rows", "digest", "ok"), [(3, 5, True), (3, 0, True), (3, 6, False), (2, 5, False)]
)
@pytest.mark.parametrize("written", [False, True])
def test_a_second_run_must_give_the_same_rows(tmp_path, written, rows, digest, ok) -> None:
    world = DeskWorld(tmp_path, spec_of(weights=(1.0,)), hosts=1)
    leased(world, 2)
    for window in (0, 1) if written else (1,):
        run_one(world, window)
    if written:
        world.write()
    world.open(1, None)
    leased(world, 2)
    if ok:
        run_one(world, 1, rows=rows, digest=digest)
        assert world.desk.tallies[0].windows_again == 1
    else:
        with pytest.raises(DisagreementError, match=r"window 1 of epoch 0 of source source-0 gave"):
            run_one(world, 1, rows=rows, digest=digest)


def test_a_message_of_an_older_generation_is_refused(tmp_path) -> None:
    world = DeskWorld(tmp_path, spec_of())
    world.open(2, None)
    world.desk.check(2)
    with pytest.raises(StaleGenerationError):
        world.desk.check(1)
    closed = FeedDesk(spec_of(), world.ledger, None, GrantLimits())
    with pytest.raises(StaleGenerationError):
        closed.check(0)


def test_an_eval_feed_opened_again_gives_the_same_and_leaves_nothing(tmp_path) -> None:
    world = DeskWorld(tmp_path, spec_of())
    seen = []
    for opening in range(3):
        if opening:
            world.open(2, None)
        world.run(random.Random(opening))
        schedule = world.hosts[0].schedule
        world.poll(world.hosts[0])
        seen.append([p.tolist() for p in schedule.locate(0, schedule.total_rows)])
        assert world.book.used_bytes == 0
    assert seen[0] == seen[1] == seen[2]
    assert len(ledger_windows(world)) == world.desk.tallies[0].windows_again // 2 + (
        world.desk.tallies[1].windows_again // 2
    )


def test_larger_windows_than_thought_raise_what_is_kept_for_urgent_ones(tmp_path) -> None:
    spec = spec_of(weights=(1.0,))
    world = DeskWorld(tmp_path, spec, hosts=1)
    before, block = world.desk.need, world.desk.block_bytes(0)
    leased(world, 1)
    run_one(world, 0, rows=40)
    assert world.desk.block_bytes(0) > 3 * block
    assert smallest_budget([world.desk.need]) > smallest_budget([before])
    assert before == feed_need(spec, world.limits)


def test_memory_stays_flat_over_many_windows(tmp_path) -> None:
    spec = spec_of(windows=400, epochs=40, batch_size=64, on_end=OnEnd.CONTINUE)
    spec = dataclasses.replace(spec, window_rows=10)
    world = DeskWorld(tmp_path, spec, nodes=1, readers=8, extra_budget=100_000)

    def sizes():
        state = world.state
        bounds = sum(len(rows._bounds._buffer) for rows in state.schedule._rows)
        held = len(state.held()) + len(world.desk._unwritten) + len(world.book._places)
        held += len(world.tell._current)
        return bounds, held, world.desk._log._buffer.nbytes, len(state.grants._grants)

    limits = (4000, 500, 1 << 20, 1100)
    for steps in (400, 1600):
        world.run(random.Random(steps), steps)
        assert all(size <= limit for size, limit in zip(sizes(), limits, strict=True)), sizes()
    assert world.windows_run > 10_000
