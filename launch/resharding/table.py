"""Plans as a table for people, in words, and as plain values for scripts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from meshfeed.launch.resharding.arrays import MovedArray
from meshfeed.launch.resharding.verify import Checked, compiled_as
from meshfeed.launch.words import format_bytes, plural, share, table
from meshfeed.pipeline.plan.reshard.plan import ReshardPlan, Route

_NUMBERS = ("receives", "bound", "direct", "peak")
_STYLES = {Route.NONE: "green", Route.INTERMEDIATE: "cyan", Route.BOXES: "yellow"}
_MOST_NAMES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """An array with its plan, and what XLA makes of it where that was looked at."""

    array: MovedArray
    plan: ReshardPlan
    checked: Checked | None = None


def render(planned: Sequence[Planned], *, donate: bool) -> RenderableType:
    """A row for each array with the totals, the hops, and what they come to."""
    made = table("", "array", "route", *_NUMBERS, right=_NUMBERS)
    for one in planned:
        style = _STYLES.get(one.plan.route, "")
        made.add_row(_name(one.array), Text(one.plan.route, style), *_numbers(one.plan))
    if len(planned) > 1 or planned[0].array.count > 1:
        made.add_section()
        count = plural(sum(one.array.count for one in planned), "array")
        made.add_row(f"{count} in all", "", *_totals(planned))
    parts: list[RenderableType] = [made]
    for alike in _by_hops(planned):
        parts += [_heading(alike), _hops(alike), Text()]
    parts += [_bullets(summary(planned, donate=donate))]
    if any(one.checked for one in planned):
        parts += [Text(), _checked_table(planned), _bullets(verdict(planned))]
    return Group(*parts)


def _bullets(lines: Sequence[str]) -> RenderableType:
    """Lines that go on under themselves."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for line in lines:
        grid.add_row("•", Text(line))
    return grid


def _name(array: MovedArray) -> Text:
    shape = ",".join(map(str, array.shape))
    name = Text(array.name, "bold").append(_times(array), "not bold")
    return name.append(f"\n{array.dtype}[{shape}]", "not bold dim")


def _times(array: MovedArray) -> str:
    return f" x {array.count}" if array.count > 1 else ""


def _by_hops(planned: Sequence[Planned]) -> list[list[Planned]]:
    """Arrays that go the same way, together."""
    groups: dict[Any, list[Planned]] = {}
    for one in planned:
        groups.setdefault((one.plan.source, one.plan.hops), []).append(one)
    return list(groups.values())


def _heading(alike: Sequence[Planned]) -> Text:
    """``embedding, layers/query x 32: intermediate``."""
    names = [one.array.name + _times(one.array) for one in alike]
    shown = names if len(names) <= _MOST_NAMES else names[: _MOST_NAMES - 1]
    left = f" and {len(names) - len(shown):,} more" if len(shown) < len(names) else ""
    route = alike[0].plan.route
    return Text(", ".join(shown) + left, "bold").append(f"  {route}", _STYLES.get(route, ""))


