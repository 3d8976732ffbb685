"""The commands as a new user runs them: the example trainer beside ``serve``, and a failing run."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIMIT_S = 300.0


def start(*words: str, log: Path) -> subprocess.Popen[bytes]:
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    with log.open("wb") as sink:
        return subprocess.Popen(
            [sys.executable, *words],
            env=environment | {"JAX_PLATFORMS": "cpu", "COLUMNS": "200"},
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def write_texts(path: Path, count: int) -> Path:
    path.write_text("".join(json.dumps({"text": f"text {i} " * 20}) + "\n" for i in range(count)))
    return path


def test_the_example_trainer_takes_a_served_run_to_its_end(tmp_path: Path) -> None:
    data = write_texts(tmp_path / "a.jsonl", 400)
    run_dir, log = tmp_path / "run", tmp_path / "serve.log"
    words = ["serve", "--data", str(data), "--seq-len", "64", "--readers", "2"]
    serving = start("-m", "meshfeed.launch.cli", *words, "--run-dir", str(run_dir), log=log)
    try:
        until = time.monotonic() + LIMIT_S
        while "up: connect with" not in log.read_text():
            assert serving.poll() is None, log.read_text()
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.2)
        example = str(ROOT / "examples" / "plain_trainer.py")
        done = start(example, str(run_dir), "0", "1", log=tmp_path / "trainer.log")
        assert done.wait(LIMIT_S) == 0, (tmp_path / "trainer.log").read_text()
    finally:
        serving.send_signal(signal.SIGTERM)
    assert serving.wait(LIMIT_S) == 0, log.read_text()
    said = re.search(r"process 0: (\d+) steps", (tmp_path / "trainer.log").read_text())
    tokens = sum(len(json.loads(line)["text"]) + 1 for line in data.read_text().splitlines())
    rows = -(-tokens // 64)
    assert said
    assert int(said[1]) in (-(-rows // 8), -(-rows // 8) + 1)  # windows end rows early


def test_a_failing_simulation_ends_with_one_line_that_says_why(tmp_path: Path) -> None:
    data = write_texts(tmp_path / "a.jsonl", 200)
    with data.open("a") as file:
        file.write('{"text": 5}\n')
    log = tmp_path / "log"
    words = ["simulate", "--data", str(data), "--seq-len", "64", "--readers", "1"]
    failing = start("-m", "meshfeed.launch.cli", *words, "--run-dir", str(tmp_path / "r"), log=log)
    assert failing.wait(LIMIT_S) == 1
    text = log.read_text()
    assert "Traceback" not in text
    last = text.strip().splitlines()[-1]
    assert last.startswith(f"meshfeed: {data}, byte ")
    assert "bad_records: skip" in last
