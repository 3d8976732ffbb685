"""A picture of one array on its way: source, intermediate and target side by side, as SVG.

Each tile has the colour of the device that holds it, stripes where several hold the same, and what
the first device holds is outlined, so that an eye can follow it. Arrows say what moves; bars
compare bytes and memory with the direct way and with the bound.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from meshfeed.launch.palette import CARD, INK, PAPER, QUIET, host_colours
from meshfeed.launch.resharding.tiles import (
    TileGrid,
    describe_devices,
    drawn_dimensions,
    tile_grid,
)
from meshfeed.launch.sheet import Sheet
from meshfeed.launch.words import format_bytes, plural
from meshfeed.pipeline.plan.reshard.collectives import MoveKind
from meshfeed.pipeline.plan.reshard.placement import Placement, describe_placement_spec
from meshfeed.pipeline.plan.reshard.plan import Hop, HopKind, ReshardPlan

WIDTH, HEIGHT = 1200, 690
_LEFT, _TOP, _ACROSS = 60.0, 158.0, 1080.0
_LARGEST, _GAP = 292.0, 138.0  # of panels, and between them
_MOST_STRIPES = 32
_MOST_CHIPS = 32
_KEY_WIDTH = 500.0
_BAR_TOP, _BAR_LEFT, _BAR_WIDTH = 556.0, 730.0, 300.0

_ROUTE = "#3f7cd6"
_DIRECT = "#d98a5b"
_BOUND = "#9aa5b1"


def draw_reshard(plan: ReshardPlan, name: str) -> str:
    """The picture of a plan.

    Args:
        plan: of one array.
        name: of the array.

    Returns:
        SVG text.
    """
    sheet = Sheet(WIDTH, HEIGHT)
    stops = [plan.source, *(hop.target for hop in plan.hops)]
    dims = drawn_dimensions(stops, len(plan.shape))
    devices = sorted({int(one) for stop in stops for one in stop.device_ids})
    colours = dict(zip(devices, host_colours(len(devices)), strict=True))
    title = f"{name}: {_route_words(plan)}"
    sheet.text(_LEFT, 42, title, size=22, bold=True)
    sheet.text(_LEFT, 72, _subtitle(plan, dims), size=13, fill=QUIET)
    size = min(_LARGEST, (_ACROSS - _GAP * (len(stops) - 1)) / len(stops))
    gap = (_ACROSS - size * len(stops)) / max(len(stops) - 1, 1)
    gap = gap if len(stops) > 2 else 1.6 * _GAP
    for n, stop in enumerate(stops):
        left = _LEFT + n * (size + gap)
        label = "source" if not n else "target" if n == len(stops) - 1 else "intermediate"
        panel = _Panel(left=left, size=size, label=label, number=n)
        _draw_panel(sheet, panel, stop, plan, dims=dims, colours=colours)
        if n:
            at = (left - gap + 8, left - 8, _TOP + size / 2)
            _draw_arrow(sheet, plan, plan.hops[n - 1], at)
    _draw_key(sheet, colours, 556.0)
    for i, words in enumerate(_explanation(plan)):
        sheet.text(_LEFT, 600 + 19 * i, words, size=12, fill=QUIET)
    _draw_bars(sheet, plan)
    return sheet.render(title)


def _route_words(plan: ReshardPlan) -> str:
    if plan.intermediate is not None:
        return "through an intermediate sharding"
    if not any(hop.received for hop in plan.hops):
        return "nothing travels"
    compiled = plan.hops[0].kind is HopKind.COMPILED
    return "straight to its target" if compiled else "copied, outside of XLA"


def _subtitle(plan: ReshardPlan, dims: tuple[int, ...]) -> str:
    shape = ", ".join(f"{size:,}" for size in plan.shape)
    words = f"{plan.dtype}[{shape}], {format_bytes(round(plan.array_bytes))}"
    if len(plan.shape) > 2:
        words += f"  ·  dimensions {dims[0]} (down) and {dims[1]} (across) are drawn"
    return f"{words}  ·  outlined: what device {int(plan.source.device_ids.min())} holds"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Panel:
    """Where one sharding is drawn: a square of ``size``."""

    left: float
    size: float
    label: str
    number: int


def _draw_panel(
    sheet: Sheet,
    panel: _Panel,
    stop: Placement,
    plan: ReshardPlan,
    *,
    dims: tuple[int, ...],
    colours: Mapping[int, str],
) -> None:
    """One sharding: its tiles, and what it is called."""
    grid = tile_grid(stop, plan.shape, dims)
    down, across = grid.drawn
    left, tall, wide = panel.left, panel.size / down, panel.size / across
    first = int(plan.source.device_ids.min())
    sheet.text(left, _TOP - 46, panel.label, size=15, bold=True)
    sheet.text(left, _TOP - 26, describe_placement_spec(stop.spec), size=12.5)
    sheet.text(left, _TOP - 9, f"mesh {stop.mesh}", size=11.5, fill=QUIET)
    fills: dict[tuple[int, ...], str] = {}
    outlined: list[tuple[float, float, float, float]] = []
    for i, line in enumerate(grid.holders):
        for j, holders in enumerate(line):
            if holders not in fills:
                some = holders[:: -(-len(holders) // _MOST_STRIPES)]
                mixed = [colours[one] for one in some]
                stripes = f"t{panel.number}-{len(fills)}"
                fills[holders] = mixed[0] if len(mixed) == 1 else sheet.stripes(stripes, mixed)
            gap = min(3.0, 0.1 * min(tall, wide))
            box = (left + j * wide + gap / 2, _TOP + i * tall + gap / 2, wide - gap, tall - gap)
            sheet.rect(box, fills[holders], radius=min(5.0, gap * 1.5))
            if first in holders:
                outlined.append(box)
            _label_tile(sheet, holders, box)
    for box in outlined:
        extra = f'stroke="{INK}" stroke-width="2.5"'
        sheet.rect(box, "none", radius=min(5.0, box[2] / 8), extra=extra)
    held = plan.bytes_of(_share(stop, len(plan.shape)))
    foot = f"a device holds {format_bytes(round(held))}{_left_out(grid)}"
    sheet.text(left, _TOP + panel.size + 18, foot, size=12, fill=QUIET)


def _share(stop: Placement, dimensions: int) -> Fraction:
    return Fraction(1, math.prod(stop.counts(dimensions)))


def _left_out(grid: TileGrid) -> str:
    counts, drawn = grid.counts, grid.drawn
    if counts == drawn:
        return ""
    return f"; {drawn[0]}x{drawn[1]} of {counts[0]}x{counts[1]} tiles drawn"


def _label_tile(
    sheet: Sheet, holders: tuple[int, ...], box: tuple[float, float, float, float]
) -> None:
    """Which devices hold it, as far as there is room."""
    x, y, width, height = box
    words = describe_devices(holders)
    size = 13.0 if height >= 24 else 10.0
    room = len(words) * size * 0.6 + 12
    if height < 13 or room > width:
        return
    pill = (x + width / 2 - room / 2, y + height / 2 - size * 0.75, room, size * 1.5)
    sheet.rect(pill, PAPER, radius=size * 0.7, extra='fill-opacity="0.86"')
    sheet.text(x + width / 2, y + height / 2, words, size=size, bold=True, anchor="middle")


def _draw_arrow(sheet: Sheet, plan: ReshardPlan, hop: Hop, at: tuple[float, float, float]) -> None:
    """What one hop does; ``at`` is where the arrow begins and ends, and its height."""
    begin, end, y = at
    middle = (begin + end) / 2
    sheet.line((begin, y, end - 9, y), INK, 'stroke-width="2"')
    for up in (-6, 6):
        sheet.line((end - 9, y + up, end - 1, y), INK, 'stroke-width="2"')
    steps = hop.describe().removesuffix(" (full rematerialization)").split(" + ")
    shown = steps if len(steps) <= 4 else [*steps[:3], f"and {len(steps) - 3} more"]
    for i, step in enumerate(reversed(shown)):
        sheet.text(middle, y - 16 - 17 * i, step, size=12, bold=True, anchor="middle")
    received = format_bytes(round(plan.bytes_of(hop.received)))
    words = [f"brings {received}", "to a device"] if hop.received else ["nothing travels"]
    if hop.involuntary:
        words.append("(everything!)")
    for i, line in enumerate(words):
        sheet.text(middle, y + 17 + 16 * i, line, size=11.5, fill=QUIET, anchor="middle")


def _draw_key(sheet: Sheet, colours: Mapping[int, str], y: float) -> None:
    """Which colour is which device."""
    devices = list(colours)
    sheet.text(_LEFT, y - 30, plural(len(devices), "device"), size=14, bold=True)
    words = "stripes: several devices hold the same tile"
    sheet.text(_LEFT + 110, y - 30, words, size=12, fill=QUIET)
    if len(devices) <= _MOST_CHIPS:
        step = min(36.0, _KEY_WIDTH / len(devices))
        for i, device in enumerate(devices):
            x = _LEFT + i * step
            sheet.rect((x, y - 9, step - 4, 20), colours[device], radius=4)
            size = 12 if step >= 24 else 8
            sheet.text(x + step / 2 - 2, y + 1, str(device), size=size, bold=True, anchor="middle")
        return
    shown = devices[:: -(-len(devices) // 300)]
    step = _KEY_WIDTH / len(shown)
    for i, device in enumerate(shown):
        place = (_LEFT + i * step, y - 9, step, 16)
        sheet.rect(place, colours[device], extra='shape-rendering="crispEdges"')
    for i in range(5):
        at = devices[min(i * len(devices) // 4, len(devices) - 1)]
        anchor = ("start", "middle", "middle", "middle", "end")[i]
        sheet.text(
            _LEFT + i * _KEY_WIDTH / 4, y + 18, f"{at:,}", size=11, fill=QUIET, anchor=anchor
        )


def _explanation(plan: ReshardPlan) -> Sequence[str]:
    """What happens, and why this way."""
    lines = []
    direct = plan.direct
    if plan.intermediate is None:
        (hop,) = plan.hops
        lines.append(f"{_does(hop)}.".capitalize())
        if hop.kind is HopKind.BOXES:
            lines.append(
                "Source and target have no tiles in common, so that XLA has no part in it."
            )
        elif hop.received:
            lines.append("No other sharding on the way would bring a device fewer bytes.")
        return lines
    if direct is not None:
        lines.append(f"Direct, XLA would run {direct.describe().split(' (')[0]}.")
        if direct.involuntary:
            lines[0] = lines[0][:-1] + ": the whole array on every device, for want of"
            lines.append("anything better (a full rematerialization).")
    else:
        lines.append("The devices change; XLA moves arrays among one set of devices only.")
    words = [_does(hop) for hop in plan.hops]
    lines.append(f"Here first {words[0]};")
    lines += [f"then {said};" for said in words[1:-1]]
    return [*lines, f"{'then' if len(words) == 2 else 'last'} {words[-1]}."]


_WORDS = {
    MoveKind.PERMUTE: "tiles change places",
    MoveKind.ALL_TO_ALL: "{} devices at a time exchange pieces",
    MoveKind.ALL_GATHER: "{} devices at a time put their tiles together",
}


def _does(hop: Hop) -> str:
    """What the devices do in a hop."""
    if hop.kind is HopKind.COPY:
        return "whole tiles are copied to the devices that lack them"
    if hop.kind is HopKind.BOXES:
        return "each device is brought just the boxes that it lacks"
    said = [
        _WORDS[move.kind].format(move.group_size)
        for move in hop.moves
        if move.kind is not MoveKind.SLICE
    ]
    if not said:
        kept = "a part of what it holds" if hop.moves else "what it holds"
        return f"each device keeps {kept}, and nothing travels"
    return " and ".join(said)


def _draw_bars(sheet: Sheet, plan: ReshardPlan) -> None:
    """Bytes that a device receives, and peak memory, beside the direct way."""
    received = [("least possible", plan.bound_bytes, _BOUND)]
    received.append(("this route", plan.received_bytes, _ROUTE))
    peaks = [("this route", plan.peak_bytes, _ROUTE)]
    if plan.direct is not None and plan.intermediate is not None:
        received.append(("direct", plan.bytes_of(plan.direct.received), _DIRECT))
        peaks.append(("direct", plan.bytes_of(plan.direct.peak), _DIRECT))
    top = _BAR_TOP - 30
    card = (_BAR_LEFT - 120, top - 24, _BAR_WIDTH + 250, 178.0)
    sheet.rect(card, CARD, radius=12)
    for heading, bars in (("a device receives", received), ("peak memory", peaks)):
        sheet.text(_BAR_LEFT - 104, top, heading, size=12.5, bold=True)
        most = max(1.0, *(value for _, value, _ in bars))
        for words, value, colour in bars:
            top += 20
            sheet.text(_BAR_LEFT - 8, top, words, size=11.5, fill=QUIET, anchor="end")
            long = max(2.0, (_BAR_WIDTH - 10) * value / most)
            sheet.rect((_BAR_LEFT, top - 7, long, 14), colour, radius=3)
            sheet.text(_BAR_LEFT + long + 8, top, format_bytes(round(value)), size=11.5)
        top += 26
