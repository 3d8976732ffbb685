"""The ``meshfeed`` command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import meshfeed
from meshfeed.launch.plan_command import add_plan_command
from meshfeed.launch.simulate import add_simulate_command
from meshfeed.pipeline.plan.errors import MeshfeedError


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; its exit status is 0 only if all went well."""
    parser = argparse.ArgumentParser(
        prog="meshfeed", description="Feeds a JAX training mesh from a Ray cluster."
    )
    parser.add_argument("--version", action="version", version=f"meshfeed {meshfeed.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for add in (add_simulate_command, add_plan_command):
        add(commands)
    args = parser.parse_args(argv)
    try:
        status: int = args.run(args)
    except MeshfeedError as error:
        print(f"meshfeed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return status


if __name__ == "__main__":
    raise SystemExit(main())
