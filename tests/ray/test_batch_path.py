"""What travels: each byte that a host needs once, each region cut once, few calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ids_data import write_ids
from plain_world import PlainWorld

SEQ_LEN = 256
BATCH = 64


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Half a million tokens in shards of two kinds."""
    data = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(1)
    shards = [rng.integers(1, 400, 800).tolist() for _ in range(3)]
    return {
        "data": [str(write_ids(data, shards, group=100))],
        "column": "ids",
        "seq_len": SEQ_LEN,
        "batch_size": BATCH,
        "seed": 5,
    }


@pytest.fixture
def run_dir(
    settings: dict[str, Any], start_run: Callable[..., Any], tmp_path: Path
) -> Iterator[Path]:
    """A run of its own, so that all its counters are of one feed."""
    with start_run(run_dir=tmp_path, readers=2, **settings):
        yield tmp_path


@pytest.mark.parametrize(
    ("mesh", "interleaved", "partition"),
    [
        ({"data": 8}, False, "DATA"),
        ({"data": 2, "seq": 4}, True, "BATCH"),
        ({"data": 4, "model": 2}, True, "DATA"),
    ],
    ids=["rows", "sequence split across hosts", "slice groups"],
)
def test_each_host_fetches_what_it_needs_and_no_more(
    mesh: dict[str, int],
    interleaved: bool,
    partition: str,
    plain_worlds: dict[tuple[int, int], PlainWorld],
    run_dir: Path,
) -> None:
    with plain_worlds[4, 2].feed(
        run_dir, mesh=mesh, interleaved=interleaved, partition=partition
    ) as feed:
        taken = feed.skip()
        facts = feed.facts()
    assert len(set(taken)) == 1
    assert taken[0] >= 20
    assert all(own["is_grain_iterator"] for own in facts)
    for own in facts:
        fetched = own["metrics"]["bytes_fetched"]
        assert own["needed"] <= fetched < 1.005 * own["needed"]


def test_hosts_of_a_slice_group_have_it_tokenized_once_and_cut_once(
    settings: dict[str, Any],
    start_run: Callable[..., Any],
    plain_worlds: dict[tuple[int, int], PlainWorld],
    tmp_path: Path,
) -> None:
    with start_run(run_dir=tmp_path, readers=2, **settings) as run:
        mesh = {"data": 4, "model": 2}
        with plain_worlds[8, 1].feed(tmp_path, mesh=mesh) as feed:
            feed.skip()
            facts = feed.facts()
        source = run.status()["feeds"]["train"]["sources"]["data"]
    fetches = [own["metrics"]["fetches"] for own in facts]
    assert fetches[::2] == fetches[1::2]  # hosts 2 i and 2 i + 1 need the same rows
    assert facts[0]["cuts"] == sum(fetches[::2])
    assert source["windows"] > 1
    assert source["windows_again"] == 0


def test_calls_to_the_coordinator_do_not_grow_with_steps_times_hosts(
    settings: dict[str, Any],
    start_run: Callable[..., Any],
    plain_worlds: dict[tuple[int, int], PlainWorld],
    tmp_path: Path,
) -> None:
    own = settings | {"epochs": 0, "batch_size": 8, "seq_len": 128}
    with (
        start_run(run_dir=tmp_path, readers=2, **own) as run,
        plain_worlds[8, 1].feed(tmp_path) as feed,
    ):
        feed.skip(600)
        begun = sum(run.status()["calls"].values())
        feed.skip(2400)
        ended = sum(run.status()["calls"].values())
    assert ended - begun < 2400 * 8 / 20
