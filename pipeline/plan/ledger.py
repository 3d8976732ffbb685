"""The row counts of the windows that have run, in order, in one append-only file.

An entry is durable before any row of its window is granted, so whoever replays the ledger knows
every global row that a host may have seen. A process that dies while it appends leaves a torn
tail: entries of its last batch, none of them granted, which the next one that opens the ledger
cuts off and runs again. Damage anywhere else is an error, never a shorter ledger.

What the bytes mean is in ``ledger_format``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from meshfeed.pipeline.plan.errors import ChangedError, DataError, DisagreementError
from meshfeed.pipeline.plan.ledger_format import (
    ENTRY,
    HEADER_BYTES,
    Entries,
    check_header,
    entries_from_bytes,
    entry_checks,
    header,
    offset,
)
from meshfeed.pipeline.plan.schedule import Schedule
from meshfeed.pipeline.plan.shuffle import derive_key

_MAX_BATCH = 1 << 16
_BLOCK = 1 << 16
_FIND_BLOCK = 1 << 10


class LedgerEntry(NamedTuple):
    """What one window gave.

    Attributes:
        source: index in the feed's sources.
        epoch: pass over the source.
        window: in the epoch.
        rows: made from it.
        records: that went into it, before filters.
        tokens: unmasked ones in its rows.
        digest: of its rows, to compare a second run of the window with; 0: not taken.
    """

    source: int
    epoch: int
    window: int
    rows: int
    records: int = 1
    tokens: int = 0
    digest: int = 0


class Ledger:
    """The ledger of a feed, opened by its one writer, or by any number of readers.

    Args:
        path: of the file; the writer makes it where it is missing. Its folder exists.
        fingerprint: of all that fixes the feed's rows, at most 64 bytes.
        read_only: leaves a torn tail alone, since its writer may still be writing it.

    Attributes:
        path: of the file.
        num_entries: whole entries.
        torn_bytes: length of the torn tail that was found (and cut off, unless read only).

    Raises:
        ChangedError: the file is the ledger of another feed, or of another version.
        DataError: the file is damaged, or is no ledger.
        FileNotFoundError: read only, and there is no file.
    """

    def __init__(self, path: Path, fingerprint: str, *, read_only: bool = False) -> None:
        self.path = path
        self._key = derive_key("ledger", fingerprint)
        self._last: dict[int, tuple[int, int]] = {}
        if not read_only and not path.exists():
            _create(path, header(fingerprint))
        self._file = os.open(path, os.O_RDONLY if read_only else os.O_RDWR)
        try:
            check_header(path, os.pread(self._file, HEADER_BYTES, 0), fingerprint)
            self.num_entries, self.torn_bytes = self._scan()
            if self.torn_bytes and not read_only:
                os.ftruncate(self._file, offset(self.num_entries))
                os.fsync(self._file)
        except BaseException:
            os.close(self._file)
            raise

    def append(self, entries: Sequence[LedgerEntry]) -> None:
        """Makes entries durable, in this order; returns once they are.

        Raises:
            DisagreementError: a window that comes before one already there of its source.
            OSError: the storage refused; nothing was appended.
        """
        for begin in range(0, len(entries), _MAX_BATCH):
            self._append_batch(entries[begin : begin + _MAX_BATCH])

    def read(self, begin: int, end: int) -> Entries:
        """Entries ``[begin, end)``, fewer at the end of the ledger."""
        end = min(end, self.num_entries)
        data = os.pread(self._file, max(0, end - begin) * ENTRY.itemsize, offset(begin))
        return entries_from_bytes(data)

    def replay(self) -> Iterator[Entries]:
        """All entries from the first, in blocks that bound the memory this takes."""
        for begin in range(0, self.num_entries, _BLOCK):
            yield self.read(begin, begin + _BLOCK)

    def rows(self, source: int, epoch: int, window: int) -> int | None:
        """The row count of a window, None where it is not in the ledger."""
        entry = self.find(source, epoch, window)
        return None if entry is None else entry.rows

    def find(self, source: int, epoch: int, window: int) -> LedgerEntry | None:
        """The entry of a window, None where it is not in the ledger.

        At once for windows that have not run; a binary search of the file for those that have.
        """
        key = (epoch, window)
        if key > self._last.get(source, (-1, -1)):
            return None
        low, high = 0, -(-self.num_entries // _FIND_BLOCK)
        while low < high:
            middle = found = (low + high) // 2
            own = self._own_entries(found, source)
            while not len(own) and found + 1 < high:
                found += 1
                own = self._own_entries(found, source)
            if not len(own) or key < _key_of(own[0]):
                high = middle
            elif key > _key_of(own[-1]):
                low = found + 1
            else:
                hits = own[(own["epoch"] == epoch) & (own["window"] == window)]
                return _entry(hits[0]) if len(hits) else None
        return None

    def increments(self, from_entry: int, limit: int = _BLOCK) -> bytes:
        """Entries from ``from_entry`` on, at most ``limit``, for ``entries_from_bytes``."""
        return self.read(from_entry, from_entry + limit).tobytes()

    def close(self) -> None:
        """Closes the file; what was appended is durable already."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _append_batch(self, entries: Sequence[LedgerEntry]) -> None:
        last = dict(self._last)
        for entry in entries:
            before = last.get(entry.source)
            if before is not None and (entry.epoch, entry.window) <= before:
                raise DisagreementError(
                    f"{self.path}: epoch {entry.epoch}, window {entry.window} of source "
                    f"{entry.source} was to follow epoch {before[0]}, window {before[1]}. "
                    "Another writer has the ledger open, or this one did not replay it"
                )
            last[entry.source] = (entry.epoch, entry.window)
        batch = np.zeros(len(entries), ENTRY)
        for name, column in zip(LedgerEntry._fields, zip(*entries, strict=True), strict=True):
            batch[name] = column
        batch["place"] = np.arange(len(entries))
        batch["check"] = entry_checks(batch, self.num_entries, self._key)
        try:
            _write_all(self._file, batch.tobytes(), offset(self.num_entries))
            os.fsync(self._file)
        except OSError as error:
            self._cut_back()
            raise OSError(error.errno, f"ledger: {error.strerror}", str(self.path)) from error
        self.num_entries += len(entries)
        self._last = last

    def _cut_back(self) -> None:
        """Takes back a batch that failed; where even that fails, no other may follow it."""
        try:
            os.ftruncate(self._file, offset(self.num_entries))
        except OSError:
            self.close()

    def _scan(self) -> tuple[int, int]:
        """Checks every entry: (whole entries, bytes of the torn tail)."""
        size = os.fstat(self._file).st_size - HEADER_BYTES
        total = size // ENTRY.itemsize
        torn_from: int | None = None
        for begin in range(0, total, _BLOCK):
            count = min(_BLOCK, total - begin)
            block = entries_from_bytes(os.pread(self._file, count * ENTRY.itemsize, offset(begin)))
            good = block["check"] == entry_checks(block, begin, self._key)
            if torn_from is None:
                bad = np.flatnonzero(~good)
                whole = int(bad[0]) if len(bad) else count
                self._note_last(block[:whole])
                torn_from = begin + whole if len(bad) else None
            if torn_from is not None:
                batch_start = np.arange(begin, begin + count) - block["place"]
                if (good & (batch_start > torn_from)).any():
                    raise DataError(
                        str(self.path),
                        "is damaged: durable entries lie behind it",
                        place=f"entry {torn_from}",
                        hint="Restore it from a copy, or move it away: the run goes on from its "
                        "cursor, and counts again the rows that it needs",
                    )
        whole_entries = total if torn_from is None else torn_from
        return whole_entries, size - whole_entries * ENTRY.itemsize

    def _own_entries(self, block: int, source: int) -> Entries:
        entries = self.read(block * _FIND_BLOCK, (block + 1) * _FIND_BLOCK)
        own: Entries = entries[entries["source"] == source]
        return own

    def _note_last(self, block: Entries) -> None:
        sources, from_end = np.unique(block["source"][::-1], return_index=True)
        for source, index in zip(sources.tolist(), from_end.tolist(), strict=True):
            self._last[source] = _key_of(block[len(block) - 1 - index])


