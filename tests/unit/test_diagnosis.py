"""What holds a run up is named: stage, reader, host, and the share of waiting."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from rich.console import Console
from small_runs import prepare_run

from meshfeed.actors.control.tallies import ReaderTally, SourceTally
from meshfeed.actors.messages import WindowReport
from meshfeed.launch.diagnosis import diagnose, slow_readers, stage_shares
from meshfeed.launch.status_command import render
from meshfeed.pipeline.data.packing.blocks import BlockFormat
from meshfeed.pipeline.data.packing.rows import WindowRunner
from meshfeed.pipeline.data.sources.source_reader import storage_of
from meshfeed.pipeline.data.tokenizers import TokenBatch, Tokenizer, load_tokenizer
from meshfeed.pipeline.plan.feed_state import WindowKey


class SlowTokenizer:
    """Encodes like another, 50 ms later."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def encode(self, texts: pa.Array | pa.ChunkedArray) -> TokenBatch:
        time.sleep(0.05)
        return self._tokenizer.encode(texts)


def status_of(
    *, waited: float = 0.0, by_stage: dict[str, float] | None = None, **feed: Any
) -> dict[str, Any]:
    """A run with one feed and two hosts, of which host 1 waits."""
    quiet = {"seconds": 0.0, "of_seconds": 100.0, "by_stage": {}, "waiting_for": ""}
    waits = quiet | {"seconds": waited, "by_stage": by_stage or {}}
    plain = {
        "sources": {"a": vars_of(SourceTally())},
        "generation": 1,
        "granted": 20,
        "taken": 10,
        "ready": 30,
        "total_steps": None,
        "steps_per_second": 2.0,
        "slowest_process": 1,
        "waiting": {0: quiet | {"batches": True}, 1: waits | {"batches": True}},
        "readers": {},
        "limiting_window": None,
    }
    return {
        "run_dir": "runs/x",
        "generation": 1,
        "error": None,
        "feeds": {"train": plain | feed},
        "readers": [],
        "block_bytes": 1000,
        "calls": {},
    }


def vars_of(tally: SourceTally) -> dict[str, Any]:
    return {name: getattr(tally, name) for name in tally.__slots__}


def printed(status: dict[str, Any], width: int = 120) -> str:
    console = Console(width=width, highlight=False, color_system=None)
    with console.capture() as capture:
        console.print(render(status, width))
    return capture.get()


def test_case_37_a_slow_tokenizer_on_one_host_is_named(tmp_path: Path) -> None:
    data = tmp_path / "a.jsonl"
    data.write_text("".join(json.dumps({"text": "word " * 40}) + "\n" for _ in range(300)))
    config, specs = prepare_run(
        {"data": str(data), "seq_len": 64, "run_dir": str(tmp_path / "run")},
        window=5000,
        chunk=5000,
    )
    spec = specs["train"]
    tokenizer = load_tokenizer(spec.config.tokenizer)
    source, readers = SourceTally(), ReaderTally()
    for name, own in (("node0-reader0", tokenizer), ("node1-reader0", SlowTokenizer(tokenizer))):
        runner = WindowRunner(
            feed=spec.config,
            source=spec.config.sources[0],
            manifest=spec.manifests[0],
            block_format=BlockFormat.of(spec),
            tokenizer=own,
            storage=storage_of(config),
        )
        for window in range(6):
            result = runner.run(1, window)
            report = WindowReport(
                feed="train",
                key=WindowKey(0, 1, window),
                rows=result.packed.block.rows,
                tokens=result.stats.tokens,
                seconds=result.stats.seconds,
                reader=name,
            )
            source.add(report, again=False)
            readers.add(report)
    status = status_of(
        waited=42.0,
        by_stage={"grant": 40.0, "fetch": 2.0},
        sources={"a": vars_of(source)},
        readers=readers.plain(),
        limiting_window={"source": "a", "epoch": 1, "window": 6, "node": 1, "shards": [str(data)]},
    )
    status["readers"] = [
        {"reader": "node0-reader0", "host": "east", "seconds": 0.0, "pid": 1},
        {"reader": "node1-reader0", "host": "west", "seconds": 0.02, "pid": 2}
        | {"stage": "tokenize", "feed": "train", "what": str(data)},
    ]
    lines = "\n".join(diagnose(status))
    assert "host 1 waits 42 % of the time, mostly for rows that readers have not made yet" in lines
    assert "from a, whose windows spend" in lines
    assert "time in tokenize" in lines
    assert "node1-reader0 on west takes" in lines
    assert "a window in tokenize, the others" in lines
    assert "node0-reader0" not in lines
    assert next(iter(stage_shares(status["feeds"]["train"]["sources"]["a"]))) == "tokenize"
    slow = slow_readers(status["feeds"]["train"])
    assert [(s.reader, s.stage) for s in slow] == [("node1-reader0", "tokenize")]
    assert slow[0].seconds >= 0.05
    for width in (80, 120):
        text = printed(status, width)
        assert "node1-reader0" in text
        assert "slow: tokenize" in " ".join(text.split())
        assert "42 %" in text
        assert max(map(len, text.splitlines())) <= width


