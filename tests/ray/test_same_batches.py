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

STEPS = 4
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
                    digests = [step.digest for step in feed.take(STEPS)]
                case = f"{mesh_name}, interleaved {interleaved}, {kind}"
                assert digests == baseline[:STEPS], case


@pytest.mark.parametrize("readers", [2, 4])
def test_case_34_readers_that_dawdle_change_nothing(
    readers: int,
    settings: dict[str, Any],
    start_run: Callable[..., Any],
    world_2x4: PlainWorld,
    baseline: list[int],
    tmp_path: Path,
) -> None:
    slow = dict(settings, sources=[dict(s) for s in settings["sources"]])
    for source in slow["sources"]:
        source["transforms"] = [*source.get("transforms", []), "record_transforms:dawdle"]
    with start_run(run_dir=tmp_path, readers=readers, **slow) as run:
        for partition in ("DATA", "FULL"):
            with world_2x4.feed(tmp_path, mesh=MESHES["data"], partition=partition) as feed:
                assert [step.digest for step in feed.take()] == baseline
        used = {reader["reader"] for reader in run.status()["readers"]}
    assert len(used) == readers


def test_trainers_that_make_global_arrays_themselves_get_the_same(
    run_dir: Path, plain_worlds: dict[tuple[int, int], PlainWorld], baseline: list[int]
) -> None:
    for partition, mesh in (("FULL", "data"), ("BATCH", "data x seq x model")):
        with plain_worlds[4, 2].feed(
            run_dir, mesh=MESHES[mesh], partition=partition, output="local"
        ) as feed:
            assert [step.digest for step in feed.take(STEPS)] == baseline[:STEPS]


def test_leaf_names_of_other_trainers_hold_the_same_values(
    run_dir: Path, world_2x4: PlainWorld
) -> None:
    with world_2x4.feed(run_dir, mesh=MESHES["data"]) as feed:
        (own,) = feed.take(1, keep=("tokens", "targets", "segment_ids", "loss_weights"))
    with world_2x4.feed(
        run_dir,
        mesh=MESHES["data"],
        leaf_names="maxtext",
        partition={"inputs": "FULL", "inputs_position": "REPLICATED"},
    ) as feed:
        (theirs,) = feed.take(1, keep=("inputs", "targets", "targets_segmentation"))
    assert set(theirs.specs) == {
        "inputs",
        "targets",
        "inputs_segmentation",
        "inputs_position",
        "targets_segmentation",
    }
    assert "data" not in theirs.specs["inputs_position"]
    np.testing.assert_array_equal(theirs.leaves["inputs"], own.leaves["tokens"])
    np.testing.assert_array_equal(theirs.leaves["targets"], own.leaves["targets"])
    weighs = own.leaves["loss_weights"] > 0
    np.testing.assert_array_equal(
        theirs.leaves["targets_segmentation"], np.where(weighs, own.leaves["segment_ids"], 0)
    )


def test_open_gives_every_batch_again_without_ray(
    run_dir: Path, world_1x8: PlainWorld, baseline: list[int]
) -> None:
    program = (
        "import sys, json, meshfeed\n"
        f"with meshfeed.open({str(run_dir)!r}) as run:\n"
        f"    digests = [run.digest(step) for step in reversed(range({len(baseline)}))]\n"
        "assert not {'ray', 'jax'} & set(sys.modules)\n"
        "print(json.dumps(digests[::-1]))\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, check=True, timeout=120
    )
    assert json.loads(answer.stdout) == [f"{digest:016x}" for digest in baseline]


def test_simulate_gives_the_same_batches_and_reports_them(
    settings: dict[str, Any],
    baseline: list[int],
    ray_environment: dict[str, str],
    tmp_path: Path,
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(settings))
    flags = {
        "hosts": 4,
        "devices-per-host": 2,
        "mesh": "data=2,seq=2,model=2",
        "device-order": "interleaved",
        "partition": "BATCH",
        "readers": 2,
        "steps": 12,
        "run-dir": tmp_path / "run",
        "dump": tmp_path / "dump",
    }
    words = [str(word) for name, value in flags.items() for word in (f"--{name}", value)]
    command = [sys.executable, "-m", "meshfeed.launch.cli", "simulate", str(config), *words]
    done = subprocess.run(
        command, env=os.environ | ray_environment, capture_output=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    digests = [step["digest"] for step in report["steps"]]
    assert digests == [f"{digest:016x}" for digest in baseline[:12]]
    assert [step["step"] for step in report["steps"]] == list(range(12))
    assert report["windows_run_again"] == 0
    assert len(report["hosts"]) == 4
    for host in report["hosts"]:
        assert host["local_shapes"]["tokens"] == [[BATCH // 2, SEQ_LEN // 2]] * 2
        assert host["bytes_fetched"] >= host["bytes_needed"] > 0
    dumped = [np.load(tmp_path / "dump" / f"step-{step:06d}.npz") for step in range(12)]
    assert {file["tokens"].shape for file in dumped} == {(BATCH, SEQ_LEN)}
    sources = report["sources"]
    assert {name: source["skipped"] for name, source in sources.items()} == {"many": 0, "few": 0}
    assert all(0 <= source["padding_fraction"] < 1 for source in sources.values())
    assert all(source["read_amplification"] >= 1 for source in sources.values())
