"""Every host hears every event once, in order, and what all have heard takes no memory."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshfeed.actors.control.event_log import EventLog
from meshfeed.pipeline.plan.feed_state import WindowKey


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["publish", "move", "ask"]), st.integers(0, 3000))))
def test_hosts_of_any_speed_hear_everything_once_and_in_order(actions) -> None:
    log = EventLog(3)
    events, moves = [], []
    heard = [([], []) for _ in range(3)]
    since = [0, 0, 0]
    kept = []
    for action, number in [*actions, ("ask", 0), ("ask", 1), ("ask", 2)]:
        if action == "publish":
            new = [(number % 3, 0, len(events) + i, i % 5, 7, number % 4) for i in range(number)]
            log.publish(new)
            events += new
        elif action == "move":
            log.move(WindowKey(1, 2, number), number % 4)
            moves.append((1, 2, number, number % 4))
        else:
            host = number % 3
            assert log.moved_since(since[host]) == (len(heard[host][1]) < len(moves))
            published, moved = log.since(host, since[host])
            since[host] = log.end
            kept.append((published, published.copy()))
            heard[host][0].extend(map(tuple, published.tolist()))
            heard[host][1].extend(map(tuple, moved.tolist()))
    for host in range(3):
        assert heard[host] == (events, moves)
    # What a host was given stays as it was, whatever came later.
    assert all(np.array_equal(view, copy) for view, copy in kept)


def test_the_log_is_as_short_as_the_hosts_are_close_together() -> None:
    log = EventLog(2)
    for at in range(0, 200_000, 100):
        log.publish([(0, 0, at + i, 1, 1, 0) for i in range(100)])
        log.since(0, log.end)
        log.since(1, max(0, log.end - 500))
    assert len(log) <= 3 * 4096
    assert log._buffer.nbytes < 1 << 20
    with pytest.raises(ValueError, match="process 1 asks for events from 5"):
        log.since(1, 5)
