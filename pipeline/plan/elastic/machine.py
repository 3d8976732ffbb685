"""The elastic state machine: events in, actions out, no I/O and no clock of its own.

A run has one *world* at a time. It is resized in one of two ways::

    planned     running -> notice -> draining -> leaving -> gathering -> joining -> moving
                -> starting -> running: all stop at one barrier, nothing is repeated
    unplanned   any of these -> leaving -> gathering -> ...: a host is lost or the world is broken;
                the newest state that is whole is restored, and the steps since then are repeated

Who drives it: the coordinator. It turns what it sees into events, hands each to ``handle``, keeps
``to_plain()`` in the run directory, and then carries out the actions. A coordinator that starts
again makes the machine ``from_plain``, hands it ``CoordinatorRestarted``, and gets what is
outstanding again.

Hosts repeat their last report when a coordinator has started again: what was not kept is then not
lost, and what was is not heard twice.
"""

from __future__ import annotations

import logging
from typing import Any

from meshfeed.pipeline.plan.elastic import events
from meshfeed.pipeline.plan.elastic.actions import Action, ReleaseHosts
from meshfeed.pipeline.plan.elastic.invariants import violations
from meshfeed.pipeline.plan.elastic.machine_state import MachineState
from meshfeed.pipeline.plan.elastic.mesh_rule import MeshRule
from meshfeed.pipeline.plan.elastic.plain_data import from_plain, to_plain
from meshfeed.pipeline.plan.elastic.policy import ElasticPolicy
from meshfeed.pipeline.plan.elastic.progress import STEPS
from meshfeed.pipeline.plan.elastic.records import Outcome, ResizeRecord, WishRecord
from meshfeed.pipeline.plan.elastic.reports import REPORTS
from meshfeed.pipeline.plan.elastic.restart import awaited, outstanding, pass_over
from meshfeed.pipeline.plan.elastic.states import TERMINAL, State
from meshfeed.pipeline.plan.elastic.steering import Arrange, Steering, keep_order
from meshfeed.pipeline.plan.elastic.wishes import refusal
from meshfeed.pipeline.plan.elastic.worlds import HostId, World
from meshfeed.pipeline.plan.errors import ConfigError

_log = logging.getLogger(__name__)


