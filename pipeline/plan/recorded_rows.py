"""What a ledger says to someone who reads it long after, or while it is still being written.

The ledger gives the row counts of the windows that have run; whoever needs a window that it does
not have runs that window himself. It may have gaps: a run that was resumed from a state of another
run directory begins its ledger at the state's cursor.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from meshfeed.pipeline.plan.ledger import Ledger, append_entries
from meshfeed.pipeline.plan.ledger_format import Entries
from meshfeed.pipeline.plan.schedule import Schedule


class RecordedRows:
    """The entries of a feed's ledger by source. Never writes.

    Args:
        path: of the ledger; where it is missing nothing is recorded yet.
        fingerprint: of the feed.

    Raises:
        ChangedError: the file is the ledger of another feed.
        DataError: the file is damaged.
    """

    def __init__(self, path: Path, fingerprint: str) -> None:
        self._path = path
        self._fingerprint = fingerprint
        self._size = -1
        self._by_source: dict[int, Entries] = {}
        self.refresh()

    def refresh(self) -> bool:
        """Reads what was appended since; False where nothing was."""
        size = self._path.stat().st_size if self._path.exists() else 0
        if size == self._size:
            return False
        self._size = size
        if not size:
            return False
        parts: dict[int, list[Entries]] = {}
        with Ledger(self._path, self._fingerprint, read_only=True) as ledger:
            for block in ledger.replay():
                for source in np.unique(block["source"]).tolist():
                    parts.setdefault(source, []).append(block[block["source"] == source])
        self._by_source = {source: np.concatenate(own) for source, own in parts.items()}
        return True

    def tell(self, schedule: Schedule, source: int) -> int:
        """Appends to a schedule what the ledger has of a source, up to its next gap.

        Returns:
            Windows that were appended; 0 where the source's next window is not recorded.

        Raises:
            ChangedError: the entries do not fit the source's windows.
            DataError: the source gave no row in a whole epoch.
        """
        place = schedule.next_window(source)
        found = None if place is None else self._find(source, *place)
        if found is None:
            return 0
        own = self._by_source[source][found:]
        epoch, window = own["epoch"].astype(np.int64), own["window"].astype(np.int64)
        same = np.diff(epoch) == 0
        follows = np.where(same, np.diff(window) == 1, (np.diff(epoch) == 1) & (window[1:] == 0))
        count = len(own) if follows.all() else int(np.argmin(follows)) + 1
        append_entries(schedule, own[:count])
        return count

    def rows_and_digest(self, source: int, epoch: int, window: int) -> tuple[int, int] | None:
        """Row count of a window and the digest of its rows (0: not taken); None: not recorded."""
        found = self._find(source, epoch, window)
        if found is None:
            return None
        entry = self._by_source[source][found]
        return int(entry["rows"]), int(entry["digest"])

    def _find(self, source: int, epoch: int, window: int) -> int | None:
        """Index of a window among the entries of its source, which ascend."""
        own = self._by_source.get(source)
        if own is None:
            return None
        first, end = np.searchsorted(own["epoch"], [epoch, epoch + 1]).tolist()
        at = first + int(np.searchsorted(own["window"][first:end], window))
        return at if at < end and int(own["window"][at]) == window else None
