"""Who of one opening of a feed is there, and why the others do not go on. Pure.

A membership ends for one of these reasons, the first that happens:

==========================  =====================================================================
a host fails or is lost     the others hear its error at once
a host closes the feed      the others take what is granted already; one that wants more is told
early                       who has left. Hosts that all stop at the same step hear nothing
a barrier                   all hosts end at the same step, and say that it was a barrier
the end of the feed         all hosts end there
==========================  =====================================================================
"""

from __future__ import annotations

from meshfeed.pipeline.plan.errors import FeedError, MeshfeedError


class Membership:
    """The hosts of one generation of a feed.

    Args:
        feed: its name.
        processes: ``jax.process_count()``.

    Attributes:
        error: what ended the membership for all; None while it goes on.
        left_early: the first process that closed the feed before its end, and at which step.
    """

    def __init__(self, feed: str, processes: int) -> None:
        self.error: MeshfeedError | None = None
        self.left_early: tuple[int, int] | None = None
        self._feed = feed
        self._processes = processes
        self._left: set[int] = set()

    @property
    def is_over(self) -> bool:
        """Nobody takes further steps: it has failed, or all have left."""
        return self.error is not None or len(self._left) == self._processes

    def has_left(self, process: int) -> bool:
        """A host has said that it takes no further step."""
        return process in self._left

    def leave(self, process: int, step: int, last: int | None, error: MeshfeedError | None) -> None:
        """A host ends its feed.

        Args:
            process: that leaves.
            step: that it would have taken next.
            last: step at which all end, None while that is not known.
            error: what made it leave, None where it closed the feed in good order.
        """
        if process in self._left:
            return
        self._left.add(process)
        if error is not None:
            self.fail(error)
        elif (last is None or step < last) and self.left_early is None:
            self.left_early = (process, step)

    def lose(self, process: int, step: int, why: str) -> None:
        """A host is gone without a word; it had acknowledged the steps before ``step``."""
        if process in self._left:
            return
        self._left.add(process)
        self.fail(
            FeedError(
                f"process {process} of {self._processes} is lost, after it said that it had taken "
                f"the steps before {step} of feed {self._feed}: {why}"
            )
        )

    def fail(self, error: MeshfeedError) -> None:
        """The membership ends for all; the first error is the one that all hear."""
        if self.error is None:
            self.error = error

    def why_no_more(self) -> MeshfeedError | None:
        """For a host that wants a step beyond the last grant: who has left early."""
        if self.left_early is None:
            return None
        process, step = self.left_early
        return FeedError(
            f"process {process} of {self._processes} closed feed {self._feed} at step {step}, so "
            "no further step is granted. Close it at the same step on every process"
        )


def told_error(error: BaseException, process: int, step: int) -> MeshfeedError:
    """An error of one host as the others hear it: it names the host and survives the way."""
    if isinstance(error, MeshfeedError):
        return error
    return FeedError(f"process {process} failed at step {step}: {type(error).__name__}: {error}")
