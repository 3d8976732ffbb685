"""How long a trainer waits, and for which stage: counted slice by slice."""

from __future__ import annotations

import pytest

from meshfeed.actors.host.waiting import Waiting


class Clock:
    """Goes on only when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def timed() -> tuple[Waiting, Clock]:
    clock = Clock()
    return Waiting(clock), clock


def wait(waiting: Waiting, clock: Clock, *slices: tuple[str, float]) -> None:
    """A wait in which the fetching thread is at these stages for so long."""
    waiting.fetching = slices[0][0]
    waiting.begin()
    for index, (_, seconds) in enumerate(slices):
        clock.now += seconds
        following = slices[index + 1][0] if index + 1 < len(slices) else None
        if following is not None:
            waiting.fetching = following
            waiting.look()
    waiting.end()


def test_time_before_the_first_batch_is_counted_apart(timed: tuple[Waiting, Clock]) -> None:
    waiting, clock = timed
    clock.now += 2.0
    wait(waiting, clock, ("opening", 1.0), ("grant", 4.0))
    assert waiting.first_batch_seconds == 7.0
    assert waiting.seconds == 0.0
    clock.now += 3.0
    wait(waiting, clock, ("grant", 1.0), ("fetch", 0.5))
    assert waiting.seconds == 1.5
    assert waiting.by_stage == {"grant": 1.0, "fetch": 0.5}
    assert waiting.plain()["of_seconds"] == 4.5


def test_a_wait_that_ends_with_an_assembled_batch_counts_for_what_came_before(
    timed: tuple[Waiting, Clock],
) -> None:
    waiting, clock = timed
    wait(waiting, clock, ("grant", 1.0))
    waiting.fetching = "grant"
    waiting.begin()
    clock.now += 10.0
    waiting.assembling = True
    waiting.look()
    clock.now += 0.25
    waiting.assembling = False
    waiting.end()
    assert waiting.by_stage == {"grant": 10.0, "assemble": 0.25}


def test_a_wait_that_goes_on_is_told(timed: tuple[Waiting, Clock]) -> None:
    waiting, clock = timed
    clock.now += 5.0
    assert waiting.plain() == {
        "seconds": 0.0,
        "of_seconds": 5.0,
        "by_stage": {},
        "waiting_for": "",
        "batches": False,
    }
    wait(waiting, clock, ("fetch", 1.0))
    waiting.fetching = "fetch"
    waiting.begin()
    clock.now += 30.0
    assert waiting.look() == 30.0
    waiting.fetching = "grant"
    clock.now += 10.0
    told = waiting.plain()
    assert told["seconds"] == told["of_seconds"] == 40.0
    assert told["by_stage"] == {"fetch": 40.0}
    assert told["waiting_for"] == "grant"
    assert told["batches"]
    assert waiting.plain()["seconds"] == 40.0, "asking must not count it twice"
