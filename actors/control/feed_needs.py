"""Bytes that a feed needs, from what is known of its windows."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from meshfeed.pipeline.data.packing.blocks import BlockFormat
from meshfeed.pipeline.plan.budget import WINDOW_SLACK, FeedNeed
from meshfeed.pipeline.plan.feed_spec import FeedSpec
from meshfeed.pipeline.plan.grants import GrantLimits


def most_rows(spec: FeedSpec) -> list[int]:
    """Rows that a window of each source gives at most, by the sizes in the manifest."""
    return [ceil(WINDOW_SLACK * spec.window_rows)] * len(spec.manifests)


def feed_need(spec: FeedSpec, limits: GrantLimits, rows: Sequence[int] | None = None) -> FeedNeed:
    """Bytes that a feed needs.

    Args:
        spec: of the feed.
        limits: of grants.
        rows: that a window of each source gives at most; None: as before any has run.
    """
    blocks = BlockFormat.of(spec)
    # Every row as if it lay in a block of its own: some may.
    batch_bytes = spec.config.batch_size * blocks.nbytes(1)
    windows = [blocks.nbytes(r) for r in (most_rows(spec) if rows is None else rows)]
    return FeedNeed.of(limits.least_depth, batch_bytes, windows)
