"""``meshfeed resize``: training goes on with another number of hosts."""

from __future__ import annotations

import argparse
from typing import Any


def add_resize_command(commands: Any) -> None:
    """Adds ``resize`` to the command line."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "resize",
        help="let training go on with another number of hosts",
        description="Asks the elastic coordinator of a run that trains. Hosts end at the same "
        "step, and the next generation goes on from there with the same rows and the live state. "
        "Answers once that step is fixed, or with why the number is refused.",
    )
    parser.add_argument("run_dir", metavar="RUN_DIR", help="directory of the run")
    parser.add_argument("--hosts", type=int, required=True, metavar="N", help="from then on")
    parser.set_defaults(run=run_resize)


def run_resize(args: argparse.Namespace) -> int:
    """Asks for it.

    Raises:
        ConfigError: nothing trains in that directory, or no mesh fits so many hosts.
    """
    from meshfeed.actors.elastic.run import ElasticRun

    print(ElasticRun.find(args.run_dir).resize(args.hosts))
    return 0
