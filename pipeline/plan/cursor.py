"""Where a feed is: all that is needed to go on from a global row, and nothing else.

A cursor describes the rows already given, not those to come: a source's place is that *behind its
last row*, so a cursor does not depend on how much of what follows is known yet, and every host
makes the same one. ``window`` is therefore the window of the last row, whose rows from ``row`` on,
maybe none, are still to be given.

As JSON a source is a list of six numbers under its name, so that 100 sources stay below 10 KB.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meshfeed.pipeline.plan.errors import ChangedError

CURSOR_VERSION = 1

_LONGEST_KEY = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceCursor:
    """Where a source is.

    Attributes:
        key: its name, shortened as ``cursor_key`` does.
        epoch, window: of its last row; 0, 0 before the first.
        row: rows of that window given so far.
        drawn: rows given so far, in all epochs.
        deficit: rows that its weight entitles it to, less those given, since the set of active
            sources changed last; in units of one row over the mixture's period. 0 once ended.
        active: False once it has given its last row and its turn came again.
    """

    key: str
    epoch: int = 0
    window: int = 0
    row: int = 0
    drawn: int = 0
    deficit: int = 0
    active: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """Where a feed is.

    Attributes:
        step: steps given so far.
        global_row: rows given so far.
        segment_row: those of them since the set of active sources changed last.
        sources: in the order of the feed's settings.
    """

    step: int
    global_row: int
    segment_row: int
    sources: tuple[SourceCursor, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "version": CURSOR_VERSION,
            "step": self.step,
            "global_row": self.global_row,
            "segment_row": self.segment_row,
            "sources": {
                s.key: [s.epoch, s.window, s.row, s.drawn, s.deficit, int(s.active)]
                for s in self.sources
            },
        }

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> Cursor:
        """What ``to_json`` gave.

        Raises:
            ChangedError: not a cursor, a part of one, or one of another version.
        """
        version = state.get("version") if isinstance(state, Mapping) else None
        if version != CURSOR_VERSION:
            raise ChangedError(
                f"the state is no cursor of version {CURSOR_VERSION} (version: {version!r}). "
                "Restore the whole state that get_state gave, with the meshfeed that gave it"
            )
        try:
            sources = tuple(_source(key, numbers) for key, numbers in state["sources"].items())
            step, row, segment = (_number(state[k]) for k in ("step", "global_row", "segment_row"))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ChangedError(
                f"the state is a part of a cursor, or damaged ({error!r}). "
                "Restore the whole state that get_state gave"
            ) from error
        return cls(step=step, global_row=row, segment_row=segment, sources=sources)


def cursor_key(name: str) -> str:
    """A source's name, or where it is long its beginning and a digest of it."""
    if len(name) <= _LONGEST_KEY:
        return name
    digest = hashlib.blake2b(name.encode(), digest_size=6).hexdigest()
    return f"{name[: _LONGEST_KEY - 13]}~{digest}"


def _source(key: str, numbers: list[int]) -> SourceCursor:
    epoch, window, row, drawn, deficit, active = numbers
    return SourceCursor(
        key=key,
        epoch=_number(epoch),
        window=_number(window),
        row=_number(row),
        drawn=_number(drawn),
        deficit=int(deficit),
        active=bool(active),
    )


def _number(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is not a number of rows")
    return value
