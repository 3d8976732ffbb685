"""``meshfeed inspect``: what is in a data set, from a sample of it or from all."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from meshfeed.launch.progress import Progress
from meshfeed.launch.scratch_run import prepared, survey_feed
from meshfeed.launch.settings import add_config_flags, config_from
from meshfeed.launch.source_facts import source_facts
from meshfeed.launch.words import about, format_bytes, plural, share, table, tail
from meshfeed.pipeline.data.runs.survey import SAMPLED_WINDOWS, Survey
from meshfeed.pipeline.data.sources.source_reader import storage_of
from meshfeed.pipeline.plan.config import BadRecords, Overlong, Packing, SourceConfig
from meshfeed.pipeline.plan.feed_spec import FeedSpec
from meshfeed.pipeline.plan.manifest import Unit

_PERCENTILES = (0, 5, 25, 50, 75, 95, 99, 100)
_NAMES = ("least", "5 %", "25 %", "median", "75 %", "95 %", "99 %", "most")
_LISTED = 20


def add_inspect_command(commands: Any) -> None:
    """Adds ``inspect`` to the command line."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "inspect",
        help="say what is in a data set",
        description="Reads some windows of every source as a reader would and says what is in "
        "them: records, lengths, bad records, padding and read amplification to expect.",
    )
    add_config_flags(parser)
    parser.add_argument("--feed", help="only this feed of the file (default: all)")
    parser.add_argument("--all", action="store_true", help="read all of it instead of a sample")
    parser.add_argument(
        "--windows",
        type=int,
        default=SAMPLED_WINDOWS,
        metavar="N",
        help=f"windows in a sample of each source, at most (default: {SAMPLED_WINDOWS})",
    )
    parser.add_argument(
        "--json", action="store_true", help="print JSON, for scripts; lists all bad records"
    )
    parser.set_defaults(run=run_inspect)


def run_inspect(args: argparse.Namespace) -> int:
    """Prints what is in every source.

    Returns:
        0; 1 where a source whose policy is ``fail`` has bad records.

    Raises:
        MeshfeedError: a source cannot be read at all.
    """
    config = config_from(args)
    progress = Progress(quiet=args.json)
    storage = storage_of(config)
    console = Console(highlight=False)
    plain: dict[str, dict[str, Any]] = {}
    failing = False
    with prepared(config, progress.stage) as specs:
        for feed, spec in specs.items():
            if args.feed not in (None, feed):
                continue
            surveys = survey_feed(spec, storage, progress, windows=args.windows, whole=args.all)
            for source, survey in zip(spec.config.sources, surveys, strict=True):
                failing |= bool(survey.bad) and source.bad_records is BadRecords.FAIL
            plain[feed] = {survey.source: _plain(survey) for survey in surveys}
            if not args.json:
                _print_feed(console, spec, surveys, progress)
    progress.close()
    storage.close()
    if args.json:
        json.dump(plain, sys.stdout, indent=1)
        sys.stdout.write("\n")
    return 1 if failing else 0


def _print_feed(
    console: Console, spec: FeedSpec, surveys: Sequence[Survey], progress: Progress
) -> None:
    progress.pause()
    for source, survey in zip(spec.config.sources, surveys, strict=True):
        console.print()
        _print_source(console, spec, source, survey)


def _print_source(console: Console, spec: FeedSpec, source: SourceConfig, survey: Survey) -> None:
    manifest, config = survey.manifest, spec.config
    console.print(
        Text.assemble(
            (f"{config.name}/{source.name}", "bold cyan"),
            f"  {plural(len(manifest.shards), 'shard')} of {manifest.format}",
            (f" in {manifest.root}" if manifest.root else "", "dim"),
        ),
        soft_wrap=True,
    )
    grid = Table.grid(padding=(0, 2))
    for name, line in _facts(spec, source, survey):
        grid.add_row(Text(name, "dim"), line)
    console.print(Padding(grid, (0, 0, 0, 2)))
    if len(survey.record_tokens):
        made = table("", "length", *_NAMES, "mean", right=(*_NAMES, "mean"))
        made.add_row("bytes", *_percentiles(survey.record_bytes))
        made.add_row("tokens", *_percentiles(survey.record_tokens))
        console.print(Padding(made, (0, 0, 0, 1)))
        for bar in _histogram(survey.record_tokens, console.width - 34):
            console.print(Padding(bar, (0, 0, 0, 2)))
    _print_bad(console, source, survey)


def _facts(spec: FeedSpec, source: SourceConfig, survey: Survey) -> list[tuple[str, str]]:
    """(name, line) of what is known besides lengths and bad records."""
    config = spec.config
    number = (lambda count: f"{count:,.0f}") if survey.whole else about
    lines = [
        ("records", _records(survey)),
        (
            "an epoch",
            f"{'' if survey.whole else 'about '}{number(survey.estimate(survey.tokens))} tokens in "
            f"{number(survey.estimate(survey.rows))} rows of {config.seq_len:,}: "
            f"{about(survey.estimate(survey.rows) / config.batch_size)} steps of "
            f"{plural(config.batch_size, 'row')}, for this source alone",
        ),
    ]
    lines += source_facts(spec, spec.config.sources.index(source), survey)
    left_out = _left_out(source, config.packing, config.overlong, survey)
    lines += [("records", line) for line in left_out]
    times = {stage: taken for stage, taken in survey.seconds.items() if taken}
    if times:
        total = sum(times.values())
        split = ", ".join(f"{share(t, total)} {stage}" for stage, t in times.items())
        lines.append(("speed", f"{about(survey.tokens / total)} tokens/s on one core: {split}"))
    return lines


