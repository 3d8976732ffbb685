"""What ``meshfeed plan`` says of data: padding, reading, mixing and memory to expect."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import yaml

from meshfeed.launch.cli import main
from meshfeed.launch.words import format_bytes
from meshfeed.pipeline.plan.config import Shuffle
from meshfeed.pipeline.plan.mixing import distinct_sources, expected_mixing


def write_lines(folder: Path, shards: int, records: int) -> Path:
    folder.mkdir()
    rng = np.random.default_rng(0)
    for shard in range(shards):
        texts = ["x" * int(n) for n in rng.integers(100, 900, records)]
        lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
        (folder / f"{shard:03d}.jsonl").write_text(lines)
    return folder


def plan(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert main(["plan", "--picture", "none", *map(str, words)]) == 0
    return capsys.readouterr().out


def test_the_plan_tells_what_the_windows_will_be_like(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_lines(tmp_path / "data", 30, 200)
    told = " ".join(plan(capsys, "--data", data, "--seq-len", 256, "--shuffle", "record").split())
    size = sum(path.stat().st_size for path in data.iterdir())
    assert "train/data 30 shards of jsonl" in told
    chunks = re.search(r"sizes (\d+) chunks of ([0-9.]+) KB, 3 windows of 1.0\d MB an epoch", told)
    assert chunks, told
    assert 30 * -(-size // 30 // int(1000 * float(chunks[2]))) == pytest.approx(int(chunks[1]), 0.1)
    assert f"1 shuffle group of {format_bytes(size)}" in told, told
    assert re.search(r"reading 1\.\d+ times the bytes of the used columns", told)
    drawn = 256 * 256 / 501
    expected = distinct_sources(drawn, int(chunks[1]), 6000)
    mixing = re.search(r"256 rows draw from about (\d+) chunks, 1.00 of what a uniform", told)
    assert mixing, told
    assert int(mixing[1]) == pytest.approx(expected, rel=0.06)
    assert re.search(r"memory_budget of [0-9.]+ MB at least", told)
    assert re.search(r"records that windows share: 3\.\d+ MB; chunk_cache is 1.07 GB", told), told


def test_memory_that_is_too_small_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "run.yaml"
    data = write_lines(tmp_path / "data", 10, 400)
    settings = {
        "data": str(data), "seq_len": 256, "shuffle": "record",
        "memory_budget": "1KB", "chunk_cache": "1MB",
    }  # fmt: skip
    config.write_text(yaml.safe_dump(settings))
    told = " ".join(plan(capsys, config).split())
    assert "It is 1.00 KB, which is too little" in told
    assert "chunk_cache is 1.00 MB, so that chunks are read again and again" in told


def test_a_plan_without_data_or_without_reach_is_still_a_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = plan(capsys, "--hosts", 2)
    assert "What each host supplies" in told
    assert "data could not" not in told
    told = plan(capsys, "--hosts", 2, "--data", tmp_path / "*.parquet")
    assert "What each host supplies" in told
    assert "The data could not be looked into" in told
    assert "names no file" in " ".join(told.split())
    told = plan(capsys, "--hosts", 2, "--data", tmp_path / "*.parquet", "--windows", 0)
    assert "data could not" not in told


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("shuffle", Shuffle)
def test_it_fits_the_terminal(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    columns: int,
    shuffle: str,
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    data = write_lines(tmp_path / "d", 10, 20)
    out = plan(capsys, "--data", data, "--seq-len", 256, "--shuffle", shuffle)
    lines = out[out.index("What to expect") :].splitlines()
    assert max(map(len, lines)) <= columns
    assert len(lines) < 20


@pytest.mark.parametrize("sources", [10, 300, 5000])
@pytest.mark.parametrize("drawn", [1, 50, 1000, 9999])
def test_distinct_sources_are_those_of_a_draw(sources: int, drawn: int) -> None:
    rng = np.random.default_rng(drawn)
    owner = np.arange(10_000) % sources
    draws = [len(np.unique(rng.permutation(owner)[:drawn])) for _ in range(10)]
    assert distinct_sources(drawn, sources, 10_000) == pytest.approx(np.mean(draws), rel=0.03)


def test_mixing_by_order() -> None:
    facts = {"drawn": 1000, "chunks": 8000, "records": 10**6}
    record, uniform = expected_mixing(Shuffle.RECORD, groups=1, **facts)
    assert record == uniform == pytest.approx(941, abs=2)
    of_a_group, _ = expected_mixing(Shuffle.RECORD, groups=8, **facts)
    assert of_a_group == pytest.approx(633, abs=2)
    one_after_another, same = expected_mixing(Shuffle.CHUNK, groups=8, **facts)
    assert (one_after_another, same) == (9, uniform)
    assert expected_mixing(Shuffle.CHUNK, drawn=50, chunks=3, records=20, groups=1)[0] == 3
