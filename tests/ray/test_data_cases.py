"""Data of awkward shapes, from shards to the devices of several hosts.

One run whose feeds are the cases: each opened by two hosts with two devices, or by four hosts.
"""

from __future__ import annotations

import gzip
import itertools
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ids_data import write_ids
from plain_world import PlainWorld, WorldError

from meshfeed.actors.run import Run
from meshfeed.pipeline.data.runs.run_folder import RunFolder

ROW = 8
"""Tokens in a row of most feeds; a record of so many fills one."""

CUT_RECORDS = 400


def _cut_gz(folder: Path) -> Path:
    """A whole shard, then one of which the last 40 % are missing."""
    write_ids(folder, [[ROW] * 10], kind="jsonl.gz", first_id=CUT_RECORDS)
    rng = np.random.default_rng(5)
    lines = [
        json.dumps({"ids": [i] * ROW, "noise": rng.bytes(20).hex()}) for i in range(CUT_RECORDS)
    ]
    whole = gzip.compress("\n".join(lines).encode(), mtime=0)
    (folder / "part-99999.jsonl.gz").write_bytes(whole[: len(whole) * 6 // 10])
    return folder


def _feeds(at: Path) -> dict[str, dict[str, Any]]:
    """Settings of each feed, by its name."""

    def ids(name: str, shards: list[list[int]], **options: Any) -> list[str]:
        return [str(write_ids(at / name, shards, **options))]

    uneven = ids("uneven", [[ROW] * n for n in range(3, 9)])
    parts = {
        "empty": ids("empty", [[]]),
        "two": ids("two", [[ROW, ROW]], first_id=10),
        "one": ids("one", [[ROW]], first_id=20),
    }
    feeds: dict[str, dict[str, Any]] = {
        "pad": {"data": ids("seven", [[ROW] * 7]), "batch_size": 8},
        "skewed": {"data": ids("skewed", [[ROW], [ROW] * 999]), "batch_size": 8},
        "uneven-pad": {"data": uneven, "batch_size": 4},
        "uneven-drop": {"data": uneven, "batch_size": 4, "remainder": "drop"},
        "count": {"data": ids("count", [[3] * 50, [5] * 53]), "batch_size": 8, "packing": "none"},
        "few": {"data": ids("few", [[ROW] * 5]), "batch_size": 8},
        "ten": {"data": uneven, "batch_size": 10},
        "segments": {
            "data": ids("segments", [[1] * 100]),
            "batch_size": 8,
            "packing": "first_fit",
            "max_segments": 4,
        },
        "mixed": {
            "data": ids("mixed", [[3, 9, 1, 14, 2, 2, 7, 5, 30, 1, 1, 4]]),
            "batch_size": 4,
            "packing": "best_fit",
            "seq_len": 16,
        },
        "long-split": {
            "data": ids("long", [[40]], first_id=7),
            "batch_size": 4,
            "seq_len": 16,
            "packing": "first_fit",
        },
        "long-cut": {
            "data": ids("long", [[40]], first_id=7),
            "batch_size": 4,
            "seq_len": 16,
            "packing": "first_fit",
            "overlong": "truncate",
        },
        "spread": {
            "data": ids("spread", [[ROW] * 4] * 1024),
            "batch_size": 32,
            "shuffle": "record",
            "epochs": 2,
        },
        "cut-skip": {
            "data": [str(_cut_gz(at / "cut"))],
            "batch_size": 8,
            "bad_records": "skip",
        },
        "cut-fail": {"data": [str(_cut_gz(at / "cut"))], "batch_size": 8},
        "nothing": {
            "sources": [
                {"name": "good", "data": uneven},
                {
                    "name": "all-filtered",
                    "data": uneven,
                    "transforms": ["record_transforms:nothing"],
                },
            ],
            "batch_size": 4,
        },
    }
    for order in itertools.permutations(parts):
        feeds["empty-" + "-".join(order)] = {
            "sources": [{"name": name, "data": parts[name]} for name in order],
            "batch_size": 4,
        }
    return feeds


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Of the run."""
    at = tmp_path_factory.mktemp("data")
    return {
        "data": [str(write_ids(at / "train", [[ROW] * 50] * 4))],
        "column": "ids",
        "seq_len": ROW,
        "batch_size": 4,
        "eval": _feeds(at),
        "run_dir": at / "run",
        "memory_budget": "4GB",
        "readers": 2,
    }


@pytest.fixture(scope="module")
def run(settings: dict[str, Any], start_run: Callable[..., Any]) -> Iterator[Run]:
    """A run that is up."""
    with start_run(**settings) as run:
        yield run


def _feed(world: PlainWorld, run: Run, name: str, **options: Any) -> Any:
    return world.feed(run.config.run_dir, feed=name, **options)


def test_case_02_a_batch_that_does_not_divide_is_refused_with_sizes_that_do(
    run: Run, world_4x1: PlainWorld
) -> None:
    with pytest.raises(WorldError) as refused:
        _feed(world_4x1, run, "eval/ten")
    assert set(refused.value.errors) == {0, 1, 2, 3}
    for kind, message in refused.value.errors.values():
        assert kind == "ConfigError"
        words = message.replace(",", " ").replace(".", " ").split()
        assert {"10", "4", "8", "12"} <= set(words), message


def test_case_02_simulate_refuses_it_before_it_starts_or_reads_anything(tmp_path: Path) -> None:
    flags = [
        "--data",
        "nowhere",
        "--seq-len",
        "8",
        "--batch-size",
        "10",
        "--hosts",
        "4",
        "--run-dir",
        "run",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "meshfeed.launch.cli", "simulate", *flags],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    for word in ("10 rows", " 4 ", "8 or 12"):
        assert word in done.stderr
    assert not list(tmp_path.iterdir())


def test_case_03_padding_lies_at_the_end_and_weighs_nothing(
    run: Run, world_2x2: PlainWorld
) -> None:
    with _feed(world_2x2, run, "eval/pad", mesh={"data": 2, "model": 2}) as feed:
        (step,) = feed.take(keep=("tokens", "segment_ids", "loss_weights", "targets", "positions"))
    assert len(step.specs) == 5
    assert all(spec.endswith("('data', None)") for spec in step.specs.values())
    assert step.rows == 7
    assert step.shape == (8, ROW)
    assert step.ids() == [i for i in range(7) for _ in range(ROW)]
    for leaf, values in step.leaves.items():
        assert not values[7].any(), leaf
    assert step.leaves["loss_weights"][:7].any(axis=1).all()


def test_case_05_shapes_and_count_are_the_same_on_every_host(
    run: Run, world_4x1: PlainWorld
) -> None:
    with _feed(world_4x1, run, "eval/skewed") as feed:
        steps = feed.take(keep=("tokens", "segment_ids"))
    assert len(steps) == 125
    assert {json.dumps(own) for step in steps for own in step.local} == {
        json.dumps(steps[0].local[0])
    }
    assert Counter(i for step in steps for i in step.ids()) == dict.fromkeys(range(1000), ROW)


@pytest.mark.parametrize(("name", "steps", "dropped"), [("pad", 9, 0), ("drop", 8, 1)])
def test_case_06_all_hosts_end_at_the_same_step(
    run: Run, world_2x2: PlainWorld, name: str, steps: int, dropped: int
) -> None:
    with _feed(world_2x2, run, f"eval/uneven-{name}") as feed:
        taken = feed.take(keep=("tokens", "segment_ids"))
        assert feed.take() == []
    assert len(taken) == steps
    found = Counter(i for step in taken for i in step.ids())
    assert set(found.values()) == {ROW}
    assert sorted(found) == list(range(33 - dropped))
    assert run.status()["feeds"][f"eval/uneven-{name}"]["dropped_rows"] == dropped


def test_case_09_an_eval_feed_counts_every_record_each_time_it_is_opened(
    run: Run, world_4x1: PlainWorld
) -> None:
    with _feed(world_4x1, run, "train") as train:
        first = [step.digest for step in train.take(5)]
        before = train.state()
        openings = []
        for taken in (None, 2, None):
            with world_4x1.feed(run.config.run_dir, "eval", feed="eval/count") as feed:
                openings.append(feed.take(taken, keep=("tokens", "segment_ids")))
        assert train.state() == before
        after = [step.digest for step in train.take(5)]
    for steps in openings:
        assert steps[0].step == 0
        assert [s.digest for s in steps] == [s.digest for s in openings[0]][: len(steps)]
    rows = [row for step in openings[0] for row in range(step.rows)]
    assert len(rows) == 103
    found = Counter(i for step in openings[0] for i in step.ids())
    assert found == {i: 3 if i < 50 else 5 for i in range(103)}
    with _feed(world_4x1, run, "train") as train:
        assert [step.digest for step in train.take(10)] == first + after


def test_case_10_hosts_without_records_run_the_same_steps(run: Run, world_4x1: PlainWorld) -> None:
    with _feed(world_4x1, run, "eval/few") as feed:
        (step,) = feed.take(keep=("tokens", "segment_ids"))
    assert (step.rows, step.shape) == (5, (8, ROW))
    assert Counter(step.ids()) == dict.fromkeys(range(5), ROW)


@pytest.mark.parametrize("order", list(itertools.permutations(("empty", "two", "one"))), ids=str)
def test_case_19_an_empty_source_breaks_no_mixture(
    run: Run, world_2x2: PlainWorld, order: tuple[str, ...]
) -> None:
    with _feed(world_2x2, run, "eval/empty-" + "-".join(order)) as feed:
        assert Counter(feed.ids()) == {10: ROW, 11: ROW, 20: ROW}


def test_case_21_shuffling_reaches_over_all_shards_and_differs_by_epoch(
    run: Run, world_2x2: PlainWorld
) -> None:
    orders = []
    for _ in range(2):
        with _feed(world_2x2, run, "eval/spread") as feed:
            orders.append(feed.ids()[::ROW])
    assert orders[0] == orders[1]
    epochs = orders[0][:4096], orders[0][4096:]
    for order in epochs:
        assert sorted(order) == list(range(4096))
        assert len({i // 4 for i in order[:100]}) >= 50
    assert epochs[0] != epochs[1]


def test_case_22_attention_can_be_kept_within_documents(run: Run, world_2x2: PlainWorld) -> None:
    with _feed(world_2x2, run, "eval/segments") as feed:
        steps = feed.take(keep=("tokens", "segment_ids", "positions"))
    assert max(int(step.leaves["segment_ids"].max()) for step in steps) == 4
    assert Counter(i for step in steps for i in step.ids()) == dict.fromkeys(range(100), 1)
    with _feed(world_2x2, run, "eval/mixed") as feed:
        steps += feed.take(keep=("tokens", "segment_ids", "positions"))
    for step in steps:
        for tokens, segments, positions in zip(
            *(step.leaves[name] for name in ("tokens", "segment_ids", "positions")), strict=True
        ):
            used = int((segments > 0).sum())
            assert not segments[used:].any()
            assert not positions[used:].any()
            assert not tokens[used:].any()
            assert set(np.diff(segments[:used], prepend=0)) <= {0, 1}
            starts = np.flatnonzero(np.diff(segments[:used], prepend=0))
            for begin, end in itertools.pairwise([*starts, used]):
                assert positions[begin:end].tolist() == list(range(end - begin))
                assert len(set(tokens[begin:end])) == 1


@pytest.mark.parametrize(
    ("name", "lengths", "truncated"),
    [("long-split", [16, 16, 8], 0), ("long-cut", [16], 24)],
)
def test_case_23_a_record_longer_than_a_row_is_split_or_cut_and_counted(
    run: Run, world_2x2: PlainWorld, name: str, lengths: list[int], truncated: int
) -> None:
    with _feed(world_2x2, run, f"eval/{name}") as feed:
        (step,) = feed.take(keep=("tokens", "segment_ids"))
    assert (step.leaves["segment_ids"] > 0).sum(axis=1).tolist()[: len(lengths)] == lengths
    assert set(step.ids()) == {7}
    counts = run.status()["feeds"][f"eval/{name}"]["sources"]["data"]["counts"]
    assert counts["overlong_records"] == 1
    assert counts["truncated_tokens"] == truncated


def test_case_24_of_a_cut_gz_the_records_before_the_cut_come_once_and_it_is_named(
    run: Run, world_2x2: PlainWorld
) -> None:
    with _feed(world_2x2, run, "eval/cut-skip") as feed:
        states, found = [feed.state()], []
        while step := feed.take(1, keep=("tokens", "segment_ids")):
            found.append(step[0].ids())
            states.append(feed.state())
        feed.set_state(states[3])
        again = feed.ids()
    assert again == [i for ids in found[3:] for i in ids]
    counts = Counter(i for ids in found for i in ids)
    kept = sorted(i for i in counts if i < CUT_RECORDS)
    assert 0.5 * CUT_RECORDS < len(kept) < 0.7 * CUT_RECORDS
    assert kept == list(range(len(kept)))
    assert sorted(counts)[len(kept) :] == list(range(CUT_RECORDS, CUT_RECORDS + 10))
    assert set(counts.values()) == {ROW}
    listed = [s for s in RunFolder(run.config.run_dir).skipped() if s["feed"] == "eval/cut-skip"]
    assert len(listed) == 1
    assert listed[0]["shard"].endswith("cut/part-99999.jsonl.gz")
    source = run.status()["feeds"]["eval/cut-skip"]["sources"]["data"]
    assert source["skipped"] == 1


def test_case_24_or_the_run_fails_with_the_file_and_the_place(
    settings: dict[str, Any], start_run: Callable[..., Any], world_2x2: PlainWorld, tmp_path: Path
) -> None:
    own = settings | settings["eval"]["cut-fail"] | {"run_dir": tmp_path, "eval": {}}
    with start_run(**own):
        feed = world_2x2.feed(tmp_path)
        with pytest.raises(WorldError) as failed:
            feed.skip()
        feed.close()
    assert set(failed.value.errors) == {0, 1}
    for kind, message in failed.value.errors.values():
        assert kind == "DataError"
        assert "cut/part-99999.jsonl.gz" in message
        assert "line" in message or "byte" in message


def test_a_source_of_which_nothing_is_kept_is_an_error_that_names_it(
    settings: dict[str, Any], start_run: Callable[..., Any], world_2x2: PlainWorld, tmp_path: Path
) -> None:
    own = settings | settings["eval"]["nothing"] | {"run_dir": tmp_path, "eval": {}}
    del own["data"]
    with start_run(**own):
        feed = world_2x2.feed(tmp_path)
        with pytest.raises(WorldError) as failed:
            feed.skip()
        feed.close()
    for kind, message in failed.value.errors.values():
        assert kind == "DataError"
        assert "all-filtered" in message
