"""The same global batch in real JAX worlds, for every partition, mesh and order of devices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import assemble_program
import numpy as np
import pytest
from assemble_program import FIRST_ROW, SEQ_LEN, leaf_at
from worlds import run_world

from meshfeed.pipeline.data.batches.agreement import BoxDigest, agreed_digest, join_boxes
from meshfeed.pipeline.data.batches.digest import combine, leaf_digest
from meshfeed.pipeline.plan.config import LEAVES
from meshfeed.pipeline.plan.errors import DisagreementError

WORLDS = [(2, 2), (4, 2), (1, 4), (4, 1)]


@pytest.fixture(scope="module", params=WORLDS, ids=lambda world: f"{world[0]}x{world[1]}")
def reports(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Any]]:
    """What each process of one world found."""
    hosts, devices = request.param
    files = run_world(
        Path(assemble_program.__file__),
        hosts=hosts,
        devices=devices,
        out=tmp_path_factory.mktemp("world"),
    )
    return [json.loads(path.read_text()) for path in files]


def _expected(batch_size: int) -> int:
    """The digest of the batch, from the whole of it."""
    rows, cols = np.arange(batch_size), np.arange(SEQ_LEN)
    return combine(
        leaf_digest(leaf, rows + FIRST_ROW, 0, leaf_at(leaf, rows, cols, batch_size))
        for leaf in LEAVES
    )


def _digests(report: dict[str, Any], case: str) -> list[BoxDigest]:
    return [
        BoxDigest(leaf, tuple(box), dtype, digest)
        for leaf, box, dtype, digest in report["results"][case]["digests"]
    ]


def test_case_04_every_partition_mesh_and_device_order_gives_the_same_global_array(
    reports: list[dict[str, Any]],
) -> None:
    cases = list(reports[0]["results"])
    assert len(cases) > 100
    for case in cases:
        batch_size = int(case.rsplit(", ", 1)[1])
        found = agreed_digest(
            {process: _digests(report, case) for process, report in enumerate(reports)},
            leaves=LEAVES,
            shape=(batch_size, SEQ_LEN),
        )
        assert found == _expected(batch_size), case
        tiles = [
            (tuple(box), np.array(tile, dtype=np.int32))
            for report in reports
            for box, tile in report["results"][case]["tokens"]
        ]
        np.testing.assert_array_equal(
            join_boxes(tiles, (batch_size, SEQ_LEN)),
            leaf_at("tokens", np.arange(batch_size), np.arange(SEQ_LEN), batch_size),
            err_msg=case,
        )


def test_case_01_every_leaf_lies_as_the_tokens_do(reports: list[dict[str, Any]]) -> None:
    for report in reports:
        specs = report["results"]["by host dataxmodel, DATA, 8"]["specs"]
        assert specs == {leaf: ["data", None] for leaf in LEAVES}
        for case, result in report["results"].items():
            if "by leaf" not in case:
                specs = result["specs"]
                assert specs == dict.fromkeys(LEAVES, specs["tokens"]), case


def test_case_03_padding_lies_behind_the_last_row_and_weighs_nothing(
    reports: list[dict[str, Any]],
) -> None:
    for case, result in reports[0]["results"].items():
        if not case.endswith(", 7"):
            continue
        rows = result["shape"][0]
        tiles = [
            (tuple(box), np.array(tile))
            for report in reports
            for box, tile in report["results"][case]["weights"]
        ]
        weights = join_boxes(tiles, (rows, SEQ_LEN))
        assert np.flatnonzero(weights.any(axis=1)).tolist() == list(range(7)), case
        assert rows in (7, 8), case


def test_each_host_supplies_just_what_jax_says_that_its_devices_hold(
    reports: list[dict[str, Any]],
) -> None:
    grids = set()
    for report in reports:
        for case, result in report["results"].items():
            assert result["supplied"] == result["needed"], case
            grids.add(result["grid"])
    # Where several hosts have several devices, some slices are no grids: both ways are run.
    askew = len(reports) > 1 and reports[0]["devices"] > 1
    assert grids == ({True, False} if askew else {True})


def test_a_host_that_passes_what_it_should_not_is_told_so(reports: list[dict[str, Any]]) -> None:
    for process, report in enumerate(reports):
        said = report["refusals"]
        for name in ("short", "whole batch of another size", "int64", "no part", "another leaf"):
            assert f"process {process}" in said[name]
        assert "must supply int32" in said["short"]
        assert "got int64" in said["int64"]
        assert "JAX would turn int64 into int32" in said["int64 leaf"]
        assert ("plan of another mesh" in said) == (len(reports) > 1)


def test_a_host_that_holds_other_data_is_found(reports: list[dict[str, Any]]) -> None:
    case = "by host data, REPLICATED, 8"
    digests = {process: _digests(report, case) for process, report in enumerate(reports)}
    wrong = digests[0][0]._replace(digest=digests[0][0].digest ^ 1)
    digests[len(digests)] = [wrong]
    with pytest.raises(DisagreementError, match=rf"process 0 has .* process {len(reports)} has"):
        agreed_digest(digests, leaves=LEAVES, shape=(8, SEQ_LEN))
