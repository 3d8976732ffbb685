"""What would go wrong in a run, found by doing a little of it in this process.

Each check gives findings and goes on, so that one start shows all that is wrong. Nothing is written
to the run directory, and neither Ray nor a device is needed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from meshfeed.actors.control.feed_needs import most_rows
from meshfeed.launch.scratch_run import prepared, tokenizer_of
from meshfeed.launch.source_facts import least_budget, padding_line
from meshfeed.launch.words import about, format_bytes, plural, plural_about, seconds, share
from meshfeed.pipeline.data.runs.outlook import outlook_of
from meshfeed.pipeline.data.runs.prepare import check_same
from meshfeed.pipeline.data.runs.run_folder import RunFolder
from meshfeed.pipeline.data.runs.survey import Survey, survey_source
from meshfeed.pipeline.data.sources.source_reader import storage_of
from meshfeed.pipeline.data.storage import Storage
from meshfeed.pipeline.data.tokenizers import Tokenizer
from meshfeed.pipeline.plan.batch_plan import plan_batch
from meshfeed.pipeline.plan.budget import check_budget
from meshfeed.pipeline.plan.config import (
    LEAF_PRESETS,
    BadRecords,
    FeedConfig,
    OnEnd,
    SourceConfig,
)
from meshfeed.pipeline.plan.errors import ConfigError, MeshfeedError
from meshfeed.pipeline.plan.feed_spec import FeedSpec
from meshfeed.pipeline.plan.mesh import MeshLayout
from meshfeed.pipeline.plan.partition import AxisRoles, resolve
from meshfeed.pipeline.plan.run_config import RunConfig

MUCH_PADDING = 0.05
HEAVY_TRANSFORMS = 0.5


class Level(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the result.

    Attributes:
        level: how bad it is; a run fails on a problem.
        about: feed, or feed and source; "" for the run.
        topic: what was looked at, in a word.
        text: what was found, and what to do.
    """

    level: Level
    about: str
    topic: str
    text: str


def check_run(
    config: RunConfig, progress: Callable[[str], None] = lambda _: None
) -> Iterator[Finding]:
    """Findings about a run, as they come."""
    for feed in config.feeds:
        yield _batch(config, feed)
    engines: dict[str, str] = {}

    def listen(line: str) -> None:
        progress(line)
        name, _, choice = line.partition(": tokenizer engine ")
        if choice:
            engines[name] = choice

    try:
        with prepared(config, listen) as specs:
            yield from _prepared(config, specs, engines, progress)
    except MeshfeedError as error:
        yield from _sources_apart(config, error)


def _batch(config: RunConfig, feed: FeedConfig) -> Finding:
    """Whether the batch divides over the mesh."""
    roles = AxisRoles(data=config.data_axes, sequence=config.sequence_axes, model=config.model_axes)
    try:
        mesh = MeshLayout.build(
            config.mesh,
            hosts=config.hosts,
            devices_per_host=config.devices_per_host,
            order=config.device_order,
        )
        specs = resolve(config.partition, mesh, roles, leaf_names=LEAF_PRESETS[config.leaf_names])
        plan = plan_batch(
            mesh,
            specs,
            batch_size=feed.batch_size,
            seq_len=feed.seq_len,
            uneven_batch=config.uneven_batch,
        )
    except ConfigError as error:
        return Finding(Level.PROBLEM, feed.name, "batch", str(error))
    shape = f"{feed.batch_size:,} x {feed.seq_len:,}"
    where = f"{plural(config.hosts, 'host')} x {plural(config.devices_per_host, 'device')}"
    if plan.pad_rows:
        return Finding(
            Level.NOTE,
            feed.name,
            "batch",
            f"{shape} on mesh {mesh}, {where}: {plural(plan.pad_rows, 'row')} of weight zero are "
            "added to each batch",
        )
    groups = plural(plan.num_groups, "slice group")
    return Finding(
        Level.OK, feed.name, "batch", f"{shape} divides over mesh {mesh}, {where}, {groups}"
    )


