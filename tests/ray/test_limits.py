"""Memory, files, many shards, and processes that end at once: what a run takes has a limit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import ray
import yaml
from ids_data import write_ids, write_many, write_texts
from plain_world import PlainWorld, kill_all
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from meshfeed.actors.reading.shared_memory import ROOT
from meshfeed.actors.run import Run
from meshfeed.pipeline.plan.run_config import RunConfig

LONG_S = 100.0
"""Far longer than anything here takes on a busy machine: it tells a hang from work."""


def test_case_30_five_thousand_files_are_listed_once_and_opened_when_needed(
    start_run: Callable[..., Any], world_2x2: PlainWorld, tmp_path: Path
) -> None:
    folder = write_many(tmp_path / "data", 5000, 16)
    began = time.monotonic()
    with start_run(
        run_dir=tmp_path / "run",
        data=[str(folder / "*.jsonl")],
        column="ids",
        seq_len=16,
        batch_size=50,
        readers=2,
    ):
        for late in range(5000, 5100):
            (folder / f"part-{late:05d}.jsonl").write_text('{"ids": [7777777]}\n')
        with world_2x2.feed(tmp_path / "run", mesh={"data": 2, "model": 2}) as feed:
            found = feed.ids(1)
            assert time.monotonic() - began < LONG_S
            found += feed.ids()
    assert sorted(found) == [i for i in range(5000) for _ in range(16)]


def test_case_20_sources_share_files_and_threads_and_memory_stays_flat(
    start_run: Callable[..., Any], world_2x2: PlainWorld, tmp_path: Path
) -> None:
    sources = [
        {
            "name": f"s{i}",
            "data": [str(write_ids(tmp_path / f"s{i}", [[20] * 40] * 4, kind=kind))],
            "epochs": 0,
        }
        for i, kind in zip(range(35), ("parquet", "jsonl", "arrow") * 12, strict=False)
    ]
    taken = {}
    for name, count in (("few", 2), ("many", 35)):
        with (
            start_run(
                run_dir=tmp_path / name,
                sources=sources[:count],
                column="ids",
                seq_len=64,
                batch_size=16,
                readers=4,
                memory_budget="8GB",
            ) as run,
            world_2x2.feed(tmp_path / name) as feed,
        ):
            feed.skip(200)
            before = _readers(run)
            feed.skip(200)
            taken[name] = _readers(run)
        assert len(before) == 4
        for pid, own in taken[name].items():
            assert own["private"] < before[pid]["private"] + (64 << 20)
    for own in taken["many"].values():
        assert own["threads"] <= max(one["threads"] for one in taken["few"].values()) + 4
        assert own["files"] <= max(one["files"] for one in taken["few"].values()) + 100


def test_case_33_a_slow_trainer_and_fast_readers_stay_under_the_budget(
    start_run: Callable[..., Any], world_2x2: PlainWorld, tmp_path: Path
) -> None:
    cap = 256 << 20
    words = " ".join(f"word{i}" for i in range(3000))
    data = write_texts(tmp_path / "data", [[words] * 100] * 30)  # 80 MB of text
    spilled_before = _spilled()
    with start_run(
        run_dir=tmp_path / "run",
        data=[str(data)],
        epochs=0,
        seq_len=512,
        batch_size=16,
        readers=2,
        memory_budget="128MB",
        chunk_cache="32MB",
    ) as run:
        with world_2x2.feed(tmp_path / "run") as feed:
            feed.skip(1)
            idle = sum(own["private"] for own in _readers(run).values())
            highest = 0
            feed.begin(20, pause=0.4)
            for _ in range(16):
                time.sleep(0.4)
                private = sum(own["private"] for own in _readers(run).values())
                shared = _shared_memory(run)
                assert shared <= (128 + 32 + 24) << 20, "row blocks, chunks, and spare blocks"
                assert run.status()["block_bytes"] <= 128 << 20
                highest = max(highest, private - idle + shared + _object_store())
            feed.finish()
        windows = _source(run)["windows"]
    assert windows > 20
    assert highest < cap
    assert _spilled() == spilled_before


def test_case_35_a_script_without_a_guard_that_has_used_its_tokenizer(
    ray_address: str, ray_environment: dict[str, str], tmp_path: Path
) -> None:
    texts = [f"record {i} " + "of some words " * (i % 40) for i in range(3000)]
    data = write_texts(tmp_path / "data", [texts[:1500], texts[1500:]])
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=400, show_progress=False))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path), str(data)],
        env=os.environ
        | ray_environment
        | {"RAY_ADDRESS": ray_address, "TOKENIZERS_PARALLELISM": "true"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split()[-1] == "50"
    assert "fork" not in done.stderr.lower(), done.stderr


_SCRIPT = """
import sys

