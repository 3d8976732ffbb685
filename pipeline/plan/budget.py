"""How many bytes of row blocks a run needs, and what of a budget is kept for what it needs.

Hosts may always be ``L`` steps ahead of the slowest (``GrantBook.least_depth``), so the rows of
``L`` steps must have a place, whatever else is held. They lie in windows, and of each source one
window may reach into them from before and one beyond them. So with ``B`` bytes in a batch and
``w_s`` in a window of source ``s``, the urgent windows of a feed (see ``feed_state``) never take
more than ``L * B + 2 * sum(w_s)``.

On ``n`` nodes no window is divided, so every node may be left with a bit less room than the next
window takes: ``(n - 1) * max(w_s)`` more in all make sure that one of them has it. Windows ahead
of need are only leased while this much stays free of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from meshfeed.pipeline.plan.errors import BudgetError

WINDOW_SLACK = 1.5
"""Units of the largest window over ``window_size``: a group is cut into round(units / size)."""


class FeedNeed(NamedTuple):
    """Bytes that a feed needs.

    Attributes:
        rows_ahead: of the rows of the steps that hosts may be ahead.
        windows: of one window of each source, together.
        largest: of the largest window.
    """

    rows_ahead: int
    windows: int
    largest: int

    @classmethod
    def of(cls, steps_ahead: int, batch_bytes: int, window_bytes: Sequence[int]) -> FeedNeed:
        """What a feed needs.

        Args:
            steps_ahead: steps that a grant reaches ahead at least.
            batch_bytes: of one global batch in row blocks.
            window_bytes: of one window of each source, at most.
        """
        return cls(steps_ahead * batch_bytes, sum(window_bytes), max(window_bytes))

    @property
    def reserved(self) -> int:
        """Bytes that its urgent windows take at most, on all nodes together."""
        return self.rows_ahead + 2 * self.windows


def smallest_budget(feeds: Sequence[FeedNeed], nodes: int = 1) -> int:
    """Bytes of row blocks for each node below which feeds could wait for room for ever.

    Args:
        feeds: what each feed of the run needs; they may all be open at once.
        nodes: over which the windows are spread.
    """
    if not feeds or nodes < 1:
        return 0
    largest = max(feed.largest for feed in feeds)
    return -(-(sum(feed.reserved for feed in feeds) + (nodes - 1) * largest) // nodes)


def check_budget(given_bytes: int, needed_bytes: int) -> None:
    """Refuses a budget that is too small.

    Raises:
        BudgetError: with the number that works.
    """
    if given_bytes < needed_bytes:
        raise BudgetError(
            "memory_budget",
            given_bytes,
            needed_bytes,
            "On each node it must hold its part of the steps ahead and two windows of each source; "
            "smaller batches, seq_len or prefetch and more nodes need less",
        )
