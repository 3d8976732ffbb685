"""Readers that stop, die or cannot read: the same batches come, and who was at fault is named."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import yaml
from ids_data import write_ids
from plain_world import PlainWorld, WorldError, kill_all

import s3_server
from meshfeed.actors.run import Run

LONG_S = 100.0
"""Far longer than anything here takes on a busy machine: it tells a hang from work."""

STEPS = 120


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A small source that is read again and again, each pass a window, by readers that dawdle."""
    rng = np.random.default_rng(4)
    data = write_ids(tmp_path_factory.mktemp("data"), [rng.integers(1, 60, 100).tolist()] * 2)
    return {
        "data": [str(data)],
        "column": "ids",
        "transforms": ["record_transforms:dawdle"],
        "seq_len": 32,
        "batch_size": 8,
        "epochs": 0,
        "shuffle": "record",
        "seed": 1,
    }


@pytest.fixture(scope="module")
def baseline(
    settings: dict[str, Any],
    start_run: Callable[..., Any],
    world_1x8: PlainWorld,
    tmp_path_factory: pytest.TempPathFactory,
) -> list[int]:
    """Digests of the first steps, where nothing goes wrong."""
    run_dir = tmp_path_factory.mktemp("baseline")
    with start_run(run_dir=run_dir, readers=1, **settings), world_1x8.feed(run_dir) as feed:
        return [step.digest for step in feed.take(STEPS)]


def test_case_08_a_reader_that_is_stopped_is_named_and_the_run_goes_on_after_it(
    settings: dict[str, Any],
    start_run: Callable[..., Any],
    world_2x2: PlainWorld,
    baseline: list[int],
    tmp_path: Path,
) -> None:
    with start_run(run_dir=tmp_path, readers=2, stall_seconds=1.5, **settings) as run:
        pid = _wait_for(lambda: _pids(run).get("node0-reader0"))
        printed = len(world_2x2.printed())
        os.kill(pid, signal.SIGSTOP)
        with world_2x2.feed(tmp_path, partition="FULL") as feed:
            try:
                feed.begin(STEPS)
                stalls = _wait_for(lambda: _stalls(world_2x2.printed()[printed:]))
            finally:
                os.kill(pid, signal.SIGCONT)
            assert [step.digest for step in feed.finish()] == baseline
    found = re.search(r"host (\d), step (\d+), stage (\w+): no batch for ([0-9.]+) s", stalls[0])
    assert found is not None
    assert float(found[4]) >= 1.5
    assert f"node0-reader0 (pid {pid})" in stalls[0]
    assert str(settings["data"][0]) in stalls[0]


def test_case_08_simulate_says_who_it_waits_for(
    settings: dict[str, Any], ray_environment: dict[str, str], baseline: list[int], tmp_path: Path
) -> None:
    own = settings | {"transforms": ["record_transforms:stop_once"], "hosts": 2, "readers": 1}
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(own | {"stall_seconds": 1.0, "steps": 30}))
    said = tmp_path / "said"
    words = [sys.executable, "-m", "meshfeed.launch.cli", "simulate", str(config)]
    words += ["--run-dir", str(tmp_path / "run")]
    with said.open("wb") as sink:
        process = subprocess.Popen(
            words,
            env=os.environ | ray_environment | {"MESHFEED_TEST_STOP": str(tmp_path / "stopped")},
            stdout=sink,
            stderr=sink,
        )
    try:
        named = re.compile(r"stall: host 0, 1, no step for .* \(pid (\d+)\) \S+ s in transform .*")
        found = _wait_for(lambda: named.search(" ".join(said.read_text().split())))
        assert str(settings["data"][0]) in found[0].replace(" ", "")
        os.kill(int(found[1]), signal.SIGCONT)
        assert process.wait(timeout=LONG_S) == 0, said.read_text()
    finally:
        kill_all(process)
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert [s["digest"] for s in report["steps"]] == [f"{d:016x}" for d in baseline[:30]]


