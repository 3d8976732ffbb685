"""Hears all trainer processes and vaults, and turns what they tell into events."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any

import ray
from ray.actor import ActorHandle

from meshfeed.actors.elastic.failures import in_words, is_consequence
from meshfeed.actors.elastic.hosts import Host, Hosts
from meshfeed.actors.elastic.messages import Beat, News, Phase
from meshfeed.pipeline.plan.elastic import events
from meshfeed.pipeline.plan.elastic.worlds import World

log = logging.getLogger(__name__)

CULPRIT_S = 3.0
"""A world that breaks waits so long for the news of who broke it."""

SILENCE_S = 1.0
"""A beat that does not come within this is asked for again only once it has come."""


class Watch:
    """Hears hosts for as long as they are there.

    Args:
        hosts: all there are.
        emit: takes events.
    """

    def __init__(self, hosts: Hosts, emit: Callable[[events.Event], None]) -> None:
        self.news: list[News] = []
        self.beats: dict[str, Beat] = {}
        self.safe = (0, -1)
        self._safe_of: dict[str, tuple[int, int]] = {}
        self._hosts = hosts
        self._emit = emit
        self._world: World | None = None
        self._told: set[tuple[str, int, str]] = set()
        self._at_barrier: dict[str, asyncio.Event] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, world: World) -> None:
        """A world is being formed; beats of others change nothing."""
        self._world = world
        self.beats = {}
        self._told = set()
        self._at_barrier = {name: asyncio.Event() for name in world.names}

    async def at_barrier(self, name: str) -> Beat:
        """Waits until ``train(job)`` of a host has returned at the barrier."""
        await self._at_barrier[name].wait()
        return self.beats[name]

    def follow(self, name: str, process: ActorHandle) -> None:
        """Hears a trainer process until it ends."""
        self._spawn(self._follow(self._hosts[name], process))

    def follow_vault(self, name: str) -> None:
        """Hears a vault until it ends."""
        self._spawn(self._follow_vault(self._hosts[name]))

    async def stop(self) -> None:
        """Hears nobody any more."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _follow(self, host: Host, process: ActorHandle) -> None:
        while any(process is own for own in (host.trainer, host.waiting)):
            try:
                beat: Beat = await process.beat.remote()
            except ray.exceptions.RayActorError as error:
                await self._ended(host, process, str(error).partition("\n")[0])
                return
            except ray.exceptions.RayError as error:
                log.warning("%s: a beat failed: %s", host.name, error)
                continue
            if process is host.trainer:
                self._hear(host, beat)
            elif host.trainer is None:
                self._emit(events.Heartbeat(now=time.time(), host=host.id))

    async def _ended(self, host: Host, process: ActorHandle, why: str) -> None:
        """A process has ended that nobody wanted to end."""
        if process is host.waiting:
            host.waiting = None
            if host.trainer is not None:
                return  # it is started again when it is needed
        elif process is host.trainer:
            host.trainer = None
        else:
            return
        has_vault = await self._answers(host.vault)
        self._emit(
            events.HostLost(now=time.time(), host=host.id, reason=why, with_vault=not has_vault)
        )

    async def _answers(self, vault: ActorHandle) -> bool:
        try:
            await asyncio.wait_for(_plain(vault.ready.remote()), 5.0)
        except (ray.exceptions.RayError, TimeoutError):
            return False
        return True

    def _hear(self, host: Host, beat: Beat) -> None:
        """A beat of a host's trainer."""
        world, now = self._world, time.time()
        step = beat.step if beat.phase in (Phase.TRAINING, Phase.HELD, Phase.ENDED) else None
        self._emit(
            events.Heartbeat(now=now, host=host.id, generation=beat.generation, step=step or None)
        )
        if world is None or host.id not in world.members or beat.generation != world.generation:
            return
        self.beats[host.name] = beat
        if beat.steps or beat.held_at is not None:
            self.news.append(
                News(
                    generation=beat.generation,
                    process_index=world.members.index(host.id),
                    process_count=len(world.members),
                    steps=beat.steps,
                    held_at=beat.held_at,
                )
            )
        who: dict[str, Any] = {"now": now, "host": host.id, "generation": beat.generation}
        if beat.has_state:
            self._once(host, "moved", events.StateMoved(**who))
        if "first_step" in beat.seconds:
            self._once(host, "compiled", events.Compiled(**who))
            self._once(host, "stepped", events.FirstStep(**who))
        if beat.phase is Phase.ENDED and beat.at_barrier:
            self._at_barrier[host.name].set()
        elif beat.phase is Phase.ENDED:
            self._once(host, "ended", events.TrainingEnded(**who))
        elif beat.phase is Phase.FAILED:
            self._failed(host, beat, who)

    def _failed(self, host: Host, beat: Beat, who: dict[str, Any]) -> None:
        words = in_words(beat.error)
        if not is_consequence(beat.error):
            self._once(host, "failed", events.Failed(**who, error=words))
        elif (host.name, beat.generation, "broken") not in self._told:
            self._told.add((host.name, beat.generation, "broken"))
            self._spawn(self._later(events.WorldBroken(**who, error=words)))

    async def _later(self, event: events.WorldBroken) -> None:
        await asyncio.sleep(CULPRIT_S)
        self._emit(event)

    def _once(self, host: Host, what: str, event: events.HostEvent) -> None:
        key = (host.name, event.generation, what)
        if key not in self._told:
            self._told.add(key)
            self._emit(event)

    async def _follow_vault(self, host: Host) -> None:
        """Tells of every image of the host, first when it is there, then when it lies twice."""
        known: tuple[int, int, int] = (0, -1, 0)
        while host.name in self._hosts and self._hosts[host.name] is host:
            try:
                beat = await host.vault.beat.remote(known)
            except ray.exceptions.RayActorError:
                self._vault_ended(host)
                return
            except ray.exceptions.RayError as error:
                log.warning("vault of %s: a beat failed: %s", host.name, error)
                continue
            if beat.stored == known:
                continue
            known = beat.stored
            if beat.is_safe and beat.is_snapshot:
                self._note_safe(host.name, beat.stored[:2])
            generation, step, copies = known
            vaults = (host.name,) if copies == 1 or not beat.neighbour else (
                host.name, beat.neighbour)  # fmt: skip
            if beat.is_snapshot:
                self._emit(
                    events.SnapshotStored(
                        now=time.time(),
                        host=host.id,
                        generation=generation,
                        step=step,
                        vaults=vaults,
                    )
                )

    def _note_safe(self, name: str, key: tuple[int, int]) -> None:
        """A step that all members have stored wherever it is to lie may not be written over."""
        self._safe_of[name] = key
        if self._world is None:
            return
        newest = min(self._safe_of.get(member, (0, -1)) for member in self._world.names)
        if newest > self.safe and newest[0] == self._world.generation:
            self.safe = newest
            for member in self._world.names:
                if member in self._hosts:
                    self._hosts[member].vault.safe.remote(*newest)

    def _vault_ended(self, host: Host) -> None:
        if host.name in self._hosts and self._hosts[host.name] is host:
            self._emit(events.VaultLost(now=time.time(), host=host.name))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _plain(call: Any) -> Any:
    return await call
