"""Carries out what the elastic state machine wants done, and tells it what came of it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import ray

from meshfeed.actors.elastic.failures import in_words
from meshfeed.actors.elastic.hosts import Host, Hosts
from meshfeed.actors.elastic.messages import Keeping, Membership, Neighbour, Phase, Source
from meshfeed.actors.elastic.settings import ElasticSettings, WorldKind
from meshfeed.actors.elastic.trainer import TrainerSettings
from meshfeed.actors.elastic.watch import Watch
from meshfeed.actors.reading.shared_memory import remove_leftovers
from meshfeed.actors.run import Run
from meshfeed.pipeline.plan.elastic import actions, events
from meshfeed.pipeline.plan.elastic.mesh_rule import MeshRule
from meshfeed.pipeline.plan.elastic.worlds import HostId, Restore, RestoreKind, World
from meshfeed.pipeline.plan.errors import MeshfeedError

log = logging.getLogger(__name__)

REASSURE_S = 1.0
"""A process that is being started is said to be alive this often."""


class Carrier:
    """One task for each action; a world that is given up ends those that form it.

    Args:
        run: whose feed is trained on.
        settings: of training.
        rule: of the meshes.
        hosts: all there are.
        watch: hears them.
        emit: takes events.
        foreseen: members of a world that would be formed now.
    """

    def __init__(
        self,
        *,
        run: Run,
        settings: ElasticSettings,
        rule: MeshRule,
        hosts: Hosts,
        watch: Watch,
        emit: Callable[[events.Event], None],
        foreseen: Callable[[], Sequence[str]],
    ) -> None:
        self._run = run
        self._settings = settings
        self._rule = rule
        self._hosts = hosts
        self._watch = watch
        self._emit = emit
        self._foreseen = foreseen
        self._timeout_s = run.config.timeout_seconds
        self._node = ray.get_runtime_context().get_node_id()
        self._named = 0
        self._starting = 0
        self._world: World | None = None
        self._services: list[Any] = []
        self._fenced: set[str] = set()
        self._preparing: dict[str, asyncio.Task[None]] = {}
        self._of_world: set[asyncio.Task[None]] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def carry_out(self, action: actions.Action) -> None:
        """Begins to; returns at once."""
        match action:
            case actions.StartHosts():
                missing = action.hosts - self._starting
                self._starting += max(0, missing)
                for _ in range(missing):
                    self._spawn(self._start_host())
            case actions.FormWorld():
                self._world = action.world
                self._watch.begin(action.world)
                self._spawn(self._form(action.world), of_world=True)
            case actions.MoveState():
                self._spawn(self._move(action.world), of_world=True)
            case actions.AskBarrier():
                self._spawn(self._ask_barrier(action.generation), of_world=True)
            case actions.AnnounceBarrier():
                for host in action.hosts:
                    self._spawn(self._export(host, action), of_world=True)
            case actions.LeaveWorld() | actions.AbortWorld():
                self._give_up_world()
                if isinstance(action, actions.AbortWorld):
                    self._spawn(self._prepare([host.name for host in action.hosts]))
                for host in action.hosts:
                    self._spawn(self._leave(host, action.generation))
            case actions.FenceHost():
                self._spawn(self._fence(action.host, action.generation))
            case actions.ReleaseHosts():
                for host in action.hosts:
                    self._spawn(self._hosts.remove(host.name))
            case actions.KeepState() | actions.AnswerWish():
                pass  # vaults know by themselves; the coordinator answers
            case actions.Finish() | actions.Fail():
                self._give_up_world()
                self._spawn(self._end())

    async def settle(self, world: World) -> None:
        """All members have taken a step: states of before are of no use any more."""
        restore = world.restore
        if restore.parts:
            key = (restore.generation, restore.step)
            calls = [self._hosts[name].vault.settle.remote(key) for name in world.names]
            await asyncio.gather(*(self._hosts.answer(call, "vault") for call in calls))
        fenced, self._fenced = self._fenced, set()
        await asyncio.gather(*(self._hosts.remove(name) for name in fenced))

    async def stop(self) -> None:
        """Ends all hosts and services."""
        tasks = [*self._tasks, *self._of_world, *self._preparing.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(self._hosts.remove(name) for name in self._hosts.names))
        await asyncio.to_thread(remove_leftovers)  # of vaults that were killed on this node
        for service in self._services:
            await asyncio.to_thread(service.stop)

    # -- hosts ------------------------------------------------------------------------------------

    async def _start_host(self) -> None:
        """A new host: an empty vault, and a process that waits for a world."""
        name = f"host-{self._named}"
        self._named += 1
        try:
            await self._hosts.add(name, self._node)
            self._watch.follow_vault(name)
            await self._prepare([name])
        finally:
            self._starting -= 1
        self._emit(events.HostReady(now=time.time(), host=self._hosts[name].id))

    async def _prepare(self, names: Sequence[str]) -> None:
        """A process waits at each of these hosts that needs one for the next world."""
        is_fresh = self._settings.world is WorldKind.FRESH
        hosts = [self._hosts[name] for name in names if name in self._hosts]
        needed = [h for h in hosts if (is_fresh or h.trainer is None) and h.waiting is None]
        for host in needed:
            if host.name not in self._preparing:
                self._preparing[host.name] = asyncio.create_task(self._start_process(host))
        tasks = [self._preparing[host.name] for host in needed]
        await asyncio.gather(*map(asyncio.shield, tasks))

    async def _start_process(self, host: Host) -> None:
        """A process that waits; meanwhile the host is said to be alive."""
        reassuring = asyncio.create_task(self._reassure(host.id))
        try:
            await self._hosts.start_trainer(host.name, self._trainer_settings(host.name))
        finally:
            reassuring.cancel()
            self._preparing.pop(host.name, None)
        if host.waiting is not None:
            self._watch.follow(host.name, host.waiting)

    async def _reassure(self, host: HostId) -> None:
        while True:
            self._emit(events.Heartbeat(now=time.time(), host=host))
            await asyncio.sleep(REASSURE_S)

    async def _fence(self, host: HostId, generation: int) -> None:
        """It is heard no more; its vault is kept until the state lies elsewhere."""
        if host.name not in self._hosts:
            return
        record = self._hosts[host.name]
        self._fenced.add(host.name)
        for process in (record.trainer, record.waiting):
            if process is not None:
                ray.kill(process)
        record.trainer = record.waiting = None
        record.vault.enter.remote(generation + 1)

    # -- worlds -----------------------------------------------------------------------------------

    async def _form(self, world: World) -> None:
        """The members join; where nothing is restored they begin to train at once."""
        from meshfeed.pipeline.assemble.worlds.service import CoordinationService

        await self._prepare([name for name in world.names if self._hosts[name].trainer is None])
        for name in world.names:
            if self._hosts[name].trainer is None:
                self._hosts.install(name)
            self._hosts[name].vault.enter.remote(world.generation)
        service = await asyncio.to_thread(CoordinationService, len(world.members))
        if self._services:
            self._services[-1].retire()
        self._services = [*self._services[-1:], service]
        joining = [self._join(world, index, service.address) for index in range(len(world.members))]
        await asyncio.gather(*joining)
        if world.restore.kind is RestoreKind.INIT:
            await self._train(world, None)

    async def _join(self, world: World, index: int, address: str) -> None:
        host = world.members[index]
        names = world.names
        beside = names[(index + 1) % len(names)]
        membership = Membership(
            generation=world.generation,
            process_index=index,
            process_count=len(names),
            address=address,
            layout=self._rule.mesh(len(names)),
            keeping=Keeping(
                host=host.name,
                hosts=names,
                vault=self._hosts[host.name].vault,
                neighbour=None
                if beside == host.name
                else Neighbour(host=beside, vault=self._hosts[beside].vault),
                snapshot_every=self._settings.policy.snapshot_every,
                timeout_s=self._timeout_s,
            ),
        )
        await self._hosts.call(host.name, "join", membership)
        self._emit(events.WorldJoined(now=time.time(), host=host, generation=world.generation))

    async def _move(self, world: World) -> None:
        """The members take their state from where it lies, and train."""
        await self._train(world, await self._find(world.restore))

    async def _train(self, world: World, source: Source | None) -> None:
        await asyncio.gather(*(self._hosts.call(name, "train", source) for name in world.names))

    async def _find(self, restore: Restore) -> Source | None:
        """Where the vaults hold a state; a vault that does not hold its part is lost."""
        key = (restore.generation, restore.step)
        wanted = {vault for part in restore.parts for vault in part.vaults}
        held = await self._hosts.images(wanted)
        images = {
            name: [(image, path) for image, path in own if image.key == key]
            for name, own in held.items()
        }
        images = {name: own for name, own in images.items() if own}
        for name in wanted - set(images):
            self._emit(events.VaultLost(now=time.time(), host=name))
        first = next((image for own in images.values() for image, _ in own), None)
        if first is None:
            raise MeshfeedError(f"no vault holds the {restore}")
        return Source(
            generation=restore.generation,
            step=restore.step,
            cursor=first.cursor,
            vaults={name: self._hosts[name].vault for name in images},
            images=images,
        )

    async def _ask_barrier(self, generation: int) -> None:
        """Grants end, once the processes of the next world wait."""
        await self._prepare(self._foreseen())
        opened = max(beat.feed_generation for beat in self._watch.beats.values())
        step: int = await asyncio.to_thread(
            self._run.call, "barrier", self._settings.feed, opened
        )  # asks again where the feed's coordinator is being restarted
        self._emit(events.BarrierKnown(now=time.time(), generation=generation, step=step))

    async def _export(self, host: HostId, barrier: actions.AnnounceBarrier) -> None:
        """The host reaches the barrier; its part of the live state goes to its vault."""
        await self._watch.at_barrier(host.name)
        who: dict[str, Any] = {"host": host, "generation": barrier.generation}
        self._emit(events.HostAtBarrier(now=time.time(), step=barrier.step, **who))
        step = await self._hosts.call(host.name, "export")
        self._emit(events.StateStored(now=time.time(), step=step, **who))

    async def _leave(self, host: HostId, generation: int) -> None:
        """In reuse the process leaves its world; else, or if it cannot, it ends."""
        name = host.name
        if name in self._hosts and self._hosts[name].trainer is not None:
            beat = self._watch.beats.get(name)
            is_idle = beat is not None and beat.phase is not Phase.JOINING
            if self._settings.world is WorldKind.FRESH or not is_idle or not await self._left(name):
                await self._hosts.end_trainer(name)
        self._emit(events.WorldLeft(now=time.time(), host=host, generation=generation))

    async def _left(self, name: str) -> bool:
        try:
            await self._hosts.call(name, "leave")
        except (MeshfeedError, ray.exceptions.RayError) as error:
            log.warning("%s could not leave its world: %s", name, in_words(error))
            return False
        return True

    async def _end(self) -> None:
        """Training is over: all leave."""
        names = [name for name in self._hosts.names if self._hosts[name].trainer is not None]
        await asyncio.gather(*(self._left(name) for name in names))

    def _give_up_world(self) -> None:
        """What still forms it, or waits in it, ends."""
        for task in self._of_world:
            task.cancel()

    # -- inside -----------------------------------------------------------------------------------

    def _spawn(self, work: Coroutine[Any, Any, None], *, of_world: bool = False) -> None:
        world = self._world.generation if self._world is not None else 0
        task = asyncio.create_task(self._guard(work, world))
        tasks = self._of_world if of_world else self._tasks
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def _guard(self, work: Coroutine[Any, Any, None], generation: int) -> None:
        """What a task fails with breaks the world that it was for."""
        try:
            await work
        except ray.exceptions.RayActorError as error:
            log.warning("generation %d: %s", generation, in_words(error)[:300])
        except Exception as error:  # noqa: BLE001 - whatever it is, the world that it was for is broken
            log.warning("generation %d: %s", generation, in_words(error))
            world = self._world
            if world is not None and world.generation == generation:
                self._emit(
                    events.WorldBroken(
                        now=time.time(),
                        host=world.members[0],
                        generation=generation,
                        error=in_words(error),
                    )
                )

    def _trainer_settings(self, host: str) -> TrainerSettings:
        settings = self._settings
        return TrainerSettings(
            host=host,
            run_dir=self._run.config.run_dir,
            feed=settings.feed,
            train=settings.train,
            devices=settings.devices,
            hold_at=settings.hold_at,
            digests=settings.digests,
            compiled=settings.compiled,
            timeout_s=self._timeout_s,
        )
