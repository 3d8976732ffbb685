"""What a picture of the global batch shows: rectangles that the same hosts need.

Shown at a resolution that an eye can follow: where there are more blocks than that, evenly spaced
ones stand for their neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshfeed.pipeline.plan.mesh import MeshLayout
from meshfeed.pipeline.plan.slices import SlicePlan

MOST_ROWS = 400
MOST_COLUMNS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Area:
    """A rectangle of the global batch that just these hosts need.

    Attributes:
        place: left, top, right, bottom as parts of the batch, 0..1.
        rows, cols: [begin, end) in the global batch.
        hosts: processes, ascending.
        groups: their slice groups.
    """

    place: tuple[float, float, float, float]
    rows: tuple[int, int]
    cols: tuple[int, int]
    hosts: tuple[int, ...]
    groups: tuple[int, ...]


def areas_of(plan: SlicePlan) -> list[Area]:
    """The rectangles of a plan, from top left to bottom right."""
    rows = spread(plan.parts[0], MOST_ROWS)
    cols = spread(plan.parts[1], MOST_COLUMNS)
    groups, begins = _groups_by_block(plan)
    keys: dict[tuple[int, ...], int] = {}
    shown = np.empty((len(rows), len(cols)), dtype=np.int64)
    for i, row in enumerate(rows.tolist()):
        for j, col in enumerate(cols.tolist()):
            block = row * plan.parts[1] + col
            needed_by = tuple(groups[begins[block] : begins[block + 1]].tolist())
            shown[i, j] = keys.setdefault(needed_by, len(keys))
    group_sets = list(keys)
    hosts = [
        tuple(np.sort(np.concatenate([plan.members(g) for g in some])).tolist())
        for some in group_sets
    ]
    height, width = (n // k for n, k in zip(plan.global_shape, plan.parts, strict=True))
    areas = []
    for top, bottom, left, right in rectangles(shown):
        key = int(shown[top, left])
        areas.append(
            Area(
                place=(
                    left / len(cols),
                    top / len(rows),
                    right / len(cols),
                    bottom / len(rows),
                ),
                rows=(int(rows[top]) * height, (int(rows[bottom - 1]) + 1) * height),
                cols=(int(cols[left]) * width, (int(cols[right - 1]) + 1) * width),
                hosts=hosts[key],
                groups=group_sets[key],
            )
        )
    return areas


def rectangles(shown: npt.NDArray[np.int64]) -> list[tuple[int, int, int, int]]:
    """A grid cut into rectangles of equal cells: (top, bottom, left, right), row by row."""
    height, width = shown.shape
    taken = np.zeros(shown.shape, dtype=bool)
    found = []
    for top in range(height):
        for left in range(width):
            if taken[top, left]:
                continue
            key = shown[top, left]
            right = left + 1
            while right < width and shown[top, right] == key and not taken[top, right]:
                right += 1
            bottom = top + 1
            while bottom < height and (shown[bottom, left:right] == key).all():
                bottom += 1
            taken[top:bottom, left:right] = True
            found.append((top, bottom, left, right))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshGrid:
    """A mesh laid flat: its last axis across, the others down.

    Attributes:
        owners: int32 [down, across], the process of each device that is shown.
        down, across: what the two directions are.
        size: devices (down, across) of the mesh, shown or not.
    """

    owners: npt.NDArray[np.int32]
    down: str
    across: str
    size: tuple[int, int]


def mesh_grid(mesh: MeshLayout) -> MeshGrid:
    """A mesh as a picture shows it; one with a single axis is written in lines."""
    axes = [(name, size) for name, size in mesh.axes.items() if size > 1]
    if len(axes) > 1:
        across, width = axes[-1]
        down = " x ".join(f"{name} {size}" for name, size in axes[:-1])
        across = f"{across} {width}"
    else:
        width = 1
        while mesh.num_devices // width > max(8, 2 * width) and mesh.num_devices % (2 * width) == 0:
            width *= 2
        name = axes[0][0] if axes else mesh.axis_names[0]
        down, across = f"{name} {mesh.num_devices}", "line by line" if width > 1 else ""
    owners = mesh.process_of_device.reshape(-1, width)
    rows, cols = spread(owners.shape[0], 64), spread(width, 32)
    return MeshGrid(
        owners=owners[np.ix_(rows, cols)], down=down, across=across, size=(len(owners), width)
    )


def ticks(size: int, parts: int, most: int = 8) -> list[int]:
    """Round places on an axis of ``size``: borders of parts, both ends among them."""
    step = next(n for n in range(min(parts, most), 0, -1) if parts % n == 0)
    if step == 1 and parts > most:
        return sorted({round(i * parts / most) * (size // parts) for i in range(most + 1)})
    return [i * size // step for i in range(step + 1)]


def describe_hosts(hosts: Sequence[int], most: int = 6) -> str:
    """``host 3``, ``hosts 0, 1``, ``hosts 0-255``, ``hosts 0, 4, 8, ... 252 (64)``."""
    if len(hosts) == 1:
        return f"host {hosts[0]}"
    if len(hosts) > 2 and hosts[-1] - hosts[0] == len(hosts) - 1:
        return f"hosts {hosts[0]}-{hosts[-1]}"
    if len(hosts) <= most:
        return f"hosts {', '.join(map(str, hosts))}"
    return f"hosts {', '.join(map(str, hosts[:3]))}, ... {hosts[-1]} ({len(hosts)})"


def _groups_by_block(plan: SlicePlan) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The slice groups that need each block: int64 [pairs], and where each block's begin."""
    group, slot = np.nonzero(plan.blocks_of_group >= 0)
    block = plan.blocks_of_group[group, slot]
    order = np.lexsort((group, block))
    blocks = plan.parts[0] * plan.parts[1]
    begins = np.searchsorted(block[order], np.arange(blocks + 1))
    return group[order].astype(np.int64), begins.astype(np.int64)


def spread(count: int, most: int) -> npt.NDArray[np.int64]:
    """At most ``most`` of ``range(count)``, evenly spaced."""
    shown = min(count, most)
    return (
        (np.arange(shown, dtype=np.int64) * count + count // 2) // shown
        if shown
        else np.zeros(0, np.int64)
    )
