"""How well ``record`` mixes shards that are sorted by label, and what ``chunk`` reads for it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from pyarrow import feather
from windows_run import Ints, run_source, segments, with_sizes

from meshfeed.pipeline.data.runs.prepare import prepare_feeds
from meshfeed.pipeline.data.sources.source_reader import storage_of
from meshfeed.pipeline.plan.feed_spec import FeedSpec
from meshfeed.pipeline.plan.run_config import RunConfig

ROWS = 256
LEAST_OF_UNIFORM = 0.9
RECORDS_IN_ROW_GROUP = 2


def write_labels(folder: Path, kind: str, shards: int, records: int, length: int) -> list[int]:
    """Shards of one label each, the records all different; bytes of each shard."""
    folder.mkdir()
    for label in range(shards):
        texts = [f"{label:04d} {i:06d} ".ljust(length, "x") for i in range(records)]
        path = folder / f"label-{label:04d}.{kind}"
        if kind == "parquet":
            pq.write_table(
                pa.table({"text": texts, "label": [label] * records}), path,
                row_group_size=RECORDS_IN_ROW_GROUP, compression="none", use_dictionary=False,
            )  # fmt: skip
        else:
            path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return [path.stat().st_size for path in sorted(folder.iterdir())]


def prepared(folder: Path, **settings: Any) -> tuple[RunConfig, FeedSpec]:
    config = RunConfig.from_mapping(
        {"data": str(folder), "run_dir": f"{folder}-run", "seed": 5} | settings
    )
    return config, prepare_feeds(config)["train"]


def least_mixed(row: Ints, source: Ints, record: Ints) -> float:
    """Distinct sources in 256 consecutive rows over those of a uniform shuffle, the least of all.

    Args:
        row: of each segment, ascending: [segments].
        source: of its record: [segments]; what should be mixed.
        record: its record, as one number: [segments].
    """
    _, first = np.unique(record, return_index=True)
    everything = source[first]
    uniform = np.zeros(len(everything))
    rng = np.random.default_rng(0)
    for _ in range(8):
        shuffled = everything[rng.permutation(len(everything))]
        new = np.zeros(len(everything))
        new[np.unique(shuffled, return_index=True)[1]] = 1
        uniform += np.cumsum(new) / 8
    starts = np.searchsorted(row, np.arange(row[-1] - ROWS + 2))
    ends = np.searchsorted(row, np.arange(ROWS, row[-1] + 2))
    assert len(starts) == len(ends) > ROWS
    seen = [
        len(np.unique(source[begin:end])) / uniform[len(np.unique(record[begin:end])) - 1]
        for begin, end in zip(starts, ends, strict=True)
    ]
    return min(seen)


def chunk_of_byte(spec: FeedSpec, shard: Ints, place: Ints) -> Ints:
    """The chunk that owns the record at a byte of a shard: [n]."""
    manifest = spec.manifests[0]
    return manifest.chunk_starts[shard] + place // manifest.chunk_size


def row_group_of(_: FeedSpec, shard: Ints, place: Ints) -> Ints:
    """The row group of a record, which is what a chunk brings in: [n]."""
    return shard * 10**6 + place // RECORDS_IN_ROW_GROUP


CHUNK_OF: dict[str, Callable[[FeedSpec, Ints, Ints], Ints]] = {
    "jsonl": chunk_of_byte,
    "parquet": row_group_of,
}


@pytest.mark.parametrize("kind", CHUNK_OF)
def test_record_mixes_label_sorted_shards_as_a_uniform_shuffle_does(
    tmp_path: Path, kind: str
) -> None:
    write_labels(tmp_path / "data", kind, 64, 360, 600)
    config, spec = prepared(tmp_path / "data", shuffle="record", seq_len=512)
    assert spec.manifests[0].num_chunks > 500
    row, shard, place = segments(run_source(config, spec))
    record = shard * 10**9 + place
    assert least_mixed(row, CHUNK_OF[kind](spec, shard, place), record) >= LEAST_OF_UNIFORM
    assert least_mixed(row, shard, record) >= LEAST_OF_UNIFORM


@pytest.mark.parametrize("kind", CHUNK_OF)
def test_record_mixes_as_well_where_a_group_holds_only_some_of_the_chunks(
    tmp_path: Path, kind: str
) -> None:
    records = 256
    sizes = write_labels(tmp_path / "data", kind, 64, records, 99)
    config, spec = prepared(tmp_path / "data", shuffle="record", seq_len=100)
    chunk = sizes[0] * RECORDS_IN_ROW_GROUP // records
    spec = with_sizes(
        spec, chunk_size=chunk, window_size=200 * chunk, group_size=int(sum(sizes) / 2.05)
    )
    assert spec.epochs().windows(0, 1).num_groups == 2
    row, shard, place = segments(run_source(config, spec, epoch=1))
    record = shard * 10**9 + place
    assert least_mixed(row, CHUNK_OF[kind](spec, shard, place), record) >= LEAST_OF_UNIFORM
    assert least_mixed(row, shard, record) >= LEAST_OF_UNIFORM


MOST_READ = 1.05


def columns(shard: int, records: int) -> pa.Table:
    """A table of which only ``text`` is used."""
    rng = np.random.default_rng(shard)
    texts = [rng.bytes(int(n)).hex() for n in rng.integers(50, 1200, records)]
    return pa.table(
        {
            "id": list(range(records)),
            "text": texts,
            "meta": [rng.bytes(300).hex() for _ in range(records)],
            "score": rng.random(records),
        }
    )


def write_parquet(path: Path, table: pa.Table) -> int:
    """Writes a shard and gives the bytes of its column ``text``, as the footer says."""
    pq.write_table(table, path, row_group_size=500, compression="zstd")
    groups = pq.read_metadata(path)
    columns = [groups.row_group(i).column(1) for i in range(groups.num_row_groups)]
    return sum(column.total_compressed_size for column in columns)


def write_arrow(path: Path, table: pa.Table) -> int:
    feather.write_feather(table, str(path), compression="uncompressed", chunksize=100)
    return table.column("text").nbytes


def write_jsonl(path: Path, table: pa.Table) -> int:
    path.write_text("".join(json.dumps(record) + "\n" for record in table.to_pylist()))
    return path.stat().st_size


def write_zst(path: Path, table: pa.Table) -> int:
    lines = "".join(json.dumps(record) + "\n" for record in table.to_pylist())
    path.write_bytes(zstandard.compress(lines.encode()))
    return path.stat().st_size


WRITE = {
    "parquet": write_parquet,
    "arrow": write_arrow,
    "jsonl": write_jsonl,
    "jsonl.zst": write_zst,
}


@pytest.mark.parametrize("kind", WRITE)
def test_chunk_reads_hardly_more_than_the_used_column(tmp_path: Path, kind: str) -> None:
    (tmp_path / "data").mkdir()
    used = sum(
        WRITE[kind](tmp_path / "data" / f"{shard}.{kind}", columns(shard, 4000))
        for shard in range(3)
    )
    config, spec = prepared(tmp_path / "data", shuffle="chunk", seq_len=256)
    assert spec.epochs().count(0, 1) > 2
    storage = storage_of(config)
    stats = [done.stats for done in run_source(config, spec, epoch=1, storage=storage)]
    assert sum(s.records for s in stats) == 3 * 4000
    assert sum(s.storage_bytes for s in stats) == storage.counters.bytes_read
    assert sum(s.used_bytes for s in stats) == pytest.approx(used, rel=0.01)
    assert storage.counters.bytes_read <= MOST_READ * used
    storage.close()
