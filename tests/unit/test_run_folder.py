"""A run directory says why it cannot be gone on with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from small_runs import prepare_run, write_ids

import meshfeed
from meshfeed.pipeline.data.runs.prepare import prepare_feeds
from meshfeed.pipeline.data.runs.run_folder import RunFolder
from meshfeed.pipeline.plan.config import BadRecords
from meshfeed.pipeline.plan.errors import ChangedError
from meshfeed.pipeline.plan.manifest import ORDER_VERSION
from meshfeed.pipeline.plan.run_config import RunConfig


def test_a_run_whose_rows_had_another_order_is_refused_everywhere(tmp_path: Path) -> None:
    data = write_ids(tmp_path / "data", shards=2, records=20)
    run_dir = tmp_path / "run"
    config, _ = prepare_run(
        {"data": str(data), "column": "ids", "seq_len": 32, "run_dir": str(run_dir)}
    )
    manifest = run_dir / "manifest.json"
    old = json.loads(manifest.read_text()) | {"order_version": ORDER_VERSION - 1}
    manifest.write_text(json.dumps(old))
    for look in (lambda: prepare_feeds(config), lambda: meshfeed.open(str(run_dir))):
        with pytest.raises(ChangedError, match=rf"version {ORDER_VERSION - 1}; .* {ORDER_VERSION}"):
            look()


def test_a_run_that_met_a_bad_record_goes_on_with_skip(tmp_path: Path) -> None:
    data = write_ids(tmp_path / "data", shards=2, records=20)
    settings = {
        "data": str(data),
        "column": "ids",
        "seq_len": 32,
        "run_dir": str(tmp_path / "run"),
    }
    first = prepare_feeds(RunConfig.from_mapping(settings))["train"]
    lenient = settings | {"bad_records": "skip", "max_bad_records": 7}
    now = prepare_feeds(RunConfig.from_mapping(lenient))["train"]
    assert now.fingerprint == first.fingerprint
    kept = RunFolder(settings["run_dir"]).load_specs()["train"]
    for spec in (now, kept):
        assert spec.config.sources[0].bad_records is BadRecords.SKIP
        assert spec.config.sources[0].max_bad_records == 7
        assert spec.manifests == first.manifests
    with pytest.raises(ChangedError, match=r"max_record_bytes 67108864 -> 9"):
        prepare_feeds(RunConfig.from_mapping(settings | {"max_record_bytes": 9}))