def test_waiting_that_is_not_for_rows_does_not_blame_readers() -> None:
    limiting = {"source": "a", "epoch": 0, "window": 3, "node": None, "shards": ["x"]}
    for stage, words in (("fetch", "on their way from the nodes"), ("assemble", "to the devices")):
        status = status_of(waited=50.0, by_stage={stage: 50.0}, limiting_window=limiting)
        lines = diagnose(status)
        assert len(lines) == 1
        assert words in lines[0]
        assert "50 %" in lines[0]


def test_little_waiting_is_no_trouble() -> None:
    lines = diagnose(status_of(waited=0.5, by_stage={"grant": 0.5}))
    assert lines == ["train: training waits 0.5 % of the time: data are no limit"]


def test_a_reader_that_is_stuck_is_named_with_its_shard() -> None:
    status = status_of(
        readers={"r0": {"windows": 10, "tokens": 1, "seconds": {"read": 1.0}}},
    )
    status["readers"] = [
        {"reader": "r0", "host": "h", "seconds": 33.0, "pid": 77, "stage": "read"}
        | {"feed": "train", "what": "s3://bucket/part-7.parquet"},
        {"reader": "r1", "host": "h", "seconds": 0.4, "pid": 78, "stage": "read"}
        | {"feed": "train", "what": "s3://bucket/part-8.parquet"},
    ]
    line = diagnose(status)[-1]
    assert "r0 on h (pid 77) has been in read for 33.0 s, s3://bucket/part-7.parquet" in line
    assert not any("r1" in line for line in diagnose(status))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"total_steps": 10}, "train has been taken to its end"),
        ({"waiting": {}}, "no host has taken a batch yet"),
    ],
)
def test_a_feed_at_its_edges(change: dict[str, Any], words: str) -> None:
    status = status_of(**change)
    assert words in diagnose(status)[0]
    assert "train" in printed(status)


def test_the_first_batch_is_waited_for() -> None:
    times = {"seconds": 9.0, "of_seconds": 9.0, "by_stage": {"grant": 9.0}, "waiting_for": "grant"}
    status = status_of(waiting={0: times | {"batches": False}}, total_steps=None)
    status["feeds"]["eval/x"] = {"sources": {}}
    assert "waits for its first batch, for rows that readers have not made" in diagnose(status)[0]
    assert "eval/x  not open" in printed(status)


def test_a_failed_run_says_so_first() -> None:
    status = status_of() | {"error": "shard x: broken"}
    assert diagnose(status) == ["The run has failed: shard x: broken"]


def test_a_host_that_left_before_its_first_batch_is_no_riddle() -> None:
    quiet = {"seconds": 0.0, "of_seconds": 4.0, "by_stage": {}, "waiting_for": ""}
    status = status_of(waiting={0: quiet | {"batches": False}}, total_steps=None)
    assert "host 0 waits for its first batch, and has not asked for it lately" in printed(status)
