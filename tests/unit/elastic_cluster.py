"""A cluster in memory that does what the elastic state machine wants, as faithfully as real hosts.

Messages and actions wait until they are delivered, so that a test decides about their order. After
every event the machine's invariants hold, and what it wants makes sense: nothing of a host that was
fenced, no world that restores what lies nowhere.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable
from typing import Any

from meshfeed.pipeline.plan.elastic import actions as act
from meshfeed.pipeline.plan.elastic import events as ev
from meshfeed.pipeline.plan.elastic.machine import ElasticMachine
from meshfeed.pipeline.plan.elastic.mesh_rule import MeshRule
from meshfeed.pipeline.plan.elastic.policy import ElasticPolicy
from meshfeed.pipeline.plan.elastic.states import State
from meshfeed.pipeline.plan.elastic.worlds import HostId, RestoreKind, World

Stored = tuple[RestoreKind, int, int, str]
"""kind, generation, step, owner."""


@dataclasses.dataclass(slots=True)
class Host:
    """A host process; ``world`` is what it is in."""

    id: HostId
    world: World | None = None
    step: int = 0
    barrier: int | None = None
    is_hung: bool = False
    said: list[ev.Event] = dataclasses.field(default_factory=list)


class Cluster:
    """Hosts, their vaults, and the machine that directs them.

    Args:
        hosts: that the run wants.
        policy, rule: of the machine.
        capacity: hosts that there are nodes for.
        steps: of the training.
        starts_hosts: whether ``StartHosts`` brings any.
    """

    def __init__(
        self,
        hosts: int,
        policy: ElasticPolicy,
        rule: MeshRule,
        *,
        capacity: int = 8,
        steps: int = 1000,
        starts_hosts: bool = True,
    ) -> None:
        self.policy, self.rule = policy, rule
        self.machine = ElasticMachine(hosts, policy=policy, rule=rule)
        self.capacity, self.steps, self.starts_hosts = capacity, steps, starts_hosts
        self.now = 100.0
        self.looks_every = 1
        self.hosts: dict[str, Host] = {}
        self.vaults: dict[str, set[Stored]] = {}
        self.incarnations: dict[str, int] = {}
        self.inbox: list[ev.Event] = []
        self.todo: list[act.Action] = []
        self.history: list[ev.Event] = []
        self.done: list[act.Action] = []
        self.fenced: set[HostId] = set()
        self.granted = 0
        self.ended_hosts: set[tuple[str, int]] = set()
        self.generations: list[int] = [0]
        self.visited: set[tuple[State, State]] = set()

    # ----- the machine

    def tell(self, event: ev.Event) -> tuple[act.Action, ...]:
        """Hands the machine an event, now, and looks at what comes of it."""
        event = dataclasses.replace(event, now=self.now)
        was = self.machine.state
        wanted = self.machine.handle(event)
        self.history.append(event)
        self.visited.add((was, self.machine.state))
        if len(self.history) % self.looks_every == 0:
            assert not (broken := self.machine.invariants()), (broken, event)
        assert self.machine.generation >= self.generations[-1]
        self.generations.append(self.machine.generation)
        for action in wanted:
            self._check(action)
            if isinstance(action, act.FenceHost):
                self.fenced.add(action.host)
        self.todo += wanted
        return wanted

    def _check(self, action: act.Action) -> None:
        named: set[HostId] = set()
        if isinstance(
            action, act.AnnounceBarrier | act.LeaveWorld | act.AbortWorld | act.ReleaseHosts
        ):
            named = set(action.hosts)
        elif isinstance(action, act.FormWorld | act.MoveState):
            named = set(action.world.members)
            assert action.world.generation == self.machine.generation
        assert not self.fenced & named, f"{action} of a fenced host"

    def restart_coordinator(self, *, keeps_messages: bool = False) -> None:
        """The machine is kept as text; what it wanted, and messages on the way, are lost."""
        plain = json.loads(json.dumps(self.machine.to_plain()))
        self.machine = ElasticMachine.from_plain(plain, policy=self.policy, rule=self.rule)
        assert self.machine.to_plain() == plain
        self.todo = []
        if not keeps_messages:
            self.inbox = [e for e in self.inbox if isinstance(e, ev.HostLost | ev.VaultLost)]
        self.tell(ev.CoordinatorRestarted(now=self.now))
        for host in self.hosts.values():
            if not host.is_hung:
                self.inbox += [ev.HostReady(now=self.now, host=host.id), *host.said]

    # ----- what hosts do

    def say(self, host: Host, event: ev.Event) -> None:
        """A host reports; it repeats its reports of one world if the coordinator starts again."""
        host.said.append(event)
        self.inbox.append(event)

    def add_host(self, name: str | None = None) -> Host | None:
        """A host comes up on a free node, or on the named one."""
        if name is None:
            free = [f"h{i}" for i in range(self.capacity) if f"h{i}" not in self.hosts]
            if not free:
                return None
            name = free[0]
        incarnation = self.incarnations.get(name, -1) + 1
        self.incarnations[name] = incarnation
        host = Host(HostId(name, incarnation))
        self.hosts[name] = host
        self.vaults.setdefault(name, set())
        self.inbox.append(ev.HostReady(now=self.now, host=host.id))
        return host

    def kill(self, name: str, *, with_vault: bool = True, is_seen: bool = True) -> None:
        """A host dies, perhaps with its node."""
        host = self.hosts.pop(name)
        if with_vault:
            self.vaults.pop(name, None)
        if is_seen or with_vault:
            lost = ev.HostLost(now=self.now, host=host.id, reason="killed", with_vault=with_vault)
            self.inbox.append(lost)

    def members(self, world: World) -> list[Host] | None:
        """The hosts of a world if all are there, in it, and at work; else nobody gets on."""
        found = [self.hosts.get(host.name) for host in world.members]
        are_all = all(
            host is not None
            and host.id in world.members
            and host.world == world
            and not host.is_hung
            for host in found
        )
        return [host for host in found if host is not None] if are_all else None

    def train(self, steps: int) -> None:
        """Hosts of the present world take steps, all or none, as far as they are granted."""
        world = self.machine.world
        hosts = self.members(world) if world is not None else None
        if (
            hosts is None
            or world is None
            or self.machine.state
            not in (State.STARTING, State.RUNNING, State.NOTICE, State.DRAINING, State.FINISHING)
        ):
            return
        if not all(any(isinstance(e, ev.StateMoved | ev.FirstStep) for e in h.said) for h in hosts):
            return
        barrier = hosts[0].barrier
        for _ in range(steps):
            step = hosts[0].step
            if step >= min(self.steps, self.granted if barrier is None else barrier):
                if barrier is None and step < self.steps and not self._barrier_is_asked():
                    self.granted = min(self.steps, step + 4)
                    continue
                break
            for host in hosts:
                host.step = step + 1
            every = self.policy.snapshot_every
            if every and (step + 1) % every == 0:
                self._snapshot(world, hosts, step + 1)
        for host in hosts:
            self._end_or_stop(host, world)

    def _barrier_is_asked(self) -> bool:
        return self.machine.state in (State.NOTICE, State.DRAINING)

    def _snapshot(self, world: World, hosts: list[Host], step: int) -> None:
        for i, host in enumerate(hosts):
            near = hosts[(i + 1) % len(hosts)].id.name
            vaults = tuple(dict.fromkeys((host.id.name, near)))
            for vault in vaults:
                self.vaults.setdefault(vault, set()).add(
                    (RestoreKind.SNAPSHOT, world.generation, step, host.id.name)
                )
            self.say(
                host,
                ev.SnapshotStored(
                    now=self.now,
                    host=host.id,
                    generation=world.generation,
                    step=step,
                    vaults=vaults,
                ),
            )

    def _end_or_stop(self, host: Host, world: World) -> None:
        about: dict[str, Any] = {"now": self.now, "host": host.id, "generation": world.generation}
        kinds = {type(e) for e in host.said}
        if ev.TrainingEnded in kinds or ev.HostAtBarrier in kinds:
            return
        if host.step >= self.steps:
            self.say(host, ev.TrainingEnded(**about))
        elif host.barrier is not None and host.step >= host.barrier:
            self.say(host, ev.HostAtBarrier(**about, step=host.barrier))
            self.vaults.setdefault(host.id.name, set()).add(
                (RestoreKind.LIVE, world.generation, host.barrier, host.id.name)
            )
            self.say(host, ev.StateStored(**about, step=host.barrier))

    # ----- what the machine wants

    def carry_out(self, action: act.Action) -> None:
        """Does what an action says, on the hosts that can be reached."""
        self.done.append(action)
        match action:
            case act.StartHosts():
                if self.starts_hosts:
                    up = [e for e in self.inbox if isinstance(e, ev.HostReady)]
                    for _ in range(action.hosts - len(up)):
                        self.add_host()
            case act.FormWorld():
                self._form(action.world)
            case act.MoveState():
                self._move(action.world)
            case act.AskBarrier():
                self.granted = max(self.granted, 0)
                world = self.machine.world
                step = max([self.granted, *(h.step for h in self.hosts.values() if h.world)])
                if world is not None and world.generation == action.generation:
                    self.inbox.append(
                        ev.BarrierKnown(now=self.now, generation=action.generation, step=step)
                    )
            case act.AnnounceBarrier():
                for host in self._reached(action.hosts, action.generation):
                    host.barrier = action.step
                self.train(self.steps)
            case act.LeaveWorld() | act.AbortWorld():
                for host in self._reached(action.hosts, action.generation):
                    self._leave(host, action.generation)
            case act.FenceHost():
                host = self.hosts.get(action.host.name)
                if host is not None and host.id == action.host:
                    del self.hosts[action.host.name]
            case act.KeepState():
                for vault in self.vaults.values():
                    vault -= {stored for stored in vault if stored[2] < action.oldest_step}
            case act.ReleaseHosts():
                for gone in action.hosts:
                    host = self.hosts.get(gone.name)
                    if host is not None and host.id == gone:
                        del self.hosts[gone.name]
                        self.vaults.pop(gone.name, None)

    def _reached(self, hosts: Iterable[HostId], generation: int) -> list[Host]:
        return [
            host
            for wanted in hosts
            if (host := self.hosts.get(wanted.name)) is not None
            and host.id == wanted
            and not host.is_hung
            and (host.world is None or host.world.generation == generation)
        ]

    def _leave(self, host: Host, generation: int) -> None:
        left = ev.WorldLeft(now=self.now, host=host.id, generation=generation, step=host.step)
        if host.world is None and left not in host.said:
            left = dataclasses.replace(left, step=None)
        host.world = None
        self.say(host, left)

    def _form(self, world: World) -> None:
        for host in self._able(world):
            if host.world == world:
                continue
            host.world, host.step, host.barrier, host.said = world, world.start_step, None, []
        hosts = self.members(world)
        if hosts is None:
            return
        self.granted = max(world.start_step, 0)
        for host in hosts:
            if not host.said:
                self.say(
                    host, ev.WorldJoined(now=self.now, host=host.id, generation=world.generation)
                )
            if world.restore.kind is RestoreKind.INIT:
                self._moved(host, world)

    def _able(self, world: World) -> list[Host]:
        return [
            host
            for member in world.members
            if (host := self.hosts.get(member.name)) is not None
            and host.id == member
            and not host.is_hung
            and (host.world is None or host.world.generation <= world.generation)
        ]

    def _move(self, world: World) -> None:
        for part in world.restore.parts:
            stored = (world.restore.kind, world.restore.generation, world.restore.step, part.owner)
            if not any(stored in self.vaults.get(vault, ()) for vault in part.vaults):
                # Only possible where a vault is gone and the machine has not been told yet.
                assert any(vault not in self.vaults for vault in part.vaults), f"{part} is nowhere"
                return
        for host in self.members(world) or ():
            self._moved(host, world)

    def _moved(self, host: Host, world: World) -> None:
        about: dict[str, Any] = {"now": self.now, "host": host.id, "generation": world.generation}
        if any(isinstance(e, ev.StateMoved) for e in host.said):
            return
        self.say(host, ev.StateMoved(**about))
        if world.start_step >= self.steps:
            self.say(host, ev.TrainingEnded(**about))
            return
        self.say(host, ev.Compiled(**about))
        host.step = world.start_step + 1
        self.granted = max(self.granted, host.step)
        self.say(host, ev.FirstStep(**about))

    # ----- running it

    def deliver(self, index: int = 0) -> None:
        """Hands over one waiting message."""
        self.tell(self.inbox.pop(index))

    def settle(self, until: Callable[[], bool] | None = None, most: int = 20_000) -> None:
        """Does all that is wanted and delivers all that is said, in order, until nothing waits."""
        for _ in range(most):
            if until is not None and until():
                return
            if self.todo:
                self.carry_out(self.todo.pop(0))
            elif self.inbox:
                self.deliver()
            else:
                return
        raise AssertionError(f"no end: {self.machine.state}, {self.inbox[:3]}, {self.todo[:3]}")

    def pass_time(self, seconds: float, every: float = 1.0) -> None:
        """Time passes, with heartbeats of all that are alive."""
        end = self.now + seconds
        while self.now < end and not self.machine.has_ended:
            self.now = min(end, self.now + every)
            self.beat()
            self.tell(ev.Tick(now=self.now))
            self.settle()

    def beat(self) -> None:
        """Every host that is alive and not hung is heard from."""
        for host in list(self.hosts.values()):
            if not host.is_hung:
                world = host.world
                self.tell(
                    ev.Heartbeat(
                        now=self.now,
                        host=host.id,
                        generation=world.generation if world else 0,
                        step=host.step if world else None,
                    )
                )

    def start(self, hosts: int | None = None) -> None:
        """The run begins and comes to its first steps, with hosts that are asked for."""
        self.tell(ev.RunStarted(now=self.now))
        for _ in range(hosts or 0):
            self.add_host()
        self.settle()

    def wanted(self, kind: type[act.Action]) -> list[Any]:
        """The actions of a kind that were carried out."""
        return [action for action in self.done if isinstance(action, kind)]
