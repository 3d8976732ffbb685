"""The flags of commands that look into a run directory, and the run that they open."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from meshfeed.launch.progress import Progress
from meshfeed.pipeline.data.runs.replay import Replay
from meshfeed.pipeline.plan.errors import ConfigError
from meshfeed.pipeline.plan.run_config import TRAIN


def add_run_flags(parser: argparse.ArgumentParser) -> None:
    """RUN_DIR, ``--feed`` and ``--data``."""
    parser.add_argument("run_dir", metavar="RUN_DIR", help="directory of the run")
    parser.add_argument("--feed", default=TRAIN, help="feed of the run (default: train)")
    parser.add_argument(
        "--data",
        nargs="+",
        default=[],
        metavar="SOURCE=FOLDER",
        help="where the shards of a source lie now, if they have moved",
    )


def open_run(args: argparse.Namespace, progress: Progress) -> Replay:
    """The run of ``add_run_flags``.

    Raises:
        ConfigError: there is no run, or ``--data`` is not SOURCE=FOLDER.
    """
    return Replay(args.run_dir, data=_folders(args.data), progress=progress.stage)


def _folders(pairs: list[str]) -> Mapping[str, str]:
    folders = {}
    for pair in pairs:
        source, equals, folder = pair.partition("=")
        if not equals or not folder:
            raise ConfigError("data", f"{pair!r} is not SOURCE=FOLDER", "Write e.g. code=/mnt/code")
        folders[source] = folder
    return folders
