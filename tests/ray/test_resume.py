"""Where a feed is: ``get_state`` and ``set_state``, in the same world, another one, a new run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ids_data import write_ids
from plain_world import GlobalStep, PlainWorld, WorldError

from meshfeed.actors.run import Run

TokensAndSegments = ("tokens", "segment_ids")


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A mixture with shuffle, a filter, packing and epochs that end at different times."""
    at = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(2)
    return {
        "sources": [
            {
                "name": "a",
                "data": [str(write_ids(at / "a", [rng.integers(1, 40, 90).tolist()] * 5))],
                "weight": 0.7,
                "transforms": ["record_transforms:drop_multiples_of_7"],
            },
            {
                "name": "b",
                "data": [str(write_ids(at / "b", [[9] * 60] * 2, kind="jsonl", first_id=1000))],
                "weight": 0.3,
                "epochs": 3,
            },
        ],
        "column": "ids",
        "seq_len": 32,
        "batch_size": 8,
        "shuffle": "record",
        "packing": "first_fit",
        "epochs": 2,
        "seed": 9,
        "eval": {
            "edges": {
                "data": [str(write_ids(at / "edges", [[8] * 10]))],
                "seq_len": 8,
                "batch_size": 4,
                "packing": "none",
                "epochs": 4,
                "shuffle": "record",
            },
            "endless": {
                "data": [str(write_ids(at / "endless", [[8] * 25] * 2))],
                "seq_len": 8,
                "batch_size": 4,
                "packing": "none",
                "epochs": 0,
            },
        },
        "memory_budget": "2GB",
        "readers": 2,
    }


