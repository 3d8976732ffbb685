"""All that the elastic state machine knows: plain data, kept by the coordinator between events."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from meshfeed.pipeline.plan.elastic.host_book import HostBook
from meshfeed.pipeline.plan.elastic.records import ResizeRecord, WishRecord
from meshfeed.pipeline.plan.elastic.state_book import StateBook
from meshfeed.pipeline.plan.elastic.states import HAS_WORLD, State
from meshfeed.pipeline.plan.elastic.worlds import HostId, World


class Mark(StrEnum):
    """What a member of the present world has reported. Once set it stays until the next world."""

    JOINED = "joined"
    MOVED = "moved"
    COMPILED = "compiled"
    STEPPED = "stepped"
    AT_BARRIER = "at barrier"
    STORED = "stored"
    LEFT = "left"
    ENDED = "ended"


@dataclass(slots=True, kw_only=True)
class Wish:
    """A resize that was asked for and is not settled."""

    hosts: int
    asked: float


@dataclass(slots=True, kw_only=True)
class Failure:
    """The error with which the run has ended."""

    error: str
    host: str
    stage: str


@dataclass(slots=True, kw_only=True)
class MachineState:
    """The state of the machine. Times are in seconds, on the clock of the events.

    Attributes:
        wanted: hosts that the run should have; with fewer there it takes what fits.
        now: of the last event.
        state, since: what the run is doing, and since when.
        has_started: ``RunStarted`` has come.
        generation: of the last world that was formed; 0 before the first.
        world: the last world that was formed.
        marks: names of the members that have reported something, in this world.
        lost_members: members of this world that are there no more.
        barrier: the step before which this world ends, once it is known.
        reached: steps before it have been taken in this world, as far as is known.
        furthest: the same of all worlds.
        hosts: who is there.
        stored: what could be restored.
        wish: a resize that was asked for.
        goal: hosts that are worth waiting for, until ``gather_until``.
        gather_until: see there.
        running_since: when this world took its first step.
        broken_worlds: worlds in a row that broke without the run getting further.
        abort_reason: why the present world was given up, if it was.
        fenced: hosts fenced since the run last ran, to be fenced again if the coordinator dies.
        phase, phase_since: of the resize under way, for its times.
        record: of the resize under way.
        record_reached: steps before it have been taken when it began.
        resizes: those that are over.
        wishes: those that are settled.
        failure: with which the run has ended.
    """

    wanted: int
    now: float = 0.0
    state: State = State.GATHERING
    since: float = 0.0
    has_started: bool = False
    generation: int = 0
    world: World | None = None
    marks: dict[Mark, set[str]] = field(default_factory=dict)
    lost_members: int = 0
    barrier: int | None = None
    reached: int = 0
    furthest: int = 0
    hosts: HostBook = field(default_factory=HostBook)
    stored: StateBook = field(default_factory=StateBook)
    wish: Wish | None = None
    goal: int = 0
    gather_until: float = 0.0
    running_since: float = 0.0
    broken_worlds: int = 0
    abort_reason: str | None = None
    fenced: list[HostId] = field(default_factory=list)
    phase: str | None = None
    phase_since: float = 0.0
    record: ResizeRecord | None = None
    record_reached: int = 0
    resizes: list[ResizeRecord] = field(default_factory=list)
    wishes: list[WishRecord] = field(default_factory=list)
    failure: Failure | None = None

    @property
    def members(self) -> tuple[HostId, ...]:
        """Of the last world; () before the first."""
        return self.world.members if self.world is not None else ()

    @property
    def present(self) -> tuple[HostId, ...]:
        """Members of the last world that are still there."""
        return tuple(host for host in self.members if self.hosts.knows(host))

    @property
    def has_world(self) -> bool:
        """Hosts are in a world, or on their way into it or out of it."""
        return self.state in HAS_WORLD

    def is_member(self, host: HostId) -> bool:
        """Whether a host is in the present world."""
        return self.has_world and self.was_member(host)

    def was_member(self, host: HostId) -> bool:
        """Whether a host that is there is a member of the last world that was formed."""
        record = self.hosts.hosts.get(host.name)
        return (
            record is not None and record.host == host and record.generation == self.generation > 0
        )

    def marked(self, mark: Mark, host: HostId) -> bool:
        """Whether a member has reported this."""
        return host.name in self.marks.get(mark, ())

    def have_all(self, *marks: Mark) -> bool:
        """Whether every member that is still there has reported one of these.

        The names are only looked at once there are as many reports as members.
        """
        reports = sum(len(self.marks.get(mark, ())) for mark in marks)
        enough = reports >= len(self.members) - self.lost_members
        return enough and not self.without(*marks)

    def without(self, *marks: Mark) -> tuple[HostId, ...]:
        """Members that are still there and have reported none of these."""
        return tuple(
            host for host in self.present if not any(self.marked(mark, host) for mark in marks)
        )

    def set_marks(self, host: HostId, *marks: Mark) -> None:
        """A member has reported this."""
        for mark in marks:
            self.marks.setdefault(mark, set()).add(host.name)

    def reach(self, step: int) -> None:
        """Some host has taken the steps before this one in the present world."""
        self.reached = max(self.reached, step)
        if step > self.furthest:
            self.furthest = step
            self.broken_worlds = 0
