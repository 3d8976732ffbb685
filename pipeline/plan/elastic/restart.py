"""A coordinator that starts again: what it has to ask for again, and time that does not count."""

from __future__ import annotations

from collections.abc import Iterator

from meshfeed.pipeline.plan.elastic.actions import (
    AbortWorld,
    Action,
    AnnounceBarrier,
    AskBarrier,
    Fail,
    FenceHost,
    Finish,
    FormWorld,
    LeaveWorld,
    MoveState,
    StartHosts,
)
from meshfeed.pipeline.plan.elastic.machine_state import MachineState, Mark
from meshfeed.pipeline.plan.elastic.states import State
from meshfeed.pipeline.plan.elastic.steering import Steering
from meshfeed.pipeline.plan.elastic.worlds import HostId


def pass_over(c: Steering, now: float) -> None:
    """While there was no coordinator no host was late, and no wait went on."""
    s = c.state
    gap = max(0.0, now - s.now)
    s.since += gap
    s.gather_until += gap
    s.running_since += gap
    if s.wish is not None:
        s.wish.asked += gap
    for record in s.hosts.hosts.values():
        record.heard = max(record.heard, now)
        if record.drain is not None:
            record.drain.asked += gap  # its deadline comes all the same


def outstanding(c: Steering) -> Iterator[Action]:
    """What was wanted and may not have been done."""
    s = c.state
    if s.failure is not None:
        hosts = s.without(Mark.LEFT)
        if hosts and s.abort_reason is not None:
            yield AbortWorld(generation=s.generation, hosts=hosts, reason=s.abort_reason)
        yield Fail(error=s.failure.error, host=s.failure.host, stage=s.failure.stage)
        return
    if s.state is State.FINISHED:
        yield Finish()
        return
    for host in s.fenced:
        yield FenceHost(host=host, generation=s.generation)
    wanted = max(s.goal, s.wish.hosts if s.wish is not None else 0)
    missing = wanted - len(s.hosts.hosts)
    if s.has_started and missing > 0:
        yield StartHosts(hosts=missing)
    yield from _of_state(s)


def _of_state(s: MachineState) -> Iterator[Action]:
    if s.state is State.JOINING and s.world is not None:
        yield FormWorld(world=s.world)
    elif s.state is State.MOVING and s.world is not None:
        yield MoveState(world=s.world)
    elif s.state is State.NOTICE:
        yield AskBarrier(generation=s.generation)
    elif s.state is State.DRAINING and s.barrier is not None:
        yield AnnounceBarrier(generation=s.generation, step=s.barrier, hosts=s.present)
    elif s.state is State.LEAVING and (hosts := s.without(Mark.LEFT)):
        if s.abort_reason is None:
            yield LeaveWorld(generation=s.generation, hosts=hosts)
        else:
            yield AbortWorld(generation=s.generation, hosts=hosts, reason=s.abort_reason)


def awaited(s: MachineState) -> tuple[HostId, ...]:
    """Members of which a report is awaited."""
    marks = {
        State.JOINING: (Mark.JOINED,),
        State.MOVING: (Mark.MOVED,),
        State.STARTING: (Mark.STEPPED,),
        State.DRAINING: (Mark.STORED,),
        State.LEAVING: (Mark.LEFT,),
        State.FINISHING: (Mark.ENDED, Mark.AT_BARRIER, Mark.LEFT),
    }.get(s.state)
    return s.without(*marks) if marks else ()
