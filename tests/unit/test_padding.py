"""Padding: half a row of each window is lost, which is under 1 % wherever there is data enough."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from rich.console import Console
from windows_run import run_source

from meshfeed.launch.cli import main
from meshfeed.launch.plan_data import print_data_plan
from meshfeed.pipeline.data.runs.prepare import prepare_feeds
from meshfeed.pipeline.data.runs.survey import SAMPLED_WINDOWS
from meshfeed.pipeline.data.transforms import vectorized
from meshfeed.pipeline.plan.feed_spec import FeedSpec
from meshfeed.pipeline.plan.run_config import RunConfig

PROMISED = 0.01
LARGEST_ID = 60_000


def write_ids(path: Path, lengths: Sequence[int], *, row_group: int = 1000, seed: int = 0) -> None:
    """A Parquet shard of token ids, of records of these lengths."""
    rng = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    ids = rng.integers(0, LARGEST_ID, int(offsets[-1]), dtype=np.uint16)
    column = pa.ListArray.from_arrays(pa.array(offsets), pa.array(ids))
    pq.write_table(
        pa.table({"ids": column}), path,
        row_group_size=row_group, compression="none", use_dictionary=False,
    )  # fmt: skip


def prepared(folder: Path, **settings: Any) -> tuple[RunConfig, FeedSpec]:
    config = RunConfig.from_mapping(
        {"data": str(folder), "run_dir": f"{folder}-{sorted(settings)}", "column": "ids"} | settings
    )
    return config, prepare_feeds(config)["train"]


def padding_fraction(config: RunConfig, spec: FeedSpec, *, epoch: int = 1) -> tuple[float, int]:
    """Padding over all of the rows of an epoch, and its windows."""
    stats = [done.stats for done in run_source(config, spec, epoch=epoch)]
    padding = sum(s.padding for s in stats)
    return padding / (padding + sum(s.tokens for s in stats)), len(stats)


def planned(folder: Path, **settings: Any) -> str:
    """What ``meshfeed plan`` says of the data, on one line."""
    console = Console(file=io.StringIO(), width=100)
    config = RunConfig.from_mapping({"data": str(folder), "column": "ids"} | settings)
    print_data_plan(console, config, "train", windows=SAMPLED_WINDOWS)
    return " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]


def share_told(told: str) -> float:
    """The padding that a plan tells."""
    found = re.search(r"padding <?([0-9.]+) % of the rows", told)
    assert found, told
    return float(found[1]) / 100


@pytest.mark.parametrize("shuffle", ["chunk", "record"])
def test_rows_of_131072_tokens(tmp_path: Path, shuffle: str) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for shard in range(8):
        lengths = rng.integers(2000, 30_000, 600)
        write_ids(folder / f"{shard}.parquet", lengths, row_group=20, seed=shard)
    config, spec = prepared(folder, seq_len=131_072, shuffle=shuffle)
    found, windows = padding_fraction(config, spec)
    assert windows >= 4
    assert 0 < found < PROMISED
    told = planned(folder, seq_len=131_072, shuffle=shuffle)
    assert re.search(r"half a row of each window, of about 1[0-9]0 rows", told), told


@vectorized
def keep_a_tenth(table: pa.Table) -> pa.Table:
    """Keeps the records whose first id is below a tenth of them all."""
    return table.filter(pc.less(pc.list_element(table["ids"], 0), LARGEST_ID // 10))


def test_a_filter_that_drops_nine_tenths(tmp_path: Path) -> None:
    """Windows cannot know of it: the plan says what it costs, and which setting mends it."""
    folder = tmp_path / "data"
    folder.mkdir()
    for shard in range(6):
        write_ids(folder / f"{shard}.parquet", [1500] * 5000, row_group=100, seed=shard)
    settings = {"seq_len": 8192, "transforms": ["test_padding:keep_a_tenth"]}
    unaware, windows = padding_fraction(*prepared(folder, **settings))
    assert windows > 10
    assert unaware > PROMISED
    told = planned(folder, **settings)
    assert "one gives 26 rows, since transforms drop most of it" in told, told
    assert "With kept: 0.1 for this source windows are 10 times as large" in told
    assert share_told(told) == pytest.approx(unaware, rel=0.25)
    config, spec = prepared(folder, kept=0.1, **settings)
    aware, windows = padding_fraction(config, spec)
    assert windows >= 2
    assert aware < PROMISED
    told = planned(folder, kept=0.1, **settings)
    assert re.search(r"half a row of each window, of about 2[5-9]0 rows", told), told


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_5000_tiny_shards(tmp_path: Path, kind: str) -> None:
    """A window spans as many of them as it needs."""
    folder = tmp_path / "data"
    folder.mkdir()
    first, lengths = folder / f"0000.{kind}", [700, 100, 1100]
    if kind == "parquet":
        write_ids(first, lengths)
    else:
        lines = [json.dumps({"ids": [7] * length}) + "\n" for length in lengths]
        first.write_text("".join(lines))
    for shard in range(1, 5000):
        os.link(first, folder / f"{shard:04d}.{kind}")
    found, windows = padding_fraction(*prepared(folder, seq_len=2048))
    assert windows >= 4
    assert found < PROMISED
    told = planned(folder, seq_len=2048)
    assert "5,000 shards" in told
    assert share_told(told) < PROMISED


@pytest.mark.parametrize("packing", ["concat", "none"])
def test_where_there_is_too_little_plan_and_inspect_say_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], packing: str
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    write_ids(folder / "0.parquet", [1000] * 21)
    settings = {"seq_len": 2048, "packing": packing}
    found, windows = padding_fraction(*prepared(folder, **settings))
    assert windows == 1
    assert found > PROMISED
    told = planned(folder, **settings)
    assert share_told(told) == pytest.approx(found, abs=0.01), "all of it was run"
    because = {
        "concat": "half a row of each window is lost, and an epoch has 11 rows in 1 window",
        "none": "packing: concat or best_fit puts several records in a row",
    }
    assert because[packing] in told, told
    words = ["--data", str(folder), "--column", "ids", "--seq-len", "2048", "--packing", packing]
    assert main(["inspect", *words]) == 0
    assert because[packing] in " ".join(capsys.readouterr().out.split())
