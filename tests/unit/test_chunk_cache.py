"""What windows share is read once a node, kept within its budget, and gives the same rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_runs import prepare_run

from meshfeed.pipeline.data.formats.records import ChunkRecords
from meshfeed.pipeline.data.packing.blocks import BlockFormat
from meshfeed.pipeline.data.packing.rows import WindowRunner
from meshfeed.pipeline.data.sources.chunk_cache import ChunkCache
from meshfeed.pipeline.data.sources.source_reader import storage_of
from meshfeed.pipeline.data.tokenizers import load_tokenizer
from meshfeed.pipeline.data.transforms import vectorized
from meshfeed.pipeline.plan.config import Engine
from meshfeed.pipeline.plan.errors import DataError


def records(values: list[list[int]], storage_bytes: int = 0) -> ChunkRecords:
    return ChunkRecords(
        table=pa.table({"ids": pa.array(values, pa.list_(pa.int32()))}),
        shards=np.zeros(len(values), np.int32),
        places=np.arange(len(values)),
        place_unit="record",
        storage_bytes=storage_bytes,
        used_bytes=storage_bytes,
    )


def test_a_stripe_is_made_once_and_its_reading_counted_once(tmp_path: Path) -> None:
    made = 0

    def make() -> ChunkRecords:
        nonlocal made
        made += 1
        return records([[1, 2], [], [3]], storage_bytes=99)

    for expected in (99, 0):
        (found,) = ChunkCache(tmp_path, 1 << 20).get([("a", make)])
        assert found.table.column("ids").to_pylist() == [[1, 2], [], [3]]
        assert found.places.tolist() == [0, 1, 2]
        assert (found.storage_bytes, found.used_bytes) == (expected, expected)
    assert made == 1


def test_the_folder_stays_within_the_budget_and_what_was_made_first_goes_first(
    tmp_path: Path,
) -> None:
    cache = ChunkCache(tmp_path, 20_000)
    for number in range(6):
        cache.get([(f"stripe {number}", lambda n=number: records([[n] * 1000]))])  # type: ignore[misc]
    sizes = [path.stat().st_size for path in tmp_path.glob("*.arrow")]
    assert 2 <= len(sizes) < 6
    assert sum(sizes) <= 20_000
    remade: list[int] = []
    for number in (5, 0):
        cache.get([(f"stripe {number}", lambda n=number: remade.append(n) or records([[n]]))])  # type: ignore[misc, func-returns-value]
    assert remade == [0]


def test_a_stripe_above_the_budget_is_not_kept(tmp_path: Path) -> None:
    (found,) = ChunkCache(tmp_path, 100).get([("a", lambda: records([[1] * 1000], 7))])
    assert (len(found), found.storage_bytes) == (1, 7)
    assert not list(tmp_path.glob("*.arrow"))


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    """Shards of 4-byte ids, none of them above 60,000, shuffled by record."""
    folder = tmp_path / "data"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for shard in range(3):
        ids = [rng.integers(0, 60_000, rng.integers(0, 40)).tolist() for _ in range(80)]
        table = pa.table({"ids": pa.array(ids, pa.list_(pa.int32()))})
        pq.write_table(table, folder / f"{shard}.parquet", row_group_size=8)
    return {
        "data": [str(folder)],
        "column": "ids",
        "shuffle": "record",
        "seq_len": 16,
        "batch_size": 4,
    }


def blocks(settings: dict[str, Any], tmp_path: Path, **more: Any) -> list[Any]:
    """Rows of all windows, and the folder of the cache that they came through."""
    run_dir = tmp_path / f"run-{len(list(tmp_path.iterdir()))}"
    config, specs = prepare_run(settings | more | {"run_dir": str(run_dir)})
    spec = specs["train"]
    runner = WindowRunner(
        feed=spec.config,
        source=spec.config.sources[0],
        manifest=spec.manifests[0],
        block_format=BlockFormat.of(spec),
        tokenizer=load_tokenizer(spec.config.tokenizer, Engine(spec.engine))
        if spec.engine
        else None,
        storage=storage_of(config),
        cache=ChunkCache(run_dir / "chunks", 1 << 24),
    )
    count = spec.epochs().count(0, 0)
    assert count > 3
    return [runner.run(0, window).packed.block for window in range(count)]


def test_a_small_vocabulary_gives_the_same_rows_in_half_the_bytes(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    wide = blocks(settings, tmp_path)
    narrow = blocks(settings, tmp_path, vocab_size=60_000)
    for left, right in zip(wide, narrow, strict=True):
        assert (left.tokens.dtype, right.tokens.dtype) == (np.int32, np.uint16)
        np.testing.assert_array_equal(left.tokens, right.tokens)
        np.testing.assert_array_equal(left.starts, right.starts)


seen: list[pa.DataType] = []


@vectorized
def look(table: pa.Table) -> pa.Table:
    """A transform that changes nothing."""
    seen.append(table.column("ids").type)
    return table


def test_transforms_see_ids_as_they_are_stored(settings: dict[str, Any], tmp_path: Path) -> None:
    seen.clear()
    transforms = [f"{__name__}:look"]
    narrow = blocks(settings, tmp_path, vocab_size=60_000, transforms=transforms)
    assert narrow[0].tokens.dtype == np.uint16
    assert {kind.value_type for kind in seen} == {pa.int32()}


def test_an_id_outside_of_the_vocabulary_ends_the_run(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=r"is outside 0\.\.49999, the vocabulary"):
        blocks(settings, tmp_path, vocab_size=50_000)
    text = tmp_path / "text.jsonl"
    text.write_text('{"text": "bytes below 128, and the end of a record above"}\n' * 500)
    own = {"data": [str(text)], "column": "text"}
    with pytest.raises(DataError, match=r"id 257 is outside 0\.\.127, the vocabulary"):
        blocks(settings | own, tmp_path, vocab_size=128)