import jax
import numpy as np
from tokenizers import Tokenizer

import meshfeed

folder, data = sys.argv[1:]
tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
tokenizer.encode_batch(["some words"] * 1000)
mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
print(jax.jit(lambda x: x + 1)(np.ones(3)))
run = meshfeed.start(meshfeed.RunConfig.from_mapping({
    "data": data, "tokenizer": f"{folder}/tokenizer.json", "seq_len": 64, "batch_size": 8,
    "eos": False, "epochs": 0, "readers": 2, "run_dir": f"{folder}/run",
}))
feed = meshfeed.connect(run, mesh=mesh)
steps = 0
for batch in feed:
    batch["tokens"].block_until_ready()
    steps += 1
    if steps == 50:
        break
feed.close()
run.stop()
print(steps)
"""


def test_case_36_killed_all_at_once_and_started_again_three_times(
    ray_environment: dict[str, str], tmp_path: Path
) -> None:
    data = write_ids(tmp_path / "data", [[30] * 400] * 4)
    config = tmp_path / "config.yaml"
    settings = {"data": [str(data)], "column": "ids", "seq_len": 32, "batch_size": 8}
    config.write_text(yaml.safe_dump(settings | {"epochs": 0, "readers": 1}))
    beside = _simulate(config, tmp_path / "beside", ray_environment, steps=40)
    for _ in range(3):
        process = _simulate(config, tmp_path / "killed", ray_environment, steps=10_000_000)
        _wait_until_longer(tmp_path / "killed" / "ledger" / "train.ledger", process)
        kill_all(process)
    again = _simulate(config, tmp_path / "killed", ray_environment, steps=40)
    digests = []
    for process, run_dir in ((again, tmp_path / "killed"), (beside, tmp_path / "beside")):
        output, _ = process.communicate(timeout=240)
        assert process.returncode == 0, output.decode()[-3000:]
        report = json.loads((run_dir / "report.json").read_text())
        digests.append([step["digest"] for step in report["steps"]])
    assert len(digests[0]) == 40
    assert digests[0] == digests[1]
    for run_dir in (tmp_path / "beside", tmp_path / "killed"):
        run_id = RunConfig.from_mapping({"data": [str(data)], "run_dir": str(run_dir)}).run_id
        assert not list(ROOT.glob(f"*meshfeed-{run_id}-*"))


def _simulate(
    config: Path, run_dir: Path, environment: dict[str, str], *, steps: int
) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "meshfeed.launch.cli", "simulate", str(config)]
    words += ["--run-dir", str(run_dir), "--steps", str(steps)]
    return subprocess.Popen(
        words, env=os.environ | environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def _source(run: Run) -> dict[str, Any]:
    (source,) = run.status()["feeds"]["train"]["sources"].values()
    return dict(source)


def _readers(run: Run) -> dict[int, dict[str, int]]:
    """Of each reader: files it has open, its threads, and bytes that are its alone."""
    found = {}
    for reader in run.status()["readers"]:
        if "pid" in reader:
            process = psutil.Process(reader["pid"])
            memory = process.memory_info()
            found[reader["pid"]] = {
                "files": process.num_fds(),
                "threads": process.num_threads(),
                "private": memory.rss - memory.shared,
            }
    return found


def _shared_memory(run: Run) -> int:
    """Bytes of a run's files in shared memory."""
    total = 0
    for path in ROOT.glob(f"meshfeed-{run.config.run_id}-*/**/*"):
        try:
            total += path.stat().st_blocks * 512
        except FileNotFoundError:
            continue
    return total


def _object_store() -> int:
    total = ray.cluster_resources().get("object_store_memory", 0.0)
    return round(total - ray.available_resources().get("object_store_memory", 0.0))


def _spilled() -> list[str]:
    """Files that Ray has spilled."""
    (node,) = [node for node in ray.nodes() if node["Alive"]]
    session = Path(node["ObjectStoreSocketName"]).parents[1]
    return sorted(str(path) for path in session.glob("ray_spilled_objects*/**/*"))


def _wait_until_longer(ledger: Path, process: subprocess.Popen[bytes]) -> None:
    """Returns when a run has written more windows into its ledger than were there."""
    before = ledger.stat().st_size if ledger.exists() else 0
    end = time.monotonic() + LONG_S
    while (ledger.stat().st_size if ledger.exists() else 0) < before + 200:
        assert process.poll() is None, "it has ended"
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.1)
