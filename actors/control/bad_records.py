"""Records that were left out: listed in the run directory, and held against the source's limit."""

from __future__ import annotations

from collections.abc import Sequence

from meshfeed.actors.control.feed_desk import FeedDesk
from meshfeed.actors.messages import WindowReport
from meshfeed.pipeline.data.runs.run_folder import RunFolder
from meshfeed.pipeline.plan.errors import DataError


def count_skipped(folder: RunFolder, desk: FeedDesk, reports: Sequence[WindowReport]) -> None:
    """Lists what was left out of some windows, durably.

    Raises:
        DataError: it is more than ``max_bad_records`` of its source.
    """
    for report in reports:
        if not report.skipped:
            continue
        source = desk.spec.config.sources[report.key.source]
        tally = desk.tallies[report.key.source]
        fresh = folder.add_skipped(desk.spec.config.name, source.name, report.key, report.skipped)
        tally.skipped += fresh
        if tally.skipped > source.max_bad_records:
            shard, place, reason = report.skipped[-1]
            raise DataError(
                shard,
                f"{reason}; with it more than max_bad_records={source.max_bad_records} records "
                f"of source {source.name} are bad",
                place=place,
                hint="Raise max_bad_records or mend the data; the run directory lists them all",
            )
