"""Feeds prepared as a run would prepare them, without its directory, and a look into them."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from meshfeed.launch.progress import Progress
from meshfeed.pipeline.data.runs.prepare import prepare_feeds
from meshfeed.pipeline.data.runs.survey import Survey, survey_source
from meshfeed.pipeline.data.storage import Storage
from meshfeed.pipeline.data.tokenizers import Tokenizer, load_tokenizer
from meshfeed.pipeline.plan.config import Engine
from meshfeed.pipeline.plan.feed_spec import FeedSpec
from meshfeed.pipeline.plan.run_config import RunConfig


@contextmanager
def prepared(
    config: RunConfig, progress: Callable[[str], None] = lambda _: None
) -> Iterator[dict[str, FeedSpec]]:
    """The specs of a run's feeds, without its run directory being touched.

    Raises:
        As ``prepare_feeds``.
    """
    with tempfile.TemporaryDirectory(prefix="meshfeed-") as folder:
        yield prepare_feeds(dataclasses.replace(config, run_dir=folder), progress)


def tokenizer_of(spec: FeedSpec) -> Tokenizer | None:
    """The tokenizer that the feed's readers would load, None where sources hold token ids."""
    return load_tokenizer(spec.config.tokenizer, Engine(spec.engine)) if spec.engine else None


def survey_feed(
    spec: FeedSpec, storage: Storage, progress: Progress, *, windows: int, whole: bool = False
) -> list[Survey]:
    """Runs windows of each source of a feed, and tells how far it is.

    Args:
        spec: of the feed.
        storage: the process's way to storage.
        progress: told.
        windows: of each source at most.
        whole: all of its windows instead.

    Raises:
        As ``survey_source``.
    """
    tokenizer, surveys = tokenizer_of(spec), []
    for index, source in enumerate(spec.config.sources):
        where = f"{spec.config.name}: reading {'all' if whole else 'a sample'} of {source.name}"
        progress.stage(where)

        def tick(done: int, todo: int, where: str = where) -> None:
            progress.tick(f"{where}, window {done + 1} of {todo}")

        survey = survey_source(
            spec,
            index,
            storage=storage,
            tokenizer=tokenizer,
            whole=whole,
            windows=windows,
            progress=tick,
        )
        surveys.append(survey)
    return surveys
