"""``meshfeed show`` and ``trace``: what a row is made of, for a person and for a script."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_runs import prepare_run

import meshfeed
from meshfeed.launch.cli import main

TEXTS = [f"<{i}> the quick brown fox {'jumps ' * (i % 7)}over {i}" for i in range(200)]
SEQ_LEN = 96


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Text as bytes; an eval feed of ids with a loss mask; one of text with control characters."""
    folder = tmp_path_factory.mktemp("show")
    with (folder / "text.jsonl").open("w") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in TEXTS)
    prompts = [b"Q: what?", b"Q: and now?"]
    answers = [b" A: this!", b" A: nothing."]
    table = {
        "ids": pa.array([list(p + a) for p, a in zip(prompts, answers, strict=True)]),
        "mask": pa.array(
            [[0] * len(p) + [1] * len(a) for p, a in zip(prompts, answers, strict=True)]
        ),
    }
    pq.write_table(pa.table(table), folder / "chat.parquet")
    (folder / "odd.jsonl").write_text(json.dumps({"text": "bell\a, colour\x1b[31m, tab\t|"}) + "\n")
    evals: dict[str, Any] = {
        "chat": {"data": str(folder / "chat.parquet"), "column": "ids"}
        | {"loss_mask_column": "mask", "packing": "best_fit"},
        "odd": {"data": str(folder / "odd.jsonl")},
    }
    settings = {"data": str(folder / "text.jsonl"), "seq_len": SEQ_LEN, "batch_size": 4}
    prepare_run(settings | {"eval": evals, "run_dir": str(folder / "run")}, window=3000)
    return str(folder / "run")


def lines_of(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> list[str]:
    assert main(words) == status
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("columns", ["80", "120"])
def test_a_row_is_shown_as_its_records(
    run_dir: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    columns: str,
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    with meshfeed.open(run_dir) as run:
        rows = run.rows(3)
    data = Path(run_dir).parent / "text.jsonl"
    at = {}
    with data.open("rb") as file:
        for text in TEXTS:
            at[file.tell()] = text
            file.readline()
    out = lines_of(capsys, "show", run_dir, "--step", "3", "--row", "2")
    assert max(map(len, out)) <= int(columns)
    headings = [
        i for i, line in enumerate(out) if re.match(r" \d+  text.jsonl, byte \d+  tokens", line)
    ]
    assert len(headings) == len(rows[2].segments) > 1
    for index, segment in zip(headings, rows[2].segments, strict=True):
        assert f"byte {segment.place}  tokens {segment.offset}-" in out[index]
        text = at[segment.place]
        shown = text[segment.offset : segment.offset + segment.length]
        whole = segment.offset + segment.length > len(text)
        assert out[index + 1].strip() == (shown + "<eos>" * whole).strip()
    assert "row 2" in out[0]
    assert "of source data" in " ".join(out[:2])
    assert "The run has not come to this step" in "\n".join(out)


def test_masked_tokens_are_marked(run_dir: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("show", run_dir, "--step", "0", "--feed", "eval/chat", "--tokenizer", "bytes")
    out = "\n".join(lines_of(capsys, *words))
    assert "[[Q: and now?]] A: nothing." in out
    assert "[[Q: what?]] A: this!" in out
    assert "19 of them masked" in out


def test_ids_are_shown_where_no_tokenizer_is_known(
    run_dir: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = " ".join(lines_of(capsys, "show", run_dir, "--step", "0", "--feed", "eval/chat"))
    assert " ".join(map(str, b" A: this!")) in " ".join(out.split())
    plain = " ".join(lines_of(capsys, "show", run_dir, "--step", "0", "--ids"))
    with meshfeed.open(run_dir) as run:
        first = run.batch(0)["tokens"][0, : run.rows(0)[0].segments[0].length]
    assert " ".join(map(str, first.tolist())) in " ".join(plain.split())


def test_text_cannot_steer_the_terminal(run_dir: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = "\n".join(lines_of(capsys, "show", run_dir, "--step", "0", "--feed", "eval/odd"))
    assert "\x1b" not in out
    assert "\a" not in out
    assert r"bell\x07, colour\x1b[31m, tab" in out


def test_a_row_of_padding_is_said_to_be_one(
    run_dir: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("show", run_dir, "--step", "0", "--feed", "eval/odd")
    out = "\n".join(lines_of(capsys, *words, "--row", "3"))
    assert "Row 3 of step 0 is padding" in out
    assert main([*words, "--row", "4"]) == 1
    assert "row: 4 is not one of 0..3" in capsys.readouterr().err


def test_trace_says_in_json_what_open_says(
    run_dir: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trace", run_dir, "--step", "2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    with meshfeed.open(run_dir) as run:
        assert told["digest"] == run.digest(2)
        rows = run.rows(2)
    assert len(told["rows"]) == len(rows) == 4
    for plain, row in zip(told["rows"], rows, strict=True):
        assert plain["global_row"] == row.global_row
        assert [s["place"] for s in plain["segments"]] == [s.place for s in row.segments]
        assert [s["offset"] for s in plain["segments"]] == [s.offset for s in row.segments]
        assert {s["shard"] for s in plain["segments"]} == {row.segments[0].shard}


@pytest.mark.parametrize("columns", ["80", "120"])
def test_trace_has_a_line_for_each_segment(
    run_dir: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    columns: str,
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    with meshfeed.open(run_dir) as run:
        row = run.rows(1)[3]
    out = lines_of(capsys, "trace", run_dir, "--step", "1", "--row", "3")
    found = [line for line in out if re.search(r"text\.jsonl +byte \d+", line)]
    assert [int(re.findall(r"byte (\d+)", line)[0]) for line in found] == [
        s.place for s in row.segments
    ]
    assert max(len(line.rstrip()) for line in out) <= int(columns)


def test_errors_say_what_to_do(
    run_dir: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, message in (
        (
            ("show", run_dir, "--step", "100000"),
            "lies beyond the end of feed 'train'. Its last step",
        ),
        (("trace", run_dir, "--step", "0", "--row", "9"), "row: 9 is not one of 0..3"),
        (("trace", run_dir, "--step", "0", "--feed", "eval/chats"), "Did you mean 'eval/chat'?"),
        (("show", str(tmp_path), "--step", "0"), "holds no run"),
        (("show", run_dir, "--step", "0", "--data", "x"), "'x' is not SOURCE=FOLDER"),
        (("status", str(tmp_path)), "holds no run"),
        (("status", run_dir), "no run was started in"),
    ):
        assert main(words) == 1
        error = capsys.readouterr().err
        assert message in " ".join(error.split())
        assert "Traceback" not in error