def _hops(alike: Sequence[Planned]) -> RenderableType:
    """Each hop, what it brings to a device, and the sharding that it leads to."""
    plan = alike[0].plan
    same_size = len({one.plan.array_bytes for one in alike}) == 1
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True, width=1)
    grid.add_column(no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row("", Text("from", "dim"), "", str(plan.source))
    for hop in plan.hops:
        brings = format_bytes(round(plan.bytes_of(hop.received)))
        if not same_size:
            brings = f"{share(float(hop.received), 1.0)} of it"
        style = "bold red" if hop.involuntary else ""
        grid.add_row("", Text(hop.describe(), style), brings, str(hop.target))
    return grid


def _numbers(plan: ReshardPlan) -> list[str]:
    about = "" if plan.exact else "about "
    direct = plan.direct_bytes
    return [
        about + format_bytes(round(plan.received_bytes)),
        format_bytes(round(plan.bound_bytes)),
        "-" if direct is None else format_bytes(round(direct)),
        format_bytes(round(plan.peak_bytes)),
    ]


def _totals(planned: Sequence[Planned]) -> list[str]:
    direct = [one.plan.direct_bytes for one in planned]
    return [
        format_bytes(round(_sum(planned, "received_bytes"))),
        format_bytes(round(_sum(planned, "bound_bytes"))),
        "-" if None in direct else format_bytes(round(_sum(planned, "direct_bytes"))),
        f"{format_bytes(round(max(one.plan.peak_bytes for one in planned)))}",
    ]


def _sum(planned: Sequence[Planned], what: str) -> float:
    return float(sum(one.array.count * (getattr(one.plan, what) or 0) for one in planned))


def summary(planned: Sequence[Planned], *, donate: bool) -> list[str]:
    """What it comes to, in words."""
    whole, received = _sum(planned, "array_bytes"), _sum(planned, "received_bytes")
    bound, direct = _sum(planned, "bound_bytes"), _sum(planned, "direct_bytes")
    lines = [
        f"{format_bytes(round(whole))} in all. Bytes are of one device, the mean where devices "
        f"differ; the peak is of one array at a time, with the source "
        f"{'given back' if donate else 'kept'}."
    ]
    if not received:
        lines.append("Nothing travels: every device holds what it needs.")
    elif bound:
        lines.append(
            f"A device receives {received / bound:.2f} times the bound, the bytes that it needs "
            "and does not hold."
        )
    better = [one for one in planned if (one.plan.direct_bytes or 0) > one.plan.received_bytes]
    if better:
        gained = direct - received
        count = plural(sum(one.array.count for one in better), "array")
        lines.append(
            f"Going through an intermediate saves {format_bytes(round(gained))} a device on "
            f"{count}, against what XLA makes of a plain jax.device_put."
        )
    whole_arrays = [o for o in planned if o.plan.direct is not None and o.plan.direct.involuntary]
    if whole_arrays:
        lines.append(
            f"Direct would put {plural(sum(o.array.count for o in whole_arrays), 'array')} together"
            " whole on every device (XLA's involuntary full rematerialization)."
        )
    kinds = Counter[str]()
    for one in planned:
        kinds[one.plan.route] += one.array.count
    lines.append("Routes: " + ", ".join(f"{count} {kind}" for kind, count in kinds.items()) + ".")
    return lines


def _checked_table(planned: Sequence[Planned]) -> RenderableType:
    """XLA's figures beside the plan's."""
    columns = ("planned", "XLA", "temp planned", "temp XLA")
    made = table("Compiled by XLA", "array", "what XLA runs", *columns, right=columns)
    for one in planned:
        if one.checked is None:
            continue
        rows = [("route", one.checked.hops)]
        if one.checked.direct is not None and len(one.plan.hops) > 1:
            rows.append(("direct", (one.checked.direct,)))
        for label, hops in rows:
            for hop in hops:
                made.add_row(
                    Text(one.array.name, "bold").append(f"\n{label}", "dim"),
                    Text(hop.collectives, "" if hop.agrees else "bold red"),
                    format_bytes(round(hop.planned_received)),
                    "-" if hop.received is None else format_bytes(round(hop.received)),
                    format_bytes(round(hop.planned_temporary)),
                    "-" if hop.temporary is None else format_bytes(hop.temporary),
                )
        made.add_section()
    return made


def verdict(planned: Sequence[Planned]) -> list[str]:
    """Whether XLA does what was planned."""
    hops = [hop for one in planned if one.checked for hop in one.checked.every]
    compiled = [hop for hop in hops if hop.received is not None]
    off = [hop for hop in compiled if not hop.agrees]
    lines = []
    widened = sorted(
        {p.array.dtype for p in planned} - {compiled_as(p.array.dtype) for p in planned}
    )
    if widened:
        lines.append(
            f"{' and '.join(widened)} compiled as integers of the same bytes: XLA moves such "
            "floats as float32 on CPU, not on accelerators."
        )
    if compiled and not off:
        lines.append(f"XLA moves just the planned bytes in {plural(len(compiled), 'program')}.")
    elif off:
        lines.append(f"{plural(len(off), 'program')} of {len(compiled)} move other bytes (in red).")
    if len(compiled) < len(hops):
        lines.append(
            f"{plural(len(hops) - len(compiled), 'hop')} not compiled by XLA: devices change, or "
            "lie in another order."
        )
    return lines


def plain(planned: Sequence[Planned]) -> dict[str, Any]:
    """What ``--json`` prints."""
    return {
        "arrays": [_plain(one) for one in planned],
        "received_bytes": _sum(planned, "received_bytes"),
        "bound_bytes": _sum(planned, "bound_bytes"),
        "peak_bytes": max(one.plan.peak_bytes for one in planned),
    }


def _plain(one: Planned) -> dict[str, Any]:
    array, plan = one.array, one.plan
    said: dict[str, Any] = {
        "name": array.name,
        "count": array.count,
        "shape": list(array.shape),
        "dtype": array.dtype,
        "source": str(plan.source),
        "target": str(plan.target),
        "route": plan.route,
        "hops": [
            {
                "kind": hop.kind,
                "does": hop.describe(),
                "target": str(hop.target),
                "received_bytes": plan.bytes_of(hop.received),
                "temporary_bytes": plan.bytes_of(hop.temporary),
            }
            for hop in plan.hops
        ],
        "received_bytes": plan.received_bytes,
        "bound_bytes": plan.bound_bytes,
        "direct_bytes": plan.direct_bytes,
        "peak_bytes": plan.peak_bytes,
        "exact": plan.exact,
    }
    if one.checked is not None:
        said["compiled"] = [
            {
                "collectives": hop.collectives.split("\n"),
                "received_bytes": hop.received,
                "temporary_bytes": hop.temporary,
                "agrees": hop.agrees,
            }
            for hop in one.checked.hops
        ]
    return said
