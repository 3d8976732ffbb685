"""``meshfeed plan``: what each host supplies, what it costs, and a picture; without a device."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from meshfeed.launch.areas import describe_hosts
from meshfeed.launch.draw import draw_plan
from meshfeed.launch.plan_data import print_data_plan
from meshfeed.launch.settings import add_config_flags, mapping_from
from meshfeed.launch.sheet import write_picture
from meshfeed.launch.words import format_bytes
from meshfeed.pipeline.data.batches.leaves import DEFAULT_DTYPES
from meshfeed.pipeline.data.batches.regions import region_nbytes
from meshfeed.pipeline.data.packing.blocks import BlockFormat
from meshfeed.pipeline.data.runs.survey import SAMPLED_WINDOWS
from meshfeed.pipeline.plan.batch_plan import (
    BatchPlan,
    PartitionCost,
    compare_partitions,
    cost_of,
    plan_batch,
)
from meshfeed.pipeline.plan.config import LEAF_PRESETS
from meshfeed.pipeline.plan.errors import ConfigError
from meshfeed.pipeline.plan.mesh import MeshLayout
from meshfeed.pipeline.plan.partition import AxisRoles, DataPartitionType, describe_spec, resolve
from meshfeed.pipeline.plan.run_config import TRAIN, RunConfig
from meshfeed.pipeline.plan.slices import WireBytes, describe_ranges

MOST_HOSTS = 16
_NO_DATA = ("(none)",)


def add_plan_command(subparsers: Any) -> None:
    """Adds ``plan`` to the commands; ``run_plan`` carries it out."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "plan",
        help="show what each host supplies, without a device",
        description="Shows which slice of the global batch each host supplies, for any mesh and "
        "without a device, what each partition type costs, and draws a picture of it. Where data "
        "is named, some windows of it are run to say what padding, reading, mixing and memory to "
        "expect.",
    )
    add_config_flags(parser)
    parser.add_argument(
        "--feed", default=TRAIN, help="feed of the file to plan for (default: train)"
    )
    parser.add_argument(
        "--picture",
        default="plan.svg",
        metavar="FILE.svg",
        help="picture to write, or 'none' (default: plan.svg)",
    )
    parser.add_argument(
        "--windows",
        type=int,
        default=SAMPLED_WINDOWS,
        help="of each source to run at most, to say what to expect of the data; 0: none",
    )
    parser.set_defaults(run=run_plan)


def run_plan(args: argparse.Namespace) -> int:
    """Prints the plan and writes the picture.

    Returns:
        0.

    Raises:
        ConfigError: the settings do not fit together; says what would.
    """
    config = _load(args)
    feed = config.feed(args.feed)
    mesh = MeshLayout.build(
        config.mesh,
        hosts=config.hosts,
        devices_per_host=config.devices_per_host,
        order=config.device_order,
    )
    roles = AxisRoles(data=config.data_axes, sequence=config.sequence_axes, model=config.model_axes)
    specs = resolve(config.partition, mesh, roles, leaf_names=LEAF_PRESETS[config.leaf_names])
    plan = plan_batch(
        mesh,
        specs,
        batch_size=feed.batch_size,
        seq_len=feed.seq_len,
        uneven_batch=config.uneven_batch,
    )
    loss_mask = any(source.loss_mask_column for source in feed.sources)
    format = BlockFormat.for_vocab(feed.seq_len, feed.vocab_size or 1 << 31, loss_mask=loss_mask)
    wire = functools.partial(region_nbytes, format)
    leaf_bytes = {leaf: dtype.itemsize for leaf, dtype in DEFAULT_DTYPES.items()}
    cost = cost_of(plan, wire=wire, leaf_bytes=leaf_bytes)
    facts = _facts(cost, config.prefetch)
    console = Console()
    _print_head(console, plan, mesh, LEAF_PRESETS[config.leaf_names])
    console.print(_host_table(plan, wire))
    for fact in facts:
        console.print(fact, highlight=False)
    console.print()
    costs = compare_partitions(
        mesh,
        batch_size=feed.batch_size,
        seq_len=feed.seq_len,
        wire=wire,
        leaf_bytes=leaf_bytes,
        roles=roles,
        uneven_batch=config.uneven_batch,
    )
    _print_costs(console, costs, config.prefetch)
    if args.windows > 0 and feed.sources[0].data != _NO_DATA:
        console.print()
        print_data_plan(console, config, feed.name, args.windows)
    if args.picture != "none":
        write_picture(Path(args.picture), draw_plan(plan, mesh, name=_name(config), facts=facts))
        console.print(f"Picture: {args.picture}", highlight=False, soft_wrap=True)
    return 0


def _load(args: argparse.Namespace) -> RunConfig:
    """The run of the file with the flags over it; data need not be named for a plan."""
    settings = mapping_from(args)
    if not settings.get("data") and not settings.get("sources"):
        settings["data"] = _NO_DATA
    return RunConfig.from_mapping(settings)


