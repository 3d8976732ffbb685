"""The smallest memory budget, as a run says it: less is refused at the start, and it is enough."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ids_data import write_texts
from plain_world import PlainWorld

from meshfeed.pipeline.plan.errors import BudgetError

LETTERS = 25_000
LONG_S = 60.0
"""Far longer than it takes: it tells a hang from work."""


def test_the_budget_that_the_error_names_is_enough_and_is_kept_to(
    start_run: Callable[..., Any], world_2x2: PlainWorld, tmp_path: Path
) -> None:
    sources = []
    for name, letter in (("code", "c"), ("books", "b")):
        texts = [[letter * LETTERS] * 10 for _ in range(8)]  # 2 MB each: eight windows
        data = str(write_texts(tmp_path / name, texts))
        sources.append({"name": name, "data": [data], "weight": 0.9 if name == "code" else 0.1})
    settings: dict[str, Any] = {"sources": sources, "seq_len": 256, "batch_size": 32, "readers": 2}
    with (
        pytest.raises(BudgetError, match="memory_budget: 1000000 bytes is too small") as refused,
        start_run(run_dir=tmp_path / "small", memory_budget=1_000_000, **settings),
    ):
        pass
    budget = refused.value.needed_bytes
    assert budget < 16 << 20
    with (
        start_run(run_dir=tmp_path / "run", memory_budget=budget, **settings) as run,
        world_2x2.feed(tmp_path / "run") as feed,
    ):
        highest, taken = 0, 0
        while steps := feed.skip(20)[0]:
            taken += steps
            highest = max(highest, run.status()["block_bytes"])
        limit = time.monotonic() + LONG_S
        while (status := run.status())["block_bytes"] and time.monotonic() < limit:
            time.sleep(0.1)  # the hosts are about to acknowledge the end
    sources_run = status["feeds"]["train"]["sources"]
    rows = sum(source["rows"] for source in sources_run.values())
    assert taken == -(-rows // settings["batch_size"])
    assert sum(s["tokens"] for s in sources_run.values()) == 2 * 80 * (LETTERS + 1)
    assert all(source["windows_again"] == 0 for source in sources_run.values())
    assert 0 < highest <= budget
    assert status["block_bytes"] == 0
