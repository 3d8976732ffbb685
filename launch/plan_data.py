"""The data part of ``meshfeed plan``: what to expect of each source, and what nodes need."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from meshfeed.launch.progress import Progress
from meshfeed.launch.scratch_run import prepared, survey_feed
from meshfeed.launch.source_facts import least_budget, source_facts
from meshfeed.launch.words import format_bytes, plural, tail
from meshfeed.pipeline.data.runs.outlook import outlook_of
from meshfeed.pipeline.data.runs.survey import Survey
from meshfeed.pipeline.data.sources.source_reader import storage_of
from meshfeed.pipeline.plan.errors import MeshfeedError
from meshfeed.pipeline.plan.feed_spec import FeedSpec
from meshfeed.pipeline.plan.run_config import RunConfig


def print_data_plan(console: Console, config: RunConfig, feed: str, windows: int) -> None:
    """Looks into the data of a feed and prints what to expect of it.

    A plan can be made where the data cannot be reached: then that is said.

    Args:
        console: to print on.
        config: of the run.
        feed: whose sources are looked into.
        windows: that are run of each at most.
    """
    progress = Progress()
    storage = storage_of(config)
    try:
        with prepared(config, progress.stage) as specs:
            surveys = survey_feed(specs[feed], storage, progress, windows=windows)
            progress.close()
            _print_sources(console, specs[feed], surveys)
            _print_memory(console, config, specs, feed, surveys)
    except MeshfeedError as error:
        progress.close()
        console.print(f"The data could not be looked into: {error}", highlight=False, markup=False)
        console.print()
    finally:
        storage.close()


def _print_sources(console: Console, spec: FeedSpec, surveys: Sequence[Survey]) -> None:
    console.print("[bold]What to expect of the data[/]")
    for index, survey in enumerate(surveys):
        manifest = survey.manifest
        name = f"{spec.config.name}/{survey.source}"
        what = f"  {plural(len(manifest.shards), 'shard')} of {manifest.format}"
        room = console.width - len(name) - len(what) - len(" in ")
        where = f" in {tail(manifest.root, width=room)}" if manifest.root and room > 20 else ""
        console.print(Text.assemble((name, "bold cyan"), what, (where, "dim")))
        grid = Table.grid(padding=(0, 2))
        for name, line in source_facts(spec, index, survey):
            grid.add_row(Text(name, "dim"), line)
        console.print(Padding(grid, (0, 0, 0, 2)), highlight=False)
    console.print()


def _print_memory(
    console: Console,
    config: RunConfig,
    specs: dict[str, FeedSpec],
    feed: str,
    surveys: Sequence[Survey],
) -> None:
    """What a reader node needs, and whether the settings give it."""
    spec = specs[feed]
    outlooks = [outlook_of(spec, index, survey) for index, survey in enumerate(surveys)]
    needed = least_budget(config, specs, {})
    shared = round(sum(outlook.shared_bytes for outlook in outlooks))
    short = "" if needed <= config.memory_budget else ", which is too little"
    lines = [
        f"rows: memory_budget of {format_bytes(needed)} at least, for "
        f"{plural(len(specs), 'feed')} on one node; less on each of several. It is "
        f"{format_bytes(config.memory_budget)}{short}"
    ]
    if shared:
        line = f"records that windows share: {format_bytes(shared)}"
        line += f"; chunk_cache is {format_bytes(config.chunk_cache)}"
        if shared > config.chunk_cache:
            line += ", so that chunks are read again and again: raise it above that"
        lines.append(line)
    console.print("[bold]Memory of a reader node[/]")
    for line in lines:
        console.print(Padding(Text(line), (0, 0, 0, 2)), highlight=False)
    console.print()
