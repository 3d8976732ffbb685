"""What to expect of a source in a run: its padding, its mixing, and what nodes keep for it.

Sizes come from the manifest, what records are like from the windows of a survey.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshfeed.pipeline.data.runs.survey import Survey
from meshfeed.pipeline.plan.config import Packing, Shuffle
from meshfeed.pipeline.plan.feed_spec import FeedSpec
from meshfeed.pipeline.plan.mixing import MIXED_ROWS, expected_mixing
from meshfeed.pipeline.plan.windows import EpochWindows

MOST_PADDING = 0.01
"""Padding that is promised, where there is data enough and records are not packed whole."""

_PLACE_BYTES = 12
_USUAL_EPOCH = 1
"""Its windows are all of their usual size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What to expect of a source.

    Attributes:
        chunks: of the source.
        windows: of an epoch.
        groups: of an epoch, whose windows share what is read.
        rows: of an epoch.
        padding: share of the rows that is padding.
        packing_pads: packing pads more than the ends of windows do.
        fill: rows of a whole window over ``rows_meant``: below 1 where transforms drop records, or
            there are fewer tokens in a byte than was assumed.
        rows_meant: rows that the size of a window was chosen for.
        amplification: bytes read from storage over those of the used columns.
        mixed: chunks from which ``MIXED_ROWS`` consecutive rows draw.
        uniform: the same under a uniform shuffle of all records.
        shared_bytes: of decoded records that a node keeps while windows share them.
    """

    chunks: int
    windows: int
    groups: int
    rows: float
    padding: float
    packing_pads: bool
    fill: float
    rows_meant: int
    amplification: float
    mixed: float
    uniform: float
    shared_bytes: float

    @property
    def rows_per_window(self) -> float:
        """Rows that a window gives on average."""
        return self.rows / max(self.windows, 1)

    @property
    def mixing(self) -> float:
        """``mixed`` as a share of ``uniform``."""
        return self.mixed / self.uniform if self.uniform else 1.0


def outlook_of(spec: FeedSpec, source: int, survey: Survey) -> Outlook:
    """What to expect of a source of a feed.

    Args:
        spec: of the feed.
        source: index in its sources.
        survey: of some of its windows, or all.
    """
    config, manifest = spec.config, spec.manifests[source]
    epoch = EpochWindows(manifest, config.shuffle, config.seed, _USUAL_EPOCH)
    rows = survey.estimate(survey.rows)
    records = max(survey.estimate(survey.kept), 1.0)
    mixed, uniform = expected_mixing(
        config.shuffle,
        drawn=MIXED_ROWS * survey.kept / max(survey.rows, 1),
        chunks=manifest.num_chunks,
        groups=max(epoch.num_groups, 1),
        records=records,
    )
    measured = survey.padding / max(survey.padding + survey.tokens, 1)
    ends = 0.5 * epoch.num_windows / max(rows, 0.5)
    by_ends = config.packing is Packing.CONCAT and not config.max_segments
    full_windows = survey.total_units / manifest.window_size
    return Outlook(
        chunks=manifest.num_chunks,
        windows=epoch.num_windows,
        groups=epoch.num_groups,
        rows=rows,
        padding=min(ends, 1.0) if by_ends and not survey.whole else measured,
        packing_pads=not by_ends and measured > 2 * ends,
        fill=rows / max(full_windows, 1e-9) / spec.window_rows,
        rows_meant=spec.window_rows,
        amplification=survey.storage_bytes / max(survey.used_bytes, 1),
        mixed=mixed,
        uniform=uniform,
        shared_bytes=_shared_bytes(spec, source, survey, epoch),
    )


def _shared_bytes(spec: FeedSpec, source: int, survey: Survey, epoch: EpochWindows) -> float:
    """Decoded records of a group, where more than one window draws from it."""
    alone = spec.config.shuffle is Shuffle.RECORD and spec.manifests[source].random_access
    if alone or epoch.num_windows <= epoch.num_groups or not len(survey.record_bytes):
        return 0.0
    records, _ = survey.total_records
    return records / epoch.num_groups * (float(survey.record_bytes.mean()) + _PLACE_BYTES)
