"""Whether hosts of a slice group were given the same bytes: by digest, with no collective.

Hosts of a group fetch the same stretches of steps, so what arrived must have equal digests. They
come with acknowledgements, for some stretches only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from meshfeed.pipeline.plan.errors import DisagreementError

CHECK_EVERY = 8
"""One stretch in so many is compared, the first among them."""


class SliceDigest(NamedTuple):
    """What a host got for the steps [begin, end).

    Attributes:
        group: its slice group.
        digest: of all answers together.
        moves: of windows that the host knew of when it asked; hosts that knew of different ones may
            have asked different nodes.
    """

    group: int
    begin: int
    end: int
    digest: int
    moves: int = 0


class SliceSamples:
    """What a host got for some of its stretches, until it has told; for two threads."""

    def __init__(self) -> None:
        self._stretches = 0
        self._untold: deque[SliceDigest] = deque()

    def add(self, digest: SliceDigest) -> None:
        """A stretch has arrived."""
        if self._stretches % CHECK_EVERY == 0:
            self._untold.append(digest)
        self._stretches += 1

    def take(self) -> list[SliceDigest]:
        """What was not told yet."""
        return [self._untold.popleft() for _ in range(len(self._untold))]


class SliceChecks:
    """The digests of one opening of a feed that some hosts have told and others not yet."""

    def __init__(self) -> None:
        self._first: dict[tuple[int, int, int, int], tuple[int, int]] = {}

    def add(self, process: int, digests: Iterable[SliceDigest]) -> None:
        """What a process got.

        Raises:
            DisagreementError: another process of its group got something else.
        """
        for group, begin, end, digest, moves in digests:
            other, first = self._first.setdefault((group, begin, end, moves), (process, digest))
            if first != digest:
                raise DisagreementError(
                    f"steps {begin}..{end - 1}: process {other} was given {first:016x}, process "
                    f"{process} {digest:016x}, and both need the same slice. No further step is "
                    "granted"
                )

    def forget(self, step: int) -> None:
        """All hosts have taken the steps before ``step``."""
        for key in [key for key in self._first if key[2] <= step]:
            del self._first[key]
