"""``meshfeed explain-partition``: what each partition type costs a training step, measured."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

import numpy.typing as npt
from rich.console import Console
from rich.text import Text

from meshfeed.launch.explain.batches import made_up_batch
from meshfeed.launch.progress import Progress
from meshfeed.launch.words import plural
from meshfeed.pipeline.data.batches.leaves import name_leaves, named_dtypes
from meshfeed.pipeline.plan.config import LEAVES
from meshfeed.pipeline.plan.errors import ConfigError
from meshfeed.pipeline.plan.mesh import MeshLayout, describe_axes, parse_axes
from meshfeed.pipeline.plan.partition import AxisRoles

_SIZES = {"vocab_size": 2048, "width": 128, "heads": 8, "blocks": 2}
_OWN_STEP = ("width", "heads", "blocks", "activations")
"""Flags that describe the default step alone."""


def add_explain_partition_command(commands: Any) -> None:
    """Adds ``explain-partition`` to the command line."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "explain-partition",
        help="measure what each partition type costs a training step",
        description="Compiles a training step under FULL, DATA, BATCH and REPLICATED on CPU "
        "devices of this machine, counts the collectives and bytes of each program, times them in "
        "turns, and says which to use. Counts and bytes are XLA's for that mesh, times are this "
        "machine's.",
    )
    parser.add_argument(
        "step",
        nargs="?",
        metavar="MODULE:FUNCTION",
        help="called with (mesh, batch), returns (step, state); default: a small transformer",
    )
    _add_world_flags(parser)
    _add_step_flags(parser)
    parser.add_argument(
        "--rounds",
        type=int,
        default=5,
        metavar="N",
        help="steps to time of each type, in turns; 0: none (default: 5)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, for scripts")
    parser.set_defaults(run=run_explain_partition)


def _add_world_flags(parser: argparse.ArgumentParser) -> None:
    """Mesh, hosts and batch."""
    parser.add_argument(
        "--mesh",
        default="data=4,model=2",
        metavar="AXES",
        help="axes and sizes; their product is the number of devices (default: data=4,model=2)",
    )
    parser.add_argument(
        "--batch-size",
        type=int,
        default=16,
        metavar="N",
        help="rows in a global batch (default: 16)",
    )
    parser.add_argument(
        "--seq-len", type=int, default=256, metavar="N", help="tokens in a row (default: 256)"
    )
    parser.add_argument(
        "--hosts",
        type=int,
        metavar="N",
        help="over which the devices are spread, for what a host fetches; default: one a device",
    )
    roles = AxisRoles()
    for role in ("data", "sequence", "model"):
        default = getattr(roles, role)
        parser.add_argument(
            f"--{role}-axes",
            nargs="+",
            metavar="AXIS",
            default=default,
            help=f"mesh axes of that role (default: {' '.join(default)})",
        )


def _add_step_flags(parser: argparse.ArgumentParser) -> None:
    """What the step is given, and what the default one is like."""
    parser.add_argument(
        "--leaf-names",
        default="meshfeed",
        metavar="PRESET",
        help="names of the leaves that a step of your own is given (default: meshfeed)",
    )
    parser.add_argument(
        "--vocab-size", type=int, metavar="N", help="ids in the batch are below it (default: 2048)"
    )
    for flag in ("width", "heads", "blocks"):
        text = f"of the transformer (default: {_SIZES[flag]})"
        parser.add_argument(f"--{flag}", type=int, metavar="N", help=text)
    parser.add_argument(
        "--activations",
        choices=("pinned", "free"),
        help="of the transformer: laid over data and sequence axes by the step, or left to XLA "
        "(default: pinned)",
    )


