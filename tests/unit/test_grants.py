"""Grants never fall, never pass what is ready, and follow the slowest host."""

import math

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from meshfeed.pipeline.plan.errors import DisagreementError
from meshfeed.pipeline.plan.grants import GrantBook, GrantLimits


class Grants(RuleBasedStateMachine):
    """Hosts of different speeds against a model that keeps everything."""

    @initialize(
        processes=st.integers(1, 5),
        start=st.sampled_from([0, 1000]),
        prefetch=st.integers(1, 4),
        seconds=st.sampled_from([0.5, 5.0]),
    )
    def begin(self, processes, start, prefetch, seconds):
        self.limits = GrantLimits(prefetch=prefetch, seconds=seconds)
        self.book = GrantBook(processes, start, self.limits)
        self.acked = [start] * processes
        self.ready = self.granted = self.most_ready = start
        self.given: list[int] = []
        self.seen = [start] * processes  # what each host was granted
        self.now = 50.0

    @rule(more=st.integers(-3, 12))
    def rows_come_or_are_lost(self, more):
        self.ready = max(self.ready + more, 0)
        self.most_ready = max(self.most_ready, self.ready)

    @rule(seconds=st.sampled_from([0.0, 0.01, 0.1, 1.0, 60.0]), ended=st.booleans())
    def advance(self, seconds, ended):
        self.now += seconds
        granted = self.book.advance(self.ready, self.now, ended=ended)
        assert granted >= self.granted
        if granted > self.granted:
            self.given.append(granted)
            assert granted <= self.ready
        self.granted = granted
        if ended:
            assert granted >= min(self.ready, self.book.floor + self.book.depth)

    @rule(who=st.integers(0, 4), ahead=st.integers(0, 5), seconds=st.sampled_from([0.0, 0.3]))
    def host_asks(self, who, ahead, seconds):
        self.now += seconds
        who %= len(self.acked)
        step = min(self.acked[who] + ahead, self.seen[who])
        floor = min(self.acked)
        self.acked[who] = step
        assert self.book.acknowledge(who, step, self.now) == (min(self.acked) > floor)
        new = self.book.grants_after(self.seen[who])
        assert new == [g for g in self.given if g > self.seen[who]]
        self.seen[who] = new[-1] if new else self.seen[who]

    @invariant()
    def holds(self):
        if not hasattr(self, "book"):
            return
        assert self.book.floor == min(self.acked)
        assert self.acked[self.book.slowest()] == min(self.acked)
        assert self.book.granted == self.granted <= self.most_ready
        assert self.book.depth >= self.limits.least_depth
        assert self.book.steps_per_second >= 0


Grants.TestCase.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
TestGrants = Grants.TestCase


def test_a_grant_reaches_as_many_seconds_ahead_as_asked_at_the_rate_of_the_slowest() -> None:
    book = GrantBook(2, 0, GrantLimits(prefetch=2, seconds=5.0))
    assert book.advance(10_000, 0.0) == 6
    step = 0
    for tick in range(1, 200):  # 10 steps a second; process 1 asks half a second later
        book.acknowledge(0, book.granted, tick * 0.5)
        step = min(5 * tick, book.granted)
        book.acknowledge(1, step, tick * 0.5)
        book.advance(10_000, tick * 0.5)
    assert book.steps_per_second == pytest.approx(10, rel=0.1)
    assert book.granted - book.floor == pytest.approx(50, rel=0.1)


def test_short_steps_are_gathered_and_the_end_is_not() -> None:
    book = GrantBook(1, 0, GrantLimits(prefetch=8, gather_seconds=0.1))
    assert book.advance(1, 0.0) == 1
    assert book.advance(2, 0.05) == 1
    assert book.could_raise(2)
    assert not book.could_raise(1)
    assert book.advance(2, 0.05, ended=True) == 2
    assert book.advance(7, 0.06) == 7  # a good part of the depth: not worth waiting
    assert book.advance(8, 0.15) == 7
    assert book.advance(8, 0.17) == 8
    assert book.grants_after(1) == [2, 7, 8]


def test_an_acknowledgement_beyond_the_grant_is_refused() -> None:
    book = GrantBook(2, 0, GrantLimits())
    book.advance(4, 0.0)
    with pytest.raises(DisagreementError, match=r"process 1 .* before 5, .* before 4 were granted"):
        book.acknowledge(1, 5, 0.0)


def test_a_host_that_waits_says_again_how_far_it_is_when_it_is_near_the_end_of_the_grant() -> None:
    book = GrantBook(1, 0, GrantLimits(prefetch=2, gather_seconds=0.0))
    book.advance(6, 0.0)
    assert book.patience(0, 3) == book.patience(0, 6) == math.inf
    assert 0 < book.patience(0, 0) < 5  # no rate is known yet
    for second in range(1, 6):
        book.acknowledge(0, 4 * second, float(second))
        book.advance(4 * second + 20, float(second))
    assert book.steps_per_second == pytest.approx(4)
    first = book.patience(0, 20)
    assert first == pytest.approx((book.granted - 3 - 20) / 4)
    # It takes nothing for long: it asks less and less often.
    assert [book.patience(0, 20) for _ in range(3)] == [2 * first, 4 * first, 8 * first]
    assert book.patience(0, 21) < first


def test_grants_that_all_have_passed_are_forgotten() -> None:
    book = GrantBook(3, 0, GrantLimits(gather_seconds=0.0))
    for step in range(5_000):
        book.advance(step + 1, float(step))
        for process in range(3):
            book.acknowledge(process, step + 1, float(step))
    assert book.granted == 5_000
    assert len(book._grants) <= 1025
    assert book.grants_after(4_998) == [4_999, 5_000]


def test_no_grant_is_forgotten_that_a_slow_host_still_asks_for() -> None:
    book = GrantBook(2, 0, GrantLimits(gather_seconds=0.0, seconds=100.0))
    for second in range(100):  # faster and faster, until a grant reaches thousands of steps ahead
        book.advance(1 << 40, float(second))
        for process in range(2):
            book.acknowledge(process, book.granted, float(second))
        if book.depth > 4_000:
            break
    floor = book.floor
    for step in range(floor + 1, floor + 3_000):
        book.advance(step, 100.0 + step)
    assert book.grants_after(floor) == list(range(floor + 1, floor + 3_000))
