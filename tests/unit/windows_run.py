"""All windows of a source, run in this process, and where the records of their rows come from."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from meshfeed.pipeline.data.packing.blocks import BlockFormat
from meshfeed.pipeline.data.packing.rows import WindowRows, WindowRunner
from meshfeed.pipeline.data.sources.source_reader import storage_of
from meshfeed.pipeline.data.storage import Storage
from meshfeed.pipeline.data.tokenizers import load_tokenizer
from meshfeed.pipeline.plan.config import Engine
from meshfeed.pipeline.plan.feed_spec import FeedSpec
from meshfeed.pipeline.plan.run_config import RunConfig

Ints = npt.NDArray[np.int64]


def with_sizes(spec: FeedSpec, **sizes: int) -> FeedSpec:
    """The feed with other sizes in its manifests than those chosen for real data."""
    manifests = tuple(dataclasses.replace(manifest, **sizes) for manifest in spec.manifests)
    return dataclasses.replace(spec, manifests=manifests)


def run_source(
    config: RunConfig,
    spec: FeedSpec,
    *,
    epoch: int = 0,
    source: int = 0,
    storage: Storage | None = None,
) -> Iterator[WindowRows]:
    """The windows of one epoch of a source, in order."""
    own = storage or storage_of(config)
    runner = WindowRunner(
        feed=spec.config,
        source=spec.config.sources[source],
        manifest=spec.manifests[source],
        block_format=BlockFormat.of(spec),
        tokenizer=(
            load_tokenizer(spec.config.tokenizer, Engine(spec.engine)) if spec.engine else None
        ),
        storage=own,
    )
    for window in range(spec.epochs().count(source, epoch)):
        yield runner.run(epoch, window)
    if storage is None:
        own.close()


def segments(windows: Iterable[WindowRows]) -> tuple[Ints, Ints, Ints]:
    """Of each segment, row after row: its row, and shard_index and place of its record."""
    rows, shards, places, first = [], [], [], 0
    for window in windows:
        found = window.packed.segments
        rows.append(found.row.astype(np.int64) + first)
        shards.append(window.shards[found.record].astype(np.int64))
        places.append(window.places[found.record])
        first += window.packed.block.rows
    return np.concatenate(rows), np.concatenate(shards), np.concatenate(places)
