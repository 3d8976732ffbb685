"""What the elastic state machine wants done.

All of them can be carried out twice without harm: after ``CoordinatorRestarted`` those of the
present state come again.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshfeed.pipeline.plan.elastic.worlds import HostId, World


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """Something is to be done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartHosts(Action):
    """So many more hosts than are ready are wanted; ``HostReady`` for each.

    Attributes:
        hosts: awaited in all, those asked for before and not there yet included.
    """

    hosts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AskBarrier(Action):
    """Give no more grants, and say where they end: ``BarrierKnown``."""

    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnounceBarrier(Action):
    """All members stop before ``step`` and store their state.

    ``HostAtBarrier`` and ``StateStored`` for each.
    """

    generation: int
    step: int
    hosts: tuple[HostId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveWorld(Action):
    """These leave their world, in good order: ``WorldLeft`` for each."""

    generation: int
    hosts: tuple[HostId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortWorld(Action):
    """These stop at once, whatever they are in, and leave: ``WorldLeft`` for each.

    Attributes:
        reason: what their user's code is told, if anything.
    """

    generation: int
    hosts: tuple[HostId, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceHost(Action):
    """A lost host must do no more harm: end its process if it is there, hear it no more.

    Attributes:
        generation: the world in which it was lost.
    """

    host: HostId
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FormWorld(Action):
    """The members form this world: ``WorldJoined`` for each."""

    world: World


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveState(Action):
    """The members take their state from ``world.restore``: ``StateMoved`` for each."""

    world: World


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepState(Action):
    """Vaults keep the state before ``oldest_step`` and all that is newer; older state may go."""

    oldest_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseHosts(Action):
    """These are not needed any more: end them, and give their nodes back."""

    hosts: tuple[HostId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerWish(Action):
    """What became of a wish for a resize or a drain.

    Attributes:
        wish: in words, ``6 hosts`` or ``drain of node3``.
        outcome: ``done``, ``refused``, ``superseded``, ``partly`` or ``ended``.
        detail: why, and what would do.
    """

    wish: str
    outcome: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish(Action):
    """The training has ended on all hosts: end the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fail(Action):
    """The run ends with an error.

    Attributes:
        error: what was wrong, with value, limit and what to do.
        host: whose fault it is, where that is known.
        stage: what the run was doing.
    """

    error: str
    host: str
    stage: str
