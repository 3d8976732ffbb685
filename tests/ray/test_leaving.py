"""Hosts that fail, die or leave: the others hear why at once, and what comes next can begin."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from ids_data import write_ids
from plain_world import PlainWorld, WorldError

from meshfeed.actors.run import Run

SOON_S = 60.0
"""Far less than the limit of the run's waits, and more than a busy machine takes."""


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A source that is read again and again, in a run whose waits have a long limit."""
    data = write_ids(tmp_path_factory.mktemp("data"), [[20] * 300] * 4)
    return {
        "data": [str(data)],
        "column": "ids",
        "seq_len": 32,
        "batch_size": 8,
        "epochs": 0,
        "shuffle": "record",
        "readers": 2,
        "timeout_seconds": 600,
        "memory_budget": "32MB",
    }


@pytest.fixture(scope="module")
def run(
    settings: dict[str, Any],
    start_run: Callable[..., Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Run]:
    """A run that is up; what happens to its hosts is nothing to it."""
    with start_run(run_dir=tmp_path_factory.mktemp("run"), **settings) as run:
        yield run


@pytest.fixture
def own_world(
    ray_address: str, ray_environment: dict[str, str], tmp_path: Path
) -> Callable[..., Any]:
    """``with own_world(hosts, devices) as world``: one whose processes may be ended."""

    @contextmanager
    def make(hosts: int, devices: int) -> Iterator[PlainWorld]:
        world = PlainWorld(hosts, devices, tmp_path, ray_environment | {"RAY_ADDRESS": ray_address})
        try:
            world.wait_until_up()
            yield world
        finally:
            world.kill()

    return make


def test_case_07_a_host_that_raises_ends_the_others_with_its_error(
    run: Run, world_4x1: PlainWorld
) -> None:
    feed = world_4x1.feed(run.config.run_dir)
    began = time.monotonic()
    world_4x1.tell("fail_at", on=[1], name="feed", step=3, message="out of luck")
    world_4x1.tell("take", on=[0, 2, 3], name="feed", count=None, keep=[], quick=True, pause=0.05)
    errors = {process: _error_of(world_4x1, process) for process in range(4)}
    assert time.monotonic() - began < SOON_S
    assert errors.pop(1) == ("RuntimeError", "out of luck")
    for kind, message in errors.values():
        assert kind == "FeedError"
        assert "process 1 failed at step 3: RuntimeError: out of luck" in message
    feed.close()
    _wait_until_closed(run)
    # The run itself is none the worse for it.
    with world_4x1.feed(run.config.run_dir) as again:
        assert len(again.take(2)) == 2


@pytest.mark.parametrize("how", ["killed", "raised"])
def test_a_trainer_that_is_gone_ends_the_others_with_its_name(
    how: str, run: Run, own_world: Callable[..., Any]
) -> None:
    with own_world(2, 1) as world:
        world.feed(run.config.run_dir).take(3)
        world.tell("take", on=[0], name="feed", count=None, keep=[], quick=True)
        began = time.monotonic()
        if how == "killed":
            os.kill(world.pids()[1], signal.SIGKILL)
        else:
            world.tell("crash", on=[1], message="nobody catches this")
        kind, message = _error_of(world, 0)
        assert time.monotonic() - began < SOON_S
        assert kind == "FeedError"
        if how == "killed":
            assert "process 1 of 2 is lost" in message
        else:
            assert "process 1 failed at step 3: RuntimeError: nobody catches this" in message
    _wait_until_closed(run)


def test_a_host_that_has_taken_everything_may_leave_before_the_others(
    settings: dict[str, Any],
    start_run: Callable[..., Any],
    world_2x2: PlainWorld,
    tmp_path: Path,
) -> None:
    with start_run(run_dir=tmp_path, **settings | {"epochs": 1}) as run:
        world_2x2.feed(tmp_path)
        for process, pause in ((0, 0.0), (1, 0.03)):
            world_2x2.tell(
                "take", on=[process], name="feed", count=None, keep=[], quick=True, pause=pause
            )
        whole = world_2x2.hear(on=[0])
        world_2x2.ask("close", on=[0], name="feed")
        late = world_2x2.hear(on=[1])
        assert late == whole
        assert world_2x2.ask("ended_for", on=[1], name="feed") == ["end"]
        world_2x2.ask("close", on=[1], name="feed")
        _wait_until_closed(run)


def test_a_host_that_closes_early_is_named_to_those_that_want_more(
    run: Run, world_2x2: PlainWorld
) -> None:
    world_2x2.feed(run.config.run_dir).take(5)
    began = time.monotonic()
    world_2x2.ask("close", on=[1], name="feed")
    # What was granted already may be taken: hosts do not all close in the same instant.
    world_2x2.ask("take", on=[0], name="feed", count=1, keep=[], quick=True)
    world_2x2.tell("take", on=[0], name="feed", count=None, keep=[], quick=True)
    kind, message = _error_of(world_2x2, 0)
    assert time.monotonic() - began < SOON_S
    assert kind == "FeedError"
    assert "process 1 of 2 closed feed train at step 5" in message
    world_2x2.ask("close", on=[0], name="feed")
    _wait_until_closed(run)


def test_a_membership_of_another_size_takes_over_and_the_old_one_is_refused(
    run: Run, world_2x2: PlainWorld, world_1x8: PlainWorld, own_world: Callable[..., Any]
) -> None:
    with world_1x8.feed(run.config.run_dir) as feed:
        baseline = [step.digest for step in feed.take(20)]
    old = world_2x2.feed(run.config.run_dir)
    assert [step.digest for step in old.take(6)] == baseline[:6]
    with world_1x8.feed(run.config.run_dir, state=old.state()) as new:
        with pytest.raises(WorldError) as refused:
            old.skip()
        assert {kind for kind, _ in refused.value.errors.values()} == {"StaleGenerationError"}
        old.close()  # too late to count for anything
        assert [step.digest for step in new.take(14)] == baseline[6:]
    _wait_until_closed(run)


def _error_of(world: PlainWorld, process: int) -> tuple[str, str]:
    with pytest.raises(WorldError) as failed:
        world.hear(on=[process])
    return failed.value.errors[process]


def _wait_until_closed(run: Run) -> None:
    """Returns when no window is run or kept for the run's feed."""
    end = time.monotonic() + SOON_S
    while True:
        status = run.status()
        if not status["block_bytes"] and "granted" not in status["feeds"]["train"]:
            return
        assert time.monotonic() < end, status
        time.sleep(0.2)
