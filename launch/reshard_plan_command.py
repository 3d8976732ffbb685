"""``meshfeed reshard-plan``: how arrays get from one sharding to another, and what that costs."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from meshfeed.launch.progress import Progress
from meshfeed.launch.resharding.arrays import (
    ARRAY_KEYS,
    WORLD_KEYS,
    arrays_of,
    load_arrays_file,
)
from meshfeed.launch.resharding.picture import draw_reshard
from meshfeed.launch.resharding.table import Planned, plain, render
from meshfeed.launch.resharding.verify import devices_needed, verify
from meshfeed.launch.sheet import write_picture
from meshfeed.launch.words import plural
from meshfeed.pipeline.plan.errors import ConfigError
from meshfeed.pipeline.plan.reshard.planner import plan_reshard
from meshfeed.pipeline.plan.run_config import parse_bytes

_FLAGS = {
    "src_mesh": ("AXES", "mesh before, e.g. data=8"),
    "dst_mesh": ("AXES", "mesh after, e.g. replica=2,tensor=4"),
    "src_devices": ("LIST", "devices of the mesh before, in its order, e.g. 0-7; default: from 0"),
    "dst_devices": ("LIST", "devices of the mesh after; default: from 0"),
    "dtype": ("NAME", "element type (default: float32)"),
    "shape": ("SIZES", "of the array, e.g. 8192,8192"),
    "src_spec": ("SPEC", "axes of each dimension before: data,- or data+fsdp,- or P('data', None)"),
    "dst_spec": ("SPEC", "axes of each dimension after"),
}


def add_reshard_plan_command(commands: Any) -> None:
    """Adds ``reshard-plan`` to the command line."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "reshard-plan",
        help="show how arrays get from one sharding to another, and what that costs",
        description="Plans the route of one array, or of each array of a file, from a sharding to "
        "another: hops, collectives, bytes that a device receives against the least possible, and "
        "peak memory. Needs no device; --verify compiles the same on CPU devices.",
    )
    parser.add_argument(
        "file", nargs="?", metavar="FILE.yaml", help="meshes and a tree of arrays; JSON will do"
    )
    for key, (metavar, text) in _FLAGS.items():
        parser.add_argument(f"--{key.replace('_', '-')}", metavar=metavar, help=text)
    parser.add_argument(
        "--memory-limit", metavar="BYTES", help="that moving an array may take on a device"
    )
    parser.add_argument(
        "--donate", action="store_true", help="the source may be given up after the first hop"
    )
    parser.add_argument(
        "--verify",
        action="store_true",
        help="compile every hop on CPU devices and show XLA's bytes beside the planned ones; ends "
        "with 1 where they differ",
    )
    parser.add_argument(
        "--picture",
        default="reshard.svg",
        metavar="FILE.svg",
        help="picture to write, or 'none' (default: reshard.svg)",
    )
    parser.add_argument(
        "--array", metavar="NAME", help="to draw; default: the one that moves the most bytes"
    )
    parser.add_argument("--json", action="store_true", help="print JSON, for scripts")
    parser.set_defaults(run=run_reshard_plan)


def run_reshard_plan(args: argparse.Namespace) -> int:
    """Prints the table and draws the picture.

    Returns:
        0; 1 where ``--verify`` finds that XLA moves other bytes than planned.

    Raises:
        ConfigError: shardings, shapes or names do not fit together; says which.
    """
    arrays = arrays_of(_settings(args))
    limit = None if args.memory_limit is None else parse_bytes(args.memory_limit, "memory_limit")
    planned = [
        Planned(
            array=array,
            plan=plan_reshard(
                array.shape,
                array.dtype,
                array.source,
                array.target,
                memory_limit=limit,
                donate=args.donate,
            ),
        )
        for array in arrays
    ]
    drawn = _drawn(planned, args.array)
    if args.picture != "none" and not args.json:
        write_picture(Path(args.picture), draw_reshard(drawn.plan, drawn.array.name))
    if args.verify:
        planned = _verified(planned, quiet=args.json)
    if args.json:
        json.dump(plain(planned), sys.stdout, indent=1)
        sys.stdout.write("\n")
    else:
        console = Console(highlight=False)
        console.print(render(planned, donate=args.donate))
        if args.picture != "none":
            console.print(f"Picture: {args.picture} ({drawn.array.name})", soft_wrap=True)
    agree = all(hop.agrees for one in planned if one.checked for hop in one.checked.every)
    return 0 if agree else 1


def _settings(args: argparse.Namespace) -> dict[str, Any]:
    """File and flags as one mapping; flags overrule the file."""
    settings = load_arrays_file(args.file) if args.file else {}
    for key in dict.fromkeys((*WORLD_KEYS, *ARRAY_KEYS)):
        value = getattr(args, key, None)
        if value is not None:
            settings[key] = value
    return settings


def _drawn(planned: list[Planned], name: str | None) -> Planned:
    if name is None:
        return max(planned, key=lambda one: one.plan.received_bytes)
    for one in planned:
        if one.array.name == name:
            return one
    names = ", ".join(one.array.name for one in planned[:12])
    raise ConfigError("array", f"there is no {name!r}", f"There are {names}")


def _verified(planned: list[Planned], *, quiet: bool) -> list[Planned]:
    """The same with what XLA compiles; arrays alike in all but the name are compiled once."""
    from meshfeed.launch.explain.cpu_devices import check_count, start_cpu_devices

    count = check_count(devices_needed([one.plan for one in planned]), "verify")
    progress = Progress(quiet=quiet)
    progress.stage(f"starting JAX with {plural(count, 'CPU device')}")
    devices = dict(enumerate(start_cpu_devices(count)))
    seen: dict[Any, Any] = {}
    checked = []
    for n, one in enumerate(planned):
        key = (one.array.shape, one.array.dtype, one.array.source, one.array.target)
        if key not in seen:
            progress.stage(f"compiling {one.array.name}, {n + 1} of {len(planned)}")
            seen[key] = verify(one.plan, devices)
        checked.append(replace(one, checked=seen[key]))
    progress.close()
    return checked