def _records(survey: Survey) -> str:
    records, exact = survey.total_records
    counted = f"{int(records):,}" if exact else f"about {about(records)}"
    if survey.manifest.unit is Unit.BYTES:
        counted += f" in {format_bytes(survey.total_units)}"
    if survey.whole:
        return f"{counted}, all of them read"
    return (
        f"{counted}; {survey.records:,} of them read, "
        f"{share(survey.units_run, survey.total_units)} of the source"
    )


def _left_out(
    source: SourceConfig, packing: Packing, overlong: Overlong, survey: Survey
) -> list[str]:
    lines = []
    if survey.overlong and packing is not Packing.CONCAT:
        fate = "truncated" if overlong is Overlong.TRUNCATE else "split"
        lines.append(f"{share(survey.overlong, survey.kept)} longer than a row, {fate}")
    kept = survey.kept + survey.empty
    if source.transforms and survey.records:
        lines.append(f"{plural(kept, 'record')} made of {survey.records:,} by transforms")
    if survey.empty:
        lines.append(f"{share(survey.empty, survey.records)} without a token, left out")
    return lines


def _percentiles(lengths: npt.NDArray[np.int64]) -> list[str]:
    values = [*np.percentile(lengths, _PERCENTILES, method="nearest").tolist(), lengths.mean()]
    return [_short(value) for value in values]


def _short(count: float) -> str:
    """A length in at most five characters.

    >>> _short(7), _short(1234), _short(45678), _short(3_400_000)
    ('7', '1,234', '46 k', '3.4 M')
    """
    if count < 9999.5:
        return f"{count:,.0f}"
    for scale, unit in ((1e3, "k"), (1e6, "M"), (1e9, "G")):
        if count < 999.5 * scale:
            return f"{count / scale:.{1 if count < 9.95 * scale else 0}f} {unit}"
    return f"{count:.0e}"


_EIGHTHS = " ▏▎▍▌▋▊▉█"


def _histogram(tokens: npt.NDArray[np.int64], width: int) -> list[Text]:
    """Records by their tokens, in powers of two: one bar a line, at most ``width`` wide."""
    bucket = np.where(tokens > 0, np.frexp(np.maximum(tokens, 1).astype(np.float64))[1], 0)
    counts = np.bincount(bucket)
    first = int(np.flatnonzero(counts)[0])
    lines = []
    for power in range(first, len(counts)):
        low, high = (1 << power) >> 1, (1 << power) - 1
        name = f"{low:,}" if low >= high else f"{low:,}-{high:,}"
        eighths = round(8 * width * counts[power] / counts.max())
        eighths = max(eighths, 1) if counts[power] else 0
        bar = "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
        lines.append(
            Text.assemble(
                (f"{name:>19} ", "dim"), (bar, "cyan"), f" {share(counts[power], len(tokens))}"
            )
        )
    heading = Text(f"{'tokens':>19} of a record, {plural(len(tokens), 'record')}", "dim")
    return [heading, *lines]


def _print_bad(console: Console, source: SourceConfig, survey: Survey) -> None:
    if not survey.bad:
        console.print(Padding("[green]no bad record[/]", (0, 0, 0, 2)))
        return
    fate = "a run ends at the first (bad_records: fail)"
    if source.bad_records is BadRecords.SKIP:
        fate = f"a run leaves out and lists up to {source.max_bad_records:,} of them"
    console.print(Padding(f"[red]{plural(len(survey.bad), 'bad record')}[/]; {fate}", (0, 0, 0, 2)))
    made = table("", "shard", "place", "what is wrong")
    for shard, place, reason in sorted(survey.bad)[:_LISTED]:
        made.add_row(tail(shard, survey.manifest.root, 32), place, Text(reason))
    console.print(Padding(made, (0, 0, 0, 1)))
    if len(survey.bad) > _LISTED:
        console.print(Padding(f"and {len(survey.bad) - _LISTED:,} more: see --json", (0, 0, 0, 2)))


def _plain(survey: Survey) -> dict[str, Any]:
    manifest = survey.manifest
    records, exact = survey.total_records
    cells = survey.tokens + survey.padding
    return {
        "root": manifest.root,
        "format": manifest.format,
        "shards": len(manifest.shards),
        "unit": manifest.unit.value,
        "size": survey.total_units,
        "records": int(records),
        "records_exact": exact,
        "records_read": survey.records,
        "records_kept": survey.kept,
        "empty_records": survey.empty,
        "overlong_records": survey.overlong,
        "windows": survey.windows,
        "windows_read": survey.windows_run,
        "chunk_size": manifest.chunk_size,
        "window_size": manifest.window_size,
        "group_size": manifest.group_size,
        "tokens_read": survey.tokens,
        "rows_read": survey.rows,
        "tokens_in_epoch": round(survey.estimate(survey.tokens)),
        "padding_fraction": survey.padding / cells if cells else 0.0,
        "read_amplification": (
            survey.storage_bytes / survey.used_bytes if survey.used_bytes else 0.0
        ),
        "record_bytes": _quantiles(survey.record_bytes),
        "record_tokens": _quantiles(survey.record_tokens),
        "seconds": survey.seconds,
        "bad_records": [
            {"shard": shard, "place": place, "reason": reason}
            for shard, place, reason in sorted(survey.bad)
        ],
    }


def _quantiles(lengths: npt.NDArray[np.int64]) -> dict[str, float]:
    if not len(lengths):
        return {}
    values = np.percentile(lengths, _PERCENTILES, method="nearest").tolist()
    named = {f"p{p}": int(v) for p, v in zip(_PERCENTILES, values, strict=True)}
    return named | {"mean": float(lengths.mean())}
