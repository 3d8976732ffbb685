"""What each state of the elastic state machine waits for, and what follows.

Each function looks at one state; it changes it and returns True, or returns False where there is
nothing to do. The machine calls them after every event until nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable

from meshfeed.pipeline.plan.elastic.actions import (
    AskBarrier,
    Finish,
    FormWorld,
    LeaveWorld,
    MoveState,
    ReleaseHosts,
)
from meshfeed.pipeline.plan.elastic.machine_state import Mark
from meshfeed.pipeline.plan.elastic.records import Outcome, ResizeKind
from meshfeed.pipeline.plan.elastic.states import Cause, State
from meshfeed.pipeline.plan.elastic.steering import Steering
from meshfeed.pipeline.plan.elastic.wishes import due
from meshfeed.pipeline.plan.elastic.worlds import HostId, RestoreKind, World


def gather(c: Steering) -> bool:
    """Forms a world once the hosts that are worth waiting for are there, or the wait is over."""
    s, policy = c.state, c.policy
    if not s.has_started:
        return False
    names = c.candidates()
    is_over = s.now >= s.gather_until
    if names and (is_over or len(names) >= (c.largest(s.goal) or s.goal)):
        form(c, names)
        return True
    if is_over and s.now - s.since >= policy.hosts_wait_s:
        there = ", ".join(sorted(s.hosts.hosts)) or "none"
        sizes = c.rule.sizes(max(s.wanted, policy.min_hosts))
        c.fail(
            Cause.TOO_FEW_HOSTS,
            f"no world could be formed for {s.now - s.since:.0f} s (hosts_wait_s is "
            f"{policy.hosts_wait_s:g}): of at least {policy.min_hosts} hosts these are there: "
            f"{there}. Numbers that fit: {', '.join(map(str, sizes)) or 'none'}. Bring up hosts "
            "and run the same command again",
        )
        return True
    return False


def form(c: Steering, names: tuple[str, ...]) -> None:
    """The next world of these hosts begins."""
    s = c.state
    restore = s.stored.best()
    chosen = tuple(s.hosts.hosts[name].host for name in names)
    members = tuple(c.arrange(s.world, chosen, restore))
    if sorted(members) != sorted(chosen):
        raise ValueError(f"{members} are not the members {chosen} in another order")
    _take_in(c, names)
    s.generation += 1
    s.world = World(
        generation=s.generation,
        members=members,
        mesh=tuple(c.rule.mesh(len(members)).axes.items()),
        restore=restore,
    )
    s.marks, s.lost_members, s.barrier, s.abort_reason = {}, 0, None, None
    if s.record is not None:
        s.record_reached = max(s.record_reached, s.reached)
        s.record.generation = s.generation
        s.record.step = restore.step
        s.record.hosts_to = len(members)
        s.record.restored = restore.kind
        s.record.steps_repeated = max(0, s.record_reached - restore.step)
    s.reached = 0
    s.reach(restore.step)
    s.goal, s.gather_until = 0, s.now
    s.stored.begin_world(restore)
    c.go(Cause.HOSTS_SUFFICE)
    c.emit(FormWorld(world=s.world))


def _take_in(c: Steering, names: tuple[str, ...]) -> None:
    """These are the members; those of the last world that are too many will be released."""
    s = c.state
    groups = s.hosts.eligible(c.policy.hosts_per_group, ())
    too_many = sum(map(len, groups)) > s.wanted
    for host in s.present:
        if host.name not in names and too_many:
            s.hosts.hosts[host.name].dropped = True
    for name in names:
        s.hosts.hosts[name].dropped = False
        s.hosts.hosts[name].generation = s.generation + 1


def join(c: Steering) -> bool:
    """All come together, then take their state."""
    s = c.state
    if not s.have_all(Mark.JOINED):
        return _over(c, c.policy.join_limit_s, "join_limit_s", "joined", Mark.JOINED)
    if s.world is None or s.world.restore.kind is RestoreKind.INIT:
        c.go(Cause.NOTHING_TO_MOVE)
    else:
        c.go(Cause.ALL_JOINED)
        c.emit(MoveState(world=s.world))
    return True


def move(c: Steering) -> bool:
    """All take their state."""
    if not c.state.have_all(Mark.MOVED):
        return _over(c, c.policy.move_limit_s, "move_limit_s", "taken their state", Mark.MOVED)
    c.go(Cause.ALL_MOVED)
    return True


def start(c: Steering) -> bool:
    """All compile and take a step."""
    s = c.state
    if s.phase == "compile" and s.have_all(Mark.COMPILED):
        c.enter_phase("first_step")
    if not s.have_all(Mark.STEPPED):
        return _over(c, c.policy.start_limit_s, "start_limit_s", "taken a step", Mark.STEPPED)
    c.go(Cause.FIRST_STEPS_TAKEN)
    s.running_since = s.now
    s.fenced = []
    end_resize(c)
    return True


def end_resize(c: Steering) -> None:
    """The new world trains: the resize under way is over, and a wish for as many hosts is met."""
    s = c.state
    if s.record is not None and s.record.generation == s.generation:
        s.resizes.append(s.record)
    s.record = None
    if s.wish is not None and s.wish.hosts == len(s.members):
        c.answer_wish(Outcome.DONE, f"since step {s.world.start_step if s.world else 0}")


def run(c: Steering) -> bool:
    """Releases who has left, and begins the next resize when one is due."""
    s = c.state
    has_others = len(s.hosts.hosts) > len(s.members)
    if s.wish is None and not has_others and not s.hosts.draining(s.world.names if s.world else ()):
        return False
    _release(c)
    reason = due(c)
    if reason is None:
        return False
    c.begin_record(ResizeKind.PLANNED, reason)
    s.goal, s.gather_until = 0, s.now
    c.go(Cause.RESIZE_DUE)
    c.emit(AskBarrier(generation=s.generation))
    return True


def _release(c: Steering) -> None:
    """Hosts that are to leave go once the present world does not need their vaults."""
    s, policy = c.state, c.policy
    wanted_again = c.candidates()
    leaving = [
        record
        for name, record in sorted(s.hosts.hosts.items())
        if (record.drain is not None or (record.dropped and name not in wanted_again))
        and record.host not in s.members
    ]
    is_safe = (
        not policy.takes_snapshots
        or s.now - s.running_since >= policy.release_wait_s
        or any(
            state.kind is RestoreKind.SNAPSHOT and state.generation == s.generation
            for state in s.stored.usable()
        )
    )
    if not leaving or not is_safe:
        return
    for record in leaving:
        s.hosts.remove(record.host.name, released=True)
        s.stored.lose_vault(record.host.name)
        if record.drain is not None:
            c.answer(f"drain of {record.host.name}", Outcome.DONE, record.drain.reason)
    c.emit(ReleaseHosts(hosts=tuple(record.host for record in leaving)))


def notice(c: Steering) -> bool:
    """The barrier is waited for."""
    s = c.state
    if s.now - s.since < c.policy.notice_limit_s:
        return False
    c.fail(
        Cause.NO_BARRIER,
        f"generation {s.generation}: no barrier was fixed within notice_limit_s, which is "
        f"{c.policy.notice_limit_s:g} s. Look at the coordinator's log",
    )
    return True


def drain(c: Steering) -> bool:
    """All reach the barrier and store their state."""
    s = c.state
    if not s.have_all(Mark.STORED):
        what = f"stored their state at the barrier {s.barrier}"
        return _over(c, c.policy.drain_limit_s, "drain_limit_s", what, Mark.STORED)
    c.go(Cause.ALL_STORED)
    hosts = s.without(Mark.LEFT)
    if hosts:
        c.emit(LeaveWorld(generation=s.generation, hosts=hosts))
    return True


def leave(c: Steering) -> bool:
    """All leave; who does not in time is fenced."""
    s = c.state
    if not s.have_all(Mark.LEFT) and s.now - s.since < c.policy.leave_limit_s:
        return False
    for host in s.without(Mark.LEFT):
        c.lose(
            host,
            f"it has not left generation {s.generation} within leave_limit_s, which is "
            f"{c.policy.leave_limit_s:g} s",
            with_vault=False,
        )
    c.go(Cause.ALL_LEFT)
    if not c.candidates():
        c.ask_for_hosts(max(s.goal, c.policy.min_hosts))
    return True


def finish(c: Steering) -> bool:
    """All end; who waits at the barrier has nothing left to do either."""
    s = c.state
    marks = (Mark.ENDED, Mark.AT_BARRIER, Mark.LEFT)
    if s.have_all(*marks):
        c.answer_drains("the training has come to its end")
        c.go(Cause.ALL_ENDED)
        c.emit(Finish())
        return True
    if s.now - s.since < c.policy.finish_limit_s:
        return False
    missing = s.without(*marks)
    c.fail(
        Cause.NOT_ALL_ENDED,
        f"the training has ended on some hosts, but not on {_names(missing)} within "
        f"finish_limit_s, which is {c.policy.finish_limit_s:g} s",
        host=str(missing[0]),
    )
    return True


def _over(c: Steering, limit_s: float, setting: str, what: str, mark: Mark) -> bool:
    """Gives the world up if its members take too long. Nobody can tell who holds the others up."""
    s = c.state
    if s.now - s.since < limit_s:
        return False
    late = _names(s.without(mark))
    c.break_world(f"{late} had not {what} within {setting}, which is {limit_s:g} s")
    return True


def _names(hosts: tuple[HostId, ...]) -> str:
    shown = ", ".join(map(str, hosts[:8]))
    return f"{shown} and {len(hosts) - 8} more" if len(hosts) > 8 else shown


STEPS: dict[State, Callable[[Steering], bool]] = {
    State.GATHERING: gather,
    State.JOINING: join,
    State.MOVING: move,
    State.STARTING: start,
    State.RUNNING: run,
    State.NOTICE: notice,
    State.DRAINING: drain,
    State.LEAVING: leave,
    State.FINISHING: finish,
}
