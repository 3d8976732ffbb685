"""Resizes that have gone wrong for others."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from resizing import StartRun, digests, digests_of_run, mixture, settings_of, trained

import meshfeed
from meshfeed.actors.elastic.messages import Phase
from meshfeed.actors.elastic.run import ElasticRun
from meshfeed.actors.elastic.settings import WorldKind
from meshfeed.launch.progress import Progress
from meshfeed.launch.report import Report
from meshfeed.launch.simulate_train import Follower


def test_case_16_filter_mixture_and_packing_go_on_through_resizes(
    start_run: StartRun, tmp_path: Path
) -> None:
    settings = mixture(tmp_path) | {"run_dir": tmp_path / "run", "hosts": 2, "remainder": "pad"}
    for source in settings["sources"]:
        source["epochs"] = 1
    report = trained(start_run, settings, world=WorldKind.REUSE, resizes={4: 3, 12: 1})
    assert [resize.hosts_to for resize in report.resizes] == [3, 1]
    assert digests(report) == digests_of_run(tmp_path / "run", len(report.steps))
    tokens: Counter[int] = Counter()
    with meshfeed.open(str(tmp_path / "run")) as run:
        for step in range(len(report.steps)):
            batch = run.batch(step)
            tokens.update(batch["tokens"][batch["segment_ids"] > 0].tolist())
    lengths = {n: (7 * (n % 160)) % 60 + 1 for n in range(640) if n % 7}
    lengths |= {10_000 + n: (5 * (n % 60)) % 60 + 1 for n in range(120)}
    assert tokens == Counter(lengths)  # each kept record once, as many tokens as it has


def test_case_17_after_five_resizes_there_and_back_all_is_as_at_the_start(
    start_run: StartRun, tmp_path: Path
) -> None:
    turns = 5
    holds = [6 + 10 * n for n in range(2 * turns)]
    steps = holds[-1] + 14
    settings = mixture(tmp_path) | {"run_dir": tmp_path / "run", "steps": steps, "hosts": 2}
    settings["sources"][1]["epochs"] = 40
    counts: list[dict[str, int]] = []
    with start_run(**settings) as run:
        plan, training = settings_of(run, hold_at=holds, world=WorldKind.REUSE)
        report = Report(run.config, "train")
        elastic = ElasticRun.start(run, training, 2)
        try:

            def go_there_and_back() -> None:
                for turn, step in enumerate(holds):
                    _wait_until_held(elastic, step)
                    if turn % 2 == 0:
                        counts.append(_count(elastic))
                    elastic.resize(1 if turn % 2 == 0 else 2)
                    elastic.call("release", step)

            acting = threading.Thread(target=go_there_and_back, name="meshfeed-test-turns")
            acting.start()
            Follower(elastic, report, plan, Progress(quiet=True)).follow("train")
            acting.join(60)
            report.resizes = elastic.resizes()
        finally:
            elastic.stop()
    assert [resize.hosts_to for resize in report.resizes] == [1, 2] * turns
    assert digests(report) == digests_of_run(tmp_path / "run", steps)
    first, last = counts[1], counts[-1]  # the first world has not been left yet
    assert last["hosts"] == first["hosts"] == 2
    for what in ("threads", "files"):
        assert last[what] <= first[what] + 4, (what, counts)


def _wait_until_held(elastic: ElasticRun, step: int) -> None:
    until = time.monotonic() + 120
    while True:
        hosts = [h for h in elastic.status()["hosts"] if h["place"] is not None]
        if hosts and all(h["phase"] == Phase.HELD and h["step"] == step for h in hosts):
            return
        assert time.monotonic() < until, hosts
        time.sleep(0.05)


def _count(elastic: ElasticRun) -> dict[str, int]:
    """Of the host at place 0, which stays: its threads and open files; and all hosts there are."""
    hosts: list[dict[str, Any]] = elastic.status()["hosts"]
    pids = [next(iter(h for h in hosts if h["place"] == 0))["pids"]["trainer"]]
    return {
        "hosts": len(hosts),
        "threads": sum(len(os.listdir(f"/proc/{pid}/task")) for pid in pids),
        "files": sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids),
        "step": int(np.max([h["step"] for h in hosts])),
    }
