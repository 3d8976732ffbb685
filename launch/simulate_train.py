"""``meshfeed simulate --train``: trains on simulated hosts, and follows every step of it."""

from __future__ import annotations

import os
import signal
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from meshfeed.actors.elastic.messages import News, TrainedStep
from meshfeed.actors.elastic.run import ElasticRun
from meshfeed.actors.elastic.settings import ElasticSettings, WorldKind
from meshfeed.actors.run import Run, start
from meshfeed.launch.progress import Progress
from meshfeed.launch.report import Report, StepDigest
from meshfeed.pipeline.data.batches.agreement import agreed_digest
from meshfeed.pipeline.plan.config import LEAF_PRESETS
from meshfeed.pipeline.plan.elastic.policy import ElasticPolicy
from meshfeed.pipeline.plan.errors import MeshfeedError
from meshfeed.pipeline.plan.run_config import RunConfig

COMPILED = "compiled"
"""Folder in the run directory where compiled programs are kept."""

GRANT_S = 0.05
"""How far ahead hosts may fetch where a run is resized at given steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan:
    """What is trained, and what happens on the way.

    Attributes:
        train: ``module:function`` or ``file.py:function``.
        resizes: step -> hosts from then on.
        kills: step -> process index that is killed then.
        snapshot_every: steps; 0: never.
        world: where the processes of the next generation come from.
        vault_budget: bytes that the vault of a host may hold.
        compiled: folder of compiled programs, in the run directory unless it is an absolute path;
            None: every world compiles anew.
    """

    train: str
    resizes: Mapping[int, int]
    kills: Mapping[int, int]
    snapshot_every: int
    world: WorldKind
    vault_budget: int
    compiled: str | None = COMPILED


def simulate_training(
    config: RunConfig, feed: str, plan: TrainingPlan, progress: Progress
) -> Report:
    """Trains to the end of a feed, in a Ray that is up.

    Raises:
        MeshfeedError: whatever ended the run.
    """
    began = time.monotonic()
    if plan.resizes:  # a planned resize comes after the last grant given
        config = replace(config, grant_seconds=min(config.grant_seconds, GRANT_S))
    with start(config, progress.stage) as run:
        progress.stage(f"forming {config.hosts} hosts x {config.devices_per_host} devices")
        report = train(run, feed, plan, progress)
        report.finish(run.status(), [], time.monotonic() - began)
    return report


def train(run: Run, feed: str, plan: TrainingPlan, progress: Progress) -> Report:
    """Trains on a run that is up, and does at the planned steps what is to happen then.

    Raises:
        MeshfeedError: whatever ended the run.
    """
    config = run.config
    settings = ElasticSettings(
        feed=feed,
        train=plan.train,
        devices=config.devices_per_host,
        world=plan.world,
        policy=ElasticPolicy(snapshot_every=plan.snapshot_every, cool_down_s=0.0),
        vault_budget=plan.vault_budget,
        compiled=None if plan.compiled is None else str(Path(config.run_dir) / plan.compiled),
        hold_at=frozenset([*plan.resizes, *plan.kills]),
        digests=True,
    )
    report = Report(config, feed)
    elastic = ElasticRun.start(run, settings, config.hosts)
    try:
        Follower(elastic, report, plan, progress).follow(feed)
        report.resizes = elastic.resizes()
    finally:
        elastic.stop()
    return report


class Follower:
    """Hears what the hosts do, and does at the planned steps what is to happen then.

    Args:
        elastic: the training.
        report: where it goes.
        plan: what is to happen.
        progress: is told of it.
    """

    def __init__(
        self, elastic: ElasticRun, report: Report, plan: TrainingPlan, progress: Progress
    ) -> None:
        self._elastic = elastic
        self._report = report
        self._plan = plan
        self._progress = progress
        self._held: dict[int, set[int]] = defaultdict(set)
        self._done: set[int] = set()

    def follow(self, feed: str) -> None:
        """Until training is over.

        Raises:
            MeshfeedError: whatever ended it.
        """
        run = self._elastic.run
        judge = Judge(self._report, run.config, feed)
        heard, over = 0, False
        while not over:
            news, over = self._elastic.news(heard)
            heard += len(news)
            for one in news:
                judge.hear(one)
                if one.held_at is not None:
                    self._hold(one, one.held_at)
            if news:
                status = run.status() if self._progress.wants_status() else None
                self._progress.steps(self._report, status)

    def _hold(self, news: News, step: int) -> None:
        """Acts once all hosts of a generation stand at a step that is its own."""
        if step not in self._plan.kills and step not in self._plan.resizes:
            return
        if step in self._done:  # taken again after a loss
            self._elastic.call("release", step)
            return
        self._held[step].add(news.process_index)
        if len(self._held[step]) < news.process_count:
            return
        self._done.add(step)
        if step in self._plan.kills:
            victim = self._plan.kills[step]
            self._progress.stage(f"step {step}: SIGKILL of host {victim}")
            pids = self._elastic.call("pids", victim)
            for name in ("vault", "trainer"):
                os.kill(pids[name], signal.SIGKILL)
        if step in self._plan.resizes:
            hosts = self._plan.resizes[step]
            self._progress.stage(f"step {step}: resize to {hosts} hosts")
            self._elastic.call("resize", hosts)
        self._elastic.call("release", step)


class Judge:
    """Compares what the hosts of a generation had on their devices at every step.

    Args:
        report: where it goes.
        config: of the run.
        feed: that is trained on.
    """

    def __init__(self, report: Report, config: RunConfig, feed: str) -> None:
        self._report = report
        self._leaves = list(LEAF_PRESETS[config.leaf_names].values())
        self._seq_len = config.feed(feed).seq_len
        self._open: dict[tuple[int, int], dict[int, TrainedStep]] = defaultdict(dict)

    def hear(self, news: News) -> None:
        """What one host has taken."""
        for step in news.steps:
            of_step = self._open[news.generation, step.step]
            of_step[news.process_index] = step
            if len(of_step) == news.process_count:
                self._judge(self._open.pop((news.generation, step.step)))

    def _judge(self, taken: dict[int, TrainedStep]) -> None:
        first = next(iter(taken.values()))
        try:
            digest = agreed_digest(
                {host: own.boxes for host, own in taken.items()},
                leaves=self._leaves,
                shape=(first.rows, self._seq_len),
            )
        except MeshfeedError as error:
            self._report.disagree(first.step, str(error))
            return
        waited = max(own.waited for own in taken.values())
        self._report.add(StepDigest(first.step, first.rows, f"{digest:016x}", waited))
        self._report.trained(first.step, first.metrics)
