"""The same global batches, whoever takes them and whoever makes them.

One run, its train feed opened again and again: by 1, 2, 4 and 8 hosts, under every partition type,
mesh and order of devices, with 1, 2 and 4 readers that dawdle, through ``meshfeed simulate``,
through ``connect`` in plain processes, and through ``meshfeed.open``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from ids_data import write_ids
from plain_world import PlainWorld

STEPS = 10
SEQ_LEN = 64
BATCH = 16

MESHES: dict[str, dict[str, int]] = {
    "data": {"data": 8},
    "data x model": {"data": 4, "model": 2},
    "data x seq x model": {"data": 2, "seq": 2, "model": 2},
}
PARTITIONS: dict[str, Any] = {
    "FULL": "FULL",
    "DATA": "DATA",
    "BATCH": "BATCH",
    "REPLICATED": "REPLICATED",
    "by leaf": {"tokens": "BATCH", "targets": "FULL", "positions": "REPLICATED"},
    "spec": [["model"], ["data", "seq"]],
}
WORLDS = [(1, 8), (2, 4), (4, 2), (8, 1)]


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Two sources in a mixture, shuffled by record, filtered, packed without splitting."""
    data = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    many = [rng.integers(1, 90, 400).tolist() for _ in range(6)]
    few = [rng.integers(1, 90, 150).tolist() for _ in range(3)]
    return {
        "sources": [
            {
                "name": "many",
                "data": [str(write_ids(data / "many", many, group=50))],
                "weight": 0.7,
                "transforms": ["record_transforms:drop_multiples_of_7"],
            },
            {
                "name": "few",
                "data": [str(write_ids(data / "few", few, kind="jsonl", first_id=10_000))],
                "weight": 0.3,
                "epochs": 2,
            },
        ],
        "column": "ids",
        "seq_len": SEQ_LEN,
        "batch_size": BATCH,
        "shuffle": "record",
        "packing": "first_fit",
        "remainder": "pad",
        "seed": 3,
    }


@pytest.fixture(scope="module")
def run_dir(
    settings: dict[str, Any], start_run: Callable[..., Any], tmp_path_factory: Any
) -> Iterator[Path]:
    """A run that is up."""
    folder = tmp_path_factory.mktemp("run")
    with start_run(run_dir=folder, readers=1, **settings):
        yield folder


@pytest.fixture(scope="module")
def baseline(world_1x8: PlainWorld, run_dir: Path) -> list[int]:
    """Digests of the whole feed on one host."""
    with world_1x8.feed(run_dir, mesh=MESHES["data"]) as feed:
        return [step.digest for step in feed.take()]


def test_every_kept_record_is_delivered_once_an_epoch(
    world_1x8: PlainWorld, run_dir: Path, settings: dict[str, Any]
) -> None:
    with world_1x8.feed(run_dir, mesh=MESHES["data"]) as feed:
        found = Counter(feed.ids())
    expected: Counter[int] = Counter()
    rng = np.random.default_rng(0)
    for n, length in enumerate(rng.integers(1, 90, 400 * 6).tolist()):
        expected[n] += length if n % 7 else 0
    for n, length in enumerate(rng.integers(1, 90, 150 * 3).tolist()):
        expected[10_000 + n] += 2 * length
    assert found == +expected


@pytest.mark.parametrize("shape", WORLDS, ids=lambda shape: f"{shape[0]}x{shape[1]}")
def test_case_04_every_world_mesh_and_partition_gives_the_same_batches(
    shape: tuple[int, int],
    plain_worlds: dict[tuple[int, int], PlainWorld],
    run_dir: Path,
    baseline: list[int],
) -> None:
    world = plain_worlds[shape]
    for mesh_name, mesh in MESHES.items():
        for interleaved in (False, True):
            for kind, partition in PARTITIONS.items():
                if mesh_name != "data x seq x model" and kind in ("BATCH", "by leaf", "spec"):
                    continue
                with world.feed(
                    run_dir, mesh=mesh, interleaved=interleaved, partition=partition
                ) as feed:
                    digests = [step.digest for step in feed.take(4)]
                    facts = feed.facts()
                case = f"{mesh_name}, interleaved {interleaved}, {kind}"
                assert digests == baseline[:4], case
                for own in facts:
                    fetched = own["metrics"]["bytes_fetched"]
                    assert fetched >= own["needed"], case
