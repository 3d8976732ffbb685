"""The compilation cache across worlds: every process fills it, and it can be filled ahead."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import pytest
from members import Member, all_do, all_join, members

from meshfeed.pipeline.assemble.worlds import CoordinationService
from meshfeed.pipeline.assemble.worlds.compilation_cache import (
    WholeFiles,
    enable_compilation_cache,
    foreseen_devices,
)
from meshfeed.pipeline.plan.errors import ConfigError


@pytest.fixture(autouse=True)
def _cpu() -> None:
    jax.config.update("jax_platforms", "cpu")


@contextmanager
def world(group: list[Member], generation: int) -> Iterator[None]:
    running = CoordinationService(len(group))
    try:
        all_join(group, running.address, generation)
        yield
        assert all_do(group, "leave") == [False] * len(group)
    finally:
        running.stop()


def _run(group: list[Member]) -> list[dict[str, Any]]:
    found = all_do(group, "run_programs")
    for one in found:
        assert one["values"][2] == found[0]["values"][2]
    return found


def test_a_world_that_is_formed_again_compiles_nothing(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with members(3, tmp_path) as group:
        all_do(group, "enable_cache", folder=str(cache))
        with world(group, 1):
            first = _run(group)
            assert sum(one["misses"] for one in first) >= 3
        with world(group[1:], 2):
            _run(group[1:])
        with world([group[2], group[0], group[1]], 3):
            again = _run(group)
            assert [one["misses"] for one in again] == [0, 0, 0]
            assert [one["hits"] for one in again] == [3, 3, 3]
            assert again[0]["values"][2] == first[0]["values"][2]
        assert cache.stat().st_mode & 0o777 == 0o700


def test_programs_of_a_foreseen_world_are_compiled_ahead(tmp_path: Path) -> None:
    with members(3, tmp_path) as group:
        waiting, *training = group
        all_do(group, "enable_cache", folder=str(tmp_path / "cache"))
        with world(training, 1):
            _run(training)
            # Each for its own place, whether it waits or trains.
            for index, member in enumerate(order := [training[0], waiting, training[1]]):
                member.begin("compile_ahead", process_count=3, process_index=index)
            assert [member.end() for member in order] == [{"hits": 0, "misses": 3}] * 3
            ahead = training[1].do("compile_ahead", process_count=1, process_index=0)
            assert ahead == {"hits": 0, "misses": 3}
            _run(training)
        with world(order, 2):
            assert [one["misses"] for one in _run(order)] == [0, 0, 0]
        with world(training[:1], 3):
            assert [one["misses"] for one in _run(training[:1])] == [0]


def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o770)
    with pytest.raises(ConfigError, match=r"mode drwxrwx---.* run their code"):
        enable_compilation_cache(folder)


def test_compiling_ahead_needs_a_cache() -> None:
    with pytest.raises(ConfigError, match="none is enabled"), foreseen_devices(2, 0, 2):
        pass


def test_files_of_the_cache_are_whole_or_not_there(tmp_path: Path) -> None:
    cache = WholeFiles(tmp_path)
    assert cache.get("key") is None
    values = [bytes([n]) * 1_000_000 for n in range(8)]
    seen: list[bytes] = []

    def read() -> None:
        while (found := cache.get("key")) is None:
            pass
        seen.append(found)

    threads = [threading.Thread(target=cache.put, args=["key", value]) for value in values]
    threads += [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(found in values for found in seen)
    assert [path.name for path in tmp_path.iterdir()] == ["key-cache"]
