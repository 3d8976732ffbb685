"""A mapping of settings becomes a run, or an error that names the setting."""

from __future__ import annotations

from typing import Any

import pytest

from meshfeed.pipeline.plan.errors import ConfigError
from meshfeed.pipeline.plan.run_config import RunConfig


def test_a_mesh_is_a_mapping_or_a_text() -> None:
    for mesh in ({"data": 4, "model": 2}, "data=4,model=2"):
        config = RunConfig.from_mapping({"data": "x", "mesh": mesh})
        assert config.mesh == {"data": 4, "model": 2}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"mesh": [4, 2]}, r"^mesh: \[4, 2\] is not a size for each axis"),
        ({"mesh": {"data": "four"}}, r"^mesh: .*four.* is not a size for each axis"),
        ({"mesh": 8}, r"^mesh: 8 is not a size"),
        ({"eval": ["books"]}, r"^eval: .* is not a mapping"),
        ({"eval": {"books": "data"}}, r"^eval\.books: 'data' is not a mapping"),
        ({"eval": {"books": {"seqlen": 1}}}, r"^eval\.books\.seqlen: .* 'seq_len'"),
        ({"sources": {"name": "a"}, "data": None}, r"^sources: .* is not a list of sources"),
        ({"sources": ["a"], "data": None}, r"^sources: .* is not a list of sources"),
        ({"sources": [{"data": "x"}], "data": None}, r"^sources\.name: is missing"),
        ({"sources": [{"name": "a"}], "data": None}, r"^sources\.data: is missing"),
        ({"sources": [{"name": "a", "data": "x"}]}, r"^data: stands beside sources"),
        ({"seqlen": 5}, r"^seqlen: .* Did you mean 'seq_len'"),
        ({"bos": "yes"}, r"bos: 'yes' is neither true nor false"),
        ({"max_record_bytes": "many"}, r"max_record_bytes: 'many' is not a size"),
        ({"steps": 2.5}, r"^steps: 2.5 is not a whole number"),
    ],
)
def test_what_is_wrong_is_named(wrong: dict[str, Any], message: str) -> None:
    raw = {key: value for key, value in ({"data": "x"} | wrong).items() if value is not None}
    with pytest.raises(ConfigError, match=message):
        RunConfig.from_mapping(raw)


def test_an_eval_feed_takes_over_what_must_suit_the_model() -> None:
    config = RunConfig.from_mapping(
        {
            "data": "x",
            "column": "ids",
            "seq_len": 64,
            "batch_size": 4,
            "packing": "best_fit",
            "shuffle": "record",
            "epochs": 3,
            "transforms": ["a:b"],
            "eos": False,
            "eval": {"books": {"data": "y", "batch_size": 2}},
        }
    )
    feed = config.feed("eval/books")
    assert (feed.seq_len, feed.batch_size, feed.packing) == (64, 2, "best_fit")
    assert (feed.shuffle, feed.epochs, feed.remainder) == ("none", 1, "pad")
    assert feed.sources[0].column == "ids"
    assert feed.sources[0].transforms == ()
    assert feed.tokenizer.eos is False