def run_explain_partition(args: argparse.Namespace) -> int:
    """Prints table and recommendation.

    Returns:
        0.

    Raises:
        ConfigError: mesh, batch or step do not fit together, or the step fails.
    """
    from meshfeed.launch.explain.cpu_devices import check_size, cpu_mesh
    from meshfeed.launch.explain.measure import measure, plan_costs
    from meshfeed.launch.explain.show import plain, render

    _check(args)
    axes = parse_axes(args.mesh)
    devices = check_size(axes)
    layout = _layout(axes, devices, args.hosts)
    roles = AxisRoles(
        data=tuple(args.data_axes),
        sequence=tuple(args.sequence_axes),
        model=tuple(args.model_axes),
    )
    vocab_size = args.vocab_size or _SIZES["vocab_size"]
    shape = {"rows": args.batch_size, "seq_len": args.seq_len, "vocab_size": vocab_size}
    costs = plan_costs(layout, roles, **shape)
    names = name_leaves(args.leaf_names)
    progress = Progress(quiet=args.json)
    progress.stage(f"starting JAX with {plural(devices, 'CPU device')}")
    mesh = cpu_mesh(axes)
    batch = _batch(names, **shape)
    step = _step(args, mesh, roles, batch, vocab_size)
    outcome = measure(step, mesh, costs, batch, rounds=args.rounds, progress=progress.stage)
    progress.close()
    if args.json:
        head = {"step": step.name, "mesh": axes, "hosts": len(layout.processes)}
        head |= {"batch_size": args.batch_size, "seq_len": args.seq_len}
        json.dump(head | {"state_bytes": step.state_bytes} | plain(outcome), sys.stdout, indent=1)
        sys.stdout.write("\n")
        return 0
    console = Console(highlight=False)
    console.print(
        Text(f"{args.batch_size:,} rows x {args.seq_len:,} tokens", "bold").append(
            f" on mesh {describe_axes(axes)}, {plural(len(layout.processes), 'host')}\n{step.name}"
        )
    )
    console.print(render(outcome))
    return 0


def _check(args: argparse.Namespace) -> None:
    """What no other part would find wrong, or later."""
    for setting in ("batch_size", "seq_len", "vocab_size"):
        value = getattr(args, setting)
        if value is not None and value < 1:
            raise ConfigError(setting, f"{value} is below 1")
    if args.rounds < 0:
        raise ConfigError("rounds", f"{args.rounds} is below 0", "0 compiles and times nothing")
    given = [flag for flag in _OWN_STEP if getattr(args, flag) is not None]
    if args.step and given:
        raise ConfigError(
            given[0],
            f"describes the default transformer, and the step is {args.step}",
            "Leave one of them out",
        )


def _layout(axes: dict[str, int], devices: int, hosts: int | None) -> MeshLayout:
    """The mesh as the hosts would own it."""
    hosts = devices if hosts is None else hosts
    if hosts < 1 or devices % hosts:
        fit = [str(n) for n in range(1, devices + 1) if devices % n == 0]
        raise ConfigError(
            "hosts",
            f"{hosts} do not divide the {devices} devices of {describe_axes(axes)}",
            f"One of {', '.join(fit)}",
        )
    return MeshLayout.build(axes, hosts=hosts, devices_per_host=devices // hosts)


def _batch(
    names: dict[str, str], *, rows: int, seq_len: int, vocab_size: int
) -> dict[str, npt.NDArray[Any]]:
    """A global batch by the user's names of the leaves."""
    made = made_up_batch(rows, seq_len, vocab_size)
    dtypes = named_dtypes(LEAVES, names)
    return {names[leaf]: made[leaf].astype(dtypes[leaf], copy=False) for leaf in LEAVES}


def _step(
    args: argparse.Namespace,
    mesh: Any,
    roles: AxisRoles,
    batch: dict[str, npt.NDArray[Any]],
    vocab_size: int,
) -> Any:
    """The user's step or the transformer."""
    import jax

    from meshfeed.launch.explain.steps import load_step
    from meshfeed.launch.explain.transformer import Activations, TransformerShape, transformer_step

    if args.step:
        abstract = {
            name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for name, leaf in batch.items()
        }
        return load_step(args.step, mesh, abstract)
    if args.leaf_names != "meshfeed":
        raise ConfigError(
            "leaf_names",
            f"{args.leaf_names} is for a step of your own; the transformer has meshfeed's names",
            "Leave it out",
        )
    shape = TransformerShape(
        vocab_size=vocab_size,
        width=args.width or _SIZES["width"],
        heads=args.heads or _SIZES["heads"],
        blocks=args.blocks or _SIZES["blocks"],
        activations=Activations(args.activations or "pinned"),
    )
    return transformer_step(mesh, roles, shape)
