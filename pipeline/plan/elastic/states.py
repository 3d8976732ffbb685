"""The states of the elastic state machine, and every way from one to another.

``TRANSITIONS`` is the whole of it: the machine refuses a change that does not stand there, and the
diagram in the documentation is drawn from it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class State(StrEnum):
    """What the run is doing."""

    GATHERING = "gathering"
    """There is no world; hosts are waited for, and the next world is planned."""

    JOINING = "joining"
    """The members of a new world come together."""

    MOVING = "moving"
    """They take their state from vaults or from a checkpoint."""

    STARTING = "starting"
    """They compile and take their first step."""

    RUNNING = "running"
    """They train."""

    NOTICE = "notice"
    """A resize is due; the barrier is being fixed. They go on training."""

    DRAINING = "draining"
    """They train up to the barrier, stop there and store their state in the vaults."""

    LEAVING = "leaving"
    """They leave their world, because they are asked to or because it has broken."""

    FINISHING = "finishing"
    """The first of them has come to the end of the training."""

    FINISHED = "finished"
    """All have."""

    FAILED = "failed"
    """The run has ended with an error."""


TERMINAL = frozenset({State.FINISHED, State.FAILED})

HAS_WORLD = frozenset(State) - TERMINAL - {State.GATHERING}
"""States in which hosts are in a world, or on their way into it or out of it."""


class Cause(StrEnum):
    """Why a state is left."""

    HOSTS_SUFFICE = "enough hosts are there"
    TOO_FEW_HOSTS = "too few hosts for too long"
    ALL_JOINED = "all have joined"
    NOTHING_TO_MOVE = "all have joined, nothing is restored"
    ALL_MOVED = "all have their state"
    FIRST_STEPS_TAKEN = "all have taken a step"
    RESIZE_DUE = "a resize is due"
    BARRIER_KNOWN = "the barrier is known"
    NO_BARRIER = "no barrier within the limit"
    ALL_STORED = "all are at the barrier, state stored"
    ALL_LEFT = "all have left"
    WORLD_BROKEN = "a host is lost or the world is broken"
    WORLDS_KEEP_BREAKING = "world after world breaks"
    TRAINING_ENDED = "a host has ended its training"
    ALL_ENDED = "all have ended"
    NOT_ALL_ENDED = "not all end within the limit"
    USER_CODE_FAILED = "the user's code has failed"
    MESSAGES_DISAGREE = "messages contradict each other"


class Transition(NamedTuple):
    """One way from a state to another."""

    source: State
    cause: Cause
    target: State


_IN_WORLD = (
    State.JOINING,
    State.MOVING,
    State.STARTING,
    State.RUNNING,
    State.NOTICE,
    State.DRAINING,
    State.FINISHING,
)

TRANSITIONS: tuple[Transition, ...] = (
    Transition(State.GATHERING, Cause.HOSTS_SUFFICE, State.JOINING),
    Transition(State.GATHERING, Cause.TOO_FEW_HOSTS, State.FAILED),
    Transition(State.JOINING, Cause.ALL_JOINED, State.MOVING),
    Transition(State.JOINING, Cause.NOTHING_TO_MOVE, State.STARTING),
    Transition(State.MOVING, Cause.ALL_MOVED, State.STARTING),
    Transition(State.STARTING, Cause.FIRST_STEPS_TAKEN, State.RUNNING),
    Transition(State.RUNNING, Cause.RESIZE_DUE, State.NOTICE),
    Transition(State.NOTICE, Cause.BARRIER_KNOWN, State.DRAINING),
    Transition(State.NOTICE, Cause.NO_BARRIER, State.FAILED),
    Transition(State.DRAINING, Cause.ALL_STORED, State.LEAVING),
    Transition(State.LEAVING, Cause.ALL_LEFT, State.GATHERING),
    *(Transition(state, Cause.WORLD_BROKEN, State.LEAVING) for state in _IN_WORLD),
    *(Transition(state, Cause.WORLDS_KEEP_BREAKING, State.FAILED) for state in _IN_WORLD),
    *(
        Transition(state, Cause.TRAINING_ENDED, State.FINISHING)
        for state in _IN_WORLD
        if state is not State.FINISHING
    ),
    Transition(State.FINISHING, Cause.ALL_ENDED, State.FINISHED),
    Transition(State.FINISHING, Cause.NOT_ALL_ENDED, State.FAILED),
    *(
        Transition(state, Cause.USER_CODE_FAILED, State.FAILED)
        for state in (*_IN_WORLD, State.LEAVING)
    ),
    *(
        Transition(state, Cause.MESSAGES_DISAGREE, State.FAILED)
        for state in (State.NOTICE, State.DRAINING)
    ),
)

PHASES = ("notice", "drain", "leave", "plan", "join", "move", "compile", "first_step")
"""Of a resize, in the order of their times in the report."""

PHASE_OF_STATE = {
    State.NOTICE: "notice",
    State.DRAINING: "drain",
    State.LEAVING: "leave",
    State.GATHERING: "plan",
    State.JOINING: "join",
    State.MOVING: "move",
    State.STARTING: "compile",
}
"""``STARTING`` is ``compile`` until all have compiled, then ``first_step``."""


def diagram() -> str:
    """``TRANSITIONS`` as a Mermaid diagram: what several states have in common is drawn once."""
    together = tuple(state for state in _IN_WORLD if state is not State.FINISHING)
    shared = {
        (cause, target)
        for _, cause, target in TRANSITIONS
        if all(Transition(state, cause, target) in TRANSITIONS for state in together)
    }
    lines = ["stateDiagram-v2", f"    [*] --> {State.GATHERING}"]
    lines += ["    state in_a_world {"]
    inside = [
        t
        for t in TRANSITIONS
        if t.source in together and t.target in together and (t.cause, t.target) not in shared
    ]
    lines += [f"        {t.source} --> {t.target}: {t.cause}" for t in inside]
    lines += ["    }"]
    lines += [
        f"    in_a_world --> {target}: {cause}"
        for cause, target in dict.fromkeys((t.cause, t.target) for t in TRANSITIONS)
        if (cause, target) in shared
    ]
    lines += [
        f"    {t.source} --> {t.target}: {t.cause}"
        for t in TRANSITIONS
        if t not in inside and not (t.source in together and (t.cause, t.target) in shared)
    ]
    lines += [f"    {state} --> [*]" for state in State if state in TERMINAL]
    return "\n".join(lines) + "\n"
