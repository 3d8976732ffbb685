"""How far a host may go, as it was told, and the stretches of steps that it fetches at once."""

from __future__ import annotations

from collections import deque

from meshfeed.actors.messages import FeedUpdate
from meshfeed.pipeline.plan.errors import MeshfeedError


class Granted:
    """The grants of one opening, for one host. Not locked by itself.

    Args:
        step: first of the opening.
        depth: steps that a grant reaches ahead at least.
        stretch_steps: fetched at once, at most.

    Attributes:
        step: steps before this one may be taken.
        last: all hosts end there; None: not known yet.
        total: steps of the feed; None: not known yet.
        no_more: an error for whoever wants a step from ``last`` on; None where it just ends there.
    """

    def __init__(self, step: int, depth: int, stretch_steps: int) -> None:
        self.step = step
        self.last: int | None = None
        self.total: int | None = None
        self.no_more: MeshfeedError | None = None
        self._depth = depth
        self._stretch_steps = stretch_steps
        self._stretches: deque[tuple[int, int]] = deque()

    def learn(self, update: FeedUpdate) -> None:
        """Takes in what the coordinator says."""
        self._depth = update.depth
        for grant in update.grants:
            steps = range(self.step, grant, self._stretch_steps)
            self._stretches += [(at, min(at + self._stretch_steps, grant)) for at in steps]
            self.step = grant
        self.total = update.total_steps
        self.last, self.no_more = update.last_step, update.no_more

    def next_stretch(self) -> tuple[int, int] | None:
        """Steps [begin, end) to be fetched next; None where no further one is granted."""
        return self._stretches.popleft() if self._stretches else None

    @property
    def has_stretch(self) -> bool:
        """Some steps are granted and not fetched."""
        return bool(self._stretches)

    @property
    def all_granted(self) -> bool:
        """There will be no further grant."""
        return self.step == self.last

    def is_finished(self, taken: int) -> bool:
        """A host that has taken the steps before ``taken`` has taken all."""
        return self.last is not None and taken >= self.last

    def wants_more(self, taken: int) -> bool:
        """It is time to ask: half of what was granted is taken, or all that there is."""
        if self.last is not None and self.step >= self.last:
            return taken >= self.last
        return self.step - taken <= max(self._depth // 2, 1)
