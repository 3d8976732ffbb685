"""``meshfeed simulate --train``: trains on simulated hosts, and follows every step of it."""

from __future__ import annotations

import time
from collections import defaultdict

import ray

from meshfeed.actors.elastic.coordinator import ElasticCoordinator, ElasticSettings, News
from meshfeed.actors.elastic.messages import TrainedStep
from meshfeed.actors.run import NAMESPACE, start
from meshfeed.launch.progress import Progress
from meshfeed.launch.report import Report, StepDigest
from meshfeed.pipeline.data.batches.agreement import agreed_digest
from meshfeed.pipeline.plan.config import LEAF_PRESETS
from meshfeed.pipeline.plan.errors import MeshfeedError
from meshfeed.pipeline.plan.run_config import RunConfig


def simulate_training(config: RunConfig, feed: str, train: str, progress: Progress) -> Report:
    """Trains to the end of a feed, in a Ray that is up.

    Raises:
        MeshfeedError: whatever ended the run.
    """
    began = time.monotonic()
    run = start(config, progress.stage)
    settings = ElasticSettings(
        feed=feed, train=train, devices=config.devices_per_host, digests=True
    )
    elastic = (
        ray.remote(ElasticCoordinator)
        .options(num_cpus=0, name=f"elastic-{config.run_id}", namespace=NAMESPACE)
        .remote(config, settings)
    )
    report = Report(config, feed)
    judge = Judge(report, config, feed)
    try:
        progress.stage(f"forming {config.hosts} hosts x {config.devices_per_host} devices")
        ray.get(elastic.start.remote(config.hosts), timeout=config.timeout_seconds)
        heard, over = 0, False
        while not over:
            news, over = ray.get(elastic.news.remote(heard), timeout=config.timeout_seconds)
            heard += len(news)
            for one in news:
                judge.hear(one)
            if news:
                progress.steps(report, run.status() if progress.wants_status() else None)
        report.finish(run.status(), [], time.monotonic() - began)
        return report
    finally:
        ray.get(elastic.stop.remote(), timeout=30)
        ray.kill(elastic)
        run.stop()


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
