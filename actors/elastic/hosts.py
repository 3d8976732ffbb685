"""The hosts of a run, as the elastic coordinator reaches them: a vault each, and a trainer."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from meshfeed.actors.elastic.images import Image
from meshfeed.actors.elastic.trainer import TrainerHost, TrainerSettings
from meshfeed.actors.elastic.vault import Vault
from meshfeed.pipeline.plan.elastic.worlds import HostId
from meshfeed.pipeline.plan.errors import MeshfeedError, StallError

log = logging.getLogger(__name__)

END_S = 10.0
"""A process that was killed is gone within this, unless it is stopped."""


@dataclass(slots=True)
class Host:
    """One host.

    Attributes:
        id: of it.
        node: Ray node that it is on.
        vault: its vault.
        trainer: its trainer process, None while it has none.
        waiting: the trainer process of its next generation.
        pids: of each.
    """

    id: HostId
    node: str
    vault: ActorHandle
    trainer: ActorHandle | None = None
    waiting: ActorHandle | None = None
    pids: dict[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Of it."""
        return self.id.name


class Hosts:
    """Starts and ends hosts.

    Args:
        run_id: of the run.
        vault_budget: bytes that each vault may hold.
        timeout_s: of every wait.
    """

    def __init__(self, run_id: str, vault_budget: int, timeout_s: float) -> None:
        self._run_id = run_id
        self._vault_budget = vault_budget
        self._timeout_s = timeout_s
        self._hosts: dict[str, Host] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._hosts

    def __getitem__(self, name: str) -> Host:
        return self._hosts[name]

    @property
    def names(self) -> tuple[str, ...]:
        """Of all hosts that are there."""
        return tuple(self._hosts)

    async def add(self, name: str, node: str) -> Host:
        """Starts a host's vault on a node."""
        here = NodeAffinitySchedulingStrategy(node, soft=False)
        vault = (
            ray.remote(Vault)
            .options(num_cpus=0, scheduling_strategy=here, max_concurrency=16)
            .remote(name, self._run_id, self._vault_budget, self._timeout_s)
        )
        host = Host(id=HostId(name), node=node, vault=vault)
        try:
            host.pids["vault"] = await self.answer(vault.ready.remote(), f"vault of {name}")
        except BaseException:  # given up before it was there: nobody else knows of it
            await _end_vault(vault)
            raise
        self._hosts[name] = host
        return host

    async def start_trainer(self, name: str, settings: TrainerSettings) -> None:
        """A new trainer process waits at a host: imported and ready, in no world yet."""
        host = self._hosts[name]
        here = NodeAffinitySchedulingStrategy(host.node, soft=False)
        trainer: ActorHandle = (
            ray.remote(TrainerHost)
            .options(num_cpus=0, scheduling_strategy=here, max_concurrency=16)
            .remote(settings)
        )
        try:
            host.pids["waiting"] = await self.answer(trainer.prepare.remote(), f"trainer of {name}")
        except BaseException:
            ray.kill(trainer)
            raise
        host.waiting = trainer

    def install(self, name: str) -> None:
        """The process that waits is the host's trainer from now on; the old one has ended."""
        host = self._hosts[name]
        host.trainer, host.waiting = host.waiting, None
        host.pids["trainer"] = host.pids.pop("waiting")

    async def end_trainer(self, name: str) -> None:
        """Ends a host's trainer process and waits until it is gone, or does not go."""
        host = self._hosts[name]
        process, host.trainer = host.trainer, None
        if process is None:
            return
        ray.kill(process)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + END_S
        while (left := deadline - loop.time()) > 0:
            try:
                await asyncio.wait_for(_plain(process.ready.remote()), left)
            except ray.exceptions.RayActorError:
                return
            except (ray.exceptions.RayError, TimeoutError):
                pass
            await asyncio.sleep(0.01)
        log.warning("the trainer process of %s has not ended for %g s", name, END_S)

    async def remove(self, name: str) -> None:
        """Ends a host: its trainer, if it has one, and its vault with all that it holds."""
        host = self._hosts.pop(name, None)
        if host is None:
            return
        processes = (host.trainer, host.waiting)
        host.trainer = host.waiting = None
        for process in processes:
            if process is not None:
                ray.kill(process)
        await _end_vault(host.vault)
        for other in self._hosts.values():
            if other.node == host.node:  # what a vault that was killed has left there
                other.vault.sweep.remote()
                break

    async def images(self, names: Iterable[str]) -> dict[str, list[tuple[Image, str]]]:
        """What the vaults of some hosts hold; a vault that is gone holds nothing."""
        wanted = [name for name in names if name in self._hosts]
        answers = await asyncio.gather(
            *(
                asyncio.wait_for(_plain(self._hosts[name].vault.images.remote()), self._timeout_s)
                for name in wanted
            ),
            return_exceptions=True,
        )
        return {
            name: answer
            for name, answer in zip(wanted, answers, strict=True)
            if isinstance(answer, list)
        }

    async def call(self, name: str, method: str, *args: Any) -> Any:
        """What a host's trainer answers."""
        trainer = self._hosts[name].trainer if name in self._hosts else None
        if trainer is None:
            raise MeshfeedError(f"{name} has no trainer process that could {method}")
        return await self.answer(getattr(trainer, method).remote(*args), f"{name} to {method}")

    async def answer(self, call: Any, what: str) -> Any:
        """What a call answers; errors come as they were raised there.

        Raises:
            StallError: no answer came in time.
        """
        try:
            return await asyncio.wait_for(_plain(call), self._timeout_s)
        except ray.exceptions.RayTaskError as error:
            raise error.cause or error from error
        except TimeoutError:
            raise StallError(f"answer of {what}", self._timeout_s) from None


async def _end_vault(vault: ActorHandle) -> None:
    """Ends a vault, also one that is only being started, and what it has in shared memory."""
    with contextlib.suppress(ray.exceptions.RayError, TimeoutError):
        await asyncio.wait_for(_plain(vault.stop.remote()), END_S)
    ray.kill(vault)


async def _plain(call: Any) -> Any:
    """A call as a coroutine, which ``wait_for`` wants."""
    return await call
