"""How everyone reaches the training of a run: who starts it, who follows it, who resizes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ray
from ray.actor import ActorHandle

from meshfeed.actors.elastic.coordinator import ElasticCoordinator
from meshfeed.actors.elastic.messages import News, Resize
from meshfeed.actors.elastic.settings import ElasticSettings
from meshfeed.actors.run import NAMESPACE, Run, ask
from meshfeed.pipeline.plan.errors import ConfigError

MARGIN_S = 60.0
"""Beyond the run's own limit, so that the error of the inner wait comes first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticRun:
    """Training that is up.

    Attributes:
        run: whose feed it trains on.
        coordinator: the elastic one.
    """

    run: Run
    coordinator: ActorHandle

    @classmethod
    def start(cls, run: Run, settings: ElasticSettings, hosts: int) -> ElasticRun:
        """Forms the first generation and begins to train.

        Raises:
            MeshfeedError: it cannot be formed.
        """
        coordinator = (
            ray.remote(ElasticCoordinator)
            .options(
                num_cpus=0,
                name=_name(run),
                namespace=NAMESPACE,
                max_concurrency=1000,
            )
            .remote(run, settings, hosts)
        )
        elastic = cls(run=run, coordinator=coordinator)
        try:
            elastic.call("start")
        except BaseException:
            elastic.stop()
            raise
        return elastic

    @classmethod
    def find(cls, run_dir: str) -> ElasticRun:
        """The training that is up with this run directory.

        Raises:
            ConfigError: none is.
        """
        return cls.of(Run.find(run_dir))

    @classmethod
    def of(cls, run: Run) -> ElasticRun:
        """The training on a run that is up.

        Raises:
            ConfigError: there is none.
        """
        try:
            coordinator = ray.get_actor(_name(run), namespace=NAMESPACE)
        except ValueError:
            raise ConfigError(
                "run", f"nothing trains in {run.config.run_dir}", "Start simulate --train first"
            ) from None
        return cls(run=run, coordinator=coordinator)

    def call(self, method: str, *args: Any) -> Any:
        """Calls the elastic coordinator; errors come as they were raised there."""
        limit_s = self.run.config.timeout_seconds + MARGIN_S
        return ask(self.coordinator, "elastic coordinator", limit_s, method, *args)

    def news(self, since: int) -> tuple[list[News], bool]:
        """What hosts have done after the first ``since`` news; and whether training is over."""
        news: tuple[list[News], bool] = self.call("news", since)
        return news

    def resizes(self) -> list[Resize]:
        """All changes of the membership so far."""
        resizes: list[Resize] = self.call("resizes")
        return resizes

    def resize(self, hosts: int) -> str:
        """Training is to go on with so many hosts; says at which step it will.

        Raises:
            ConfigError: no mesh fits so many.
        """
        answer: str = self.call("resize", hosts)
        return answer

    def drain(self, host: str, seconds: float | None = None) -> str:
        """A host will go away, in so many seconds; says at which step training leaves it.

        Raises:
            ConfigError: there is no such host, or training cannot go on without it.
        """
        answer: str = self.call("drain", host, seconds, "an operator asked for it")
        return answer

    def status(self) -> dict[str, Any]:
        """What training is doing, as plain values."""
        status: dict[str, Any] = self.call("status")
        return status

    def stop(self) -> None:
        """Ends hosts, vaults and the elastic coordinator."""
        try:
            self.call("stop")
        finally:
            ray.kill(self.coordinator)


def _name(run: Run) -> str:
    return f"elastic-{run.config.run_id}"
