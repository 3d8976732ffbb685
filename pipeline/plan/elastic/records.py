"""What the report says about resizes and wishes."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from meshfeed.pipeline.plan.elastic.states import PHASES
from meshfeed.pipeline.plan.elastic.worlds import RestoreKind


class ResizeKind(StrEnum):
    """Whether there was time for a barrier."""

    PLANNED = "planned"
    UNPLANNED = "unplanned"


class Outcome(StrEnum):
    """What became of a wish."""

    DONE = "done"
    REFUSED = "refused"
    SUPERSEDED = "superseded"
    PARTLY = "partly"
    ENDED = "ended"


@dataclass(slots=True, kw_only=True)
class ResizeRecord:
    """One resize, from what brought it about to the first step of the new world.

    Attributes:
        generation: of the new world.
        kind: ``planned``, or ``unplanned`` if a world broke on the way.
        reasons: what brought it about, in order.
        step: at which the new world starts.
        hosts_from, hosts_to: hosts before and after.
        restored: what the state came from.
        steps_repeated: steps taken before that are taken again.
        broken_worlds: worlds that were given up on the way.
        seconds: by phase.
    """

    generation: int = 0
    kind: ResizeKind = ResizeKind.PLANNED
    reasons: list[str] = field(default_factory=list)
    step: int = 0
    hosts_from: int = 0
    hosts_to: int = 0
    restored: RestoreKind = RestoreKind.LIVE
    steps_repeated: int = 0
    broken_worlds: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))

    def as_report(self) -> dict[str, Any]:
        """The entry of ``resizes`` in ``report.json``; bytes are added by who moved them."""
        return {
            "generation": self.generation,
            "kind": str(self.kind),
            "reasons": list(self.reasons),
            "step": self.step,
            "hosts_from": self.hosts_from,
            "hosts_to": self.hosts_to,
            "restored": str(self.restored),
            "steps_repeated": self.steps_repeated,
            "broken_worlds": self.broken_worlds,
            "seconds": dict(self.seconds),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class WishRecord:
    """A wish and what became of it."""

    wish: str
    outcome: Outcome
    detail: str = ""