def _name(config: RunConfig) -> str:
    if isinstance(config.partition, str) and config.partition.upper() in list(DataPartitionType):
        return config.partition.upper()
    return "By leaf" if isinstance(config.partition, Mapping) else "PartitionSpec"


def _print_head(
    console: Console, plan: BatchPlan, mesh: MeshLayout, names: Mapping[str, str]
) -> None:
    hosts = len(plan.processes)
    console.print(
        f"[bold]Global batch[/] {plan.rows:,} rows x {plan.seq_len:,} tokens on mesh {mesh}, "
        f"{hosts:,} {'host' if hosts == 1 else 'hosts'} with {mesh.num_devices:,} devices in all",
        highlight=False,
    )
    if plan.pad_rows:
        console.print(
            f"Rows {plan.batch_size}-{plan.rows - 1}, the last ones, are padding of weight zero",
            highlight=False,
        )
    by_spec: dict[str, list[str]] = {}
    for leaf, spec in plan.specs.items():
        by_spec.setdefault(describe_spec(spec), []).append(names[leaf])
    for spec_text, leaves in by_spec.items():
        which = "all leaves" if len(by_spec) == 1 else ", ".join(leaves)
        console.print(f"{spec_text}: {which}", highlight=False, markup=False)
    console.print()


def _host_table(plan: BatchPlan, wire: WireBytes) -> Table:
    """What each host supplies; the middle is left out where there are many."""
    table = Table(title="What each host supplies", title_justify="left", title_style="bold")
    for column in ("host", "rows", "columns", "local shape", "slice group", "same slice as"):
        table.add_column(column)
    table.add_column("a step", justify="right")
    hosts = plan.processes.tolist()
    shown = hosts if len(hosts) <= MOST_HOSTS else [*hosts[: MOST_HOSTS - 3], None, *hosts[-2:]]
    for host in shown:
        if host is None:
            left_out = len(hosts) - MOST_HOSTS + 1
            table.add_row("...", f"{left_out:,} more", *[""] * 5)
            continue
        host_slice, group = plan.slice_of(host), plan.group_of(host)
        others = [other for other in plan.members(group).tolist() if other != host]
        table.add_row(
            str(host),
            "\n".join(describe_ranges(part.rows) for part in host_slice.parts),
            "\n".join(describe_ranges(part.cols) for part in host_slice.parts),
            "\n".join(_by(part.shape) for part in host_slice.parts),
            str(group),
            describe_hosts(others) if others else "-",
            format_bytes(host_slice.wire_bytes(wire)),
        )
    return table


def _facts(cost: PartitionCost, prefetch: int) -> list[str]:
    """Bytes and memory, in words."""
    ahead = "1 batch" if prefetch == 1 else f"{prefetch} batches"
    return [
        f"A host fetches up to {format_bytes(cost.wire_bytes)} a step (all hosts: "
        f"{format_bytes(cost.wire_bytes_all)}); a device holds {format_bytes(cost.device_bytes)} "
        "of each batch.",
        f"With {ahead} ahead: {format_bytes(cost.host_memory(prefetch))} of memory on a host and "
        f"{format_bytes(cost.device_memory(prefetch))} on a device.",
    ]


def _print_costs(
    console: Console,
    costs: Mapping[DataPartitionType, PartitionCost | ConfigError],
    prefetch: int,
) -> None:
    """What the partition types cost on this mesh, a column for each; refusals below."""
    table = Table(title="What each partition type costs", title_justify="left", title_style="bold")
    table.add_column("")
    for kind in costs:
        table.add_column(kind, justify="right")
    lines: dict[str, Callable[[PartitionCost], str]] = {
        "host supplies": lambda c: "no grid" if c.local_shape is None else _by(c.local_shape),
        "device holds": lambda c: _by(c.device_shape),
        "slice groups": lambda c: f"{c.groups:,}",
        "host fetches a step": lambda c: format_bytes(c.wire_bytes),
        "all hosts fetch": lambda c: format_bytes(c.wire_bytes_all),
        "device, a batch": lambda c: format_bytes(c.device_bytes),
        f"host, {prefetch} ahead": lambda c: format_bytes(c.host_memory(prefetch)),
        f"device, {prefetch} ahead": lambda c: format_bytes(c.device_memory(prefetch)),
    }
    for name, show in lines.items():
        cells = ["-" if isinstance(cost, ConfigError) else show(cost) for cost in costs.values()]
        table.add_row(name, *cells)
    console.print(table)
    for kind, cost in costs.items():
        if isinstance(cost, ConfigError):
            console.print(f"{kind} is refused: {cost}", highlight=False, markup=False)


def _by(shape: tuple[int, int]) -> str:
    return f"{shape[0]}x{shape[1]}"
