"""A picture of the global batch on its mesh, as SVG: who supplies what, at a glance.

Left, the global batch: rows downwards, tokens of the sequence across, each place in the colour of
the host that supplies it; where several hosts supply the same, their colours lie in stripes.
Right, the mesh in the same colours, and the key to them.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshfeed.launch.areas import (
    MOST_ROWS,
    Area,
    MeshGrid,
    areas_of,
    describe_hosts,
    mesh_grid,
    ticks,
)
from meshfeed.launch.palette import CARD, FAINT, INK, PAPER, QUIET, host_colours
from meshfeed.launch.sheet import Sheet
from meshfeed.pipeline.plan.batch_plan import BatchPlan
from meshfeed.pipeline.plan.mesh import MeshLayout
from meshfeed.pipeline.plan.partition import describe_spec

WIDTH, HEIGHT = 1200, 760
_BATCH = (104.0, 142.0, 620.0, 540.0)  # left, top, width, height
_SIDE = 800.0  # where the right column begins
_SIDE_WIDTH = 352.0
_MOST_NAMED = 16
_MOST_STRIPES = 64


def draw_plan(plan: BatchPlan, mesh: MeshLayout, *, name: str, facts: Sequence[str] = ()) -> str:
    """The picture of a batch on its mesh.

    Args:
        plan: the batch; where its leaves differ the tokens are drawn.
        mesh: the mesh.
        name: of the partition, e.g. ``DATA``.
        facts: lines for the foot of the picture.

    Returns:
        SVG text.
    """
    sheet = Sheet(WIDTH, HEIGHT)
    processes = plan.processes.tolist()
    colours = dict(zip(processes, host_colours(len(processes)), strict=True))
    leaf = "tokens" if "tokens" in plan.specs else next(iter(plan.specs))
    title = f"{name}: who supplies what of the global batch"
    sheet.text(_BATCH[0], 44, title, size=23, bold=True)
    world = f"{_count(len(processes), 'host')}, {_count(mesh.num_devices, 'device')}"
    sheet.text(
        _BATCH[0],
        74,
        f"{plan.batch_size:,} rows of {plan.seq_len:,} tokens  ·  {world}  ·  "
        f"mesh {mesh}  ·  {describe_spec(plan.specs[leaf])}",
        size=13.5,
        fill=QUIET,
    )
    areas = areas_of(plan.slice_plans[plan.specs[leaf]])
    _draw_batch(sheet, plan, areas, colours)
    _draw_axes(sheet, plan, plan.slice_plans[plan.specs[leaf]].parts)
    bottom = _draw_mesh(sheet, mesh_grid(mesh), colours)
    _draw_key(sheet, plan, colours, bottom + 44)
    for i, fact in enumerate(facts):
        sheet.text(_BATCH[0], 708 + 20 * i, fact, size=12, fill=QUIET)
    return sheet.render(title)


def _draw_batch(
    sheet: Sheet, plan: BatchPlan, areas: Sequence[Area], colours: dict[int, str]
) -> None:
    left, top, width, height = _BATCH
    fills: dict[tuple[int, ...], str] = {}
    boxes = []
    for area in areas:
        if area.hosts not in fills:
            some = area.hosts[:: -(-len(area.hosts) // _MOST_STRIPES)]
            mixed = [colours[host] for host in some]
            fills[area.hosts] = (
                mixed[0] if len(mixed) == 1 else sheet.stripes(f"s{len(fills)}", mixed)
            )
        x0, x1 = (left + width * area.place[i] for i in (0, 2))
        y0, y1 = (top + height * area.place[i] for i in (1, 3))
        thin = min(y1 - y0, x1 - x0)
        gap = min(3.0, 0.14 * thin) if thin >= 4 else 0.0
        box = (x0 + gap / 2, y0 + gap / 2, x1 - x0 - gap, y1 - y0 - gap)
        crisp = "" if gap else 'shape-rendering="crispEdges"'
        sheet.rect(box, fills[area.hosts], radius=min(5.0, gap * 1.7), extra=crisp)
        boxes.append(box)
    if plan.pad_rows:
        _draw_padding(sheet, plan)
    for area, box in zip(areas, boxes, strict=True):
        _label(sheet, area, box)


def _label(sheet: Sheet, area: Area, box: tuple[float, float, float, float]) -> None:
    """Hosts, rows and slice group, as far as there is room for them."""
    x, y, width, height = box
    if height < 13 or width < 46:
        return
    first, last = area.rows[0], area.rows[1] - 1
    rows = f"row {first}" if first == last else f"rows {first:,}-{last:,}"
    lines = [(describe_hosts(area.hosts), True), (rows, False)]
    if len(area.hosts) > 1:
        one = len(area.groups) == 1
        groups = ", ".join(map(str, area.groups[:4])) + (", ..." if len(area.groups) > 4 else "")
        lines.append((f"slice group {groups}" if one else f"slice groups {groups}", False))
    size = 12.5 if height >= 20 else 10.0
    wide = " · ".join(words for words, _ in lines)
    if len(wide) * size * 0.56 + 24 <= width:
        lines = [(wide, False)]
    lines = lines[: max(1, int((height - 4) // (size + 5)))]
    longest = max(len(words) for words, _ in lines) * size * 0.58 + 18
    if longest > width:
        lines, longest = [(str(area.hosts[0]) if len(area.hosts) == 1 else "", True)], 30.0
    if not lines[0][0]:
        return
    tall = len(lines) * (size + 4) + 6 if height >= 20 else size + 2
    pill = (x + width / 2 - longest / 2, y + height / 2 - tall / 2, longest, tall)
    sheet.rect(pill, PAPER, radius=min(9.0, tall / 2), extra='fill-opacity="0.86"')
    for i, (words, bold) in enumerate(lines):
        at = y + height / 2 + (i - (len(lines) - 1) / 2) * (size + 4)
        sheet.text(x + width / 2, at, words, size=size, bold=bold, anchor="middle")


def _draw_padding(sheet: Sheet, plan: BatchPlan) -> None:
    left, top, width, height = _BATCH
    begin = top + height * plan.batch_size / plan.rows
    hatch = sheet.stripes("padding", [INK, PAPER])
    box = (left, begin, width, top + height - begin)
    sheet.rect(box, PAPER, extra='fill-opacity="0.72"')
    sheet.rect(box, hatch, extra='fill-opacity="0.10"')
    sheet.line((left - 8, begin, left + width + 8, begin), INK, 'stroke-dasharray="5 4"')
    rows = "1 row of" if plan.pad_rows == 1 else f"{plan.pad_rows:,} rows of"
    for i, words in enumerate((rows, "padding")):
        sheet.text(left + width + 12, begin + 8 + 15 * i, words, size=11, fill=QUIET)


def _draw_axes(sheet: Sheet, plan: BatchPlan, parts: tuple[int, int]) -> None:
    left, top, width, height = _BATCH
    for row in ticks(plan.rows, parts[0]):
        y = top + height * row / plan.rows
        sheet.line((left - 9, y, left - 3, y), QUIET)
        sheet.text(left - 14, y, f"{row:,}", size=11, fill=QUIET, anchor="end")
    for col in ticks(plan.seq_len, parts[1] if parts[1] > 1 else 4):
        x = left + width * col / plan.seq_len
        sheet.line((x, top - 9, x, top - 3), QUIET)
        sheet.text(x, top - 17, f"{col:,}", size=11, fill=QUIET, anchor="middle")
    middle = top + height / 2
    one_in = parts[0] / MOST_ROWS
    sheet.text(
        38,
        middle,
        "global rows" if one_in <= 1 else f"global rows (one part in {one_in:.3g} is drawn)",
        size=12,
        fill=QUIET,
        anchor="middle",
        extra=f'transform="rotate(-90 38 {middle})"',
    )
    sheet.text(
        left + width / 2, top - 38, "tokens of the sequence", size=12, fill=QUIET, anchor="middle"
    )


def _draw_mesh(sheet: Sheet, grid: MeshGrid, colours: dict[int, str]) -> float:
    """The mesh in its card; returns where the card ends."""
    down, across = grid.owners.shape
    cell = min(46.0, 250.0 / down, (_SIDE_WIDTH - 96) / across)
    wide = min(max(cell, 10.0), (_SIDE_WIDTH - 96) / across)
    wide = min(_SIDE_WIDTH - 96, max(wide * across, 64.0)) / across
    top = _BATCH[1]
    tall = cell * down
    sheet.rect((_SIDE, top - 52, _SIDE_WIDTH, tall + 92), CARD, radius=12)
    sheet.text(_SIDE + 20, top - 28, "The mesh", size=14, bold=True)
    x0, y0 = _SIDE + 62 + (_SIDE_WIDTH - 96 - wide * across) / 2, top + 18
    sheet.text(x0 + wide * across / 2, y0 - 13, grid.across, size=11, fill=QUIET, anchor="middle")
    middle = y0 + tall / 2
    turned = f'transform="rotate(-90 {x0 - 16:.1f} {middle:.1f})"'
    if tall >= 60:
        sheet.text(x0 - 16, middle, grid.down, size=11, fill=QUIET, anchor="middle", extra=turned)
    else:
        sheet.text(x0 - 8, middle, grid.down, size=11, fill=QUIET, anchor="end")
    gap = min(2.0, 0.12 * cell)
    for i, line in enumerate(grid.owners.tolist()):
        for j, host in enumerate(line):
            box = (x0 + j * wide + gap / 2, y0 + i * cell + gap / 2, wide - gap, cell - gap)
            sheet.rect(box, colours[host], radius=min(4.0, cell / 5))
            if min(cell, wide) >= 15:
                size = 13 if cell >= 26 else 9.5
                at = box[0] + box[2] / 2, box[1] + box[3] / 2
                sheet.text(*at, str(host), size=size, fill=INK, anchor="middle")
    return float(top - 52 + tall + 92)


def _draw_key(sheet: Sheet, plan: BatchPlan, colours: dict[int, str], top: float) -> None:
    """Which colour is which host, and how hosts share slices."""
    hosts = list(colours)
    sheet.text(_SIDE + 20, top - 12, "Hosts", size=14, bold=True)
    if len(hosts) <= _MOST_NAMED:
        lines = -(-len(hosts) // 2) if len(hosts) > 5 else len(hosts)
        for i, host in enumerate(hosts):
            x = _SIDE + 20 + (i // lines) * 168
            y = top + 16 + (i % lines) * 22
            sheet.rect((x, y - 7, 14, 14), colours[host], radius=3.5)
            sheet.text(x + 22, y, f"host {host}", size=12, bold=True)
            if plan.num_groups < len(hosts):
                group = f"slice group {plan.group_of(host)}"
                sheet.text(x + 78, y, group, size=12, fill=QUIET)
        end = top + 16 + lines * 22
    else:
        step = (_SIDE_WIDTH - 40) / len(hosts)
        shown = hosts if step >= 0.5 else hosts[:: -(-len(hosts) // 600)]
        step = (_SIDE_WIDTH - 40) / len(shown)
        for i, host in enumerate(shown):
            place = (_SIDE + 20 + i * step, top + 6, step, 20)
            sheet.rect(place, colours[host], extra='shape-rendering="crispEdges"')
        for i in range(5):
            at = min(i * len(hosts) // 4, len(hosts) - 1)
            anchor = ("start", "middle", "middle", "middle", "end")[i]
            x = _SIDE + 20 + i * (_SIDE_WIDTH - 40) / 4
            sheet.text(x, top + 40, f"{hosts[at]:,}", size=11, fill=QUIET, anchor=anchor)
        end = top + 62
    shared = f"{plan.num_groups:,} slice groups; a striped one has several hosts."
    if plan.num_groups == len(hosts):
        shared = "Each host has a slice of its own."
    elif plan.num_groups == 1:
        shared = f"One slice group: all {len(hosts):,} hosts supply the same."
    sheet.line((_SIDE + 20, end + 4, _SIDE + _SIDE_WIDTH - 20, end + 4), FAINT)
    sheet.text(_SIDE + 20, end + 22, shared, size=12, fill=QUIET)


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
