"""A feed that cannot be opened says why, and nothing else."""

from __future__ import annotations

import gc
from typing import Any

import pytest

import meshfeed
from meshfeed.actors.run import Run
from meshfeed.pipeline.plan.errors import ConfigError
from meshfeed.pipeline.plan.run_config import RunConfig


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_what_could_not_be_opened_is_closed_in_silence() -> None:
    nobody: Any = None
    run = Run(config=RunConfig.from_mapping({"data": "x"}), specs={}, coordinator=nobody)
    with pytest.raises(ConfigError, match=r"^output: 'neither'"):
        meshfeed.connect(run, mesh=nobody, output="neither")
    gc.collect()
