"""Hosts that are lost: the run goes on from the last snapshot, with the same batches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from resizing import StartRun, digests, digests_of_run, mixture, trained

from meshfeed.actors.elastic.settings import WorldKind
from meshfeed.launch.report import Report

STEPS = 20
SNAPSHOT_EVERY = 4
KILL_AT = 10


@pytest.fixture(scope="module")
def fixed(start_run: StartRun, tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Four hosts from the first step to the last."""
    folder = tmp_path_factory.mktemp("fixed")
    settings = mixture(folder) | {"run_dir": folder / "run", "steps": STEPS, "hosts": 4}
    return trained(start_run, settings, snapshot_every=0)


@pytest.mark.parametrize(
    ("victim", "world"),
    [
        (0, WorldKind.REUSE),
        (2, WorldKind.REUSE),
        (0, WorldKind.FRESH),
        (3, WorldKind.FRESH),
    ],
)
def test_any_one_of_four_hosts_may_be_killed(
    victim: int, world: WorldKind, fixed: Report, start_run: StartRun, tmp_path: Path
) -> None:
    settings = mixture(tmp_path) | {"run_dir": tmp_path / "run", "steps": STEPS, "hosts": 4}
    report = trained(
        start_run, settings, world=world, kills={KILL_AT: victim}, snapshot_every=SNAPSHOT_EVERY
    )
    assert digests(report) == digests(fixed) == digests_of_run(tmp_path / "run", STEPS)
    (resize,) = report.resizes
    assert (resize.kind, resize.hosts_from, resize.hosts_to) == ("unplanned", 4, 3)
    assert resize.step == KILL_AT // SNAPSHOT_EVERY * SNAPSHOT_EVERY
    assert resize.steps_repeated <= SNAPSHOT_EVERY
    losses = [report.losses[step] for step in range(STEPS)]
    expected = [fixed.losses[step] for step in range(STEPS)]
    assert losses[: resize.step] == expected[: resize.step]
    np.testing.assert_allclose(losses, expected, rtol=2e-4)
