"""The elastic coordinator: one actor a run, which forms generations of hosts and ends them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from dataclasses import dataclass
from typing import Any

import ray
from ray.actor import ActorHandle

from meshfeed.actors.elastic.messages import Beat, Membership, Phase, TrainedStep
from meshfeed.actors.elastic.trainer import TrainerHost, TrainerSettings
from meshfeed.pipeline.plan.errors import MeshfeedError
from meshfeed.pipeline.plan.mesh import MeshLayout
from meshfeed.pipeline.plan.run_config import RunConfig

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticSettings:
    """What is trained, and how.

    Attributes:
        feed: name of the feed.
        train: ``module:function`` or ``file.py:function``.
        devices: simulated CPU devices of each host; None: those that JAX finds.
        hold_at: steps after which training waits to be released.
        digests: whether every batch is digested as it lies on the devices.
    """

    feed: str
    train: str
    devices: int | None
    hold_at: frozenset[int] = frozenset()
    digests: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What whoever follows the run hears of one host.

    Attributes:
        generation: the host's.
        process_index: its place in it.
        process_count: hosts in it.
        steps: that it has taken.
        held_at: the step at which it is held.
    """

    generation: int
    process_index: int
    process_count: int
    steps: tuple[TrainedStep, ...] = ()
    held_at: int | None = None


class ElasticCoordinator:
    """Wrapped as a Ray actor with a name that follows from the run directory.

    Args:
        config: of the run.
        settings: of training.
    """

    def __init__(self, config: RunConfig, settings: ElasticSettings) -> None:
        self._config = config
        self._settings = settings
        self._hosts: list[ActorHandle] = []
        self._generation = 0
        self._news: list[News] = []
        self._finished = False
        self._error: BaseException | None = None
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, hosts: int) -> None:
        """Forms the first generation and begins to train."""
        self._generation = 1
        self._hosts = [
            ray.remote(TrainerHost)
            .options(num_cpus=0, max_concurrency=8)
            .remote(self._trainer_settings(f"host-{index}"))
            for index in range(hosts)
        ]
        await self._all("prepare")
        layout = MeshLayout.build(
            self._config.mesh,
            hosts=hosts,
            devices_per_host=self._config.devices_per_host,
            order=self._config.device_order,
        )
        address = f"127.0.0.1:{_free_port()}"
        memberships = [
            Membership(
                generation=self._generation,
                process_index=index,
                process_count=hosts,
                address=address,
                layout=layout,
            )
            for index in range(hosts)
        ]
        pairs = zip(self._hosts, memberships, strict=True)
        await asyncio.gather(*(host.join.remote(own) for host, own in pairs))
        await self._all("train")
        self._tasks = [
            asyncio.create_task(self._follow(index, own)) for index, own in enumerate(memberships)
        ]

    async def news(self, since: int) -> tuple[list[News], bool]:
        """What has happened after the first ``since`` news; and whether training is over.

        Raises:
            MeshfeedError: what ended the run.
        """
        if len(self._news) <= since and not self._finished and self._error is None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), 1.0)
        if self._error is not None:
            raise self._error
        return self._news[since:], self._finished

    async def release(self, step: int) -> None:
        """Training need not wait at this step."""
        await self._all("release", step)

    async def stop(self) -> None:
        """Ends all hosts."""
        for task in self._tasks:
            task.cancel()
        for host in self._hosts:
            ray.kill(host)

    async def _follow(self, index: int, own: Membership) -> None:
        """Hears the beats of a host until its training is over."""
        while True:
            beat: Beat = await self._hosts[index].beat.remote()
            if beat.steps or beat.held_at is not None:
                self._news.append(
                    News(
                        generation=beat.generation,
                        process_index=index,
                        process_count=own.process_count,
                        steps=beat.steps,
                        held_at=beat.held_at,
                    )
                )
                self._tell()
            if beat.phase is Phase.FAILED:
                self._fail(beat.error)
                return
            if beat.phase is Phase.ENDED:
                break
        others = [task for task in self._tasks if task is not asyncio.current_task()]
        if all(task.done() for task in others):
            await self._all("leave")
            self._finished = True
            self._tell()

    def _fail(self, error: BaseException | None) -> None:
        if self._error is None:
            known = isinstance(error, MeshfeedError)
            self._error = error if known else MeshfeedError(f"training failed: {error!r}")
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _all(self, method: str, *args: Any) -> list[Any]:
        return list(await asyncio.gather(*(getattr(h, method).remote(*args) for h in self._hosts)))

    def _trainer_settings(self, host: str) -> TrainerSettings:
        settings = self._settings
        return TrainerSettings(
            host=host,
            run_dir=self._config.run_dir,
            feed=settings.feed,
            train=settings.train,
            devices=settings.devices,
            hold_at=settings.hold_at,
            digests=settings.digests,
            timeout_s=self._config.timeout_seconds,
        )


def _free_port() -> int:
    """A port on loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
