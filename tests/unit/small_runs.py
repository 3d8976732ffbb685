"""Small runs without Ray: a run directory as the coordinator leaves it, with many small windows."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from meshfeed.pipeline.data.packing.blocks import BlockFormat
from meshfeed.pipeline.data.packing.rows import WindowRows, WindowRunner
from meshfeed.pipeline.data.runs.prepare import prepare_feeds
from meshfeed.pipeline.data.runs.run_folder import RunFolder
from meshfeed.pipeline.data.sources.source_reader import storage_of
from meshfeed.pipeline.data.tokenizers import load_tokenizer
from meshfeed.pipeline.plan.config import Engine
from meshfeed.pipeline.plan.feed_spec import FeedSpec
from meshfeed.pipeline.plan.ledger import LedgerEntry
from meshfeed.pipeline.plan.run_config import RunConfig


def write_ids(folder: Path, shards: int, records: int, *, first: int = 0, seed: int = 0) -> Path:
    """Parquet shards of token ids whose records have different lengths and tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    for shard in range(shards):
        ids = [
            (
                (np.arange(rng.integers(1, 60)) + first + 131 * (shard * records + i)) % 60000
            ).tolist()
            for i in range(records)
        ]
        table = pa.table({"ids": pa.array(ids, pa.list_(pa.uint16()))})
        pq.write_table(table, folder / f"part-{shard:03d}.parquet", row_group_size=8)
    return folder


def prepare_run(
    settings: Mapping[str, Any], *, window: int = 3000, chunk: int = 1500
) -> tuple[RunConfig, dict[str, FeedSpec]]:
    """A prepared run whose windows have so many units instead of the usual 128 rows and more."""
    config = RunConfig.from_mapping(settings)
    specs = {}
    for name, spec in prepare_feeds(config).items():
        manifests = tuple(
            dataclasses.replace(m, window_size=window, chunk_size=chunk, group_size=4 * window)
            for m in spec.manifests
        )
        specs[name] = dataclasses.replace(spec, manifests=manifests)
    folder = RunFolder(config.run_dir)
    folder.save(folder.load_config(), specs)
    return folder.load_config(), folder.load_specs()


def run_windows(config: RunConfig, spec: FeedSpec) -> Iterator[tuple[LedgerEntry, WindowRows]]:
    """All windows of a feed whose sources all end, source by source, with their ledger entries."""
    storage = storage_of(config)
    epochs = spec.epochs()
    tokenizer = None
    if spec.engine:
        tokenizer = load_tokenizer(spec.config.tokenizer, Engine(spec.engine))
    for index, plan in enumerate(spec.source_plans(epochs)):
        runner = WindowRunner(
            feed=spec.config,
            source=spec.config.sources[index],
            manifest=spec.manifests[index],
            block_format=BlockFormat.of(spec),
            tokenizer=tokenizer,
            storage=storage,
        )
        for epoch in range(plan.epochs or 1):
            for window in range(epochs.count(index, epoch)):
                result = runner.run(epoch, window)
                block = result.packed.block
                entry = LedgerEntry(
                    source=index,
                    epoch=epoch,
                    window=window,
                    rows=block.rows,
                    records=result.stats.records,
                    tokens=result.stats.tokens,
                    digest=xxhash.xxh3_64_intdigest(block.buffer.tobytes()),
                )
                yield entry, result
    storage.close()
