"""``meshfeed status`` beside a run that is up: it names what holds training up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from plain_world import PlainWorld
from slow_tokenizer import SECONDS

from meshfeed.launch.diagnosis import slow_readers


def ask(run_dir: Path, *flags: str) -> str:
    """What the command prints, in a process of its own that is told of no Ray."""
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    words = [sys.executable, "-m", "meshfeed.launch.cli", "status", str(run_dir), *flags]
    done = subprocess.run(
        words,
        check=False,
        env=environment | {"COLUMNS": "100"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_case_37_status_names_the_slow_reader_its_stage_and_the_waiting(
    tmp_path: Path, start_run: Callable[..., Any], world_2x2: PlainWorld
) -> None:
    claim = tmp_path / "slow-process"
    data = tmp_path / "text.jsonl"
    line = json.dumps({"text": f"{claim} " + "some words " * 40}) + "\n"
    data.write_text(line * 12_000)
    settings = {
        "data": str(data),
        "transforms": ["slow_tokenizer:slow_in_one_process"],
        "seq_len": 2048,
        "batch_size": 16,
        "epochs": 0,
        "readers": 2,
    }
    with (
        start_run(run_dir=tmp_path / "run", **settings) as run,
        world_2x2.feed(tmp_path / "run") as feed,
    ):
        assert feed.skip(300) == [300, 300]
        until = time.monotonic() + 60  # hosts tell their steps every two seconds or so
        while (status := json.loads(ask(tmp_path / "run", "--json")))["feeds"]["train"][
            "taken"
        ] < 300:
            assert time.monotonic() < until
        text = ask(tmp_path / "run")
        here = run.status()
    slow = int(claim.read_text())
    names = {reader["pid"]: reader["reader"] for reader in here["readers"]}
    train = status["feeds"]["train"]
    assert train["taken"] == 300
    assert set(train["readers"]) == set(names.values())
    found = slow_readers(train)
    assert [(one.reader, one.stage) for one in found] == [(names[slow], "tokenize")]
    assert found[0].seconds >= SECONDS
    assert any(
        f"{names[slow]} on" in words and "a window in tokenize, the others" in words
        for words in status["diagnosis"]
    )
    shares = [times["seconds"] / times["of_seconds"] for times in train["waiting"].values()]
    assert len(shares) == 2
    assert all(0 < part <= 1 for part in shares)
    assert all(sum(times["by_stage"].values()) > 0 for times in train["waiting"].values())
    for word in ("waiting", "slow: tokenize", names[slow], "2 readers", "a second"):
        assert word in " ".join(text.split())
