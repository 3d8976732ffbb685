"""What the actors say to each other. Every message of a feed carries its generation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from meshfeed.pipeline.plan.errors import MeshfeedError
from meshfeed.pipeline.plan.feed_spec import FeedSpec
from meshfeed.pipeline.plan.feed_state import WindowKey


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowLease:
    """A window to run.

    Attributes:
        number: of the lease. The same window may be released and leased again, by another opening
            of its feed, while the first run is still under way.
    """

    feed: str
    key: WindowKey
    number: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowReport:
    """A window that has run, or failed. The rows stay on the node; only counts travel.

    Attributes:
        nbytes: of its block in shared memory.
        digest: xxh3-64 of the block, 0 where it has no row.
        tokens: unmasked tokens.
        padding: masked tokens in its rows.
        records: that it was made from, before filters, bad ones included.
        storage_bytes: read from storage for it.
        used_bytes: of the used columns as they are stored.
        seconds: by stage (``read``, ``transform``, ``tokenize``, ``pack``).
        skipped: (shard, place, reason) of every record that was left out.
        counts: other counters by name (``truncated_tokens``, ``empty_records``, ...).
        lease: number of the lease that it answers; not the current one: nobody waits for it.
        error: the exception that ended it, when it failed.
    """

    feed: str
    key: WindowKey
    rows: int = 0
    nbytes: int = 0
    digest: int = 0
    tokens: int = 0
    padding: int = 0
    records: int = 0
    storage_bytes: int = 0
    used_bytes: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    skipped: tuple[tuple[str, str, str], ...] = ()
    counts: dict[str, int] = field(default_factory=dict)
    reader: str = ""
    lease: int = 0
    error: BaseException | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUpdate:
    """What a node is to do next.

    Attributes:
        number: of all that the node is told, from 0; what comes early waits for those before it.
    """

    number: int
    leases: tuple[WindowLease, ...] = ()
    releases: tuple[tuple[str, WindowKey], ...] = ()
    specs: dict[str, FeedSpec] = field(default_factory=dict)
    stop: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """A membership has opened a feed.

    Attributes:
        generation: carried by every message from now on.
        spec: of the feed.
        start: cursor at which it begins, as plain JSON values; None: at row 0.
        least_depth: steps that a grant reaches ahead at least.
        incarnation: of the coordinator that answers.
    """

    generation: int
    spec: FeedSpec
    start: dict[str, Any] | None
    max_steps: int | None
    least_depth: int
    incarnation: int = 0


class RowCounts(NamedTuple):
    """What the next windows of a source gave.

    Attributes:
        source: index in the feed's sources.
        windows: int64[n, 2]: epoch and window.
        rows: int64[n].
        records: of each window.
    """

    source: int
    windows: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]
    records: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedUpdate:
    """The grant, and what has entered the ledger since the host last asked.

    Attributes:
        grants: given since the host last asked, in order: steps before the last may be taken.
            Every host sees the same bounds and fetches between the same.
        total_steps: of the feed, None until its end is known.
        events: int64[n, 6], in ledger order: source, epoch, window, rows, records, node.
        next_event: what the host gives as ``since`` next time.
        moved: int64[m, 4]: source, epoch, window, node of windows that now lie elsewhere.
        nodes: handles of nodes that the host may not know yet.
        depth: steps that a grant reaches ahead now.
        last_step: all hosts end there, at a barrier or at the feed's end; None: not known yet.
        no_more: why nothing is granted beyond ``last_step``, if that is an error for a host that
            wants more.
    """

    grants: tuple[int, ...]
    total_steps: int | None
    events: npt.NDArray[np.int64]
    next_event: int
    moved: npt.NDArray[np.int64]
    nodes: dict[int, Any]
    depth: int
    last_step: int | None = None
    no_more: MeshfeedError | None = None

    def row_counts(self) -> list[RowCounts]:
        """Of each source that has some."""
        counts = []
        for source in np.unique(self.events[:, 0]).tolist():
            own = self.events[self.events[:, 0] == source]
            counts.append(RowCounts(source, own[:, 1:3], own[:, 3], own[:, 4].tolist()))
        return counts


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest:
    """All regions of a stretch of steps that one node holds for one host.

    Attributes:
        windows: the windows that rows are taken from.
        regions: for each, int32[rows] index into ``windows``, int32[rows] row within the
            window, and the (begin, end) of its columns.
        share_key: hosts that need the same region give the same key; "" for a slice of its own.
        share_count: hosts that will ask for it.
    """

    feed: str
    generation: int
    windows: tuple[WindowKey, ...]
    regions: tuple[tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], tuple[int, int]], ...]
    share_key: str = ""
    share_count: int = 1