def test_case_31_a_killed_reader_is_replaced_and_nothing_changes(
    settings: dict[str, Any],
    start_run: Callable[..., Any],
    world_2x2: PlainWorld,
    baseline: list[int],
    tmp_path: Path,
) -> None:
    with (
        start_run(run_dir=tmp_path, readers=4, **settings) as run,
        world_2x2.feed(tmp_path) as feed,
    ):
        before = _wait_for(lambda: found if len(found := _pids(run)) == 4 else {})
        digests = [step.digest for step in feed.take(20)]
        os.kill(before["node0-reader2"], signal.SIGKILL)
        digests += [step.digest for step in feed.take(STEPS - 20)]
        after = _wait_for(lambda: _replaced(run, before))
        feed.skip(50)
    assert digests == baseline
    assert len(after) == 4
    assert len(set(after.values()) - set(before.values())) == 1


@pytest.mark.parametrize("partition", ["DATA", "REPLICATED"])
def test_a_killed_node_server_is_replaced_and_its_windows_are_run_again(
    partition: str,
    settings: dict[str, Any],
    start_run: Callable[..., Any],
    world_2x2: PlainWorld,
    baseline: list[int],
    tmp_path: Path,
) -> None:
    with (
        start_run(run_dir=tmp_path, readers=2, **settings) as run,
        world_2x2.feed(tmp_path, partition=partition) as feed,
    ):
        digests = [step.digest for step in feed.take(20)]
        (server,) = run.status()["nodes"]["up"]
        feed.begin(STEPS - 20, pause=0.01)
        os.kill(server["pid"], signal.SIGKILL)
        digests += [step.digest for step in feed.finish()]
        nodes = _wait_for(lambda: found if (found := run.status()["nodes"])["replaced"] else None)
        source = run.status()["feeds"]["train"]["sources"]["data"]
    assert digests == baseline
    assert nodes["died"] == 1
    assert [up["node"] for up in nodes["up"]] == [1]
    assert source["windows_again"]


def test_a_node_server_that_dies_again_and_again_ends_the_run_with_its_name(
    settings: dict[str, Any],
    start_run: Callable[..., Any],
    world_2x2: PlainWorld,
    tmp_path: Path,
) -> None:
    with start_run(run_dir=tmp_path, readers=1, **settings) as run:
        feed = world_2x2.feed(tmp_path)
        feed.begin(None, pause=0.05)
        for life in range(4):
            (server,) = _wait_for(
                lambda life=life: [up for up in run.status()["nodes"]["up"] if up["node"] == life]
            )
            os.kill(server["pid"], signal.SIGKILL)
        with pytest.raises(WorldError) as failed:
            feed.finish()
        feed.close()
    for kind, message in failed.value.errors.values():
        assert kind == "MeshfeedError"
        assert "no node is left that reads" in message


def test_case_29_failed_and_hung_reads_are_tried_again(
    start_run: Callable[..., Any],
    world_2x2: PlainWorld,
    s3: s3_server.FailingServer,
    tmp_path: Path,
) -> None:
    folder = write_ids(tmp_path / "data", [[9] * 500] * 4, kind="jsonl")
    files = {f"case29/{path.name}": path.read_bytes() for path in folder.iterdir()}
    s3_server.put(s3, files)
    own = {"column": "ids", "seq_len": 64, "batch_size": 8, "seed": 2, "readers": 2}
    with (
        start_run(run_dir=tmp_path / "local", data=[str(folder)], **own),
        world_2x2.feed(tmp_path / "local") as feed,
    ):
        expected = [step.digest for step in feed.take()]
    with start_run(
        run_dir=tmp_path / "s3", data=["s3://case29/*.jsonl"], read_timeout_seconds=2, **own
    ) as run:
        s3.fail_gets, s3.hold_gets = 2, 1
        began = time.monotonic()
        try:
            with world_2x2.feed(tmp_path / "s3") as feed:
                digests = [step.digest for step in feed.take()]
        finally:
            s3.release.set()
        source = run.status()["feeds"]["train"]["sources"]["data"]
    assert time.monotonic() - began < LONG_S  # the held read alone would take for ever
    assert digests == expected
    assert source["counts"]["retries"] == 3


