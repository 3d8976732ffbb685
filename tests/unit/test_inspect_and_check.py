"""``meshfeed inspect`` and ``meshfeed check``: what is in the data, and what would go wrong."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from meshfeed.launch.cli import main
from meshfeed.launch.words import about, seconds, share, tail
from meshfeed.pipeline.data.runs.prepare import prepare_feeds
from meshfeed.pipeline.plan.run_config import RunConfig

LENGTHS = [int(n) for n in np.random.default_rng(3).integers(1, 400, 900)]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Three shards of JSONL with known lengths."""
    folder = tmp_path / "data"
    folder.mkdir()
    for shard in range(3):
        lines = [json.dumps({"text": "x" * n}) for n in LENGTHS[shard::3]]
        (folder / f"part-{shard}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(autouse=True)
def transforms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of transforms that only the working directory has."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "my_faults.py").write_text(
        "def fails(record):\n"
        f"    if len(record['text']) == {LENGTHS[5]}:\n"
        "        raise ValueError('seven')\n"
        "    return record\n"
        "def nothing(record):\n"
        "    return None\n"
    )
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "my_faults", raising=False)


def inspected(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> Any:
    assert main(["inspect", *words, "--json"]) == status
    return json.loads(capsys.readouterr().out)["train"]["data"]


def checked(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, status: int, **settings: Any
) -> dict[str, list[str]]:
    """Findings of a configuration, by level."""
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump({"seq_len": 64, "run_dir": str(tmp_path / "run")} | settings))
    assert main(["check", str(path), "--json"]) == status
    told = json.loads(capsys.readouterr().out)
    assert told["ready"] == (status == 0)
    assert not (tmp_path / "run").exists(), "check must write nothing"
    levels: dict[str, list[str]] = {}
    for finding in told["findings"]:
        line = f"{finding['about']} {finding['topic']}: {finding['text']}"
        levels.setdefault(finding["level"], []).append(line)
    return levels


