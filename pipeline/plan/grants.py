"""How far ahead hosts may go: grants and acknowledgements.

A *grant* is the permission to take the steps before G, the same for every host. It is bounded by
what is ready, and in seconds of training ahead of the slowest host, so that a slow trainer does
not make the cluster hold what nobody takes. Release follows the smallest acknowledgement.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass

from meshfeed.pipeline.plan.errors import DisagreementError

_RATE_OVER_S = 0.2
_PATIENCE_S = 0.5
_SHORTEST_S = 0.05
_KEPT_GRANTS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantLimits:
    """How far ahead of the slowest host a grant may reach.

    Attributes:
        prefetch: global batches that a host keeps ready on its devices.
        seconds: of training at the rate seen.
        gather_seconds: a grant is raised this often at most, unless it is raised by much, so
            that hosts fetch many steps at once when steps are short.
    """

    prefetch: int = 2
    seconds: float = 5.0
    gather_seconds: float = 0.1

    @property
    def least_depth(self) -> int:
        """Steps ahead at least: hosts ask again at half of it and must not wait meanwhile."""
        return 2 * (self.prefetch + 1)


class GrantBook:
    """The acknowledgements of one membership, and the grant that follows from them.

    Args:
        processes: ``jax.process_count()`` of the membership.
        start_step: first step of the membership.
        limits: how far ahead a grant may reach.
    """

    def __init__(self, processes: int, start_step: int, limits: GrantLimits) -> None:
        self._acked = [start_step] * processes
        self._at_floor = processes
        self._waited = [(-1, 0.0)] * processes
        self._limits = limits
        self._floor = start_step
        self._granted = start_step
        self._grants: list[int] = []
        self._raised: float | None = None
        self._mark_step = start_step
        self._mark_time: float | None = None
        self._rate = 0.0
        self._closed = False

    @property
    def floor(self) -> int:
        """Steps before this one have been taken by every host."""
        return self._floor

    @property
    def granted(self) -> int:
        """Steps before this one may be taken. Never falls."""
        return self._granted

    @property
    def closed(self) -> bool:
        """The grant stays where it is: the membership ends there."""
        return self._closed

    def resume(self, granted: int) -> None:
        """The steps before ``granted`` were granted by a coordinator before this one."""
        if granted > self._granted:
            self._granted = granted
            self._grants.append(granted)

    def close(self) -> int:
        """Grants end where they are, the same for every host: the step after the last granted."""
        self._closed = True
        return self._granted

    def acknowledged(self, process: int) -> int:
        """Steps before this one have been taken by a host, as far as it has said."""
        return self._acked[process]

    @property
    def steps_per_second(self) -> float:
        """Rate of the slowest host, 0 until it has been seen."""
        return self._rate

    @property
    def least_depth(self) -> int:
        """Steps that a grant reaches ahead of the slowest host at least, once they are ready."""
        return self._limits.least_depth

    @property
    def depth(self) -> int:
        """Steps that a grant reaches ahead of the slowest host."""
        return max(self._limits.least_depth, math.ceil(self._rate * self._limits.seconds))

    def acknowledge(self, process: int, step: int, now: float) -> bool:
        """Process has taken all steps before ``step``; True if that moved the floor.

        Raises:
            DisagreementError: more than was granted.
        """
        if step > self._granted:
            raise DisagreementError(
                f"process {process} acknowledges the steps before {step}, but only those before "
                f"{self._granted} were granted: it belongs to another run or feed"
            )
        was = self._acked[process]
        if step <= was:
            return False
        self._acked[process] = step
        if was > self._floor:
            return False
        self._at_floor -= 1
        if self._at_floor:
            return False
        self._floor = min(self._acked)
        self._at_floor = self._acked.count(self._floor)
        self._measure(now)
        return True

    def advance(self, ready_steps: int, now: float, *, ended: bool = False) -> int:
        """The grant, now that the steps before ``ready_steps`` are ready.

        Args:
            ready_steps: steps whose rows are fixed and present.
            now: seconds, monotonic.
            ended: no step will follow; nothing is gathered.
        """
        reach = min(ready_steps, self._floor + self.depth)
        more = reach - self._granted
        if more <= 0 or self._closed:
            return self._granted
        due = self._raised is None or now - self._raised >= self._limits.gather_seconds
        if due or ended or 4 * more >= self.depth:
            self._granted = reach
            self._grants.append(reach)
            self._raised = now
            if len(self._grants) > _KEPT_GRANTS:
                # No host asks for what comes before it has taken, and so before the floor.
                del self._grants[: bisect_right(self._grants, self._floor)]
        return self._granted

    def could_raise(self, ready_steps: int) -> bool:
        """A grant is only being gathered: it will be raised though nothing else happens."""
        return not self._closed and min(ready_steps, self._floor + self.depth) > self._granted

    def grants_after(self, step: int) -> list[int]:
        """The grants given beyond ``step``, in order: the same bounds for every host."""
        return self._grants[bisect_right(self._grants, step) :]

    def patience(self, process: int, acked: int) -> float:
        """Seconds after which a host that waits for a grant should say again how far it is.

        What it takes while it waits releases windows, and in a small budget that is just what the
        next grant waits for. So it waits as long as it needs, at the rate seen, to come within
        half the least depth of the grant: from there on, the rows that must come next have a
        place reserved for them. Infinite for a host that is there already; twice as long as the
        last time for one that has taken nothing since, as while it saves a checkpoint.
        """
        left = self._granted - self._limits.least_depth // 2 - acked
        if left <= 0 or self._closed:
            return math.inf
        step, seconds = self._waited[process]
        if step == acked:
            seconds *= 2
        else:
            seconds = max(left / self._rate, _SHORTEST_S) if self._rate > 0 else _PATIENCE_S
        self._waited[process] = acked, seconds
        return seconds

    def slowest(self) -> int:
        """The process that has acknowledged least."""
        return self._acked.index(self._floor)

    def _measure(self, now: float) -> None:
        if self._mark_time is None:
            self._mark_step, self._mark_time = self._floor, now
            return
        elapsed = now - self._mark_time
        if elapsed < _RATE_OVER_S:
            return
        rate = (self._floor - self._mark_step) / elapsed
        self._rate = rate if self._rate == 0.0 else 0.5 * self._rate + 0.5 * rate
        self._mark_step, self._mark_time = self._floor, now
