"""``meshfeed status``: what a run that is up is doing, and what it waits for."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from meshfeed.launch.diagnosis import STAGES, diagnose, most_waiting, slow_readers, stage_shares
from meshfeed.launch.training_status import training_of, training_table
from meshfeed.launch.words import about, format_bytes, plural, seconds, share, table, tail

if TYPE_CHECKING:
    from meshfeed.actors.run import Run

_MOST_READERS = 24


def add_status_command(commands: Any) -> None:
    """Adds ``status`` to the command line."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "status",
        help="what a run is doing and what it waits for",
        description="Asks the coordinator of a run that is up. Joins the Ray cluster that the run "
        "was started in, or the one that RAY_ADDRESS names.",
    )
    parser.add_argument("run_dir", metavar="RUN_DIR", help="directory of the run")
    parser.add_argument("--json", action="store_true", help="print JSON, for scripts")
    parser.add_argument(
        "--watch", type=float, metavar="SECONDS", help="print it anew this often, until Ctrl-C"
    )
    parser.set_defaults(run=run_status)


def run_status(args: argparse.Namespace) -> int:
    """Prints it.

    Returns:
        0; 1 where the run has failed.

    Raises:
        ConfigError: no run is up in that directory.
    """
    run = _find(args.run_dir)
    if args.watch:
        return _watch(run, args.watch)
    status = run.status() | training_of(args.run_dir)
    if args.json:
        json.dump(status | {"diagnosis": diagnose(status)}, sys.stdout, indent=1)
        sys.stdout.write("\n")
    else:
        console = Console(highlight=False)
        console.print(render(status, console.width))
    return 1 if status["error"] else 0


def _find(run_dir: str) -> Run:
    """The run that is up."""
    from meshfeed.actors.run import Run

    return Run.find(run_dir)


def _watch(run: Run, every_s: float) -> int:
    console = Console(highlight=False)
    with Live(console=console, auto_refresh=False, screen=console.is_terminal) as live:
        while True:
            status = run.status() | training_of(run.config.run_dir)
            live.update(render(status, console.width), refresh=True)
            if status["error"]:
                return 1
            time.sleep(every_s)


def render(status: Mapping[str, Any], width: int) -> RenderableType:
    """The status as a person reads it, in ``width`` columns."""
    head = Text.assemble(
        (status["run_dir"], "bold"),
        f"  generation {status['generation']}, {format_bytes(status['block_bytes'])} of rows held",
    )
    parts: list[RenderableType] = [head]
    for line in diagnose(status):
        bad = bool(status.get("error"))
        parts.append(Padding(Text(f"• {line}", "bold red" if bad else "yellow"), (0, 0, 0, 1)))
    if "training" in status:
        parts += [Text(), training_table(status["training"])]
    for name, feed in status["feeds"].items():
        parts += [Text(), *_feed(name, feed, width)]
    nodes = status.get("nodes", {})
    if nodes.get("died"):
        died = f"{plural(nodes['died'], 'node server')} died, {nodes['replaced']} started again"
        parts += [Text(), Text(died, "yellow")]
    parts += [Text(), _readers(status, width)]
    return Group(*parts)


