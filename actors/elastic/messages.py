"""What the elastic coordinator and the trainer hosts say to each other."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from meshfeed.pipeline.data.batches.agreement import BoxDigest
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
    """``train(job)`` has returned and what must outlive it lies in the vault."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """A generation as one of its hosts is told of it.

    Attributes:
        generation: its number.
        process_index: the host's place in it.
        process_count: hosts in it.
        address: of its coordination service.
        layout: of its mesh.
    """

    generation: int
    process_index: int
    process_count: int
    address: str
    layout: MeshLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """How far a trainer host is.

    Attributes:
        generation: that it belongs to.
        phase: what it is at.
        step: steps that are committed.
        feed_generation: of the opening of its feed, 0 before.
        finished: with ``ended``: training is over, and not only this generation.
        held_at: with ``held``: the step.
        steps: taken since the last beat that was heard.
        seconds: of each phase of a resize that this host has been through.
        error: with ``failed``: what was raised.
    """

    generation: int
    phase: Phase
    step: int = 0
    feed_generation: int = 0
    finished: bool = False
    held_at: int | None = None
    steps: tuple[TrainedStep, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)
    error: BaseException | None = None
    facts: dict[str, Any] = field(default_factory=dict)
