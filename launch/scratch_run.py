"""Feeds prepared as a run would prepare them, in a directory that is gone afterwards."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from meshfeed.pipeline.data.prepare import prepare_feeds
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
