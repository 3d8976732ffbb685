"""Resharding of live arrays in real JAX worlds: bits, bytes, memory given back, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import reshard_program
from worlds import run_world

WORLDS = [(1, 8), (4, 2)]


@pytest.fixture(scope="module", params=WORLDS, ids=lambda world: f"{world[0]}x{world[1]}")
def reports(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Any]]:
    """What each process of one world found; it has then checked the bits of all that it holds."""
    hosts, devices = request.param
    files = run_world(
        Path(reshard_program.__file__),
        hosts=hosts,
        devices=devices,
        out=tmp_path_factory.mktemp("world"),
    )
    return [json.loads(path.read_text()) for path in files]


def test_every_route_gives_the_same_bits_in_every_process(reports: list[dict[str, Any]]) -> None:
    alone = len(reports) == 1
    assert len(reports[0]["moved"]) == (19 if alone else 13)
    assert len(reports[0]["random"]) == reshard_program.RANDOM_PAIRS[len(reports)]


def test_the_bytes_are_those_that_were_compiled(reports: list[dict[str, Any]]) -> None:
    for report in reports:
        pairs = {**report["predicted"], **dict(enumerate(report["random"]))}
        for name, (planned, compiled, direct, compiled_direct) in pairs.items():
            assert planned == pytest.approx(compiled), name
            assert direct == pytest.approx(compiled_direct), name
            assert planned <= direct, name
        assert report["predicted"]["gather last"][0] < report["predicted"]["gather last"][2]


def test_what_cannot_be_is_refused_in_words(reports: list[dict[str, Any]]) -> None:
    for report in reports:
        said = report["refusals"]
        assert "is no NamedSharding" in said["device"]
        assert "str is no array" in said["text"]
        assert "JAX would turn int64 into int32" in said["int64"]
        assert "Pad it to 16" in said["uneven"]
        assert "do not begin as the tree does" in said["another tree"]
        assert said["memory"].startswith("BudgetError: memory_limit: 40 bytes is too small")
        assert ("resize the run" in said.get("other processes", "")) == (len(reports) > 1)


def test_host_values_go_along_and_the_caller_is_told(reports: list[dict[str, Any]]) -> None:
    for report in reports:
        assert report["host_values"] == {
            "step": 7,
            "scale": 0.5,
            "same": True,
            "told": [[1, 3], [2, 3], [3, 3]],
        }
