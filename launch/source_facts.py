"""What to expect of a source, in words: ``plan``, ``inspect`` and ``check`` say the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from meshfeed.actors.control.feed_needs import feed_need
from meshfeed.launch.words import about, format_bytes, plural, plural_about, share
from meshfeed.pipeline.data.runs.outlook import MOST_PADDING, Outlook, outlook_of
from meshfeed.pipeline.data.runs.survey import Survey
from meshfeed.pipeline.plan.budget import smallest_budget
from meshfeed.pipeline.plan.config import FeedConfig, Packing, Shuffle, SourceConfig
from meshfeed.pipeline.plan.feed_spec import FeedSpec
from meshfeed.pipeline.plan.grants import GrantLimits
from meshfeed.pipeline.plan.manifest import SourceManifest, Unit
from meshfeed.pipeline.plan.mixing import MIXED_ROWS
from meshfeed.pipeline.plan.run_config import RunConfig

_HALF_ROW_IS_PROMISED_PADDING = 0.5 / MOST_PADDING
"""Rows that a window must give at least."""

_MUCH_READ = 1.05


def source_facts(spec: FeedSpec, index: int, survey: Survey) -> list[tuple[str, str]]:
    """(name, line) of sizes, padding, reading and mixing of a source.

    Args:
        spec: of the feed.
        index: of the source.
        survey: of it.
    """
    outlook = outlook_of(spec, index, survey)
    lines = [("sizes", _sizes(spec.config, survey, outlook))]
    if survey.rows:
        lines.append(("padding", padding_line(spec.config, spec.config.sources[index], outlook)))
    if survey.used_bytes:
        lines.append(("reading", _reading(spec.config, survey.manifest, outlook)))
    if survey.rows:
        lines.append(("mixing", _mixing(spec.config, outlook)))
    return lines


def padding_line(config: FeedConfig, source: SourceConfig, outlook: Outlook) -> str:
    """The padding to expect, and where it is above what is promised, why, and what to do."""
    part = f"{share(outlook.padding, 1.0)} of the rows"
    if outlook.padding <= MOST_PADDING:
        return f"{part}: half a row of each window, of about {_rows(outlook.rows_per_window)}"
    if outlook.packing_pads:
        return f"{part}. {packing_hint(config)}"
    lost = f"{part}: half a row of each window is lost"
    whole = outlook.fill * outlook.rows_meant
    if outlook.rows >= _HALF_ROW_IS_PROMISED_PADDING > whole:
        kept = float(f"{max(source.kept * outlook.fill, 1e-3):.1g}")
        larger = source.kept / kept
        better = min(outlook.padding / larger, 1.0)
        dropped = "transforms drop most of it" if source.transforms else "it has few tokens a byte"
        return (
            f"{lost}, and one gives {_rows(whole)}, since {dropped}. With kept: {kept:g} for this "
            f"source windows are {about(larger)} times as large, and {share(better, 1.0)} is lost"
        )
    return f"{lost}, and an epoch has {_rows(outlook.rows)} in {plural(outlook.windows, 'window')}"


def packing_hint(config: FeedConfig) -> str:
    """What leaves rows short, and which packing does not."""
    hint = {
        Packing.NONE: "packing: concat or best_fit puts several records in a row",
        Packing.FIRST_FIT: "packing: best_fit fills rows better, concat wholly",
        Packing.BEST_FIT: "packing: concat fills rows wholly, cutting records",
        Packing.CONCAT: "",
    }[config.packing]
    if not config.max_segments:
        return hint
    return f"{hint + '; ' if hint else ''}max_segments {config.max_segments} ends rows early"


def least_budget(
    config: RunConfig, specs: Mapping[str, FeedSpec], rows: Mapping[str, Sequence[int]]
) -> int:
    """Bytes of ``memory_budget`` that the feeds of a run need on one node at least.

    Args:
        config: of the run.
        specs: of its feeds.
        rows: by feed, those that a window of each source gives at most, where that was seen.
    """
    limits = GrantLimits(prefetch=config.prefetch, seconds=config.grant_seconds)
    return smallest_budget(
        [feed_need(spec, limits, rows.get(name)) for name, spec in specs.items()]
    )


def _rows(count: float) -> str:
    return plural_about(count, "row")


def _sizes(config: FeedConfig, survey: Survey, outlook: Outlook) -> str:
    manifest = survey.manifest
    by_bytes = manifest.unit is Unit.BYTES
    size = format_bytes if by_bytes else lambda count: plural(count, "record")
    whole = by_bytes and not manifest.splittable
    chunks = "of a whole shard each" if whole else f"of {size(manifest.chunk_size)}"
    line = f"{plural(outlook.chunks, 'chunk')} {chunks}, "
    line += f"{plural(outlook.windows, 'window')} of {size(manifest.window_size)} an epoch"
    if config.shuffle is Shuffle.RECORD and not manifest.random_access:
        group = survey.total_units // max(outlook.groups, 1)
        line += f", {plural(outlook.groups, 'shuffle group')} of {size(group)}"
    return line


def _reading(config: FeedConfig, manifest: SourceManifest, outlook: Outlook) -> str:
    line = f"{outlook.amplification:.3f} times the bytes of the used columns"
    if outlook.amplification <= _MUCH_READ:
        return line
    causes = ["footers"] if manifest.format in ("parquet", "arrow") else []
    if config.shuffle is Shuffle.RECORD:
        causes.append("the small chunks of record")
    return f"{line}, for {' and '.join(causes) or 'parts of neighbouring records'}"


def _mixing(config: FeedConfig, outlook: Outlook) -> str:
    rows = min(MIXED_ROWS, max(round(outlook.rows), 1))
    line = f"{plural(rows, 'row')} draw from about {plural_about(outlook.mixed, 'chunk')}"
    if config.shuffle is Shuffle.RECORD and outlook.groups > 1:
        line += f" of the {about(outlook.chunks / outlook.groups)} in a group"
    part = f"{min(outlook.mixing, 1.0):.2f} of what a uniform shuffle gives"
    return f"{line}, {part}"
