"""What the elastic state machine does with its state: change it, give up a world, end the run.

A ``Steering`` lives for one event: it collects the actions. Deciding when to do what is the part of
``progress`` (per state) and ``reports`` (per event).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from meshfeed.pipeline.plan.elastic.actions import (
    AbortWorld,
    Action,
    AnswerWish,
    Fail,
    FenceHost,
    KeepState,
    StartHosts,
)
from meshfeed.pipeline.plan.elastic.host_book import choose
from meshfeed.pipeline.plan.elastic.machine_state import Failure, MachineState, Mark
from meshfeed.pipeline.plan.elastic.mesh_rule import MeshRule
from meshfeed.pipeline.plan.elastic.policy import ElasticPolicy
from meshfeed.pipeline.plan.elastic.records import Outcome, ResizeKind, ResizeRecord, WishRecord
from meshfeed.pipeline.plan.elastic.states import (
    PHASE_OF_STATE,
    TRANSITIONS,
    Cause,
    State,
)
from meshfeed.pipeline.plan.elastic.worlds import HostId, Restore, World

Arrange = Callable[[World | None, tuple[HostId, ...], Restore], Sequence[HostId]]
"""(last world, members of the next: those of the last first in their old order, what it restores)
-> the member at each ``process_index``."""

_TARGETS = {(source, cause): target for source, cause, target in TRANSITIONS}


def keep_order(
    _last: World | None, members: tuple[HostId, ...], _restore: Restore
) -> Sequence[HostId]:
    """Members in their old order, new ones behind."""
    return members


@dataclass(slots=True, kw_only=True)
class Steering:
    """The state, what decides about it, and the actions of one event."""

    state: MachineState
    policy: ElasticPolicy
    rule: MeshRule
    arrange: Arrange = keep_order
    actions: list[Action] = field(default_factory=list)

    def emit(self, action: Action) -> None:
        """Wants something done."""
        self.actions.append(action)

    def go(self, cause: Cause) -> None:
        """Goes to the next state; there is one only if the table has it."""
        s = self.state
        s.state = _TARGETS[s.state, cause]
        s.since = s.now
        self.enter_phase(PHASE_OF_STATE.get(s.state))

    def enter_phase(self, phase: str | None) -> None:
        """Adds the time of the last phase to the resize under way."""
        s = self.state
        if s.record is not None and s.phase is not None:
            s.record.seconds[s.phase] += s.now - s.phase_since
        s.phase, s.phase_since = phase, s.now

    def begin_record(self, kind: ResizeKind, reason: str) -> None:
        """A resize begins, or the one under way goes on otherwise than was planned."""
        s = self.state
        if s.record is None:
            s.record = ResizeRecord(kind=kind, hosts_from=len(s.members))
            s.record_reached = s.reached
        if kind is ResizeKind.UNPLANNED:
            s.record.kind = kind
        s.record_reached = max(s.record_reached, s.reached)
        if reason not in s.record.reasons:
            s.record.reasons.append(reason)

    def largest(self, most: int) -> int | None:
        """The largest number of hosts up to ``most`` that is wanted, allowed and fits."""
        limit = min(most, self.state.wanted, self.policy.max_hosts or most)
        return self.rule.largest(limit, least=self.policy.min_hosts)

    def candidates(self) -> tuple[str, ...]:
        """The members of a world that would be formed now; () if none can be."""
        s = self.state
        groups = s.hosts.eligible(self.policy.hosts_per_group, [m.name for m in s.members])
        return choose(groups, self.largest)

    def ask_for_hosts(self, hosts: int) -> None:
        """Has so many hosts in all started, if there are fewer."""
        groups = self.state.hosts.eligible(self.policy.hosts_per_group, ())
        missing = hosts - sum(map(len, groups))
        if missing > 0:
            self.emit(StartHosts(hosts=missing))

    def lose(self, host: HostId, reason: str, *, with_vault: bool) -> None:
        """A host is gone: it is fenced, and a world that it was in is given up."""
        s = self.state
        was_member = s.is_member(host)
        s.lost_members += s.was_member(host)
        record = s.hosts.hosts.get(host.name)
        if record is not None and record.drain is not None:
            self.answer(f"drain of {host.name}", Outcome.DONE, f"it is lost: {reason}")
        s.hosts.remove(host.name)
        s.fenced.append(host)
        self.emit(FenceHost(host=host, generation=s.generation))
        if with_vault:
            self.lose_vault(host.name)
        if was_member and s.state not in (State.LEAVING, State.FINISHING):
            self.break_world(f"host {host} is lost: {reason}", host=host)
        elif s.has_started and (was_member or s.state is State.GATHERING):
            if s.record is not None:
                self.begin_record(ResizeKind.UNPLANNED, f"host {host} is lost: {reason}")
            self.wait_for_replacements()
            if s.state is State.GATHERING:
                self.ask_for_hosts(max(s.goal, self.policy.min_hosts))

    def lose_vault(self, name: str) -> None:
        """What lay in a vault is gone; a world that is taking its state from there is given up."""
        s = self.state
        s.stored.lose_vault(name)
        is_taking = s.state in (State.JOINING, State.MOVING)
        if s.world is not None and is_taking and not s.stored.still_has(s.world.restore):
            self.break_world(
                f"the vault of {name} is lost, from which the {s.world.restore} was taken"
            )

    def wait_for_replacements(self) -> None:
        """The next world waits for replacements, as long as the policy says."""
        s = self.state
        if self.policy.replacement_wait_s > 0:
            s.goal = max(s.goal, min(s.wanted, len(s.members)) or s.wanted)
            s.gather_until = max(s.gather_until, s.now + self.policy.replacement_wait_s)
            self.ask_for_hosts(s.goal)

    def break_world(self, reason: str, *, host: HostId | None = None) -> None:
        """The world is given up: whoever is left leaves it at once.

        Args:
            reason: for the report and the log.
            host: that was lost, if one was; its replacement is waited for.
        """
        s = self.state
        s.broken_worlds += 1
        if s.broken_worlds > self.policy.most_broken_worlds:
            self.fail(
                Cause.WORLDS_KEEP_BREAKING,
                f"{s.broken_worlds} worlds in a row broke before step {s.furthest + 1} was taken, "
                f"more than most_broken_worlds, which is {self.policy.most_broken_worlds}. "
                f"The last time: {reason}",
                host=str(host or ""),
            )
            return
        self.begin_record(ResizeKind.UNPLANNED, reason)
        if s.record is not None:
            s.record.broken_worlds += 1
        s.abort_reason = reason
        self.go(Cause.WORLD_BROKEN)
        self.abort(reason)
        s.goal, s.gather_until = 0, s.now
        if host is not None:
            self.wait_for_replacements()

    def abort(self, reason: str) -> None:
        """Whoever has not left the world leaves it at once."""
        s = self.state
        hosts = s.without(Mark.LEFT)
        if hosts:
            self.emit(AbortWorld(generation=s.generation, hosts=hosts, reason=reason))

    def fail(self, cause: Cause, error: str, *, host: str = "") -> None:
        """The run ends with an error."""
        s = self.state
        s.failure = Failure(error=error, host=host, stage=str(s.state))
        self.answer_wish(Outcome.ENDED, f"the run has failed: {error}")
        self.answer_drains(f"the run has failed: {error}")
        if s.has_world:
            s.abort_reason = error
            self.abort(error)
        self.go(cause)
        self.emit(Fail(error=error, host=host, stage=s.failure.stage))

    def answer_wish(self, outcome: Outcome, detail: str) -> None:
        """The wish for a resize is settled, if there is one."""
        s = self.state
        if s.wish is not None:
            self.answer(f"{s.wish.hosts} hosts", outcome, detail)
            s.wish = None

    def answer_drains(self, why: str) -> None:
        """The run is over: hosts that the last world was without have been left, others have not.

        Args:
            why: the run is over.
        """
        s = self.state
        for name, record in s.hosts.hosts.items():
            drain, record.drain = record.drain, None
            if drain is not None and s.is_member(record.host):
                self.answer(f"drain of {name}", Outcome.ENDED, why)
            elif drain is not None:
                self.answer(f"drain of {name}", Outcome.DONE, drain.reason)

    def answer(self, wish: str, outcome: Outcome, detail: str) -> None:
        """Says what became of a wish."""
        self.state.wishes.append(WishRecord(wish=wish, outcome=outcome, detail=detail))
        self.emit(AnswerWish(wish=wish, outcome=str(outcome), detail=detail))

    def prune(self) -> None:
        """Gives up state that is not needed any more."""
        if self.state.stored.prune():
            self.emit(KeepState(oldest_step=self.state.stored.oldest_step))
