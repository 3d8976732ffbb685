"""Columns that a transform looks at beside the text: numbers, flags and structures, null or not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import meshfeed
from meshfeed.pipeline.data.runs.prepare import prepare_feeds
from meshfeed.pipeline.data.transforms import needs, vectorized
from meshfeed.pipeline.plan.run_config import RunConfig

RECORDS = [
    {
        "ids": [i] * 4,
        "score": None if i == 3 else i / 10,
        "good": i % 2 == 0,
        "meta": {"lang": "de" if i == 5 else "en", "tags": ["x"] * (i % 3)},
    }
    for i in range(10)
]


@needs("score", "good", "meta")
def english_and_good(record: dict[str, Any]) -> bool:
    """A filter as people write them."""
    known = record["score"] is not None and record["score"] >= 0.2
    return known and (record["good"] or record["meta"]["tags"] == ["x"])


@vectorized
@needs("score")
def above_half(table: pa.Table) -> pa.Table:
    """The same for a table."""
    return table.filter(pa.compute.greater(table["score"], 0.5))


def _parquet(folder: Path) -> None:
    pq.write_table(pa.Table.from_pylist(RECORDS), folder / "a.parquet", row_group_size=3)


def _arrow(folder: Path) -> None:
    table = pa.Table.from_pylist(RECORDS)
    with pa.ipc.new_file(folder / "a.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=3)


def _jsonl(folder: Path) -> None:
    (folder / "a.jsonl").write_text("".join(json.dumps(r) + "\n" for r in RECORDS))


@pytest.mark.parametrize("write", [_parquet, _arrow, _jsonl])
@pytest.mark.parametrize(
    ("transform", "kept"),
    [("english_and_good", {2, 4, 6, 7, 8}), ("above_half", {6, 7, 8, 9})],
)
def test_a_filter_may_look_at_columns_of_any_kind(
    write: Callable[[Path], None], transform: str, kept: set[int], tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    write(tmp_path / "data")
    config = RunConfig.from_mapping(
        {
            "data": [str(tmp_path / "data")],
            "column": "ids",
            "transforms": [f"{__name__}:{transform}"],
            "seq_len": 4,
            "batch_size": 16,
            "run_dir": str(tmp_path / "run"),
        }
    )
    prepare_feeds(config)
    with meshfeed.open(config.run_dir) as run:
        batch = run.batch(0)
    assert set(batch["tokens"][batch["segment_ids"] > 0].tolist()) == kept
