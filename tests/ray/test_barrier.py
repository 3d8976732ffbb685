"""A barrier ends a membership at one step on all hosts, and another one goes on from there."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ids_data import write_ids
from plain_world import PlainWorld

from meshfeed.actors.run import Run

STEPS = 150


def test_all_hosts_end_at_the_barrier_and_fewer_go_on_with_the_same_batches(
    start_run: Callable[..., Any],
    world_3x2: PlainWorld,
    world_2x2: PlainWorld,
    world_1x8: PlainWorld,
    tmp_path: Path,
) -> None:
    settings = {
        "data": [str(write_ids(tmp_path / "data", [[20] * 300] * 4))],
        "column": "ids",
        "seq_len": 32,
        "batch_size": 24,
        "epochs": 0,
        "shuffle": "record",
        "readers": 2,
        "grant_seconds": 0.5,
    }
    with start_run(run_dir=tmp_path / "run", **settings) as run:
        with world_1x8.feed(tmp_path / "run") as feed:
            baseline = [step.digest for step in feed.take(STEPS)]
        with world_3x2.feed(tmp_path / "run") as feed:
            taken = [step.digest for step in feed.take(4, pause=0.1)]
            feed.begin(None, pause=0.1)
            time.sleep(0.5)  # in the middle of it, with batches prefetched
            generation = run.status()["feeds"]["train"]["generation"]
            step = run.call("barrier", "train", generation)
            assert run.call("barrier", "train", generation) == step
            taken += [one.digest for one in feed.finish()]
            assert len(taken) == step
            assert feed.ended_for() == "barrier"
            state = feed.state()
            assert _rests(run)
        with world_2x2.feed(tmp_path / "run", state=state) as feed:
            taken += [one.digest for one in feed.take(STEPS - step)]
            with pytest.raises(Exception, match=f"generation {generation} refused"):
                run.call("barrier", "train", generation)
    assert 4 < step < STEPS
    assert taken == baseline


def test_a_barrier_before_anything_was_granted_is_at_the_first_step(
    start_run: Callable[..., Any], world_2x2: PlainWorld, tmp_path: Path
) -> None:
    data = write_ids(tmp_path / "data", [[20] * 300] * 2)
    with start_run(
        run_dir=tmp_path / "run",
        data=[str(data)],
        transforms=["record_transforms:dawdle_long"],
        column="ids",
        seq_len=32,
        batch_size=8,
    ) as run:
        feed = world_2x2.feed(tmp_path / "run")
        assert run.call("barrier", "train", 1) == 0
        assert feed.take() == []
        assert feed.ended_for() == "barrier"
        feed.close()


def _rests(run: Run) -> bool:
    """No window of the membership runs any more, though there would be room."""
    time.sleep(0.5)
    before = run.status()["calls"]["completed"]
    time.sleep(1.0)
    return bool(run.status()["calls"]["completed"] == before)