def _feed(name: str, feed: Mapping[str, Any], width: int) -> list[RenderableType]:
    title = Text(name, "bold cyan")
    if "granted" not in feed:
        return [Text.assemble(title, ("  not open", "dim"))]
    total = feed["total_steps"]
    title.append(f"  generation {feed['generation']}", "dim")
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    of = f" of {total:,}" if total is not None else ""
    grid.add_row(
        "steps",
        f"{feed['taken']:,} taken{of}, {feed['granted']:,} granted, {feed['ready']:,} ready"
        + (f", {feed['steps_per_second']:.3g} a second" if feed["steps_per_second"] else ""),
    )
    grid.add_row("waiting", _waiting(feed))
    limiting = feed["limiting_window"]
    if limiting is not None:
        node = limiting["node"]
        where = "not leased yet" if node in (None, -1) else f"on node {node}"
        grid.add_row(
            "next",
            f"window {limiting['window']} of {limiting['source']}, epoch {limiting['epoch']}, "
            f"{where}: "
            + ", ".join(tail(s, width=max(24, width // 2 - 12)) for s in limiting["shards"][:2]),
        )
    return [title, Padding(grid, (0, 0, 0, 1)), Padding(_sources(feed, width), (0, 0, 0, 1))]


def _waiting(feed: Mapping[str, Any]) -> str:
    """Every host's share of waiting, or that of those that wait most."""
    waits = most_waiting(feed)
    if waits is None:
        return "no host has taken a batch yet"
    times = feed["waiting"]
    shares = sorted(
        ((t["seconds"] / max(t["of_seconds"], 1e-9), int(p)) for p, t in times.items()),
        reverse=True,
    )
    shown = ", ".join(f"host {process} {share(part, 1.0)}" for part, process in shares[:4])
    rest = f" and {len(shares) - 4} less" if len(shares) > 4 else ""
    most = times.get(waits.process, times.get(str(waits.process)))["by_stage"]
    stages = sorted(most.items(), key=lambda item: -item[1])
    split = ", ".join(f"{s} {seconds(t)}" for s, t in stages if t >= 0.001)
    return f"{shown}{rest}" + (f" ({split})" if split else "")


def _sources(feed: Mapping[str, Any], width: int) -> Table:
    """Each source, and the share of its time that each stage takes; the largest is marked."""
    wide = width >= 110
    more = ("records", "read/used", "padding") if wide else ()
    columns = ("windows", *more, "tokens", "ms each", *STAGES)
    made = table("", "source", *columns, right=columns)
    made.columns[0].no_wrap = True
    for name, tally in feed["sources"].items():
        shares = stage_shares(tally)
        most = next(iter(shares), "")
        stages = [
            Text(share(shares[s], 1.0) if s in shares else "-", "bold yellow" if s == most else "")
            for s in STAGES
        ]
        taken = sum(tally["seconds"].get(stage, 0.0) for stage in STAGES)
        cells = tally["tokens"] + tally["padding"]
        extra = (
            f"{tally['records']:,}",
            f"{tally['storage_bytes'] / max(tally['used_bytes'], 1):.3f}",
            share(tally["padding"], cells),
        )
        again = f"+{tally['windows_again']}" if tally["windows_again"] else ""
        made.add_row(
            name,
            f"{tally['windows'] - tally['windows_again']:,}{again}",
            *(extra if wide else ()),
            about(tally["tokens"]),
            f"{1e3 * taken / tally['windows']:.0f}" if tally["windows"] else "-",
            *stages,
        )
    return made


def _readers(status: Mapping[str, Any], width: int) -> RenderableType:
    """What each reader does now, those that work longest first."""
    slow = {(s.reader, s.stage) for feed in status["feeds"].values() for s in slow_readers(feed)}
    readers = sorted(status["readers"], key=lambda r: -r["seconds"] if r.get("stage") else 0.0)
    busy = sum(bool(reader.get("stage")) for reader in readers)
    hosts = len({reader.get("host", "") for reader in readers}) > 1
    made = table(
        f"{plural(len(readers), 'reader')}, {busy} at work",
        "reader", *(["host"] if hosts else []), "stage", "for", "shard", "ms a window",
        right=("for", "ms a window"),
    )  # fmt: skip
    for reader in readers[:_MOST_READERS]:
        name, stage = reader["reader"], reader.get("stage", "")
        shard, _, more = str(reader.get("what", "")).partition(" and ")
        plus = f" +{more.removesuffix(' more')}" if more else ""
        made.add_row(
            name,
            *([tail(reader["host"], width=16)] if hosts else []),
            stage or Text("idle", "dim"),
            seconds(reader["seconds"]) if stage else "",
            tail(shard, width=max(16, width - 58 - 19 * hosts)) + plus,
            _mean_times(status, name, slow),
        )
    if len(readers) > _MOST_READERS:
        made.add_row("...", f"{len(readers) - _MOST_READERS:,} more")
    return made


def _mean_times(status: Mapping[str, Any], name: str, slow: set[tuple[str, str]]) -> Text:
    """Milliseconds a window of a reader over all feeds, and the stage that makes it slow."""
    windows, taken = 0, dict.fromkeys(STAGES, 0.0)
    for feed in status["feeds"].values():
        times = feed.get("readers", {}).get(name)
        if times is None:
            continue
        windows += times["windows"]
        for stage in STAGES:
            taken[stage] += times["seconds"].get(stage, 0.0)
    if not windows:
        return Text("-")
    text = Text(f"{1e3 * sum(taken.values()) / windows:.0f}")
    marked = [stage for stage in STAGES if (name, stage) in slow]
    if marked:
        text.append(f" slow: {', '.join(marked)}", "bold red")
    return text
