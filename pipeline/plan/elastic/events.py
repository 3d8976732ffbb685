"""What the elastic state machine is told.

``now`` is in seconds on one clock for the whole run (Unix time: a coordinator that starts again may
be on another machine). An event of a host that has been replaced or fenced, or of a world that is
not the present one, changes nothing; nor does one that says again what is known.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshfeed.pipeline.plan.elastic.worlds import HostId


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something has happened at ``now``."""

    now: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(Event):
    """The run begins: the first event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick(Event):
    """Time has passed: limits and waits are looked at. One each second is often enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorRestarted(Event):
    """The machine was made again from its plain form; what is outstanding is asked for again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReady(Event):
    """A host has started and waits for a world.

    Attributes:
        host: the host, with a higher incarnation than any before of that name.
        group: hosts of one group join and leave together; "": any others.
    """

    host: HostId
    group: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainAsked(Event):
    """A host is to leave: an operator wants it, or it has a notice of preemption.

    Attributes:
        host: its name.
        reason: for the log and the report.
        deadline: when it will be gone; None: it can stay as long as it takes.
    """

    host: str
    reason: str
    deadline: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLost(Event):
    """A host is gone.

    Attributes:
        host: the host.
        reason: for the log and the report.
        with_vault: its node is gone too, and what lay in its vault.
    """

    host: HostId
    reason: str
    with_vault: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class VaultLost(Event):
    """What lay in the vault on a host's node is gone (or cannot be reached); the host may live."""

    host: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeAsked(Event):
    """An operator wants so many hosts. The last wish wins."""

    hosts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BarrierKnown(Event):
    """The answer to ``AskBarrier``: no step from ``step`` on was granted, nor will be."""

    generation: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointStored(Event):
    """The state before ``step`` is durable on storage."""

    generation: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HostEvent(Event):
    """A member of a world reports."""

    host: HostId
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat(Event):
    """A host is alive; any other event of it says so too.

    Attributes:
        step: steps before it have been taken in the present world, if it is in one.
    """

    host: HostId
    generation: int = 0
    step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldJoined(HostEvent):
    """It is in the world."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateMoved(HostEvent):
    """It has its state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled(HostEvent):
    """It has compiled its step. Only the report needs this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstStep(HostEvent):
    """It has taken the first step of the world."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostAtBarrier(HostEvent):
    """It has taken all steps before the barrier ``step``, and stopped."""

    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StateStored(HostEvent):
    """It is at the barrier ``step`` and its part of the state lies in the vaults.

    Attributes:
        vaults: names of the hosts on whose nodes it lies; (): on its own.
    """

    step: int
    vaults: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotStored(HostEvent):
    """Its part of the snapshot before ``step`` lies in the vaults.

    Attributes:
        vaults: names of the hosts on whose nodes it lies. May be sent again as copies are added.
    """

    step: int
    vaults: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldLeft(HostEvent):
    """It is in no world any more and can join another.

    Attributes:
        step: steps before it have been taken; None: not known.
    """

    step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldBroken(HostEvent):
    """A collective or a connection of it has failed, as when another host dies.

    Where the user's code has failed it is ``Failed``.
    """

    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed(HostEvent):
    """The user's code has raised."""

    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingEnded(HostEvent):
    """The user's ``train`` has returned.

    Where a barrier lies at the end of the training, this comes instead of ``HostAtBarrier``.
    """