def _prepared(
    config: RunConfig,
    specs: dict[str, FeedSpec],
    engines: dict[str, str],
    progress: Callable[[str], None],
) -> Iterator[Finding]:
    """Everything that needs the sources to be there."""
    storage = storage_of(config)
    rows_seen = {name: most_rows(spec) for name, spec in specs.items()}
    for name, spec in specs.items():
        text = engines.get(name)
        if text is not None:
            engine, _, why = text.partition(": ")
            yield Finding(Level.OK, name, "tokenizer", f"{engine} engine: {why}")
        try:
            tokenizer = tokenizer_of(spec)
        except MeshfeedError as error:
            yield Finding(Level.PROBLEM, name, "tokenizer", str(error))
            continue
        surveys = []
        for index, source in enumerate(spec.config.sources):
            progress(f"{name}: running a window of {source.name}")
            found = _window(config, spec, index, storage, tokenizer)
            yield from (finding for finding in found if isinstance(finding, Finding))
            for survey in (one for one in found if isinstance(one, Survey)):
                surveys.append(survey)
                rows_seen[name][index] = max(rows_seen[name][index], survey.rows)
        if len(surveys) == len(spec.config.sources):
            yield from _length(config, spec, surveys)
    yield _memory(config, specs, rows_seen)
    yield from _run_dir(config, specs)
    storage.close()


def _sources_apart(config: RunConfig, error: MeshfeedError) -> Iterator[Finding]:
    """What is wrong with each source by itself; what went wrong together, where none is."""
    found = False
    for feed in config.feeds:
        for source in feed.sources:
            alone = dataclasses.replace(feed, sources=(source,))
            try:
                with prepared(dataclasses.replace(config, feeds=(alone,))):
                    pass
            except MeshfeedError as own:
                found = True
                yield Finding(Level.PROBLEM, f"{feed.name}/{source.name}", "data", str(own))
    if not found:
        yield Finding(Level.PROBLEM, "", "settings", str(error))


def _window(
    config: RunConfig, spec: FeedSpec, index: int, storage: Storage, tokenizer: Tokenizer | None
) -> list[Finding | Survey]:
    """One window of a source, run as a reader would."""
    source = spec.config.sources[index]
    name = f"{spec.config.name}/{source.name}"
    try:
        survey = survey_source(spec, index, storage=storage, tokenizer=tokenizer, windows=1)
    except MeshfeedError as error:
        return [Finding(Level.PROBLEM, name, "window", str(error))]
    found: list[Finding | Survey] = [survey]
    shards = plural(len(survey.manifest.shards), "shard")
    made = (
        f"{shards} of {survey.manifest.format}; a window of {plural(survey.records, 'record')} "
        f"gave {plural(survey.rows, 'row')} in {seconds(sum(survey.seconds.values()))}"
    )
    if not survey.windows:
        text = f"{shards}, all of them empty"
        level = Level.PROBLEM if spec.config.epochs_of(source) is None else Level.WARNING
        return [*found, Finding(level, name, "data", text)]
    if not survey.rows:
        text = f"{made}: check the column {source.column!r}, transforms and bad records"
        found.append(Finding(Level.WARNING, name, "window", text))
    else:
        found.append(Finding(Level.OK, name, "window", made))
        found.append(_padding(spec, index, name, survey))
    if survey.bad:
        found.append(_bad(name, source, survey))
    found += _transforms(name, source, survey)
    longest = max(survey.seconds.values(), default=0.0)
    if longest > config.stall_seconds:
        text = (
            f"a window takes {seconds(longest)}, above stall_seconds {config.stall_seconds:g}: "
            "every one would be logged as a stall"
        )
        found.append(Finding(Level.WARNING, name, "window", text))
    return found


def _padding(spec: FeedSpec, index: int, name: str, survey: Survey) -> Finding:
    outlook = outlook_of(spec, index, survey)
    text = padding_line(spec.config, spec.config.sources[index], outlook)
    level = Level.OK if outlook.padding <= MUCH_PADDING else Level.WARNING
    return Finding(level, name, "padding", text)


def _bad(name: str, source: SourceConfig, survey: Survey) -> Finding:
    shard, place, reason = sorted(survey.bad)[0]
    first = f"{shard}, {place}: {reason}"
    count = f"{plural(len(survey.bad), 'bad record')} among {survey.records:,}"
    if source.bad_records is BadRecords.FAIL:
        text = f"{count}, and the first ends the run: {first}. Correct it, or bad_records: skip"
        return Finding(Level.PROBLEM, name, "records", text)
    expected = survey.estimate(len(survey.bad))
    if expected > source.max_bad_records:
        text = (
            f"{count}; about {about(expected)} in all are more than max_bad_records "
            f"{source.max_bad_records:,}, which ends the run. The first: {first}"
        )
        return Finding(Level.PROBLEM, name, "records", text)
    return Finding(Level.WARNING, name, "records", f"{count}, to be skipped; the first: {first}")


