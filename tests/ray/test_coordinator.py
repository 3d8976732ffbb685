"""The coordinator's process is killed: another takes its place, and the batches are the same."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ids_data import write_ids
from plain_world import PlainWorld, WorldError

from meshfeed.actors.run import Run

STEPS = 120
LONG_S = 100.0


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Two sources of which one ends, read by readers that dawdle."""
    at = tmp_path_factory.mktemp("data")
    return {
        "sources": [
            {"name": "a", "data": [str(write_ids(at / "a", [[20] * 200] * 2))], "epochs": 0},
            {
                "name": "b",
                "data": [str(write_ids(at / "b", [[9] * 300] * 2, first_id=1000))],
                "weight": 0.3,
            },
        ],
        "column": "ids",
        "transforms": ["record_transforms:dawdle"],
        "seq_len": 32,
        "batch_size": 8,
        "shuffle": "record",
        "seed": 3,
        "readers": 2,
        "memory_budget": "100MB",
    }


@pytest.fixture(scope="module")
def baseline(
    settings: dict[str, Any],
    start_run: Callable[..., Any],
    world_1x8: PlainWorld,
    tmp_path_factory: pytest.TempPathFactory,
) -> list[int]:
    """Digests of the first steps, where nothing goes wrong."""
    run_dir = tmp_path_factory.mktemp("baseline")
    with start_run(run_dir=run_dir, **settings), world_1x8.feed(run_dir) as feed:
        return [step.digest for step in feed.take(STEPS)]


@pytest.mark.parametrize("partition", ["DATA", "REPLICATED"])
def test_hosts_go_on_with_a_coordinator_that_is_started_again(
    partition: str,
    settings: dict[str, Any],
    start_run: Callable[..., Any],
    world_2x2: PlainWorld,
    baseline: list[int],
    tmp_path: Path,
) -> None:
    with (
        start_run(run_dir=tmp_path, **settings) as run,
        world_2x2.feed(tmp_path, partition=partition) as feed,
    ):
        digests = [step.digest for step in feed.take(10)]
        for _ in range(2):
            feed.begin(40, pause=0.02)
            time.sleep(0.2)
            _kill_coordinator(run)
            digests += [step.digest for step in feed.finish()]
        state = feed.state()
        digests += [step.digest for step in feed.take(STEPS - 90)]
        status = _wait_for_hosts(run)
    assert digests == baseline
    assert status["incarnation"] == 3
    assert status["feeds"]["train"]["generation"] == 1
    # The state that a host saved goes on as any other.
    with (
        start_run(run_dir=tmp_path, **settings) as run,
        world_2x2.feed(tmp_path, state=state) as feed,
    ):
        assert [step.digest for step in feed.take(STEPS - 90)] == baseline[90:]
        assert run.status()["feeds"]["train"]["generation"] == 2


def test_a_barrier_and_who_has_left_outlive_the_coordinator(
    settings: dict[str, Any],
    start_run: Callable[..., Any],
    world_2x2: PlainWorld,
    baseline: list[int],
    tmp_path: Path,
) -> None:
    own = settings | {"grant_seconds": 0.5}
    with start_run(run_dir=tmp_path, **own) as run:
        feed = world_2x2.feed(tmp_path)
        digests = [step.digest for step in feed.take(6, pause=0.05)]
        step = run.call("barrier", "train", 1)
        (taken,) = world_2x2.ask("take", on=[1], name="feed", count=None, keep=[], quick=True)
        assert 6 + len(taken) == step
        world_2x2.ask("close", on=[1], name="feed")
        _kill_coordinator(run)
        (rest,) = world_2x2.ask("take", on=[0], name="feed", count=None, keep=[], quick=True)
        assert rest == taken
        assert world_2x2.ask("ended_for", on=[0], name="feed") == ["barrier"]
        (state,) = world_2x2.ask("state", on=[0], name="feed")
        world_2x2.ask("close", on=[0], name="feed")
        with world_2x2.feed(tmp_path, state=state) as feed:
            assert [one.digest for one in feed.take(5)] == baseline[step : step + 5]
        assert digests == baseline[:6]


def test_a_membership_that_failed_before_stays_failed(
    settings: dict[str, Any],
    start_run: Callable[..., Any],
    world_2x2: PlainWorld,
    tmp_path: Path,
) -> None:
    with start_run(run_dir=tmp_path, **settings) as run:
        world_2x2.feed(tmp_path).take(3)
        world_2x2.tell("fail_at", on=[1], name="feed", step=3, message="out of luck")
        with pytest.raises(WorldError, match="out of luck"):
            world_2x2.hear(on=[1])
        _kill_coordinator(run)
        world_2x2.tell("take", on=[0], name="feed", count=None, keep=[], quick=True)
        with pytest.raises(WorldError, match="out of luck"):
            world_2x2.hear(on=[0])
        world_2x2.ask("close", on=[0], name="feed")


def _wait_for_hosts(run: Run) -> dict[str, Any]:
    """The status, once the hosts have come again."""
    end = time.monotonic() + LONG_S
    while "generation" not in (status := run.status())["feeds"]["train"]:
        assert time.monotonic() < end, "they did not come"
        time.sleep(0.2)
    return status


def _kill_coordinator(run: Run) -> None:
    """Returns when another process has taken its place."""
    before = run.status()
    os.kill(before["pid"], signal.SIGKILL)
    end = time.monotonic() + LONG_S
    while run.status()["incarnation"] == before["incarnation"]:
        assert time.monotonic() < end, "nobody has taken its place"
        time.sleep(0.2)