def append_entries(schedule: Schedule, entries: Entries) -> None:
    """Tells a schedule what the ledger says; entries that it knows already are passed over.

    Args:
        schedule: of the same feed, from its beginning or from a cursor.
        entries: any run of the ledger, not beginning behind what the schedule knows.

    Raises:
        ChangedError: a window is missing between what is known and what is told.
        DataError: a source gave no row in a whole epoch.
    """
    for source in np.unique(entries["source"]).tolist():
        place = schedule.next_window(source)
        if place is None:
            continue
        own = entries[entries["source"] == source]
        epoch, window = own["epoch"].astype(np.int64), own["window"].astype(np.int64)
        if (int(epoch[-1]), int(window[-1])) < place:
            continue
        new = int(np.argmax((epoch > place[0]) | ((epoch == place[0]) & (window >= place[1]))))
        epoch, window = epoch[new:], window[new:]
        follows = np.where(np.diff(epoch) == 0, np.diff(window) == 1, window[1:] == 0)
        follows &= (np.diff(epoch) == 0) | (np.diff(epoch) == 1)
        if (int(epoch[0]), int(window[0])) != place or not follows.all():
            raise ChangedError(
                f"the ledger goes on with epoch {epoch[0]}, window {window[0]} of source "
                f"{schedule.plans[source].name!r}, after which come {len(epoch) - 1} more, where "
                f"epoch {place[0]}, window {place[1]} and its followers are due. It belongs to "
                "another data set, or entries are missing"
            )
        after = schedule.window_after(source, int(epoch[-1]), int(window[-1]))
        schedule.append(source, own["rows"][new:], own["records"][new:])
        if schedule.next_window(source) != after:
            raise ChangedError(
                f"epochs of source {schedule.plans[source].name!r} have other numbers of windows "
                "in the ledger than in the manifest"
            )


def _create(path: Path, header: bytes) -> None:
    """Makes the file with its header, whole or not at all."""
    made = path.with_name(f"{path.name}.{os.getpid()}.new")
    file = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        _write_all(file, header, 0)
        os.fsync(file)
    finally:
        os.close(file)
    os.replace(made, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _write_all(file: int, data: bytes, offset: int) -> None:
    left = memoryview(data)
    while left:
        written = os.pwrite(file, left, offset)
        left, offset = left[written:], offset + written


def _entry(entry: Any) -> LedgerEntry:
    return LedgerEntry(*(int(entry[name]) for name in LedgerEntry._fields))


def _key_of(entry: Any) -> tuple[int, int]:
    return int(entry["epoch"]), int(entry["window"])
