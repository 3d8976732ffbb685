"""How long a resize stops training: ``python -m benchmarks.resize`` prints one JSON line, a table.

Three hosts with a device each train on a state of 100 MB; they go to two hosts and back to three as
planned, and one of the three is killed. *Stopped* is the time from the barrier (or the loss) to the
end of the first step, without compiling: what the phases ``drain`` to ``first_step`` add up to,
``compile`` left out. A snapshot's cost is what the commit of a step with one takes longer than the
commit of one without.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.resize_trainer import STATE_MB
from meshfeed.actors.elastic.settings import WorldKind
from meshfeed.launch.progress import Progress
from meshfeed.launch.report import Report
from meshfeed.launch.simulate import simulate_with_ray
from meshfeed.launch.simulate_train import TrainingPlan
from meshfeed.pipeline.plan.run_config import RunConfig

SNAPSHOT_EVERY = 10
STEPS = 90
STOPPED = ("drain", "leave", "plan", "join", "move", "first_step")


def measure(world: WorldKind, state_mb: int, folder: Path) -> Report:
    """One run: 3 -> 2 -> 3 hosts, then 2 by SIGKILL."""
    os.environ[STATE_MB] = str(state_mb)
    data = folder / "text.txt"
    data.write_text("a line of text that is as good as any other\n" * 20_000)
    config = RunConfig.from_mapping(
        {
            "data": [str(data)],
            "format": "text",
            "tokenizer": "bytes",
            "seq_len": 64,
            "batch_size": 12,
            "epochs": 0,
            "hosts": 3,
            "steps": STEPS,
            "readers": 1,
            "run_dir": str(folder / "run"),
        }
    )
    plan = TrainingPlan(
        train="benchmarks.resize_trainer:train",
        resizes={25: 2, 45: 3},
        kills={75: 1},
        snapshot_every=SNAPSHOT_EVERY,
        world=world,
        vault_budget=8 * state_mb * 10**6,
    )
    return simulate_with_ray(config, "train", plan, Progress(quiet=True))


def figures(report: Report) -> dict[str, Any]:
    """Of one run."""
    commits = {step - 1: seconds for step, seconds in report.losses.items()}
    with_one = [s for step, s in commits.items() if (step + 1) % SNAPSHOT_EVERY == 0]
    without = [s for step, s in commits.items() if (step + 1) % SNAPSHOT_EVERY]
    return {
        "resizes": [
            {
                "kind": resize.kind,
                "hosts": [resize.hosts_from, resize.hosts_to],
                "stopped_s": sum(resize.seconds[phase] for phase in STOPPED),
                "bytes_moved": resize.bytes_moved,
                "bytes_bound": resize.bytes_bound,
                "seconds": resize.seconds,
            }
            for resize in report.resizes
        ],
        "snapshot_s": statistics.median(with_one) - statistics.median(without),
    }


def main() -> None:
    """Both worlds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--state-mb", type=int, default=100)
    args = parser.parse_args()
    results: dict[str, Any] = {"machine": machine.describe(), "versions": machine.versions()}
    for world in WorldKind:
        with tempfile.TemporaryDirectory() as folder:
            results[str(world)] = figures(measure(world, args.state_mb, Path(folder)))
    print(json.dumps(results))
    print(
        f"\n{'world':6} {'resize':18} {'stopped s':>9}  {'compile':>7} {'moved/bound':>11}  phases"
    )
    for world in WorldKind:
        for one in results[str(world)]["resizes"]:
            ratio = one["bytes_moved"] / max(one["bytes_bound"], 1)
            phases = ", ".join(f"{k} {v:.2f}" for k, v in one["seconds"].items())
            name = f"{one['kind']} {one['hosts'][0]} -> {one['hosts'][1]}"
            print(
                f"{world:6} {name:18} {one['stopped_s']:9.2f}  {one['seconds']['compile']:7.2f} "
                f"{ratio:11.2f}  {phases}"
            )
        print(f"{world:6} a snapshot costs a step {results[str(world)]['snapshot_s']:.3f} s")


if __name__ == "__main__":
    main()