def _transforms(name: str, source: SourceConfig, survey: Survey) -> list[Finding]:
    if not source.transforms or not survey.records:
        return []
    taken = survey.seconds.get("transform", 0.0)
    part = taken / max(sum(survey.seconds.values()), 1e-9)
    kept = survey.kept + survey.empty
    text = f"{plural(kept, 'record')} made of {survey.records:,}, in {share(part, 1.0)} of the time"
    if part > HEAVY_TRANSFORMS:
        per = seconds(taken / survey.records)
        text += f", {per} a record. A @vectorized transform costs less, more readers hide it"
        return [Finding(Level.NOTE, name, "transforms", text)]
    return [Finding(Level.OK, name, "transforms", text)]


def _length(config: RunConfig, spec: FeedSpec, surveys: list[Survey]) -> Iterator[Finding]:
    """How long the feed lasts, about."""
    feed = spec.config
    pairs = list(zip(feed.sources, surveys, strict=True))
    weights = sum(source.weight for source in feed.sources)
    rows, ends = 0.0, {}
    for source, survey in pairs:
        epochs = feed.epochs_of(source)
        if epochs is not None and survey.rows:
            own = survey.estimate(survey.rows) * epochs
            rows += own
            ends[source.name] = own * weights / source.weight / feed.batch_size
    stopping = [ends[s.name] for s, _ in pairs if s.on_end is OnEnd.STOP and s.name in ends]
    endless = any(feed.epochs_of(source) is None for source, _ in pairs)
    steps = min(stopping) if stopping else None if endless else rows / feed.batch_size
    wanted = config.steps if feed.name == config.feeds[0].name else None
    lasts = "without end" if steps is None else f"about {plural_about(steps, 'step')}"
    if wanted is not None and steps is not None and steps < 0.9 * wanted:
        text = f"the data last for {lasts}, fewer than steps {wanted:,}. More epochs, or epochs: 0"
        yield Finding(Level.WARNING, feed.name, "length", text)
    else:
        until = "" if wanted is None else f", of which {wanted:,} are taken"
        yield Finding(Level.OK, feed.name, "length", f"{lasts}{until}")
    first = min(ends, key=lambda name: ends[name], default="")
    horizon = min(x for x in (steps, wanted, float("inf")) if x is not None)
    if len(pairs) > 1 and first and not stopping and ends[first] < 0.9 * horizon:
        text = (
            f"{first} ends after about {plural_about(ends[first], 'step')}; then the others go on "
            "without it. on_end: repeat or stop does otherwise"
        )
        yield Finding(Level.NOTE, feed.name, "mixture", text)


def _memory(
    config: RunConfig, specs: dict[str, FeedSpec], rows_seen: dict[str, list[int]]
) -> Finding:
    """Whether the budget holds what all feeds need on one node, with windows as they are."""
    needed = least_budget(config, specs, rows_seen)
    try:
        check_budget(config.memory_budget, needed)
    except ConfigError as error:
        return Finding(Level.PROBLEM, "", "memory", str(error))
    text = (
        f"a node may hold {format_bytes(config.memory_budget)} of rows; {format_bytes(needed)} are "
        "the least that works on one node"
    )
    return Finding(Level.OK, "", "memory", text)


def _run_dir(config: RunConfig, specs: dict[str, FeedSpec]) -> Iterator[Finding]:
    """Whether the run directory holds another run."""
    folder = RunFolder(config.run_dir)
    if not folder.exists:
        yield Finding(Level.OK, "", "run_dir", f"{config.run_dir} will be made")
        return
    try:
        kept = folder.load_specs()
        for name, spec in specs.items():
            if name in kept:
                check_same(config.run_dir, kept[name], spec)
    except MeshfeedError as error:
        yield Finding(Level.PROBLEM, "", "run_dir", str(error))
        return
    yield Finding(Level.OK, "", "run_dir", f"goes on with the run in {config.run_dir}")
