"""Training runs of a few steps with resizes on the way, on the Ray of these tests."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from ids_data import write_ids
from tiny_trainer import VOCABULARY, WIDTH

import meshfeed
from meshfeed.actors.elastic.messages import Resize
from meshfeed.actors.elastic.settings import ElasticSettings, WorldKind
from meshfeed.actors.run import Run
from meshfeed.launch.progress import Progress
from meshfeed.launch.report import Report
from meshfeed.launch.simulate_train import TrainingPlan, train
from meshfeed.pipeline.plan.elastic.policy import ElasticPolicy

StartRun = Callable[..., AbstractContextManager[Run]]

STATE_BYTES = 2 * 2 * VOCABULARY * WIDTH * 4
"""Parameters and momentum, without what lies everywhere."""


def mixture(folder: Path) -> dict[str, Any]:
    """Settings of a run with a filter, two sources, a shuffle and packing."""
    many = [[(7 * n) % 60 + 1 for n in range(160)] for _ in range(4)]
    few = [[(5 * n) % 60 + 1 for n in range(60)] for _ in range(2)]
    return {
        "sources": [
            {
                "name": "many",
                "data": [str(write_ids(folder / "many", many, group=50))],
                "weight": 0.7,
                "transforms": ["record_transforms:drop_multiples_of_7"],
            },
            {
                "name": "few",
                "data": [str(write_ids(folder / "few", few, kind="jsonl", first_id=10_000))],
                "weight": 0.3,
                "epochs": 4,
            },
        ],
        "column": "ids",
        "seq_len": 32,
        "batch_size": 12,
        "shuffle": "record",
        "packing": "first_fit",
        "readers": 1,
        "grant_seconds": 0.05,
        "timeout_seconds": 120,
    }


def plan(**settings: Any) -> TrainingPlan:
    """What is trained, and what happens on the way."""
    defaults: dict[str, Any] = {
        "train": "tiny_trainer:train",
        "resizes": {},
        "kills": {},
        "snapshot_every": 5,
        "world": WorldKind.FRESH,
        "vault_budget": 64 << 20,
    }
    return TrainingPlan(**defaults | settings)


def settings_of(
    run: Run, *, hold_at: list[int], world: WorldKind = WorldKind.FRESH, **policy: Any
) -> tuple[TrainingPlan, ElasticSettings]:
    """Of training that a test holds, and resizes, by itself."""
    limits: dict[str, Any] = {"snapshot_every": 5, "cool_down_s": 0.0}
    training = ElasticSettings(
        feed="train",
        train="tiny_trainer:train",
        devices=1,
        world=world,
        policy=ElasticPolicy(**limits | policy),
        vault_budget=64 << 20,
        compiled=compiled_for(run.config.run_dir),
        hold_at=frozenset(hold_at),
        digests=True,
    )
    return plan(world=world), training


def compiled_for(run_dir: str) -> str:
    """One folder of compiled programs for all tests of a session, which train the same model."""
    return str(Path(run_dir).parent.parent / "compiled")


def trained(start_run: StartRun, settings: dict[str, Any], **planned: Any) -> Report:
    """The report of a run from its first step to its last."""
    with start_run(**settings) as run:
        made = plan(**{"compiled": compiled_for(run.config.run_dir)} | planned)
        return train(run, "train", made, Progress(quiet=True))


def digests(report: Report) -> list[str]:
    """Of each step, in order."""
    assert [step.step for step in report.steps] == list(range(len(report.steps)))
    assert not report.disagreements
    return [step.digest for step in report.steps]


def digests_of_run(run_dir: Path, steps: int) -> list[str]:
    """The same, made again without Ray, hosts or devices."""
    with meshfeed.open(str(run_dir)) as run:
        return [run.digest(step) for step in range(steps)]


def bytes_that_must_travel(resize: Resize) -> int:
    """What hosts need and did not have: parameters and momentum are split over the hosts.

    Both matrices are split along a dimension of ``WIDTH`` into equal parts by place. The key and
    the count lie on every host, so only a new host needs them.
    """
    missing = 0
    for place, host in enumerate(resize.places_to):
        needed = _part(place, len(resize.places_to))
        had: set[int] = set()
        if host in resize.places_from:
            had = _part(resize.places_from.index(host), len(resize.places_from))
        missing += 2 * 2 * len(needed - had) * VOCABULARY * 4
        missing += 0 if host in resize.places_from else KEY_BYTES + COUNT_BYTES
    return missing


def _part(place: int, places: int) -> set[int]:
    """Columns of the width at a place."""
    width = WIDTH // places
    return set(range(place * width, (place + 1) * width))


KEY_BYTES = 8
COUNT_BYTES = 4