def test_reads_that_fail_for_good_end_the_run_on_every_host_with_the_file(
    start_run: Callable[..., Any],
    world_2x2: PlainWorld,
    tmp_path: Path,
) -> None:
    folder = write_ids(tmp_path / "data", [[9] * 500] * 4, kind="jsonl")
    with start_run(
        run_dir=tmp_path / "run", data=[str(folder)], column="ids", seq_len=64, batch_size=8
    ):
        (folder / "part-00002.jsonl").unlink()
        feed = world_2x2.feed(tmp_path / "run")
        with pytest.raises(WorldError) as failed:
            feed.skip()
        feed.close()
    assert set(failed.value.errors) == {0, 1}
    for kind, message in failed.value.errors.values():
        assert kind == "ReadError"
        assert "part-00002.jsonl" in message


def test_a_record_that_kills_its_readers_ends_the_run_with_its_shard(
    start_run: Callable[..., Any], world_2x2: PlainWorld, tmp_path: Path
) -> None:
    folder = write_ids(tmp_path / "data", [[9] * 100] * 2)
    with start_run(
        run_dir=tmp_path / "run",
        data=[str(folder)],
        transforms=["record_transforms:die_at_13"],
        column="ids",
        seq_len=16,
        batch_size=8,
        readers=1,
    ):
        train = world_2x2.feed(tmp_path / "run")
        with pytest.raises(WorldError) as failed:
            train.skip()
        train.close()
    for kind, message in failed.value.errors.values():
        assert kind == "ReadError"
        assert str(folder) in message
        assert "3 attempts" in message


def test_case_16_filter_mixture_and_packing_together(
    start_run: Callable[..., Any], world_4x1: PlainWorld, tmp_path: Path
) -> None:
    rng = np.random.default_rng(6)
    lengths = [rng.integers(1, 33, 1500).tolist() for _ in range(4)]
    sources = [
        {
            "name": name,
            "data": [str(write_ids(tmp_path / name, lengths, first_id=first))],
            "weight": weight,
            "transforms": ["record_transforms:drop_multiples_of_7"],
            "on_end": "stop",
        }
        for name, first, weight in (("a", 0, 0.7), ("b", 100_000, 0.3))
    ]
    with (
        start_run(
            run_dir=tmp_path / "run",
            sources=sources,
            column="ids",
            seq_len=32,
            batch_size=12,
            packing="best_fit",
            shuffle="record",
            readers=2,
        ),
        world_4x1.feed(tmp_path / "run") as feed,
    ):
        steps = feed.take(keep=("tokens", "segment_ids"))
    flat = [length for shard in lengths for length in shard]
    rows = {"a": 0, "b": 0}
    found: dict[int, int] = {}
    for step in steps:
        for row, segments in zip(step.leaves["tokens"], step.leaves["segment_ids"], strict=True):
            used = row[segments > 0]
            if not len(used):
                continue
            rows["a" if used[0] < 100_000 else "b"] += 1
            for one, count in zip(*np.unique(used, return_counts=True), strict=True):
                assert int(one) not in found, "a record came twice"
                found[int(one)] = int(count)
    assert abs(rows["a"] / (rows["a"] + rows["b"]) - 0.7) < 0.01
    for one, count in found.items():
        assert one % 7
        assert count == flat[one % 100_000]
    assert {i for i in range(6000) if i % 7} == {one for one in found if one < 100_000}


def _stalls(text: str) -> list[str]:
    return [line for line in text.splitlines() if "stall" in line]


def _pids(run: Run) -> dict[str, int]:
    """Process id of each reader that has begun."""
    return {r["reader"]: r["pid"] for r in run.status()["readers"] if "pid" in r}


def _replaced(run: Run, before: dict[str, int]) -> dict[str, int]:
    """Readers and their process ids, once one has a new process that lives."""
    now = _pids(run)
    fresh = set(now.values()) - set(before.values())
    return now if fresh and all(psutil.pid_exists(pid) for pid in fresh) else {}


def _wait_for(look: Callable[[], Any]) -> Any:
    end = time.monotonic() + LONG_S
    while not (found := look()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.2)
    return found
