from __future__ import annotations

import numpy as np
import pytest

from meshfeed.launch.explain.batches import made_up_batch
from meshfeed.launch.explain.findings import findings, recommend, same_programs
from meshfeed.launch.explain.measure import Measured
from meshfeed.launch.explain.show import plain
from meshfeed.pipeline.assemble.hlo import Traffic
from meshfeed.pipeline.plan.config import LEAVES
from meshfeed.pipeline.plan.errors import ConfigError
from meshfeed.pipeline.plan.partition import DataPartitionType

FULL, DATA, BATCH, REPLICATED = DataPartitionType
OVER_DATA, OVER_ALL = (("data",), None), (("data", "model"), None)


def measured(
    received: float,
    *,
    temporary: int = 1000,
    fetched: int = 100,
    over: tuple[tuple[str, ...] | None, None] = OVER_ALL,
    times: tuple[float, ...] = (),
    count: int = 3,
    slices: int = 0,
) -> Measured:
    return Measured(
        spec=over,
        host_bytes=fetched,
        all_hosts_bytes=8 * fetched,
        batch_bytes=10,
        collectives={"all-reduce": Traffic(count=count, received_bytes=received)},
        dynamic_slices=slices,
        argument_bytes=50,
        temporary_bytes=temporary,
        step_seconds=times,
    )


def data(received: float = 1e6, **other: object) -> Measured:
    return measured(received, over=OVER_DATA, **other)  # type: ignore[arg-type]


def test_bytes_between_devices_decide_first() -> None:
    outcome = {FULL: measured(2e6, temporary=1, fetched=1), DATA: data()}
    assert recommend(outcome) == (DATA, outcome[DATA])


def test_memory_decides_where_bytes_are_alike_and_fetching_where_memory_is() -> None:
    whole = (None, None)
    outcome = {FULL: measured(1.005e6, temporary=500), DATA: data()}
    assert recommend(outcome)[0] is FULL
    outcome = {DATA: data(fetched=100), REPLICATED: measured(1e6, fetched=400, over=whole)}
    assert recommend(outcome)[0] is DATA
    outcome = {DATA: data(temporary=1050), REPLICATED: measured(1e6, fetched=400, over=whole)}
    assert recommend(outcome)[0] is DATA  # a twentieth of temporary memory decides nothing


def test_data_stands_where_nothing_tells_types_apart() -> None:
    alike = data()
    assert recommend({FULL: alike, BATCH: alike, DATA: alike})[0] is DATA
    assert recommend({REPLICATED: data(0.0), FULL: data(0.0)})[0] is FULL


def test_types_with_one_spec_are_one_program() -> None:
    outcome = {FULL: measured(2e6), DATA: data(), BATCH: data()}
    assert [kinds for kinds, _ in same_programs(outcome)] == [(FULL,), (DATA, BATCH)]
    assert dict(findings(outcome))["BATCH"] == "is DATA on this mesh"


def test_the_words_say_how_much_and_why() -> None:
    refusal = ConfigError("batch_size", "6 rows do not divide", "8 would do")
    outcome = {
        FULL: measured(1.5e6, temporary=2500, fetched=50, count=5, slices=2),
        DATA: data(),
        BATCH: refusal,
    }
    said = dict(findings(outcome))
    assert list(said) == ["Use DATA", "FULL", "BATCH"]
    assert "1.50 MB, 1.50 times as much (2 all-reduce more)" in said["FULL"]
    assert "temporary memory is 2.50 KB, 2.5 times as much" in said["FULL"]
    assert "a host fetches 50 B, 50 % of that" in said["FULL"]
    assert "2 dynamic-slices more" in said["FULL"]
    assert said["BATCH"] == "is refused: batch_size: 6 rows do not divide. 8 would do"
    types = plain(outcome)["types"]
    assert types["BATCH"] == {"refused": str(refusal)}
    assert types["DATA"]["median_step_seconds"] is None


@pytest.mark.parametrize(
    ("full", "said"),
    [
        ((1.9, 2.0, 2.1, 9.0), "a step took 2.0 s here, 2.05 times as long"),
        ((0.4, 0.5, 0.5, 9.0), "yet a step took 500 ms here, 50 % of that"),
        ((0.9, 1.0, 1.1, 9.0), "step times here do not tell them apart"),
        ((5.0, 5.0), "step times here do not tell them apart"),
    ],
)
def test_times_count_where_their_middle_halves_lie_apart(
    full: tuple[float, ...], said: str
) -> None:
    outcome = {FULL: measured(2e6, times=full), DATA: data(times=(0.9, 1.0, 1.0, 5.0))}
    assert said in dict(findings(outcome))["FULL"]


def test_where_no_type_fits_the_first_refusal_is_the_error() -> None:
    with pytest.raises(ConfigError, match="first"):
        recommend({FULL: ConfigError("a", "first"), DATA: ConfigError("b", "second")})


@pytest.mark.parametrize(("rows", "seq_len"), [(1, 1), (3, 2), (16, 256), (5, 1000)])
def test_a_made_up_batch_has_all_leaves_and_several_documents(rows: int, seq_len: int) -> None:
    batch = made_up_batch(rows, seq_len, 50)
    assert list(batch) == list(LEAVES)
    assert {leaf.shape for leaf in batch.values()} == {(rows, seq_len)}
    assert batch["tokens"].min() >= 0
    assert batch["tokens"].max() < 50
    assert batch["segment_ids"].min() >= 1  # no padding: every row is full
    if seq_len >= 256:
        assert batch["segment_ids"].max() > 1
        assert 0.9 < batch["loss_weights"].mean() < 1
    again = made_up_batch(rows, seq_len, 50)
    assert all(np.array_equal(batch[leaf], again[leaf]) for leaf in LEAVES)
