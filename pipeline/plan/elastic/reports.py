"""What each event changes in the state of the elastic state machine.

Events of hosts that are not heard, and of other worlds, do not come this far.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshfeed.pipeline.plan.elastic import events
from meshfeed.pipeline.plan.elastic.actions import AnnounceBarrier
from meshfeed.pipeline.plan.elastic.host_book import Drain
from meshfeed.pipeline.plan.elastic.machine_state import Mark, Wish
from meshfeed.pipeline.plan.elastic.progress import end_resize
from meshfeed.pipeline.plan.elastic.records import Outcome
from meshfeed.pipeline.plan.elastic.states import Cause, State
from meshfeed.pipeline.plan.elastic.steering import Steering
from meshfeed.pipeline.plan.elastic.wishes import refusal
from meshfeed.pipeline.plan.elastic.worlds import HostId, Part, RestoreKind

_FORMING = (State.JOINING, State.MOVING, State.STARTING)


def run_started(c: Steering, _event: events.RunStarted) -> None:
    """Waits for the hosts that are wanted."""
    s = c.state
    if s.has_started:
        return
    s.has_started = True
    s.since, s.goal = s.now, s.wanted
    s.gather_until = s.now + c.policy.hosts_wait_s
    c.ask_for_hosts(s.wanted)


def tick(c: Steering, _event: events.Tick) -> None:
    """Whoever has not been heard from for too long is lost."""
    s, limit = c.state, c.policy.heartbeat_limit_s
    silent = [r.host for r in s.hosts.hosts.values() if s.now - r.heard > limit]
    for host in silent:
        c.lose(
            host, f"not heard from for heartbeat_limit_s, which is {limit:g} s", with_vault=False
        )


def host_ready(c: Steering, event: events.HostReady) -> None:
    """A host waits for a world. One of the same name that was there before it is lost."""
    s, host = c.state, event.host
    old = s.hosts.hosts.get(host.name)
    if old is not None and old.host.incarnation < host.incarnation:
        c.lose(old.host, f"it has started again, as {host}", with_vault=False)
    if s.hosts.add(host, event.group, s.now):
        s.stored.new_vault(host.name)


def drain_asked(c: Steering, event: events.DrainAsked) -> None:
    """The host is left out of the next world."""
    s = c.state
    record = s.hosts.hosts.get(event.host)
    if record is None:
        c.answer(
            f"drain of {event.host}",
            Outcome.REFUSED,
            f"there is no such host; there are {', '.join(sorted(s.hosts.hosts)) or 'none'}",
        )
        return
    if record.drain is None:
        record.drain = Drain(reason=event.reason, asked=s.now, deadline=event.deadline)
        if s.is_member(record.host) and c.policy.replacement_wait_s > 0:
            c.ask_for_hosts(min(s.wanted, len(s.members)))
    elif event.deadline is not None:
        known = record.drain.deadline
        record.drain.deadline = event.deadline if known is None else min(known, event.deadline)


def host_lost(c: Steering, event: events.HostLost) -> None:
    """A host is gone; perhaps one that is not heard any more, and only its vault matters."""
    s, host = c.state, event.host
    if s.hosts.knows(host):
        c.lose(host, event.reason, with_vault=event.with_vault)
    elif event.with_vault and host.name not in s.hosts.hosts:
        c.lose_vault(host.name)


def vault_lost(c: Steering, event: events.VaultLost) -> None:
    """What lay there is gone."""
    c.lose_vault(event.host)


def resize_asked(c: Steering, event: events.ResizeAsked) -> None:
    """The last wish wins; one that cannot be is refused and changes nothing."""
    s = c.state
    why = refusal(c, event.hosts)
    if s.state is State.FINISHING:
        c.answer(f"{event.hosts} hosts", Outcome.ENDED, "the training has come to its end")
        return
    if why:
        c.answer(f"{event.hosts} hosts", Outcome.REFUSED, f"{why}. The run goes on as it was")
        return
    if s.wish is not None and s.wish.hosts == event.hosts:
        return
    c.answer_wish(Outcome.SUPERSEDED, f"{event.hosts} hosts were asked for after it")
    s.wanted = event.hosts
    s.wish = Wish(hosts=event.hosts, asked=s.now)
    if s.has_started:
        c.ask_for_hosts(event.hosts)


def barrier_known(c: Steering, event: events.BarrierKnown) -> None:
    """All stop there."""
    s = c.state
    if s.state is not State.NOTICE:
        return
    if event.step < s.reached:
        c.fail(
            Cause.MESSAGES_DISAGREE,
            f"generation {s.generation}: the barrier is step {event.step}, but the steps before "
            f"{s.reached} have been taken: a host has gone beyond what was granted",
        )
        return
    s.barrier = event.step
    c.go(Cause.BARRIER_KNOWN)
    c.emit(AnnounceBarrier(generation=s.generation, step=event.step, hosts=s.present))


def checkpoint_stored(c: Steering, event: events.CheckpointStored) -> None:
    """The last resort is newer."""
    c.state.reach(event.step)
    c.state.stored.add_checkpoint(event.step, event.generation)


def heartbeat(c: Steering, event: events.Heartbeat) -> None:
    """A host is alive, and perhaps further than was known."""
    s = c.state
    if event.step is not None and event.generation == s.generation and s.is_member(event.host):
        s.reach(event.step)


def world_joined(c: Steering, event: events.WorldJoined) -> None:
    """It is in the world."""
    c.state.set_marks(event.host, Mark.JOINED)


def state_moved(c: Steering, event: events.StateMoved) -> None:
    """It has its state, and so has joined."""
    c.state.set_marks(event.host, Mark.JOINED, Mark.MOVED)


def compiled(c: Steering, event: events.Compiled) -> None:
    """It has compiled."""
    c.state.set_marks(event.host, Mark.JOINED, Mark.MOVED, Mark.COMPILED)


def first_step(c: Steering, event: events.FirstStep) -> None:
    """It has taken the first step; no state was needed that it has not got."""
    s = c.state
    s.set_marks(event.host, Mark.JOINED, Mark.MOVED, Mark.COMPILED, Mark.STEPPED)
    if s.world is not None:
        s.reach(s.world.start_step + 1)


def host_at_barrier(c: Steering, event: events.HostAtBarrier) -> None:
    """It waits there."""
    _at_barrier(c, event.host, event.step)


def state_stored(c: Steering, event: events.StateStored) -> None:
    """Its part of the live state is safe."""
    s = c.state
    if _at_barrier(c, event.host, event.step) and s.world is not None:
        s.set_marks(event.host, Mark.STORED)
        s.stored.add(
            RestoreKind.LIVE,
            event.step,
            s.world,
            Part(owner=event.host.name, vaults=event.vaults or (event.host.name,)),
            copies=1,
        )


def _at_barrier(c: Steering, host: HostId, step: int) -> bool:
    """Whether a member is at the barrier that was announced."""
    s = c.state
    if s.barrier is None or step < s.barrier:
        return False
    if step > s.barrier:
        if s.state is State.DRAINING:
            c.fail(
                Cause.MESSAGES_DISAGREE,
                f"generation {s.generation}: {host} has stopped before step {step}, beyond the "
                f"barrier {s.barrier}: it has taken steps that were not granted",
                host=str(host),
            )
        return False
    s.reach(step)
    s.set_marks(host, Mark.AT_BARRIER)
    return True


def snapshot_stored(c: Steering, event: events.SnapshotStored) -> None:
    """A part of a snapshot is safe."""
    s = c.state
    if s.world is None:
        return
    s.reach(event.step)
    counts = s.stored.add(
        RestoreKind.SNAPSHOT,
        event.step,
        s.world,
        Part(owner=event.host.name, vaults=event.vaults),
        copies=min(c.policy.snapshot_copies, max(1, len(s.hosts.hosts))),
    )
    if counts:
        c.prune()


def world_left(c: Steering, event: events.WorldLeft) -> None:
    """It is in no world; without having been asked, the others cannot go on."""
    s = c.state
    if event.step is not None:
        s.reach(event.step)
    s.set_marks(event.host, Mark.LEFT)
    if s.state not in (State.LEAVING, State.GATHERING, State.FINISHING):
        c.break_world(f"{event.host} has left the world unasked")


def world_broken(c: Steering, event: events.WorldBroken) -> None:
    """The world is given up; if a host was lost, that will be known soon."""
    s = c.state
    if s.state not in (State.LEAVING, State.GATHERING) and not s.marked(Mark.ENDED, event.host):
        c.break_world(f"{event.host}: {event.error}")


def failed(c: Steering, event: events.Failed) -> None:
    """The run ends with this error, on every host.

    In a world that is being given up, code fails because it is being given up.
    """
    s = c.state
    if s.state is State.GATHERING or (s.state is State.LEAVING and s.abort_reason is not None):
        return
    c.fail(
        Cause.USER_CODE_FAILED,
        f"{event.host} failed in generation {s.generation}: {event.error}",
        host=str(event.host),
    )


def training_ended(c: Steering, event: events.TrainingEnded) -> None:
    """There is nothing left to do: what is wanted besides is dropped."""
    s = c.state
    if s.state in (State.LEAVING, State.GATHERING):
        return
    s.set_marks(event.host, Mark.JOINED, Mark.MOVED, Mark.COMPILED, Mark.STEPPED, Mark.ENDED)
    if s.state is State.FINISHING:
        return
    is_forming = s.state in _FORMING
    c.go(Cause.TRAINING_ENDED)
    if is_forming:
        end_resize(c)
    s.record = None
    c.answer_wish(Outcome.ENDED, "the training has come to its end")


REPORTS: dict[type[events.Event], Callable[[Steering, Any], None]] = {
    events.RunStarted: run_started,
    events.Tick: tick,
    events.HostReady: host_ready,
    events.DrainAsked: drain_asked,
    events.HostLost: host_lost,
    events.VaultLost: vault_lost,
    events.ResizeAsked: resize_asked,
    events.BarrierKnown: barrier_known,
    events.CheckpointStored: checkpoint_stored,
    events.Heartbeat: heartbeat,
    events.WorldJoined: world_joined,
    events.StateMoved: state_moved,
    events.Compiled: compiled,
    events.FirstStep: first_step,
    events.HostAtBarrier: host_at_barrier,
    events.StateStored: state_stored,
    events.SnapshotStored: snapshot_stored,
    events.WorldLeft: world_left,
    events.WorldBroken: world_broken,
    events.Failed: failed,
    events.TrainingEnded: training_ended,
}
