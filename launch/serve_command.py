"""``meshfeed serve``: brings a run up and keeps it up, for trainers that connect from elsewhere."""

from __future__ import annotations

import argparse
import signal
import threading
from typing import Any

from meshfeed.actors.run import start
from meshfeed.launch.progress import Progress
from meshfeed.launch.settings import add_config_flags, config_from

STATUS_EVERY_S = 5.0


def add_serve_command(commands: Any) -> None:
    """Adds ``serve`` to the command line."""
    parser = commands.add_parser(
        "serve",
        help="bring a run up and keep it up for trainers that connect to it",
        description="Starts coordinator and readers in the Ray cluster that RAY_ADDRESS names, or "
        "in one on this machine, and keeps them up. Trainers reach it with "
        "meshfeed.connect(RUN_DIR, mesh=...). Ends on Ctrl-C or SIGTERM.",
    )
    add_config_flags(parser)
    parser.set_defaults(run=run_serve)


def run_serve(args: argparse.Namespace) -> int:
    """Serves until it is told to stop, or the run fails."""
    config = config_from(args)
    progress = Progress()
    ended = threading.Event()
    with start(config, progress.stage) as run:
        for number in (signal.SIGINT, signal.SIGTERM):  # not before: Ray sets its own
            signal.signal(number, lambda *_: ended.set())
        progress.stage(f"up: connect with meshfeed.connect({config.run_dir!r}, mesh=...)")
        while not ended.wait(STATUS_EVERY_S):
            status = run.status()
            if status["error"] is not None:
                progress.stage(f"the run failed: {status['error']}")
                return 1
            for name, feed in status["feeds"].items():
                if feed.get("granted") is not None:
                    progress.stage(f"{name}: step {feed['taken']} taken, {feed['ready']} ready")
    progress.close()
    return 0
