from __future__ import annotations

import argparse
from pathlib import Path
from xml.etree import ElementTree

import pytest

from meshfeed.launch.plan_command import add_plan_command
from meshfeed.launch.words import format_bytes
from meshfeed.pipeline.data.batches.regions import region_nbytes
from meshfeed.pipeline.data.packing.blocks import BlockFormat
from meshfeed.pipeline.plan.errors import ConfigError


def _plan(*words: object) -> int:
    parser = argparse.ArgumentParser()
    add_plan_command(parser.add_subparsers(dest="command"))
    args = parser.parse_args(["plan", *map(str, words)])
    status: int = args.run(args)
    return status


def _line(text: str, first: str) -> list[str]:
    """The cells of the table line whose first cell this is."""
    cells = [[c.strip() for c in line.split("│")[1:-1]] for line in text.splitlines()]
    return next(line for line in cells if line and line[0] == first)


def test_the_table_says_what_each_host_supplies(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    picture = tmp_path / "deep" / "plan.svg"
    shape = ["--hosts", 4, "--devices-per-host", 2, "--mesh", "data=2,model=4"]
    batch = ["--batch-size", 8, "--seq-len", 64, "--vocab-size", 8192]
    assert _plan(*shape, *batch, "--picture", picture) == 0
    printed = capsys.readouterr().out
    wire = format_bytes(region_nbytes(BlockFormat(seq_len=64, token_dtype="uint16"), 4, 64))
    assert _line(printed, "1") == ["1", "0-3", "0-63", "4x64", "0", "host 0", wire]
    assert _line(printed, "2") == ["2", "4-7", "0-63", "4x64", "1", "host 3", wire]
    assert _line(printed, "host supplies")[1:] == ["2x64", "4x64", "4x64", "8x64"]
    assert _line(printed, "device holds")[1:] == ["1x64", "4x64", "4x64", "8x64"]
    assert _line(printed, "slice groups")[1:] == ["4", "2", "2", "1"]
    assert _line(printed, "device, a batch")[1:3] == ["1.28 KB", "5.12 KB"]
    root = ElementTree.fromstring(picture.read_text(encoding="utf-8"))
    assert root.tag.endswith("svg")


def test_types_that_do_not_divide_are_refused_beside_those_that_do(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shape = ["--hosts", 4, "--devices-per-host", 2, "--mesh", "data=4,model=2"]
    assert _plan(*shape, "--batch-size", 12, "--picture", "none") == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "FULL is refused: batch_size: 12 rows do not divide into 8" in printed
    assert "8 or 16 would do" in printed


def test_case_02_the_batch_of_the_run_itself_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"10 rows .* 4 hosts .* 8 or 12 would do"):
        _plan("--hosts", 4, "--batch-size", 10, "--picture", "none")


def test_a_file_is_planned_and_flags_overrule_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = tmp_path / "run.yaml"
    config.write_text(
        "{data: [/nowhere/*.parquet], hosts: 2, devices_per_host: 2, mesh: {data: 2, seq: 2},\n"
        "partition: BATCH, batch_size: 4, seq_len: 32, leaf_names: maxtext,\n"
        "eval: {books: {data: [/nowhere/b.jsonl], batch_size: 6}}}"
    )
    picture = ["--picture", "none"]
    assert _plan(config, "--batch-size", 8, "--device-order", "interleaved", *picture) == 0
    printed = capsys.readouterr().out
    assert _line(printed, "1")[:4] == ["1", "0-7", "16-31", "8x16"]
    assert _plan(config, "--feed", "eval/books", *picture) == 0
    assert _line(capsys.readouterr().out, "1")[:3] == ["1", "3-5", "0-31"]
    by_leaf = "{inputs: DATA, targets: REPLICATED}"
    assert _plan(config, "--partition", by_leaf, *picture) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "P(None, None): targets" in printed
    assert "P('data', None): inputs, inputs_segmentation" in printed


def test_ten_thousand_hosts_are_shown_shortly(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    picture = tmp_path / "plan.svg"
    shape = ["--hosts", 10_000, "--devices-per-host", 8, "--mesh", "data=-1,model=16"]
    assert _plan(*shape, "--batch-size", 10_000, "--picture", picture) == 0
    printed = capsys.readouterr().out
    assert _line(printed, "9999")[1:6] == ["9998-9999", "0-2047", "2x2048", "4999", "host 9998"]
    assert "9,985 more" in printed
    assert len(printed.splitlines()) < 60
    assert picture.stat().st_size < 500_000


def test_a_picture_in_another_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"plan\.png is no \.svg file"):
        _plan("--picture", tmp_path / "plan.png")


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 KB"),
        (12_345, "12.3 KB"),
        (123_456_789, "123 MB"),
        (10**15, "1.00 PB"),
    ],
)
def test_bytes_have_three_digits(count: int, text: str) -> None:
    assert format_bytes(count) == text
