"""Who ends a membership, and what the others are told."""

from __future__ import annotations

import pickle

import pytest

from meshfeed.pipeline.plan.errors import ConfigError, FeedError
from meshfeed.pipeline.plan.grants import GrantBook, GrantLimits
from meshfeed.pipeline.plan.membership import Membership, told_error
from meshfeed.pipeline.plan.restarts import Restarts


def test_the_first_error_ends_it_and_is_what_all_hear() -> None:
    members = Membership("train", 3)
    first, second = FeedError("first"), FeedError("second")
    members.leave(1, 4, None, first)
    assert members.is_over
    members.leave(0, 5, None, second)
    members.lose(2, 4, "gone")
    assert members.error is first


def test_hosts_that_leave_at_the_end_or_at_a_barrier_leave_no_reason() -> None:
    members = Membership("train", 2)
    members.leave(0, 10, 10, None)
    assert not members.is_over
    assert members.why_no_more() is None
    members.lose(0, 10, "it had left before")
    members.leave(1, 10, 10, None)
    assert members.is_over
    assert members.error is None


@pytest.mark.parametrize("last", [None, 10])
def test_who_leaves_early_first_is_named(last: int | None) -> None:
    members = Membership("eval/books", 2)
    members.leave(1, 7, last, None)
    members.leave(0, 8, last, None)
    assert members.error is None
    assert "process 1 of 2 closed feed eval/books at step 7" in str(members.why_no_more())


def test_a_lost_host_is_named() -> None:
    members = Membership("train", 4)
    members.lose(3, 6, "power cut")
    assert "process 3 of 4 is lost" in str(members.error)
    assert "before 6" in str(members.error)
    assert "power cut" in str(members.error)


def test_errors_of_a_host_survive_the_way_whatever_they_are() -> None:
    class Own(Exception):
        def __reduce__(self) -> str:
            raise TypeError("not to be pickled")

    told = pickle.loads(pickle.dumps(told_error(Own("the cause"), 2, 9)))
    assert isinstance(told, FeedError)
    assert str(told) == "process 2 failed at step 9: Own: the cause"
    ours = ConfigError("seq_len", "0 is too small")
    assert told_error(ours, 2, 9) is ours


def test_grants_end_where_they_are_for_every_host() -> None:
    grants = GrantBook(2, 3, GrantLimits(prefetch=1, gather_seconds=0.0))
    assert grants.advance(100, 0.0) == 7
    assert grants.close() == 7
    for process in (0, 1):
        grants.acknowledge(process, 7, 1.0)
    assert grants.advance(100, 2.0, ended=True) == 7
    assert not grants.could_raise(100)
    assert grants.close() == 7
    assert grants.grants_after(3) == [7]


def test_what_dies_again_and_again_stays_down_for_a_while() -> None:
    restarts = Restarts(most=2, within_s=10.0)
    assert [restarts.allow("a", now) for now in (0.0, 1.0, 2.0)] == [True, True, False]
    assert restarts.allow("b", 2.0)
    assert restarts.allow("a", 10.0)
    assert not restarts.allow("a", 10.5)
