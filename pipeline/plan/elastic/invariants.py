"""What holds after every event, whatever has happened."""

from __future__ import annotations

from collections.abc import Iterator

from meshfeed.pipeline.plan.elastic.machine_state import MachineState
from meshfeed.pipeline.plan.elastic.states import TERMINAL, State
from meshfeed.pipeline.plan.elastic.steering import Steering


def violations(c: Steering) -> tuple[str, ...]:
    """What does not hold, in words."""
    s = c.state
    return (*_of_world(c), *_of_steps(s), *_of_hosts(s), *_of_ends(s))


def _of_world(c: Steering) -> Iterator[str]:
    s = c.state
    if s.world is None:
        if s.has_world or s.generation:
            yield f"{s.state} in generation {s.generation} without a world"
        return
    world = s.world
    if world.generation != s.generation:
        yield f"the world is of generation {world.generation}, the run of {s.generation}"
    if len(set(world.names)) != len(world.names):
        yield f"a host is a member twice: {world.names}"
    size = len(world.members)
    if size < c.policy.min_hosts or size > (c.policy.max_hosts or size):
        yield f"{size} hosts are not within min_hosts and max_hosts"
    if not c.rule.fits(size):
        yield f"{size} hosts do not fit the mesh"
    if len(world.members) - s.lost_members != len(s.present):
        yield f"{s.lost_members} of {size} members are lost, but {len(s.present)} are there"
    names = {name for marks in s.marks.values() for name in marks}
    if not names <= set(world.names):
        yield f"reports of {names - set(world.names)}, who are no members"
    is_restoring = s.state in (State.JOINING, State.MOVING)
    if is_restoring and not s.stored.still_has(world.restore):
        yield f"{world.restore} is being restored and is not whole"
    if s.state not in (*TERMINAL, State.LEAVING, State.FINISHING, State.GATHERING):
        lost = set(world.members) - set(s.present)
        if lost:
            yield f"{s.state} with members that are lost: {lost}"


def _of_steps(s: MachineState) -> Iterator[str]:
    if s.barrier is not None and s.reached > s.barrier and s.state not in TERMINAL:
        yield f"steps before {s.reached} are taken, beyond the barrier {s.barrier}"
    if s.state is State.DRAINING and s.barrier is None:
        yield "draining to no barrier"
    if s.furthest < s.reached:
        yield f"furthest is {s.furthest}, this world is at {s.reached}"
    for state in s.stored.usable():
        if s.world is not None and state.generation == s.generation and state.step > s.reached:
            yield f"state of step {state.step} of a world that is at {s.reached}"
    generations = [record.generation for record in s.resizes]
    if generations != sorted(set(generations)):
        yield f"generations of resizes do not rise: {generations}"


def _of_hosts(s: MachineState) -> Iterator[str]:
    for name, record in s.hosts.hosts.items():
        if record.host.name != name or record.host.incarnation <= s.hosts.gone.get(name, -1):
            yield f"{record.host} is there and is not heard"


def _of_ends(s: MachineState) -> Iterator[str]:
    if s.state in TERMINAL and s.wish is not None:
        yield f"the run has {s.state} and a wish for {s.wish.hosts} hosts has no answer"
    if s.state in TERMINAL:
        for name, record in s.hosts.hosts.items():
            if record.drain is not None:
                yield f"the run has {s.state} and the drain of {name} has no answer"
    if (s.state is State.FAILED) != (s.failure is not None):
        yield f"{s.state} with failure {s.failure}"
