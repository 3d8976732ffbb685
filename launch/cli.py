"""The ``meshfeed`` command."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from meshfeed import __version__
from meshfeed.pipeline.plan.errors import MeshfeedError

COMMANDS = {
    "simulate": "meshfeed.launch.simulate",
    "serve": "meshfeed.launch.serve_command",
    "plan": "meshfeed.launch.plan_command",
    "explain-partition": "meshfeed.launch.explain_partition_command",
    "reshard-plan": "meshfeed.launch.reshard_plan_command",
    "check": "meshfeed.launch.check_command",
    "inspect": "meshfeed.launch.inspect_command",
    "resize": "meshfeed.launch.resize_command",
    "drain": "meshfeed.launch.drain_command",
    "status": "meshfeed.launch.status_command",
    "show": "meshfeed.launch.show_command",
    "trace": "meshfeed.launch.trace_command",
}
"""Where ``add_<command>_command`` of each command lives, ``_`` for ``-``. Only the one asked for is
imported, so that those which need neither ray nor jax answer at once."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; its exit status is 0 only if all went well."""
    words = list(sys.argv[1:] if argv is None else argv)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # where a user's transforms lie, as with python -m
    parser = argparse.ArgumentParser(
        prog="meshfeed", description="Feeds a JAX training mesh from a Ray cluster."
    )
    parser.add_argument("--version", action="version", version=f"meshfeed {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    asked = next((word for word in words if word in COMMANDS), None)
    for command in [asked] if asked else () if words == ["--version"] else COMMANDS:
        add = getattr(import_module(COMMANDS[command]), f"add_{command.replace('-', '_')}_command")
        add(commands)
    args = parser.parse_args(_joined(words))
    try:
        status: int = args.run(args)
    except MeshfeedError as error:
        print(f"meshfeed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has gone
        return 1
    return status


def _joined(words: list[str]) -> list[str]:
    """``--dst-spec -,tensor`` as ``--dst-spec=-,tensor``: argparse takes the value for a flag."""
    joined: list[str] = []
    for word in words:
        if word.startswith("-,") and joined and joined[-1].startswith("--"):
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


if __name__ == "__main__":
    raise SystemExit(main())
