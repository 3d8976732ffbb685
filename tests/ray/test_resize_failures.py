"""What ends training, what is refused, and what changes nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import ray
from resizing import StartRun, digests, digests_of_run, mixture, settings_of, trained

from meshfeed.actors.elastic.messages import Phase
from meshfeed.actors.elastic.run import ElasticRun
from meshfeed.actors.elastic.settings import WorldKind
from meshfeed.launch.progress import Progress
from meshfeed.launch.report import Report
from meshfeed.launch.simulate_train import Follower
from meshfeed.pipeline.plan.errors import ConfigError, MeshfeedError


def test_case_07_all_fail_with_the_cause_of_the_one_that_failed(
    start_run: StartRun, tmp_path: Path
) -> None:
    settings = mixture(tmp_path) | {"run_dir": tmp_path / "run", "steps": 8, "hosts": 4}
    with pytest.raises(MeshfeedError, match="ArithmeticError: the loss is not a number") as caught:
        trained(start_run, settings, train="misbehaving_trainers:raises_at_step_3")
    assert "host-" in str(caught.value)


def test_a_host_that_is_stopped_is_replaced_and_once_woken_changes_nothing(
    start_run: StartRun, tmp_path: Path
) -> None:
    steps = 30
    settings = mixture(tmp_path) | {"run_dir": tmp_path / "run", "steps": steps, "hosts": 3}
    with start_run(**settings) as run:
        plan, training = settings_of(run, hold_at=[8, 20], heartbeat_limit_s=6.0)
        report = Report(run.config, "train")
        elastic = ElasticRun.start(run, training, 3)
        stopped: dict[str, int] = {}
        try:

            def stop_and_wake() -> None:
                _wait_for(elastic, lambda s: all(h["phase"] == Phase.HELD for h in s["hosts"]))
                stopped.update(elastic.call("pids", 1))
                os.kill(stopped["trainer"], signal.SIGSTOP)
                elastic.call("release", 8)
                _wait_for(
                    elastic,
                    lambda s: (
                        s["generation"] == 2
                        and all(
                            h["phase"] == Phase.HELD for h in s["hosts"] if h["place"] is not None
                        )
                    ),
                )
                with contextlib.suppress(ProcessLookupError):  # it has been fenced for good
                    os.kill(stopped["trainer"], signal.SIGCONT)
                time.sleep(2)  # what it has to say it says now
                elastic.call("release", 8)
                elastic.call("release", 20)

            acting = threading.Thread(target=stop_and_wake, name="meshfeed-test-stop")
            acting.start()
            Follower(elastic, report, plan, Progress(quiet=True)).follow("train")
            acting.join(60)
            report.resizes = elastic.resizes()
            status = elastic.status()
        finally:
            elastic.stop()
    assert digests(report) == digests_of_run(tmp_path / "run", steps)
    (resize,) = report.resizes
    assert (resize.kind, resize.hosts_from, resize.hosts_to) == ("unplanned", 3, 2)
    assert "heartbeat_limit_s" in resize.reasons[0]
    assert status["generation"] == 2


def test_wishes_that_cannot_be_are_refused_and_the_last_of_two_holds(
    start_run: StartRun, tmp_path: Path
) -> None:
    steps = 24
    settings = mixture(tmp_path) | {"run_dir": tmp_path / "run", "steps": steps, "hosts": 2}
    with start_run(**settings) as run:
        plan, training = settings_of(run, hold_at=[6], world=WorldKind.REUSE)
        report = Report(run.config, "train")
        elastic = ElasticRun.start(run, training, 2)
        answers: list[Any] = []
        try:

            def ask() -> None:
                _wait_for(elastic, lambda s: all(h["phase"] == Phase.HELD for h in s["hosts"]))
                for hosts in (5, 0):
                    with pytest.raises(ConfigError) as refused:
                        elastic.resize(hosts)
                    answers.append(str(refused.value))
                with pytest.raises(ConfigError, match="no such host"):
                    elastic.drain("host-9")
                one = elastic.coordinator.resize.remote(3)
                answers.append(elastic.resize(1))
                elastic.call("release", 6)
                ray.get(one, timeout=60)

            acting = threading.Thread(target=ask, name="meshfeed-test-ask")
            acting.start()
            Follower(elastic, report, plan, Progress(quiet=True)).follow("train")
            acting.join(60)
            report.resizes = elastic.resizes()
            wishes = elastic.status()["wishes"]
        finally:
            elastic.stop()
    assert digests(report) == digests_of_run(tmp_path / "run", steps)
    assert "do not divide" in answers[0]
    assert "1, 2, 3, 4, 6" in answers[0]
    assert "min_hosts" in answers[1]
    outcomes = {wish["wish"]: wish["outcome"] for wish in wishes}
    assert outcomes["5 hosts"] == outcomes["0 hosts"] == "refused"
    assert outcomes["3 hosts"] == "superseded"
    assert outcomes["1 hosts"] == "done"
    assert [(r.hosts_from, r.hosts_to) for r in report.resizes] == [(2, 1)]


def _wait_for(elastic: ElasticRun, is_so: Any, limit_s: float = 120.0) -> None:
    """Until training is in some state; the status names it when it never comes."""
    until = time.monotonic() + limit_s
    while not is_so(status := elastic.status()) or not status["hosts"]:
        if time.monotonic() > until:
            raise AssertionError(status)
        time.sleep(0.05)
