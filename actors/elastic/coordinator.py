"""The elastic coordinator: one actor a run, which leads training from world to world.

It decides nothing by itself: what it sees becomes events of the elastic state machine, what that
wants done is carried out. It runs the coordination service of each world and outlives them all.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from pathlib import Path
from typing import Any

import jax
import ray

from meshfeed.actors.elastic.carrier import Carrier
from meshfeed.actors.elastic.hosts import Hosts
from meshfeed.actors.elastic.messages import News, Resize
from meshfeed.actors.elastic.placing import LeafSpec, arrange_hosts
from meshfeed.actors.elastic.settings import ElasticSettings
from meshfeed.actors.elastic.watch import Watch
from meshfeed.actors.run import Run
from meshfeed.pipeline.data.runs.run_folder import write_whole
from meshfeed.pipeline.plan.elastic import actions, events
from meshfeed.pipeline.plan.elastic.machine import ElasticMachine
from meshfeed.pipeline.plan.elastic.mesh_rule import MeshRule
from meshfeed.pipeline.plan.elastic.records import ResizeRecord
from meshfeed.pipeline.plan.elastic.states import State
from meshfeed.pipeline.plan.elastic.worlds import World
from meshfeed.pipeline.plan.errors import ConfigError, FeedError, MeshfeedError, StallError

log = logging.getLogger(__name__)

TICK_S = 1.0

RELEASE_S = 2.0
"""A host that is there hears of a release within this."""

QUIET = (events.Tick, events.Heartbeat)
"""Events that need not be kept where nothing follows from them."""


class ElasticCoordinator:
    """Wrapped as a Ray actor with a name that follows from the run directory.

    Args:
        run: whose feed is trained on.
        settings: of training.
        hosts: to begin with.

    Raises:
        ConfigError: no mesh fits so many hosts.
    """

    def __init__(self, run: Run, settings: ElasticSettings, hosts: int) -> None:
        jax.config.update("jax_platforms", "cpu")  # it runs the coordination service, no more
        self._run = run
        self._settings = settings
        self._path = Path(run.config.run_dir) / "elastic.json"
        rule = MeshRule.of_run(run.config, hosts_per_group=settings.policy.hosts_per_group)
        self._leaves: list[LeafSpec] = []
        self._machine = ElasticMachine(
            hosts,
            policy=settings.policy,
            rule=rule,
            arrange=arrange_hosts(rule, lambda: self._leaves),
        )
        self._hosts = Hosts(run.config.run_id, settings.vault_budget, run.config.timeout_seconds)
        self._watch = Watch(self._hosts, self._emit)
        self._carrier = Carrier(
            run=run,
            settings=settings,
            rule=rule,
            hosts=self._hosts,
            watch=self._watch,
            emit=self._emit,
            foreseen=self._foreseen,
        )
        self._names: dict[int, tuple[str, ...]] = {0: ()}
        self._resizes: list[Resize] = []
        self._asked: list[asyncio.Future[str]] = []
        self._error: BaseException | None = None
        self._changed = asyncio.Event()
        self._settling: asyncio.Task[None] | None = None
        self._ticking: asyncio.Task[None] | None = None

    # -- for whoever follows the run --------------------------------------------------------------

    async def start(self) -> None:
        """Training begins as soon as the hosts are there."""
        self._emit(events.RunStarted(now=time.time()))
        self._ticking = asyncio.create_task(self._tick())

    async def news(self, since: int) -> tuple[list[News], bool]:
        """What has happened after the first ``since`` news; and whether training is over.

        Raises:
            MeshfeedError: what ended the run.
        """
        if len(self._watch.news) <= since and not self._machine.has_ended:
            await self._wait(1.0)
        if self._error is not None:
            raise self._error
        return self._watch.news[since:], self._machine.has_ended

    async def resizes(self) -> list[Resize]:
        """All changes of the membership that are over."""
        return self._resizes

    async def pids(self, place: int) -> dict[str, int]:
        """Process ids of the host at a place of the world: of its trainer and its vault."""
        world = self._machine.world
        if world is None:
            raise MeshfeedError("there is no world")
        return self._hosts[world.names[place]].pids

    async def release(self, step: int) -> None:
        """Training need not wait at this step."""
        names = [name for name in self._hosts.names if self._hosts[name].trainer is not None]
        calls = [asyncio.create_task(self._hosts.call(name, "release", step)) for name in names]
        if calls:
            _, late = await asyncio.wait(calls, timeout=RELEASE_S)
            for call in late:  # a host that is stopped hears nothing
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)

    async def resize(self, hosts: int) -> str:
        """Training is to go on with so many hosts; answers once the last step of now is fixed.

        Raises:
            ConfigError: it is refused.
        """
        return await self._ask(events.ResizeAsked(now=time.time(), hosts=hosts))

    async def drain(self, host: str, seconds: float | None, reason: str) -> str:
        """A host will go away; answers once the last step with it is fixed.

        Raises:
            ConfigError: it is refused.
        """
        now = time.time()
        deadline = None if seconds is None else now + seconds
        return await self._ask(
            events.DrainAsked(now=now, host=host, reason=reason, deadline=deadline)
        )

    async def status(self) -> dict[str, Any]:
        """What training is doing, as plain values."""
        machine, world = self._machine, self._machine.world
        beats = self._watch.beats
        return {
            "state": str(machine.state),
            "error": None if self._error is None else str(self._error),
            "generation": machine.generation,
            "mesh": {} if world is None else dict(world.mesh),
            "step": max((beat.step for beat in beats.values()), default=0),
            "snapshot": self._watch.safe[1],
            "waits_for": [str(host) for host in machine.waits_for()],
            "hosts": [
                {
                    "host": name,
                    "place": world.names.index(name) if world and name in world.names else None,
                    "phase": str(beats[name].phase) if name in beats else "ready",
                    "step": beats[name].step if name in beats else None,
                    "pids": dict(self._hosts[name].pids),
                }
                for name in self._hosts.names
            ],
            "resizes": [resize.plain() for resize in self._resizes],
            "wishes": [
                {"wish": w.wish, "outcome": str(w.outcome), "detail": w.detail}
                for w in machine.wishes
            ],
        }

    async def stop(self) -> None:
        """Ends all hosts."""
        if self._ticking is not None:
            self._ticking.cancel()
            await asyncio.gather(self._ticking, return_exceptions=True)
        await self._watch.stop()
        await self._carrier.stop()

    # -- events and actions -----------------------------------------------------------------------

    def _emit(self, event: events.Event) -> None:
        """The machine hears it; what it wants done is kept, then carried out."""
        was, before = self._machine.state, len(self._machine.resizes)
        self._learn_leaves()
        wanted = self._machine.handle(event)
        if wanted or self._machine.state is not was or not isinstance(event, QUIET):
            write_whole(self._path, json.dumps(self._machine.to_plain()))
        for action in wanted:
            log.info("generation %d: %s", self._machine.generation, action)
            self._note(action)
            self._carrier.carry_out(action)
        for record in self._machine.resizes[before:]:
            self._resizes.append(self._described(record))
        world = self._machine.world
        if self._machine.state is State.RUNNING and was is not State.RUNNING and world is not None:
            self._settling = asyncio.create_task(self._settle(world))
        self._tell()

    def _note(self, action: actions.Action) -> None:
        """What whoever follows the run waits for."""
        match action:
            case actions.FormWorld():
                self._names[action.world.generation] = action.world.names
            case actions.AnnounceBarrier():
                self._answer(f"generation {action.generation} ends at step {action.step}")
            case actions.AnswerWish() if action.outcome == "refused":
                self._refuse(ConfigError(action.wish, action.detail))
            case actions.AnswerWish():
                self._answer(f"{action.wish}: {action.outcome}, {action.detail}")
            case actions.Fail():
                error = FeedError(action.error)
                self._error = self._error or error
                self._refuse(error)
            case actions.Finish():
                self._answer("training is over")
            case _:
                pass

    def _described(self, record: ResizeRecord) -> Resize:
        """A resize that is over, with what the hosts tell of it."""
        earlier = [n for n in sorted(self._names, reverse=True) if n < record.generation]
        places = (self._names[n] for n in earlier if len(self._names[n]) == record.hosts_from)
        beats = list(self._watch.beats.values())
        return Resize.of(record, next(places, ()), self._names[record.generation], beats)

    async def _settle(self, world: World) -> None:
        try:
            await self._carrier.settle(world)
        except (MeshfeedError, ray.exceptions.RayError) as error:
            log.warning("generation %d: vaults did not settle: %s", world.generation, error)

    def _learn_leaves(self) -> None:
        for beat in self._watch.beats.values():
            if "leaves" in beat.facts:
                self._leaves = beat.facts["leaves"]
                return

    def _foreseen(self) -> tuple[str, ...]:
        return self._machine.candidates

    # -- inside -----------------------------------------------------------------------------------

    async def _tick(self) -> None:
        while not self._machine.has_ended:
            await asyncio.sleep(TICK_S)
            self._emit(events.Tick(now=time.time()))

    async def _ask(self, event: events.Event) -> str:
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._asked.append(future)
        self._emit(event)
        limit = self._run.config.timeout_seconds
        try:
            return await asyncio.wait_for(future, limit)
        except TimeoutError:
            raise StallError("barrier", limit, stage=str(self._machine.state)) from None

    def _answer(self, text: str) -> None:
        asked, self._asked = self._asked, []
        for future in asked:
            if not future.done():
                future.set_result(text)

    def _refuse(self, error: MeshfeedError) -> None:
        asked, self._asked = self._asked, []
        for future in asked:
            if not future.done():
                future.set_exception(error)

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _wait(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), seconds)
