"""What is read from storage before the first batch does not grow with the data set."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import feather
from windows_run import run_source

from meshfeed.pipeline.data.formats.records import RecordSpec
from meshfeed.pipeline.data.runs.prepare import prepare_feeds
from meshfeed.pipeline.data.sources.source_reader import first_records, storage_of
from meshfeed.pipeline.data.storage import Storage
from meshfeed.pipeline.plan.feed_spec import FeedSpec
from meshfeed.pipeline.plan.run_config import RunConfig

BATCH = 64
SEQ_LEN = 256


def texts(records: int) -> pa.Table:
    rng = np.random.default_rng(0)
    return pa.table(
        {
            "id": list(range(records)),
            "text": [rng.bytes(int(n)).hex() for n in rng.integers(100, 900, records)],
        }
    )


def write_jsonl(path: Path, table: pa.Table) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in table.to_pylist()))


def write_stream(path: Path, table: pa.Table) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=100)


WRITE: dict[str, Callable[[Path, pa.Table], Any]] = {
    "parquet": lambda path, table: pq.write_table(table, path, row_group_size=100),
    "feather": lambda path, table: feather.write_feather(table, str(path), chunksize=100),
    "arrow": write_stream,
    "jsonl": write_jsonl,
}


def write_shards(folder: Path, kind: str, count: int, records: int) -> Path:
    """So many shards of the same size, of different names for one content."""
    folder.mkdir(parents=True)
    first = folder / f"part-00000.{kind}"
    WRITE[kind](first, texts(records))
    for shard in range(1, count):
        os.link(first, folder / f"part-{shard:05d}.{kind}")
    return folder


def before_the_first_batch(folder: Path, shuffle: str) -> tuple[dict[str, int], FeedSpec]:
    """What coordinator and reader had read when the rows of one batch were there."""
    config = RunConfig.from_mapping(
        {"data": str(folder), "run_dir": f"{folder}-{shuffle}"}
        | {"seq_len": SEQ_LEN, "batch_size": BATCH, "shuffle": shuffle}
    )
    coordinator, reader = storage_of(config), storage_of(config)
    spec = prepare_feeds(config, storage=coordinator)["train"]
    rows = 0
    for window in run_source(config, spec, storage=reader):
        rows += window.packed.block.rows
        if rows >= BATCH:
            break
    assert rows >= BATCH
    read = {
        name: getattr(coordinator.counters, name) + getattr(reader.counters, name)
        for name in ("bytes_read", "reads", "listings")
    }
    coordinator.close()
    reader.close()
    return read, spec


def prepared_only(folder: Path, **settings: Any) -> tuple[int, FeedSpec]:
    """Bytes that preparing a run reads, and the feed."""
    config = RunConfig.from_mapping({"data": str(folder), "run_dir": f"{folder}-run"} | settings)
    storage = storage_of(config)
    spec = prepare_feeds(config, storage=storage)["train"]
    storage.close()
    return storage.counters.bytes_read, spec


@pytest.mark.parametrize("shuffle", ["none", "chunk"])
@pytest.mark.parametrize("kind", WRITE)
def test_bytes_before_the_first_batch_are_the_same_for_10_and_1000_shards(
    tmp_path: Path, kind: str, shuffle: str
) -> None:
    found = {}
    for count in (10, 1000):
        folder = write_shards(tmp_path / str(count), kind, count, records=900)
        found[count], spec = before_the_first_batch(folder, shuffle=shuffle)
        assert spec.manifests[0].num_chunks == count
        size = spec.manifests[0].shards[0].size
    assert found[10] == found[1000]
    assert found[10]["listings"] == 1
    assert found[10]["bytes_read"] < 4 * size


@pytest.mark.parametrize("kind", WRITE)
def test_shards_of_many_chunks_differ_by_less_than_a_chunk(tmp_path: Path, kind: str) -> None:
    """The last chunk of a shard is smaller, and may be the first in one order and not another."""
    folders = [write_shards(tmp_path / str(count), kind, count, 9000) for count in (10, 1000)]
    few, many = (before_the_first_batch(folder, shuffle="none")[0] for folder in folders)
    assert few == many
    (few, spec), (many, _) = (before_the_first_batch(folder, shuffle="chunk") for folder in folders)
    assert abs(few["bytes_read"] - many["bytes_read"]) < spec.manifests[0].chunk_size


@pytest.mark.parametrize("kind", ["feather", "jsonl"])
def test_record_reads_one_group_for_the_first_batch(tmp_path: Path, kind: str) -> None:
    folder = write_shards(tmp_path / "data", kind, 1000, 9000)
    found, spec = before_the_first_batch(folder, shuffle="record")
    manifest = spec.manifests[0]
    assert sum(shard.size for shard in manifest.shards) > 100 * manifest.group_size
    assert found["bytes_read"] < 1.25 * manifest.group_size


def test_only_the_beginning_of_a_chunk_is_looked_at(tmp_path: Path) -> None:
    """To choose the tokenizer's engine; the rest where there is nothing at its beginning."""
    folder = write_shards(tmp_path / "data", "jsonl", 2, 9000)
    found, spec = prepared_only(folder)
    assert found < spec.manifests[0].chunk_size
    first = sorted(folder.iterdir())[0]
    first.unlink()
    first.write_text("\n" * 500_000 + json.dumps({"text": "the first"}) + "\n")
    _, spec = prepared_only(folder, run_dir=str(tmp_path / "blank"))
    storage = Storage()
    records = first_records(storage, spec.manifests[0], RecordSpec(columns=("text",)))
    assert records.column(0).to_pylist() == ["the first"]
    storage.close()
