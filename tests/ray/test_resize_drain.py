"""A host that is asked to go, and one that is lost while a planned resize is under way."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from resizing import (
    StartRun,
    bytes_that_must_travel,
    digests,
    digests_of_run,
    mixture,
    settings_of,
)

from meshfeed.actors.elastic.messages import Phase
from meshfeed.actors.elastic.run import ElasticRun
from meshfeed.actors.elastic.settings import WorldKind
from meshfeed.launch.progress import Progress
from meshfeed.launch.report import Report
from meshfeed.launch.simulate_train import Follower

STEPS = 16
HELD = 6


def test_a_drained_host_leaves_and_no_step_or_byte_is_taken_twice(
    start_run: StartRun, tmp_path: Path
) -> None:
    answers: list[str] = []

    def drain(elastic: ElasticRun) -> None:
        answers.append(elastic.drain("host-1"))
        elastic.call("release", HELD)

    report, status = _followed(start_run, tmp_path, drain, snapshot_every=0)
    (resize,) = report.resizes
    assert (resize.kind, resize.hosts_from, resize.hosts_to) == ("planned", 3, 2)
    assert "drain of host-1" in resize.reasons[0]
    assert sorted(resize.places_from) == ["host-0", "host-1", "host-2"]
    assert sorted(resize.places_to) == ["host-0", "host-2"]
    assert answers == [f"generation 1 ends at step {resize.step}"]
    assert HELD <= resize.step < STEPS
    assert resize.steps_repeated == 0
    assert resize.bytes_moved == resize.bytes_bound == bytes_that_must_travel(resize) > 0
    assert [(w["wish"], w["outcome"]) for w in status["wishes"]] == [("drain of host-1", "done")]


def test_a_host_lost_once_the_barrier_is_known_makes_the_resize_an_unplanned_one(
    start_run: StartRun, tmp_path: Path
) -> None:
    def resize_and_kill(elastic: ElasticRun) -> None:
        elastic.resize(2)
        assert elastic.status()["state"] == "draining"
        for process in elastic.call("pids", 0).values():  # its vault as well
            os.kill(process, signal.SIGKILL)
        elastic.call("release", HELD)

    report, status = _followed(start_run, tmp_path, resize_and_kill)
    (resize,) = report.resizes
    assert (resize.kind, resize.hosts_from, resize.hosts_to) == ("unplanned", 3, 2)
    assert set(resize.places_to) == set(resize.places_from[1:])
    assert resize.steps_repeated <= HELD
    assert [(w["wish"], w["outcome"]) for w in status["wishes"]] == [("2 hosts", "done")]


def _followed(
    start_run: StartRun, folder: Path, act: Callable[[ElasticRun], None], **policy: Any
) -> tuple[Report, dict[str, Any]]:
    """Three hosts, held at a step until ``act`` has been begun; every batch is compared."""
    settings = mixture(folder) | {"run_dir": folder / "run", "steps": STEPS, "hosts": 3}
    with start_run(**settings) as run:
        plan, training = settings_of(run, hold_at=[HELD], world=WorldKind.REUSE, **policy)
        report = Report(run.config, "train")
        elastic = ElasticRun.start(run, training, 3)
        try:

            def once_held() -> None:
                _wait_for(elastic, lambda s: all(h["phase"] == Phase.HELD for h in s["hosts"]))
                act(elastic)

            acting = threading.Thread(target=once_held, name="meshfeed-test-act")
            acting.start()
            Follower(elastic, report, plan, Progress(quiet=True)).follow("train")
            acting.join(60)
            report.resizes = elastic.resizes()
            status = elastic.status()
        finally:
            elastic.stop()
    assert digests(report) == digests_of_run(folder / "run", STEPS)
    return report, status


def _wait_for(elastic: ElasticRun, is_so: Callable[[dict[str, Any]], bool]) -> None:
    """Until training is in some state; the status names it when it never comes."""
    until = time.monotonic() + 120
    while not (status := elastic.status())["hosts"] or not is_so(status):
        if time.monotonic() > until:
            raise AssertionError(status)
        time.sleep(0.05)
