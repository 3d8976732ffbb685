"""One source's rows in order: its windows, epoch by epoch, with the running sums of their rows.

==========  ==========================================================================
index       runs over
==========  ==========================================================================
number      the rows of the source over all epochs, from the first of the run
slot        the windows known here, from the one at which the feed was opened
==========  ==========================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshfeed.pipeline.plan.config import OnEnd
from meshfeed.pipeline.plan.cursor import SourceCursor
from meshfeed.pipeline.plan.errors import ChangedError, ConfigError, DataError

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePlan:
    """What a schedule needs to know of a source.

    Attributes:
        name: of the source.
        weight: share in the mixture, any positive number.
        on_end: what the feed does when the source's epochs are over.
        epochs: passes over the source; None: endless.
        windows_in_epoch: the number of windows of an epoch.
    """

    name: str
    weight: float
    on_end: OnEnd
    epochs: int | None
    windows_in_epoch: Callable[[int], int]

    def __post_init__(self) -> None:
        if self.epochs is not None and self.epochs < 1:
            raise ConfigError(f"sources.{self.name}.epochs", f"{self.epochs} is below 1")
        if self.on_end is OnEnd.REPEAT and self.epochs is not None:
            raise ConfigError(
                f"sources.{self.name}.epochs", f"{self.epochs}, but on_end is repeat: endless"
            )


class _Growing:
    """int64 values, appended in amortized constant time."""

    def __init__(self, *values: int) -> None:
        self._buffer = np.array(values, np.int64)
        self._size = len(values)

    @property
    def values(self) -> Int64s:
        return self._buffer[: self._size]

    def extend(self, values: Int64s) -> None:
        size = self._size + len(values)
        if size > len(self._buffer):
            grown = np.empty(max(16, size, 2 * len(self._buffer)), np.int64)
            grown[: self._size] = self.values
            self._buffer = grown
        self._buffer[self._size : size] = values
        self._size = size

    def drop(self, count: int) -> None:
        """Forgets the first ``count`` values."""
        self._buffer = self._buffer[count : self._size].copy()
        self._size = len(self._buffer)


class SourceRows:
    """Maps the rows of a source to its windows.

    Args:
        plan: of the source.
        start: where the source is; the first window to be appended is that of its last row.

    Attributes:
        plan: of the source.
        ended: no window will follow.
    """

    def __init__(self, plan: SourcePlan, start: SourceCursor) -> None:
        self.plan = plan
        self.ended = not start.active
        self._start = start
        self._end = start.drawn - start.row
        self._bounds = _Growing(self._end)
        self._first_slot = 0
        self._first_epoch = start.epoch
        self._epoch_slots = _Growing(-start.window)
        self._epoch, self._window = start.epoch, start.window
        self._counts: dict[int, int] = {}
        self._epoch_rows = 0
        self._epoch_records = 0
        if self.ended:
            return
        windows = self._windows_in(self._epoch)
        if not windows and not start.drawn:
            self._no_windows()
        elif self._window >= windows or (plan.epochs is not None and self._epoch >= plan.epochs):
            raise ChangedError(
                f"the cursor is at epoch {self._epoch}, window {self._window} of source "
                f"{plan.name!r}, which has {plan.epochs or 'endless'} epochs and {windows} windows"
            )

    @property
    def known(self) -> int:
        """Rows up to the end of the last window appended, from the first of the run."""
        return max(self._end, self._start.drawn)

    def next_window(self) -> tuple[int, int] | None:
        """(epoch, window) of the next window to be appended, None when the source has ended."""
        return None if self.ended else (self._epoch, self._window)

    def window_after(self, epoch: int, window: int) -> tuple[int, int] | None:
        """(epoch, window) of the window that follows another, None at the source's end."""
        if window + 1 < self._windows_in(epoch):
            return epoch, window + 1
        last = self.plan.epochs is not None and epoch + 1 >= self.plan.epochs
        return None if last else (epoch + 1, 0)

    def append(self, rows: Sequence[int] | Int64s, records: Sequence[int] | Int64s | None) -> None:
        """Row counts of the next windows, and how many records they were made from.

        Raises:
            ChangedError: a window beyond the source's end, or one that has fewer rows than the
                cursor says were given of it.
            DataError: an epoch without a row.
        """
        counts = np.array(rows, np.int64, ndmin=1)
        read = np.ones(len(counts), np.int64) if records is None else np.array(records, np.int64)
        if len(counts) and counts.min() < 0:
            raise ValueError(f"a window of {self.plan.name!r} has {counts.min()} rows")
        self._check_start(counts)
        while len(counts):
            if self.ended:
                raise ChangedError(
                    f"{len(counts)} windows more than source {self.plan.name!r} has: the row "
                    "counts are those of another data set or another number of epochs"
                )
            left = self._windows_in(self._epoch) - self._window
            if left < 1:
                raise ChangedError(
                    f"source {self.plan.name!r} has no window in epoch {self._epoch}"
                )
            here, counts = counts[:left], counts[left:]
            ends = self._end + np.cumsum(here)
            self._bounds.extend(ends)
            self._end = int(ends[-1])
            self._window += len(here)
            self._epoch_rows += int(here.sum())
            self._epoch_records += int(read[: len(here)].sum())
            read = read[left:]
            if len(here) == left:
                self._end_epoch()

    def locate(self, numbers: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """(epoch, window, row) of rows by their numbers: int64 ``[n]`` -> 3 times int64 ``[n]``."""
        bounds = self._bounds.values
        slot = bounds[1:].searchsorted(numbers, side="right")
        row = numbers - bounds[slot]
        slot += self._first_slot
        epoch_slots = self._epoch_slots.values
        epoch = epoch_slots.searchsorted(slot, side="right") - 1
        return epoch + self._first_epoch, slot - epoch_slots[epoch], row

    def place_after(self, drawn: int) -> tuple[int, int, int]:
        """(epoch, window, row) behind the last of the first ``drawn`` rows."""
        if drawn == self._start.drawn:
            return self._start.epoch, self._start.window, self._start.row
        epoch, window, row = self.locate(np.array([drawn - 1]))
        return int(epoch[0]), int(window[0]), int(row[0]) + 1

    def forget(self, drawn: int) -> None:
        """Drops the windows that end before the last of the first ``drawn`` rows.

        Does so only once they are the larger part, so that a row costs constant time.
        """
        old = int(np.searchsorted(self._bounds.values[1:], drawn, side="left"))
        if 2 * old > len(self._bounds.values):
            self._bounds.drop(old)
            self._first_slot += old

    def _windows_in(self, epoch: int) -> int:
        if epoch not in self._counts:
            if len(self._counts) >= 4:
                del self._counts[min(self._counts)]
            self._counts[epoch] = self.plan.windows_in_epoch(epoch)
        return self._counts[epoch]

    def _check_start(self, counts: Int64s) -> None:
        first = self._first_slot == 0 and len(self._bounds.values) == 1
        if first and len(counts) and counts[0] < self._start.row:
            raise ChangedError(
                f"window {self._start.window} of source {self.plan.name!r}, epoch "
                f"{self._start.epoch}, has {counts[0]} rows, but the cursor says that "
                f"{self._start.row} of them were given"
            )

    def _no_windows(self) -> None:
        """The manifest has nothing in it: no epoch will ever give a row."""
        if self.plan.epochs is None:
            raise DataError(
                f"source {self.plan.name!r}",
                "is endless, but its shards are empty",
                hint="Check its data, or leave it out",
            )
        self.ended = True

    def _end_epoch(self) -> None:
        if not self._epoch_rows and (self._epoch_records or self.plan.epochs is None):
            raise DataError(
                f"source {self.plan.name!r}",
                f"gave no row in the whole of epoch {self._epoch} ({self._window} windows)",
                hint="Check its column, its filters and its bad records, or leave it out",
            )
        if self.plan.epochs is not None and self._epoch + 1 >= self.plan.epochs:
            self.ended = True
            return
        self._epoch_slots.extend(np.array([self._first_slot + len(self._bounds.values) - 1]))
        self._epoch += 1
        self._window = self._epoch_rows = self._epoch_records = 0
