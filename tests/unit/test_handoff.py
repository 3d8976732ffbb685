"""A queue between two threads: in order, bounded, and it ends when the feed is closed."""

from __future__ import annotations

import threading
import time
from queue import Empty

import pytest

from meshfeed.actors.host.handoff import Handoff

WAIT_S = 30.0


@pytest.mark.parametrize("places", [1, 2, 3, 16])
def test_items_come_in_order_and_never_more_wait_than_there_are_places(places: int) -> None:
    closed = threading.Event()
    queue: Handoff[int] = Handoff(places, closed)
    count = 200
    put = 0

    def fill() -> None:
        nonlocal put
        for item in range(count):
            assert queue.put(item)
            put = item + 1

    filling = threading.Thread(target=fill)
    filling.start()
    for taken in range(count):
        filled = min(taken + max(1, places // 2), count)
        until = time.monotonic() + WAIT_S
        while taken % 50 == 0 and put < filled and time.monotonic() < until:
            time.sleep(0.001)
        assert put <= taken + places
        assert queue.get(WAIT_S) == taken
    filling.join(WAIT_S)
    assert not filling.is_alive()
    with pytest.raises(Empty):
        queue.get(0.01)


def test_a_queue_that_is_closed_lets_the_thread_go_that_waits_for_a_place() -> None:
    closed, answered = threading.Event(), threading.Event()
    queue: Handoff[int] = Handoff(1, closed)
    answers: list[bool] = []

    def fill() -> None:
        answers.extend((queue.put(0), queue.put(1)))
        answered.set()

    filling = threading.Thread(target=fill)
    filling.start()
    closed.set()
    assert answered.wait(WAIT_S)
    filling.join(WAIT_S)
    assert answers[1] is False


def test_half_of_the_places_are_filled_before_the_first_is_asked_for_again() -> None:
    queue: Handoff[int] = Handoff(4, threading.Event())
    for item in range(4):
        assert queue.put(item)
    later = threading.Thread(target=queue.put, args=(4,))
    later.start()
    assert queue.get(WAIT_S) == 0
    later.join(0.05)
    assert later.is_alive(), "it is woken for each item"
    assert queue.get(WAIT_S) == 1
    later.join(WAIT_S)
    assert not later.is_alive()
    assert [queue.get(WAIT_S) for _ in range(3)] == [2, 3, 4]
