"""The flags of ``meshfeed simulate`` that say what is trained and what happens on the way."""

from __future__ import annotations

import argparse
import re

from meshfeed.actors.elastic.settings import WorldKind
from meshfeed.launch.simulate_train import COMPILED, TrainingPlan
from meshfeed.pipeline.plan.errors import ConfigError
from meshfeed.pipeline.plan.run_config import parse_bytes


def add_training_flags(parser: argparse.ArgumentParser) -> None:
    """Adds them."""
    group = parser.add_argument_group("training")
    group.add_argument(
        "--train",
        metavar="MODULE:FUNCTION",
        help="train with this function, which is given a job, in the place of only reading; "
        "a file may be named as well: train.py:function",
    )
    group.add_argument(
        "--resize",
        metavar="STEP:HOSTS,...",
        default="",
        help="go on with so many hosts from about that step on, e.g. 20:2,40:3",
    )
    group.add_argument(
        "--kill",
        metavar="HOST@STEP,...",
        default="",
        help="SIGKILL the trainer and the vault of that host when the step has been committed",
    )
    group.add_argument(
        "--snapshot-every",
        type=int,
        default=0,
        metavar="N",
        help="steps after which the state goes to the vaults of two hosts; 0: never (default: 0)",
    )
    group.add_argument(
        "--world",
        choices=list(WorldKind),
        default=WorldKind.FRESH,
        help="whether the next generation runs in new processes or in the same (default: fresh)",
    )
    group.add_argument(
        "--vault-budget",
        metavar="BYTES",
        default="1GiB",
        help="that the vault of a host may hold of the state (default: 1GiB)",
    )
    group.add_argument(
        "--compilation-cache",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="keep compiled programs in the run directory, for the next world of the same size",
    )


def training_plan(args: argparse.Namespace) -> TrainingPlan:
    """What the flags say.

    Raises:
        ConfigError: one of them is not what it should be.
    """
    if args.snapshot_every < 0:
        raise ConfigError("snapshot_every", f"{args.snapshot_every} is below 0")
    kills = {step: host for host, step in _pairs("kill", args.kill, "@")}
    if kills and not args.snapshot_every:
        raise ConfigError(
            "kill", "a host that is lost takes its state along", "Give --snapshot-every N"
        )
    return TrainingPlan(
        train=args.train,
        resizes=dict(_pairs("resize", args.resize, ":")),
        kills=kills,
        snapshot_every=args.snapshot_every,
        world=WorldKind(args.world),
        vault_budget=parse_bytes(args.vault_budget, "vault_budget"),
        compiled=COMPILED if args.compilation_cache else None,
    )


def _pairs(setting: str, text: str, sign: str) -> list[tuple[int, int]]:
    """``20:2,40:3`` -> [(20, 2), (40, 3)]."""
    pairs = []
    for part in filter(None, text.split(",")):
        match = re.fullmatch(rf"\s*(\d+){sign}(\d+)\s*", part)
        if match is None:
            example = "20:2,40:3" if sign == ":" else "1@30"
            raise ConfigError(
                setting, f"{part!r} in {text!r} is not understood", f"Write {example}"
            )
        pairs.append((int(match[1]), int(match[2])))
    return pairs