@pytest.fixture(scope="module")
def run(
    settings: dict[str, Any],
    start_run: Callable[..., Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Run]:
    """A run that is up."""
    with start_run(run_dir=tmp_path_factory.mktemp("run"), **settings) as run:
        yield run


@pytest.fixture(scope="module")
def uninterrupted(run: Run, world_1x8: PlainWorld) -> tuple[list[int], list[str]]:
    """Digest of each step, and the state before it and after the last, on one host."""
    with world_1x8.feed(run.config.run_dir) as feed:
        states, digests = [feed.state()], []
        while step := feed.take(1):
            digests.append(step[0].digest)
            states.append(feed.state())
    assert len(digests) > 50
    return digests, states


def _digests(steps: list[GlobalStep]) -> list[int]:
    return [step.digest for step in steps]


def test_case_11_the_rest_is_the_same_from_every_step(
    run: Run, world_2x2: PlainWorld, uninterrupted: tuple[list[int], list[str]]
) -> None:
    digests, states = uninterrupted
    with world_2x2.feed(run.config.run_dir) as feed:
        for k in range(1, 21):
            feed.set_state(states[k])
            assert feed.state() == states[k]
            assert _digests(feed.take(3)) == digests[k : k + 3], k
            assert feed.state() == states[k + 3]
        feed.set_state(states[7])
        assert _digests(feed.take()) == digests[7:]


def test_a_state_goes_to_any_step_before_or_behind(
    run: Run, world_2x2: PlainWorld, uninterrupted: tuple[list[int], list[str]]
) -> None:
    digests, states = uninterrupted
    last = len(digests)
    with world_2x2.feed(run.config.run_dir, state=states[30]) as feed:
        for k in (30, 2, 45, 0, last - 1, last, 11, last):
            feed.set_state(states[k])
            assert feed.state() == states[k]
            assert _digests(feed.take(2)) == digests[k : k + 2], k


def test_a_state_says_what_was_returned_and_nothing_of_what_was_prefetched(
    run: Run, world_2x2: PlainWorld, uninterrupted: tuple[list[int], list[str]]
) -> None:
    digests, states = uninterrupted
    with world_2x2.feed(run.config.run_dir) as feed:
        feed.take(3, pause=0.2)
        state = feed.state()
        assert state == states[3]
        assert json.loads(state)["cursor"]["step"] == 3
        assert len(state) < 10_000
        assert _digests(feed.take(1)) == digests[3:4]


def test_a_state_of_one_world_goes_on_in_another(
    run: Run,
    world_4x1: PlainWorld,
    uninterrupted: tuple[list[int], list[str]],
) -> None:
    digests, states = uninterrupted
    with world_4x1.feed(run.config.run_dir, state=states[13], partition="REPLICATED") as feed:
        assert _digests(feed.take(4)) == digests[13:17]
        assert feed.state() == states[17]


def test_a_state_goes_on_in_a_run_that_was_started_again(
    settings: dict[str, Any],
    start_run: Callable[..., Any],
    world_2x2: PlainWorld,
    uninterrupted: tuple[list[int], list[str]],
    tmp_path: Path,
) -> None:
    digests, states = uninterrupted
    with start_run(run_dir=tmp_path, **settings), world_2x2.feed(tmp_path) as feed:
        assert _digests(feed.take(9)) == digests[:9]
        state = feed.state()
    assert state == states[9]
    own = settings | {"readers": 1}
    with (
        start_run(run_dir=tmp_path, **own),
        world_2x2.feed(tmp_path, state=state, partition="FULL") as feed,
    ):
        assert _digests(feed.take()) == digests[9:]


def test_case_12_states_at_and_around_the_edge_of_an_epoch(run: Run, world_2x2: PlainWorld) -> None:
    with world_2x2.feed(run.config.run_dir, feed="eval/edges") as feed:
        states, digests, ids = [feed.state()], [], []
        while step := feed.take(1, keep=TokensAndSegments):
            digests.append(step[0].digest)
            ids += step[0].ids()[::8]
            states.append(feed.state())
        assert len(digests) == 10
        epochs = [ids[begin : begin + 10] for begin in range(0, 40, 10)]
        assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
        assert len({tuple(epoch) for epoch in epochs}) == 4
        for k, state in enumerate(states):
            feed.set_state(state)
            assert _digests(feed.take()) == digests[k:], k
            assert feed.state() == states[-1]


def test_case_13_a_state_far_away_costs_no_more_than_a_near_one(
    start_run: Callable[..., Any], world_2x2: PlainWorld, tmp_path: Path
) -> None:
    shards = [[512] * 2048] * 24  # half a window each
    with start_run(
        run_dir=tmp_path / "run",
        data=[str(write_ids(tmp_path / "data", shards, kind="arrow", group=256))],
        column="ids",
        seq_len=128,
        batch_size=64,
        readers=2,
        memory_budget="48MB",
        chunk_cache="1KB",
    ) as run:
        with world_2x2.feed(tmp_path / "run") as feed:
            feed.skip(300)
            near = feed.state()
            feed.skip(2300)
            far = feed.state()
        costs = []
        for state in (near, far):
            before = _source(run)
            with world_2x2.feed(tmp_path / "run", state=state) as feed:
                feed.take(4)
                after = _source(run)
            costs.append({k: after[k] - before[k] for k in ("windows", "storage_bytes")})
    assert min(costs[0].values()) >= 1
    assert costs[1]["windows"] <= 2 * costs[0]["windows"]
    assert costs[1]["storage_bytes"] <= 2 * costs[0]["storage_bytes"]


def test_case_13_at_step_1_000_000(run: Run, world_2x2: PlainWorld) -> None:
    step, rows_in_epoch = 1_000_000, 50
    row = 4 * step
    epoch, within = divmod(row - 1, rows_in_epoch)
    before = _source(run, "eval/endless")
    with world_2x2.feed(run.config.run_dir, feed="eval/endless") as feed:
        state = json.loads(feed.state())
        state["cursor"] |= {"step": step, "global_row": row, "segment_row": row}
        state["cursor"]["sources"]["data"] = [epoch, 0, within + 1, row, 0, 1]
        feed.set_state(json.dumps(state))
        taken = feed.take(5, keep=TokensAndSegments)
        assert len(feed.state()) < 10_000
        after = _source(run, "eval/endless")
    assert [s.step for s in taken] == list(range(step, step + 5))
    found = [i for s in taken for i in s.ids()[::8]]
    assert found == [i % rows_in_epoch for i in range(row, row + 20)]
    assert after["windows"] - before["windows"] < 1000


def test_case_14_a_part_of_a_state_is_refused_and_so_are_different_ones(
    run: Run, world_2x2: PlainWorld, uninterrupted: tuple[list[int], list[str]]
) -> None:
    digests, states = uninterrupted
    torn = json.loads(states[5])
    del torn["cursor"]["sources"]["b"]
    with world_2x2.feed(run.config.run_dir) as feed:
        with pytest.raises(WorldError) as refused:
            feed.set_state(json.dumps(torn))
        assert {kind for kind, _ in refused.value.errors.values()} == {"ChangedError"}
        for process, k in ((0, 5), (1, 6)):
            world_2x2.tell("set_state", on=[process], name="feed", state=states[k])
        with pytest.raises(WorldError, match="DisagreementError"):
            world_2x2.hear()
        feed.set_state(states[5])
        assert _digests(feed.take(2)) == digests[5:7]


def test_a_state_of_another_feed_or_of_other_data_is_refused(
    run: Run, world_2x2: PlainWorld, uninterrupted: tuple[list[int], list[str]]
) -> None:
    digests, states = uninterrupted
    other = json.loads(states[5]) | {"fingerprint": "0" * 32}
    with world_2x2.feed(run.config.run_dir) as feed:
        with pytest.raises(WorldError, match="ChangedError"):
            feed.set_state(json.dumps(other))
        with world_2x2.feed(run.config.run_dir, "eval", feed="eval/edges") as edges:
            of_eval = edges.state()
        with pytest.raises(WorldError, match="ConfigError"):
            feed.set_state(of_eval)
        feed.set_state(states[5])
        assert _digests(feed.take(1)) == digests[5:6]


def _source(run: Run, feed: str = "train") -> dict[str, Any]:
    (source,) = run.status()["feeds"][feed]["sources"].values()
    return dict(source)