class ElasticMachine:
    """Decides who trains, from when on, with what state.

    Args:
        hosts: that the run should have.
        policy: limits and waits.
        rule: which numbers of hosts fit.
        arrange: who takes which place in a world; ``keep_order`` by default. Must be a function
            of what it is given.

    Raises:
        ConfigError: the number of hosts does not fit the policy or the rule.
    """

    def __init__(
        self,
        hosts: int,
        *,
        policy: ElasticPolicy,
        rule: MeshRule,
        arrange: Arrange = keep_order,
    ) -> None:
        if rule.hosts_per_group != policy.hosts_per_group:
            raise ConfigError(
                "hosts_per_group",
                f"{rule.hosts_per_group} for the mesh, {policy.hosts_per_group} in the policy",
                "They must be equal",
            )
        self._policy, self._rule, self._arrange = policy, rule, arrange
        self._state = MachineState(wanted=hosts)
        why = refusal(self._steering(), hosts)
        if why:
            raise ConfigError("hosts", why.removeprefix("hosts: "))

    def _steering(self) -> Steering:
        return Steering(
            state=self._state, policy=self._policy, rule=self._rule, arrange=self._arrange
        )

    @property
    def state(self) -> State:
        """What the run is doing."""
        return self._state.state

    @property
    def has_ended(self) -> bool:
        """Finished or failed."""
        return self._state.state in TERMINAL

    @property
    def generation(self) -> int:
        """Of the last world that was formed."""
        return self._state.generation

    @property
    def world(self) -> World | None:
        """The present world; None while there is none."""
        return self._state.world if self._state.has_world else None

    @property
    def ready_hosts(self) -> tuple[HostId, ...]:
        """Hosts that are there and in no world, the first to come first."""
        records = sorted(self._state.hosts.hosts.values(), key=lambda record: record.arrival)
        return tuple(r.host for r in records if not self._state.is_member(r.host))

    @property
    def candidates(self) -> tuple[str, ...]:
        """Names of the members of a world that would be formed now; () if none can be."""
        return self._steering().candidates()

    @property
    def resizes(self) -> tuple[ResizeRecord, ...]:
        """The resizes that are over."""
        return tuple(self._state.resizes)

    @property
    def wishes(self) -> tuple[WishRecord, ...]:
        """The wishes that are settled, and how."""
        return tuple(self._state.wishes)

    @property
    def wish(self) -> int | None:
        """Hosts that were asked for, while that is not settled."""
        return None if self._state.wish is None else self._state.wish.hosts

    @property
    def draining(self) -> tuple[HostId, ...]:
        """Hosts that are to leave and are still there."""
        return tuple(r.host for r in self._state.hosts.hosts.values() if r.drain is not None)

    def waits_for(self) -> tuple[HostId, ...]:
        """Members of which a report is awaited in the present state, for ``meshfeed status``."""
        return awaited(self._state)

    def handle(self, event: events.Event) -> tuple[Action, ...]:
        """What is to be done, now that this has happened."""
        c = self._steering()
        s = self._state
        if isinstance(event, events.CoordinatorRestarted):
            pass_over(c, event.now)
            for action in outstanding(c):
                c.emit(action)
        s.now = max(s.now, event.now)
        if s.state in TERMINAL:
            self._answer_too_late(c, event)
        elif self._is_heard(c, event):
            was = s.state
            report = REPORTS.get(type(event))
            if report is not None:
                report(c, event)
            # Nothing follows from a heartbeat but that a host is alive, and there are many.
            is_beat = isinstance(event, events.Heartbeat)
            while not is_beat and s.state not in TERMINAL and STEPS[s.state](c):
                pass
            if s.state is not was:
                _log.info("generation %d: %s -> %s", s.generation, was, s.state)
        return tuple(c.actions)

    def _is_heard(self, c: Steering, event: events.Event) -> bool:
        """Whether an event is of a host that is there, and of the present world."""
        s = self._state
        if isinstance(event, events.BarrierKnown | events.CheckpointStored):
            return event.generation == s.generation
        if not isinstance(event, events.HostEvent | events.Heartbeat):
            return True
        host = event.host
        if not s.hosts.knows(host):
            if s.hosts.released.get(host.name) == host.incarnation:
                c.emit(ReleaseHosts(hosts=(host,)))
            return False
        s.hosts.hear(host.name, s.now)
        if isinstance(event, events.Heartbeat):
            return True
        return event.generation == s.generation and s.was_member(host)

    @staticmethod
    def _answer_too_late(c: Steering, event: events.Event) -> None:
        detail = f"the run has {c.state.state}"
        if isinstance(event, events.ResizeAsked):
            c.answer(f"{event.hosts} hosts", Outcome.ENDED, detail)
        elif isinstance(event, events.DrainAsked):
            c.answer(f"drain of {event.host}", Outcome.ENDED, detail)

    def invariants(self) -> tuple[str, ...]:
        """What must hold and does not, in words; () always."""
        return violations(self._steering())

    def to_plain(self) -> dict[str, Any]:
        """All that it knows, as JSON values."""
        plain: dict[str, Any] = to_plain(self._state)
        return plain

    @classmethod
    def from_plain(
        cls,
        plain: dict[str, Any],
        *,
        policy: ElasticPolicy,
        rule: MeshRule,
        arrange: Arrange = keep_order,
    ) -> ElasticMachine:
        """The machine that ``to_plain`` has described.

        Raises:
            ChangedError: another version has written it.
        """
        state = from_plain(MachineState, plain)
        machine = cls.__new__(cls)
        machine._policy, machine._rule, machine._arrange = policy, rule, arrange
        machine._state = state
        return machine