def test_all_of_it_is_measured(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = inspected(capsys, "--data", str(data), "--seq-len", "64", "--all")
    assert told["records"] == told["records_read"] == len(LENGTHS)
    assert told["records_exact"]
    assert told["shards"] == 3
    for name, extra in (("record_bytes", 0), ("record_tokens", 1)):
        lengths = np.array(LENGTHS) + extra
        assert told[name]["mean"] == pytest.approx(lengths.mean())
        for percent in (0, 5, 50, 95, 100):
            assert told[name][f"p{percent}"] == np.percentile(lengths, percent, method="nearest")
    assert told["tokens_in_epoch"] == sum(LENGTHS) + len(LENGTHS)
    assert told["bad_records"] == []
    assert told["read_amplification"] == pytest.approx(1.0, abs=0.05)


def test_a_sample_estimates_what_all_of_it_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    for shard in range(4):
        ids = [[1] * int(n) for n in rng.integers(200, 2200, 1500)]
        table = pa.table({"ids": pa.array(ids, pa.list_(pa.uint16()))})
        pq.write_table(
            table, tmp_path / f"{shard}.parquet", row_group_size=50, compression="none",
            use_dictionary=False,
        )  # fmt: skip
    words = ("--data", str(tmp_path / "*.parquet"), "--column", "ids", "--seq-len", "256")
    some = inspected(capsys, *words, "--windows", "6")
    every = inspected(capsys, *words, "--all")
    assert every["records"] == 6000
    assert not some["records_exact"]
    assert some["records_read"] < 4000
    assert some["records"] == pytest.approx(6000, rel=0.1)
    assert some["tokens_in_epoch"] == pytest.approx(every["tokens_in_epoch"], rel=0.1)


def test_bad_records_are_listed_by_file_and_place(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shard = data / "part-1.jsonl"
    lines = shard.read_text().splitlines()
    lines[3], lines[250] = "{broken", json.dumps({"text": 5})
    shard.write_text("\n".join(lines) + "\n")
    places = [sum(len(line) + 1 for line in lines[:n]) for n in (3, 250)]
    told = inspected(capsys, "--data", str(data), "--seq-len", "64", "--all", status=1)
    assert [(b["shard"], b["place"]) for b in told["bad_records"]] == [
        (str(shard), f"byte {place}") for place in places
    ]
    assert "not JSON" in told["bad_records"][0]["reason"]
    words = ("--data", str(data), "--seq-len", "64", "--all", "--bad-records", "skip")
    inspected(capsys, *words, status=0)


@pytest.mark.parametrize("columns", ["80", "120"])
def test_it_is_readable(
    data: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    columns: str,
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert main(["inspect", "--data", str(data), "--seq-len", "64"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert max(len(line) for line in out if str(data) not in line) <= int(columns)
    bars = [line for line in out if "█" in line]
    in_range = sum(128 <= n + 1 < 256 for n in LENGTHS)
    assert any("128-255" in bar and share(in_range, len(LENGTHS)) in bar for bar in bars)
    assert "no bad record" in "\n".join(out)


def test_a_good_configuration_is_ready(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = checked(capsys, tmp_path, 0, data=str(data), hosts=4, devices_per_host=2)
    assert set(found) == {"ok"}
    lines = "\n".join(found["ok"])
    for word in ("divides over mesh data=8", "bytes tokenizers have one engine", "gave", "run_dir"):
        assert word in lines


WRONG = {
    "batch": ({"hosts": 4, "batch_size": 10}, "batch: batch_size: 10 .* 8 or 12"),
    "column": ({"column": "txt"}, "train/data data: .*no column 'txt'.*text"),
    "transform name": ({"transforms": ["my_faults:failz"]}, "Did you mean fails"),
    "transform": ({"transforms": ["my_faults:fails"]}, "records: .*my_faults:fails.*seven.*line 3"),
    "budget": ({"memory_budget": "10KB"}, "memory: .*10000 bytes is too small; the smallest"),
    "glob": ({"data": "/nowhere/*.jsonl"}, "names no file"),
    "tokenizer": ({"tokenizer": "/nowhere/tokenizer.json"}, "there is no file /nowhere"),
    "key": ({"seq_length": 5}, "'seq_length' is not known. Did you mean 'seq_len'"),
    "partition": ({"partition": "DATTA"}, "batch: "),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_would_fail_is_a_problem(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    settings, message = WRONG[what]
    found = checked(capsys, tmp_path, 1, **({"data": str(data)} | settings))
    assert any(re.search(message, line) for line in found["problem"]), found


def test_all_problems_are_found_at_once(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sources = [
        {"name": "good", "data": str(data)},
        {"name": "one", "data": str(data), "column": "txt"},
        {"name": "two", "data": "/nowhere/x.jsonl"},
    ]
    found = checked(capsys, tmp_path, 1, sources=sources, hosts=3, batch_size=8)
    about = sorted(line.split()[0] for line in found["problem"])
    assert about == ["train", "train/one", "train/two"]


def test_what_is_only_unwise_is_a_warning(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = checked(capsys, tmp_path, 0, data=str(data), seq_len=1024, packing="none", steps=9999)
    lines = "\n".join(found["warning"])
    padding = 1 - (sum(LENGTHS) + len(LENGTHS)) / (1024 * len(LENGTHS))
    assert f"padding: {share(padding, 1)} of the rows" in lines
    assert "packing: concat or best_fit" in lines
    assert "fewer than steps 9,999" in lines
    found = checked(capsys, tmp_path, 0, data=str(data), transforms=["my_faults:nothing"])
    assert "gave 0 rows" in "\n".join(found["warning"])
    settings = {"transforms": ["my_faults:fails"], "bad_records": "skip"}
    found = checked(capsys, tmp_path, 0, data=str(data), **settings)
    assert f"{LENGTHS.count(LENGTHS[5])} bad record" in "\n".join(found["warning"])


def test_another_run_in_the_directory_is_a_problem(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"data": str(data), "seq_len": 64, "run_dir": str(tmp_path / "other")}
    prepare_feeds(RunConfig.from_mapping(settings))
    before = sorted((p, p.stat().st_mtime_ns) for p in (tmp_path / "other").rglob("*"))
    assert not checked(capsys, tmp_path, 0, **settings).get("problem")
    found = checked(capsys, tmp_path, 1, **(settings | {"packing": "best_fit", "seed": 3}))
    assert "packing concat -> best_fit; seed 0 -> 3" in found["problem"][0]
    assert sorted((p, p.stat().st_mtime_ns) for p in (tmp_path / "other").rglob("*")) == before


@pytest.mark.parametrize("columns", ["80", "120"])
def test_the_verdict_comes_last(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert main(["check", "--data", str(data), "--seq-len", "64", "--batch-size", "8"]) == 0
    out = capsys.readouterr().out.rstrip().splitlines()
    assert out[-1].startswith("Ready")
    assert max(map(len, out)) <= int(columns)
    assert main(["check", "--data", str(data), "--hosts", "3", "--seq-len", "64"]) == 1
    assert capsys.readouterr().out.rstrip().splitlines()[-1] == "A run would fail: 1 problem."


def test_numbers_are_written_for_people() -> None:
    assert [seconds(s) for s in (4.2e-5, 0.0532, 5.32, 75, 7260)] == [
        "42 us", "53 ms", "5.3 s", "1 min 15 s", "2 h 1 min",
    ]  # fmt: skip
    assert [share(*pair) for pair in ((1, 3), (1, 1000), (1, 9999), (0, 5), (1, 0))] == [
        "33 %", "0.1 %", "<0.1 %", "0 %", "-",
    ]  # fmt: skip
    assert [about(n) for n in (7.3, 1234, 98765, 1.26e9)] == ["7", "1,200", "99,000", "1.3 billion"]
    assert tail("/a/very/long/way/to/a/shard.parquet", width=22) == ".../to/a/shard.parquet"
    assert tail("/data/code/x.parquet", "/data/code") == "x.parquet"
