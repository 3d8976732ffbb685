"""What the elastic coordinator and the trainer hosts say to each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from ray.actor import ActorHandle

from meshfeed.actors.elastic.images import Image
from meshfeed.pipeline.data.batches.agreement import BoxDigest
from meshfeed.pipeline.plan.elastic.records import ResizeRecord
from meshfeed.pipeline.plan.mesh import MeshLayout


class Phase(StrEnum):
    """What a trainer host is at."""

    STARTING = "starting"
    """Its process starts and imports; it touches no device."""

    READY = "ready"
    """It has imported all and waits for its world."""

    JOINING = "joining"
    """It joins the world of a generation."""

    TRAINING = "training"
    """``train(job)`` runs."""

    HELD = "held"
    """``train(job)`` waits in ``commit`` for whoever follows the run."""

    ENDED = "ended"
    """``train(job)`` has returned."""

    FAILED = "failed"
    """``train(job)`` has raised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedStep:
    """One step as one host has taken it.

    Attributes:
        step: its number.
        rows: that are not padding.
        boxes: digests of what lay on the host's devices; empty where none were asked for.
        waited: seconds for the batch.
        metrics: what ``job.report`` was given, as floats.
    """

    step: int
    rows: int
    boxes: tuple[BoxDigest, ...]
    waited: float
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Source:
    """Where the live state lies.

    Attributes:
        generation: in which it was made.
        step: that it is the state after.
        cursor: of the feed there.
        vaults: of each host that holds some of it.
        images: of each host's vault, what lies there and in which file.
    """

    generation: int
    step: int
    cursor: Mapping[str, Any]
    vaults: Mapping[str, ActorHandle]
    images: Mapping[str, Sequence[tuple[Image, str]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """The host whose vault keeps a replica of what only this host has."""

    host: str
    vault: ActorHandle


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Keeping:
    """What a host keeps of the state in a generation.

    Attributes:
        host: its name.
        hosts: of the generation, by process index.
        vault: of this host.
        neighbour: None where the host is alone.
        snapshot_every: steps; 0: never.
        timeout_s: of every wait.
    """

    host: str
    hosts: tuple[str, ...]
    vault: ActorHandle
    neighbour: Neighbour | None
    snapshot_every: int
    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Membership:
    """A generation as one of its hosts is told of it.

    Attributes:
        generation: its number.
        process_index: the host's place in it.
        process_count: hosts in it.
        address: of its coordination service.
        layout: of its mesh.
        keeping: where its state comes from and goes to.
    """

    generation: int
    process_index: int
    process_count: int
    address: str
    layout: MeshLayout
    keeping: Keeping


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """How far a trainer host is.

    Attributes:
        generation: that it belongs to.
        phase: what it is at.
        step: steps that are committed.
        feed_generation: of the opening of its feed, 0 before.
        at_barrier: with ``ended``: because the generation ends, and not training.
        held_at: with ``held``: the step.
        has_state: it has the state that the generation begins with.
        steps: taken since the last beat that was heard.
        seconds: of each phase of a resize that this host has been through.
        facts: about the state that was restored: bytes, leaves.
        error: with ``failed``: what was raised.
    """

    generation: int
    phase: Phase
    step: int = 0
    feed_generation: int = 0
    at_barrier: bool = False
    held_at: int | None = None
    has_state: bool = False
    steps: tuple[TrainedStep, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)
    error: BaseException | None = None
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What whoever follows the run hears of one host.

    Attributes:
        generation: the host's.
        process_index: its place in it.
        process_count: hosts in it.
        steps: that it has taken.
        held_at: the step at which it is held.
    """

    generation: int
    process_index: int
    process_count: int
    steps: tuple[TrainedStep, ...] = ()
    held_at: int | None = None


@dataclass(slots=True, kw_only=True)
class Resize:
    """One change of the membership.

    Attributes:
        generation: that it began.
        kind: ``planned`` or ``unplanned``.
        reasons: what brought it about.
        step: at which it went on.
        hosts_from, hosts_to: how many.
        places_from, places_to: the hosts, by process index.
        restored: what the state came from.
        bytes_moved: that came from other hosts' vaults.
        bytes_bound: fewer cannot: what hosts need and their own vaults do not hold.
        peak_extra_bytes: most that a host held beside the state while it moved.
        steps_repeated: that had been taken and were taken again.
        broken_worlds: that were given up on the way.
        seconds: by phase.
    """

    generation: int
    kind: str
    reasons: list[str]
    step: int
    hosts_from: int
    hosts_to: int
    places_from: tuple[str, ...]
    places_to: tuple[str, ...]
    restored: str
    steps_repeated: int
    broken_worlds: int
    seconds: dict[str, float]
    bytes_moved: int = 0
    bytes_bound: int = 0
    peak_extra_bytes: int = 0

    @classmethod
    def of(
        cls,
        record: ResizeRecord,
        places_from: tuple[str, ...],
        places_to: tuple[str, ...],
        beats: Sequence[Beat],
    ) -> Resize:
        """What the machine and the hosts of the new generation tell of it."""
        plain = record.as_report()
        seconds = plain["seconds"]
        told = {
            phase: max((beat.seconds.get(phase, 0.0) for beat in beats), default=0.0)
            for phase in ("plan", "compile")
        }
        starting = seconds["compile"] + seconds["first_step"]
        seconds["compile"] = min(told["compile"], starting)
        seconds["first_step"] = starting - seconds["compile"]
        return cls(
            **plain,
            places_from=places_from,
            places_to=places_to,
            bytes_moved=sum(beat.facts.get("bytes_received", 0) for beat in beats),
            bytes_bound=max((beat.facts.get("bytes_bound", 0) for beat in beats), default=0),
            peak_extra_bytes=max(
                (beat.facts.get("peak_extra_bytes", 0) for beat in beats), default=0
            ),
        )

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)
