"""``meshfeed simulate --train``: a whole run with its resizes, through the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from ids_data import write_ids

Simulate = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def simulate(ray_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Simulate:
    """``simulate(hosts=2, steps=8)``: the report of a run; every flag by its name."""
    folder = tmp_path_factory.mktemp("resize")
    many = [[(7 * n) % 60 + 1 for n in range(120)] for _ in range(4)]
    few = [[(5 * n) % 60 + 1 for n in range(60)] for _ in range(2)]
    settings = {
        "sources": [
            {
                "name": "many",
                "data": [str(write_ids(folder / "many", many, group=50))],
                "weight": 0.7,
                "transforms": ["record_transforms:drop_multiples_of_7"],
            },
            {
                "name": "few",
                "data": [str(write_ids(folder / "few", few, kind="jsonl", first_id=10_000))],
                "weight": 0.3,
                "epochs": 3,
            },
        ],
        "column": "ids",
        "seq_len": 32,
        "batch_size": 12,
        "shuffle": "record",
        "packing": "first_fit",
        "readers": 1,
        "timeout_seconds": 120,
    }
    config = folder / "config.yaml"
    config.write_text(yaml.safe_dump(settings))

    def run(name: str, **flags: Any) -> dict[str, Any]:
        flags = {"train": "tiny_trainer:train", "run_dir": folder / name} | flags
        words = [f"--{key.replace('_', '-')}={value}" for key, value in flags.items()]
        command = [sys.executable, "-m", "meshfeed.launch.cli", "simulate", str(config), *words]
        done = subprocess.run(
            command, env=os.environ | ray_environment, capture_output=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr.decode()[-3000:]
        report: dict[str, Any] = json.loads((folder / name / "report.json").read_text())
        return report

    return run


def test_case_18_training_takes_every_step_whatever_the_environment_says(
    simulate: Simulate, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, stale in (
        ("JAX_NUM_PROCESSES", "3"),
        ("JAX_PROCESS_ID", "2"),
        ("JAX_COORDINATOR_ADDRESS", "127.0.0.1:1"),
    ):
        monkeypatch.setenv(name, stale)
    report = simulate("fixed", hosts=2, steps=12, resize="4:1", snapshot_every=5, world="reuse")
    assert report["agreed"]
    (resize,) = report["resizes"]
    assert (resize["kind"], resize["hosts_from"], resize["hosts_to"]) == ("planned", 2, 1)
    assert set(resize["seconds"]) == {
        *("notice", "drain", "leave", "plan", "join", "move", "compile", "first_step")
    }
    assert [step["step"] for step in report["steps"]] == list(range(12))
    losses = report["losses"]
    assert len(losses) == 12
    assert losses[-1] < losses[0]
