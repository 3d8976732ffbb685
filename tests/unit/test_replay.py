"""``meshfeed.open``: the batches of a run again, whatever of the ledger is there."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from small_runs import prepare_run, run_windows, write_ids

import meshfeed
from meshfeed.pipeline.data.batches.digest import combine, leaf_digest
from meshfeed.pipeline.data.batches.leaves import DEFAULT_DTYPES, derive
from meshfeed.pipeline.data.batches.regions import cut_region, view_region
from meshfeed.pipeline.data.runs.run_folder import RunFolder
from meshfeed.pipeline.plan.errors import ChangedError, ConfigError
from meshfeed.pipeline.plan.ledger import LedgerEntry
from meshfeed.pipeline.plan.schedule import Schedule

SEQ_LEN = 32
BATCH = 8


class Made:
    """A run directory with all that its windows give, and what each step must be."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        a = write_ids(folder / "data" / "a", shards=4, records=60)
        b = write_ids(folder / "data" / "b", shards=2, records=50, first=40000, seed=1)
        sources = [
            {"name": "a", "data": str(a), "column": "ids", "weight": 0.7},
            {"name": "b", "data": str(b), "column": "ids", "weight": 0.3, "epochs": 2},
        ]
        self.run_dir = folder / "run"
        values = {
            "sources": sources,
            "eval": {"all": {"data": str(b), "column": "ids", "batch_size": 4}},
            "seq_len": SEQ_LEN,
            "batch_size": BATCH,
            "run_dir": str(self.run_dir),
        }
        self.config, self.specs = prepare_run(values | settings)
        self.spec = self.specs["train"]
        made = list(run_windows(self.config, self.spec))
        self.entries = [entry for entry, _ in made]
        self.windows = {entry[:3]: rows for entry, rows in made}
        self.schedule = Schedule(self.spec.source_plans(self.spec.epochs()))
        for entry in self.entries:
            self.schedule.append(entry.source, [entry.rows], [entry.records])

    @property
    def num_steps(self) -> int:
        assert self.schedule.total_rows is not None
        return -(-self.schedule.total_rows // BATCH)

    def record(self, entries: list[LedgerEntry]) -> Path:
        ledger = RunFolder(str(self.run_dir)).ledger(self.spec)
        ledger.append(entries)
        ledger.close()
        return ledger.path

    def batch(self, step: int) -> dict[str, np.ndarray]:
        """Row by row, each out of its own window."""
        total = self.schedule.total_rows
        assert total is not None
        places = self.schedule.locate(step * BATCH, min((step + 1) * BATCH, total))
        rows = []
        for key in zip(places.source, places.epoch, places.window, places.row, strict=True):
            block = self.windows[tuple(int(k) for k in key[:3])].packed.block
            flat = cut_region([block], [0], [int(key[3])], 0, SEQ_LEN, format=block.format)
            rows.append(derive(view_region(flat, block.format, 1, SEQ_LEN)))
        real = len(rows)
        leaves = {}
        for leaf, dtype in DEFAULT_DTYPES.items():
            leaves[leaf] = np.zeros((BATCH, SEQ_LEN), dtype)
            leaves[leaf][:real] = np.concatenate([row[leaf] for row in rows])
        return leaves


def assert_same(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    assert found.keys() == wanted.keys()
    for leaf, array in wanted.items():
        assert found[leaf].dtype == array.dtype
        np.testing.assert_array_equal(found[leaf], array)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("replay"))


def copied(made: Made, to: Path) -> Path:
    return Path(shutil.copytree(made.run_dir, to / "run"))


LEDGERS = {
    "none": lambda e: [],
    "all": lambda e: e,
    "a few": lambda e: e[:4],
    "first source": lambda e: [x for x in e if x.source == 0],
    "begins at a cursor": lambda e: [x for x in e if x.window > 3],
    "no digests": lambda e: [x._replace(digest=0) for x in e],
}


@pytest.mark.parametrize("which", LEDGERS)
def test_any_step_in_any_order_whatever_the_ledger_has(
    made: Made, tmp_path: Path, which: str
) -> None:
    run_dir = copied(made, tmp_path)
    ledger = RunFolder(str(run_dir)).ledger(made.spec)
    ledger.append(LEDGERS[which](made.entries))
    ledger.close()
    before = ledger.path.read_bytes()
    assert made.num_steps > 15
    assert len(made.entries) > 20
    order = np.random.default_rng(0).permutation(made.num_steps).tolist()
    with meshfeed.open(str(run_dir)) as run:
        for step in order:
            assert_same(run.batch(step), made.batch(step))
        assert run.num_steps() == made.num_steps
    assert ledger.path.read_bytes() == before


def test_the_last_step_is_filled_up_with_zeros_outside_the_digest(made: Made) -> None:
    last = made.num_steps - 1
    run = meshfeed.open(str(made.run_dir))
    batch = run.batch(last)
    real = made.schedule.total_rows - last * BATCH
    assert 0 < real < BATCH
    assert len(run.rows(last)) == real
    assert all(not leaf[real:].any() and leaf[real - 1].any() for leaf in batch.values())
    rows = last * BATCH + np.arange(real)
    digest = combine(leaf_digest(n, rows, 0, a[:real]) for n, a in made.batch(last).items())
    assert run.digest(last) == f"{digest:016x}"
    run.close()


def test_a_dropped_remainder_is_no_step(tmp_path: Path) -> None:
    made = Made(tmp_path, remainder="drop")
    with meshfeed.open(str(made.run_dir)) as run:
        whole = made.schedule.total_rows // BATCH
        assert_same(run.batch(whole - 1), made.batch(whole - 1))
        with pytest.raises(
            ConfigError, match=f"step: {whole} lies beyond.*last step is {whole - 1}"
        ):
            run.batch(whole)


def test_every_segment_is_the_part_of_the_record_that_it_says(made: Made) -> None:
    tables: dict[str, list[list[int]]] = {}
    seen: dict[tuple[str, int], int] = {}
    with meshfeed.open(str(made.run_dir)) as run:
        for step in range(made.num_steps):
            batch = run.batch(step)
            for row in run.rows(step):
                assert row.global_row == step * BATCH + row.row
                end = 0
                for number, part in enumerate(row.segments, 1):
                    if part.shard not in tables:
                        tables[part.shard] = pq.read_table(part.shard)["ids"].to_pylist()
                    record = tables[part.shard][part.place]
                    here = slice(part.start, part.start + part.length)
                    assert part.start == end
                    end = part.start + part.length
                    wanted = record[part.offset : part.offset + part.length]
                    assert batch["tokens"][row.row, here].tolist() == wanted
                    assert set(batch["segment_ids"][row.row, here].tolist()) == {number}
                    seen[part.shard, part.place] = seen.get((part.shard, part.place), 0) + len(
                        wanted
                    )
                assert end == (batch["segment_ids"][row.row] > 0).sum()
    epochs = {"a": 1, "b": 2}
    for (shard, place), tokens in seen.items():
        assert tokens == len(tables[shard][place]) * epochs[Path(shard).parent.name]
    assert len(seen) == 4 * 60 + 2 * 50


def test_a_late_step_needs_only_the_shards_of_its_rows(tmp_path: Path) -> None:
    made = Made(tmp_path, shuffle="none")
    made.record(made.entries)
    (tmp_path / "data" / "a" / "part-000.parquet").unlink()
    last = made.num_steps - 1
    with meshfeed.open(str(made.run_dir)) as run:
        assert_same(run.batch(last), made.batch(last))
        with pytest.raises(
            ConfigError, match=r"there is no .*part-000.parquet.*data=\{'a': FOLDER"
        ):
            run.batch(0)


def test_the_ledger_of_a_run_that_goes_on_is_read_again(made: Made, tmp_path: Path) -> None:
    run_dir = copied(made, tmp_path)
    ran: list[str] = []
    with meshfeed.open(str(run_dir), progress=ran.append) as run:
        run.batch(0)
        assert ran
        assert not run.is_recorded(0)
        ledger = RunFolder(str(run_dir)).ledger(made.spec)
        ledger.append(made.entries)
        ledger.close()
        ran.clear()
        assert_same(run.batch(made.num_steps - 1), made.batch(made.num_steps - 1))
        assert not ran
        assert run.is_recorded(0)


def test_the_run_and_its_data_may_have_moved(tmp_path: Path) -> None:
    made = Made(tmp_path / "here")
    made.record(made.entries)
    moved = tmp_path / "there"
    shutil.move(tmp_path / "here", moved)
    data = {name: str(moved / "data" / name) for name in ("a", "b")}
    with meshfeed.open(str(moved / "run"), data=data) as run:
        assert_same(run.batch(5), made.batch(5))
        assert run.rows(5)[0].segments[0].shard.startswith(str(moved))
    with pytest.raises(ConfigError, match=r"no source 'c'\. There are a, b, data"):
        meshfeed.open(str(moved / "run"), data={"c": "/"})


@pytest.mark.parametrize("recorded", [True, False])
def test_a_changed_shard_is_refused_by_name(tmp_path: Path, recorded: bool) -> None:
    made = Made(tmp_path, shuffle="none")
    if recorded:
        made.record(made.entries)
    shard = tmp_path / "data" / "a" / "part-001.parquet"
    data = bytearray(shard.read_bytes())
    at = data.find(np.arange(131 * 60, 131 * 60 + 8, dtype=np.uint16).tobytes())
    data[len(data) // 2 if at < 0 else at] ^= 1
    shard.write_bytes(bytes(data[:-1]) if not recorded else bytes(data))
    with (
        meshfeed.open(str(made.run_dir)) as run,
        pytest.raises(ChangedError, match=r"part-001|source a"),
    ):
        _ = [run.batch(step) for step in range(made.num_steps)]


def test_a_window_that_gives_other_rows_than_it_gave_the_run_is_refused(
    made: Made, tmp_path: Path
) -> None:
    run_dir = copied(made, tmp_path)
    ledger = RunFolder(str(run_dir)).ledger(made.spec)
    ledger.append([made.entries[0]._replace(digest=made.entries[0].digest ^ 1)])
    ledger.close()
    with (
        meshfeed.open(str(run_dir)) as run,
        pytest.raises(ChangedError, match="window 0 of epoch 0 of source a gives other rows than"),
    ):
        run.batch(0)


def test_leaf_names_and_dtypes_are_those_of_the_trainer(made: Made) -> None:
    with meshfeed.open(str(made.run_dir)) as run:
        own, maxtext = run.batch(1), run.batch(1, leaf_names="maxtext")
        assert set(maxtext) == {
            "inputs",
            "targets",
            "inputs_segmentation",
            "inputs_position",
            "targets_segmentation",
        }
        np.testing.assert_array_equal(maxtext["inputs"], own["tokens"])
        weights = own["segment_ids"] * (own["loss_weights"] > 0)
        np.testing.assert_array_equal(maxtext["targets_segmentation"], weights)
        assert maxtext["targets_segmentation"].dtype == np.int32
        assert set(run.batch(1, leaves=("tokens",))) == {"tokens"}


def test_feeds_are_apart(made: Made) -> None:
    with meshfeed.open(str(made.run_dir)) as run:
        assert run.feeds == ("train", "eval/all")
        tokens = run.batch(0, "eval/all")["tokens"]
        assert tokens.shape == (4, SEQ_LEN)
        first = pq.read_table(made.run_dir.parent / "data/b/part-000.parquet")["ids"][0].as_py()
        assert tokens.reshape(-1)[: len(first)].tolist() == first


def test_what_is_not_there_is_refused_with_what_is(made: Made, tmp_path: Path) -> None:
    with meshfeed.open(str(made.run_dir)) as run:
        last = made.num_steps - 1
        with pytest.raises(ConfigError, match=f"step: {last + 1} lies.*Its last step is {last}"):
            run.batch(last + 1)
        with pytest.raises(ConfigError, match=r"step: -1 is negative\. Steps count from 0"):
            run.rows(-1)
        with pytest.raises(ConfigError, match=r"no feed 'trian'\. Did you mean 'train'"):
            run.batch(0, "trian")
        with pytest.raises(ConfigError, match="Known: meshfeed, maxtext"):
            run.batch(0, leaf_names="maxtex")
    with pytest.raises(ConfigError, match=f"{tmp_path} holds no run"):
        meshfeed.open(str(tmp_path))


def test_neither_jax_nor_ray_is_needed(made: Made) -> None:
    program = (
        "import sys, meshfeed; run = meshfeed.open(sys.argv[1]); run.batch(0); run.digest(1); "
        "run.rows(2); assert not {'jax', 'ray', 'jaxlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program, str(made.run_dir)], check=True)
