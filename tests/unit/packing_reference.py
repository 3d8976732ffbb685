"""Slow and obvious versions of packing and leaves, for the tests to compare with.

A record is a list of tokens; a row is a list of segments; a segment is (record index, offset,
tokens, token that follows in the record or None).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Segment(NamedTuple):
    record: int
    offset: int
    tokens: list[int]
    following: int | None


def cut(records, seq_len, truncate):
    """Pieces of at most seq_len tokens, in order."""
    pieces = []
    for index, record in enumerate(records):
        kept = record[:seq_len] if truncate else record
        for offset in range(0, len(kept), seq_len):
            tokens = kept[offset : offset + seq_len]
            after = offset + len(tokens)
            pieces.append(
                Segment(index, offset, tokens, kept[after] if after < len(kept) else None)
            )
    return pieces


def room(row, seq_len, max_segments):
    if max_segments and len(row) == max_segments:
        return 0
    return seq_len - sum(len(s.tokens) for s in row)


def concat(records, seq_len, max_segments):
    """Token by token."""
    rows = []
    for index, record in enumerate(records):
        for offset, token in enumerate(record):
            same = rows and offset and rows[-1][-1].record == index
            limit = 0 if same else max_segments
            if not rows or not room(rows[-1], seq_len, limit):
                rows.append([])
            row = rows[-1]
            if row and row[-1].record == index:
                row[-1].tokens.append(token)
            else:
                row.append(Segment(index, offset, [token], None))
    ended = []
    for row in rows:
        last = row[-1]
        after = last.offset + len(last.tokens)
        record = records[last.record]
        ended.append(
            [*row[:-1], last._replace(following=record[after] if after < len(record) else None)]
        )
    return ended


def first_fit(pieces, seq_len, max_segments):
    rows = []
    for piece in pieces:
        for row in rows:
            if room(row, seq_len, max_segments) >= len(piece.tokens):
                row.append(piece)
                break
        else:
            rows.append([piece])
    return rows


def best_fit(pieces, seq_len, max_segments):
    rows = []
    for piece in sorted(pieces, key=lambda p: -len(p.tokens)):
        fitting = [r for r in rows if room(r, seq_len, max_segments) >= len(piece.tokens)]
        if fitting:
            min(fitting, key=lambda r: room(r, seq_len, max_segments)).append(piece)
        else:
            rows.append([piece])
    return sorted(sorted(row, key=lambda p: p[:2]) for row in rows)


def pack(records, seq_len, packing, overlong, max_segments):
    if packing == "concat":
        return concat(records, seq_len, max_segments)
    pieces = cut(records, seq_len, overlong == "truncate")
    if packing == "first_fit":
        return first_fit(pieces, seq_len, max_segments)
    if packing == "best_fit":
        return best_fit(pieces, seq_len, max_segments)
    return [[piece] for piece in pieces]


def leaves(rows, seq_len, counts=None):
    """The five leaves of rows of segments; ``counts[record][offset]`` is the loss mask."""
    shape = (len(rows), seq_len)
    out = {
        name: np.zeros(shape, np.int32)
        for name in ("tokens", "targets", "segment_ids", "positions")
    }
    out["loss_weights"] = np.zeros(shape, np.float32)
    for r, row in enumerate(rows):
        column = 0
        for number, segment in enumerate(row, start=1):
            for position, token in enumerate(segment.tokens):
                out["tokens"][r, column] = token
                out["segment_ids"][r, column] = number
                out["positions"][r, column] = position
                following = [*segment.tokens[1:], segment.following][position]
                place = segment.offset + position + 1
                if following is not None and (counts is None or counts[segment.record][place]):
                    out["targets"][r, column] = following
                    out["loss_weights"][r, column] = 1
                column += 1
    return out
