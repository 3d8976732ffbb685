"""``meshfeed simulate --train``: a whole run with its resizes, through the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from ids_data import write_ids

STEPS = 32
STALE = {
    "JAX_NUM_PROCESSES": "3",
    "JAX_PROCESS_ID": "2",
    "JAX_COORDINATOR_ADDRESS": "127.0.0.1:1",
}


@pytest.fixture(scope="module")
def run_dir(ray_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a run that went from two hosts to one, back to two, and to one again."""
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

    flags = {
        "train": "counting_trainer:train",
        "run-dir": folder / "run",
        "hosts": 2,
        "steps": STEPS,
        "resize": "4:1,13:2,22:1",
        "snapshot-every": 5,
        "world": "reuse",
    }
    words = [f"--{key}={value}" for key, value in flags.items()]
    command = [sys.executable, "-m", "meshfeed.launch.cli", "simulate", str(config), *words]
    done = subprocess.run(
        command,
        env=os.environ | ray_environment | STALE,
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    return folder / "run"


def test_case_18_training_takes_every_step_whatever_the_environment_says(run_dir: Path) -> None:
    report: dict[str, Any] = json.loads((run_dir / "report.json").read_text())
    assert report["agreed"]
    assert [(r["kind"], r["hosts_from"], r["hosts_to"]) for r in report["resizes"]] == [
        ("planned", 2, 1),
        ("planned", 1, 2),
        ("planned", 2, 1),
    ]
    for resize in report["resizes"]:
        assert set(resize["seconds"]) == {
            *("notice", "drain", "leave", "plan", "join", "move", "compile", "first_step")
        }
    assert [step["step"] for step in report["steps"]] == list(range(STEPS))
    losses = report["losses"]
    assert len(losses) == STEPS
    assert losses[-1] < losses[0]


def test_a_world_as_large_as_an_earlier_one_compiles_nothing_that_was_compiled_for_it(
    run_dir: Path,
) -> None:
    def programs(generation: int, place: int) -> dict[str, int]:
        told: dict[str, int] = json.loads(
            (run_dir / f"programs-{generation}-{place}.json").read_text()
        )
        return told

    assert programs(2, 0)["compiled"] > 0
    assert programs(4, 0)["compiled"] == 0
    assert programs(4, 0)["found"] > 0
    for place in (0, 1):  # the process at place 1 is a new one
        assert programs(3, place)["found"] > 0
