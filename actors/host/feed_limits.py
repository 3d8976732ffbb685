"""How far and how long a host's feed goes, what it counts, and how it tells what it waits for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import ray
from ray.actor import ActorHandle

from meshfeed.pipeline.plan.errors import FeedError, MeshfeedError

READY_BYTES = 4 << 20
MANY_BATCHES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedLimits:
    """How far a host fetches ahead, and how long it waits.

    Attributes:
        prefetch: batches ready on the devices.
        stretch_bytes: fetched from a node at once, at most, beyond the first step.
        stall_s: a longer wait is logged with what is waited for.
        timeout_s: a longer wait ends the feed.
    """

    prefetch: int = 2
    stretch_bytes: int = 16 << 20
    stall_s: float = 30.0
    timeout_s: float = 600.0

    def batches(self, step_bytes: int) -> int:
        """Batches that may be ready at a time: more than ``prefetch`` where they are small.

        Threads then take turns less often, which is what a step of a few tokens costs most.
        """
        return max(self.prefetch, min(MANY_BATCHES, READY_BYTES // max(step_bytes, 1)))


@dataclass(slots=True)
class FeedCounters:
    """What a host has taken and fetched."""

    steps: int = 0
    bytes_fetched: int = 0
    fetches: int = 0
    fetched_again: int = 0
    polls: int = 0


def what_is_missing(coordinator: ActorHandle, feed: str) -> str:
    """One line for a stalled host: the window that is needed, and what the readers are doing."""
    try:
        status = ray.get(coordinator.status.remote(), timeout=10)
    except ray.exceptions.RayError as error:
        return f"the coordinator gives no status: {error}"
    busy = [
        f"{r['reader']} ({_process(r)}) {r['seconds']:.1f} s in {r['stage']} of {r['what']}"
        for r in status["readers"]
        if r.get("stage")
    ]
    needed = status["feeds"][feed].get("limiting_window")
    return f"window needed: {needed}; readers: {'; '.join(busy) or 'idle'}"


def _process(reader: dict[str, Any]) -> str:
    """Its process id; one that is only starting has none yet."""
    return f"pid {reader['pid']}" if "pid" in reader else "not up yet"


def cause_of(error: BaseException) -> BaseException:
    """What went wrong on the other side, not the fact that a Ray task failed."""
    cause = getattr(error, "cause", None)  # of a RayTaskError
    return cause if isinstance(cause, BaseException) else error


def raise_as_ours(error: BaseException, where: str) -> NoReturn:
    """Raises an error of a thread in the trainer's own.

    Raises:
        MeshfeedError: as it is, or about it.
    """
    if isinstance(error, MeshfeedError):
        raise error
    raise FeedError(f"{where}: {error}") from error
