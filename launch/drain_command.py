"""``meshfeed drain``: training leaves a host that is to go away."""

from __future__ import annotations

import argparse
from typing import Any


def add_drain_command(commands: Any) -> None:
    """Adds ``drain`` to the command line."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "drain",
        help="let training leave a host, which may go away then",
        description="As a preemption notice does: hosts end at the same step, the host's part of "
        "the state moves to the others, and training goes on without it.",
    )
    parser.add_argument("run_dir", metavar="RUN_DIR", help="directory of the run")
    parser.add_argument("host", metavar="HOST", help="its name, as meshfeed status shows it")
    parser.add_argument(
        "--seconds",
        type=float,
        metavar="S",
        help="after which the host will be gone; default: it waits",
    )
    parser.set_defaults(run=run_drain)


def run_drain(args: argparse.Namespace) -> int:
    """Asks for it.

    Raises:
        ConfigError: nothing trains in that directory, or it has no such host.
    """
    from meshfeed.actors.elastic.run import ElasticRun

    print(ElasticRun.find(args.run_dir).drain(args.host, args.seconds))
    return 0
