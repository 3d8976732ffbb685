"""Cutting records into pieces and giving each its place in a row.

A *piece* is a part of one record that lies in one row: a segment. All functions take and give
arrays over records or pieces; only what depends on the row before it is a loop, over rows.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from meshfeed.pipeline.data.packing.fits import Ints, best_fit, first_fit
from meshfeed.pipeline.plan.config import Packing


class Pieces(NamedTuple):
    """Parts of records with their places, in order of row and start: int64 [pieces] each."""

    row: Ints
    start: Ints
    """Column of the piece's first token."""
    record: Ints
    offset: Ints
    """Token of the record with which the piece begins."""
    length: Ints
    goes_on: npt.NDArray[np.bool_]
    """The piece ends a full row, and its record has a next token."""

    def first_of_row(self) -> npt.NDArray[np.intp]:
        """The first piece of each row: [rows]."""
        return np.append(0, np.flatnonzero(self.row[1:] != self.row[:-1]) + 1)


def cut_stream(lengths: Ints, seq_len: int, max_segments: int) -> Pieces:
    """Concatenate records of these lengths, int64 [records], and cut the stream into rows."""
    record = np.flatnonzero(lengths)
    ends = np.cumsum(lengths[record])
    begins = ends - lengths[record]
    cuts = _row_cuts(begins, ends, seq_len, max_segments)
    # pieces begin at every record and at every row, and each such place is there once: rows that
    # begin within a record go between the records
    at = np.searchsorted(begins, cuts[:-1])
    within = begins[np.minimum(at, len(begins) - 1)] != cuts[:-1]
    at += np.cumsum(within) - within
    is_record = np.ones(len(begins) + int(np.count_nonzero(within)), np.bool_)
    is_record[at[within]] = False
    place = np.empty(len(is_record), np.int64)
    place[is_record] = begins
    place[~is_record] = cuts[:-1][within]
    row = np.zeros(len(place), np.int64)
    row[at[1:]] = 1
    row = np.cumsum(row)
    which = np.cumsum(is_record) - 1
    stops = np.append(place[1:], ends[-1:])
    return Pieces(
        row=row,
        start=place - cuts[row],
        record=record[which],
        offset=place - begins[which],
        length=stops - place,
        goes_on=stops < ends[which],
    )


def _row_cuts(begins: Ints, ends: Ints, seq_len: int, max_segments: int) -> Ints:
    """Where rows begin in the stream, and its end: int64 [rows + 1]."""
    total = int(ends[-1]) if len(ends) else 0
    cuts = np.append(np.arange(0, total, seq_len, dtype=np.int64), total)
    if not max_segments:
        return cuts
    # as long as no row has too many segments nothing depends on max_segments
    first = np.searchsorted(begins, cuts[:-1], side="right") - 1
    after = np.searchsorted(begins, cuts[1:], side="left")
    crowded = np.flatnonzero(after - first > max_segments)
    if not len(crowded):
        return cuts
    kept = cuts[: crowded[0] + 1].tolist()
    starts, stops = begins.tolist(), ends.tolist()
    position, record = kept[-1], int(first[crowded[0]])
    while position < total:
        last = record + max_segments - 1
        position = min(position + seq_len, stops[last] if last < len(stops) else total)
        kept.append(position)
        record = bisect_right(starts, position, record) - 1
    return np.array(kept, np.int64)


def place_records(lengths: Ints, seq_len: int, packing: Packing, max_segments: int) -> Pieces:
    """Place records of these lengths, int64 [records], whole but for those longer than a row."""
    record, offset, length = _cut_records(lengths, seq_len)
    if packing == Packing.NONE:
        row = np.arange(len(record))
    elif packing == Packing.FIRST_FIT:
        row = first_fit(length, seq_len, max_segments)
    else:
        row = best_fit(length, seq_len, max_segments)
    order = np.argsort(row, kind="stable")
    row, record, offset, length = row[order], record[order], offset[order], length[order]
    place = np.cumsum(length) - length
    first = np.searchsorted(row, row)
    return Pieces(
        row=row,
        start=place - place[first],
        record=record,
        offset=offset,
        length=length,
        goes_on=offset + length < lengths[record],
    )


def _cut_records(lengths: Ints, seq_len: int) -> tuple[Ints, Ints, Ints]:
    """Cut each record every ``seq_len`` tokens: record, offset and length, [pieces] each."""
    counts = -(-lengths // seq_len)
    record = np.repeat(np.arange(len(lengths)), counts)
    index = np.arange(len(record)) - np.repeat(np.cumsum(counts) - counts, counts)
    offset = index * seq_len
    return record, offset, np.minimum(lengths[record] - offset, seq_len)
