"""``meshfeed trace``: which documents a batch, or one row of it, is made of."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from meshfeed.launch.opened import add_run_flags, open_run
from meshfeed.launch.progress import Progress
from meshfeed.launch.words import plural, table, tail
from meshfeed.pipeline.data.runs.replay import Replay, RowOrigin
from meshfeed.pipeline.plan.errors import ConfigError


def add_trace_command(commands: Any) -> None:
    """Adds ``trace`` to the command line."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "trace",
        help="name the documents of a batch",
        description="Names the record behind every segment of every row of a step: source, shard, "
        "place in the shard, and which of its tokens.",
    )
    add_run_flags(parser)
    parser.add_argument("--step", type=int, required=True, help="step of the feed, from 0")
    parser.add_argument("--row", type=int, help="only this row of the batch, from 0")
    parser.add_argument("--json", action="store_true", help="print JSON, for scripts")
    parser.set_defaults(run=run_trace)


def run_trace(args: argparse.Namespace) -> int:
    """Prints a line for each segment.

    Returns:
        0.

    Raises:
        ConfigError: no such run, feed, step or row.
    """
    progress = Progress(quiet=args.json)
    with open_run(args, progress) as run:
        rows = run.rows(args.step, args.feed)
        if args.row is not None:
            if not 0 <= args.row < len(rows):
                raise ConfigError(
                    "row", f"{args.row} is not one of 0..{len(rows) - 1}, the rows of this step"
                )
            rows = rows[args.row : args.row + 1]
        progress.close()
        if args.json:
            plain = {
                "feed": args.feed,
                "step": args.step,
                "digest": run.digest(args.step, args.feed),
            }
            json.dump(plain | {"rows": [dataclasses.asdict(r) for r in rows]}, sys.stdout, indent=1)
            sys.stdout.write("\n")
        else:
            _print_rows(Console(highlight=False), run, args, rows)
    return 0


def _print_rows(
    console: Console, run: Replay, args: argparse.Namespace, rows: Sequence[RowOrigin]
) -> None:
    segments = [(row.source, segment) for row in rows for segment in row.segments]
    records = {(segment.shard, segment.place) for _, segment in segments}
    shards = {segment.shard for _, segment in segments}
    console.print(
        f"[bold]{args.feed}, step {args.step}[/]: {plural(len(rows), 'row')} out of "
        f"{plural(len(records), 'record')} in {plural(len(shards), 'shard')}"
    )
    roots = {m.name: m.root for m in run.spec(args.feed).manifests}
    for name in dict.fromkeys(source for source, _ in segments):
        if roots[name]:
            console.print(f"{name}: {roots[name]}", style="dim", soft_wrap=True, markup=False)
    made = table(
        "", "row", "columns", "source", "shard", "record", "tokens of it",
        right=("row", "columns", "tokens of it"),
    )  # fmt: skip
    for row in rows:
        for number, segment in enumerate(row.segments):
            end = segment.start + segment.length - 1
            last = segment.offset + segment.length - 1
            made.add_row(
                str(row.row) if number == 0 else "",
                f"{segment.start}-{end}",
                row.source if number == 0 else "",
                tail(segment.shard, roots[row.source], max(20, console.width - 60)),
                segment.where,
                f"{segment.offset:,}-{last:,}",
            )
    console.print(made)
