"""Which device holds which part of an array, laid out for a picture of two dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshfeed.launch.areas import spread
from meshfeed.pipeline.plan.reshard.placement import Placement

MOST_TILES = 32
"""Along a dimension; of more, evenly spaced ones stand for their neighbours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TileGrid:
    """An array cut into tiles along the dimensions that are drawn.

    Attributes:
        holders: device ids of each tile that is drawn, [down][across].
        counts: tiles (down, across), drawn or not.
    """

    holders: tuple[tuple[tuple[int, ...], ...], ...]
    counts: tuple[int, int]

    @property
    def drawn(self) -> tuple[int, int]:
        """Tiles (down, across) that are drawn."""
        return len(self.holders), len(self.holders[0])


def drawn_dimensions(placements: Sequence[Placement], dimensions: int) -> tuple[int, ...]:
    """The two dimensions (or fewer) with the most parts, ascending."""
    counts = np.array([placement.counts(dimensions) for placement in placements])
    most = counts.max(axis=0) if dimensions else np.zeros(0, int)
    ordered = sorted(range(dimensions), key=lambda dim: (-int(most[dim]), dim))
    return tuple(sorted(ordered[:2]))


def tile_grid(placement: Placement, shape: tuple[int, ...], drawn: tuple[int, ...]) -> TileGrid:
    """The tiles along the dimensions ``drawn``; a device stands in just one of them."""
    counts = placement.counts(len(shape))
    parts = [counts[dim] for dim in drawn] + [1] * (2 - len(drawn))
    boxes = placement.boxes(shape)  # [devices, dimensions, 2]
    places = np.zeros((len(boxes), 2), dtype=np.int64)
    for at, dim in enumerate(drawn):
        height = max(shape[dim] // counts[dim], 1)
        places[:, at] = boxes[:, dim, 0] // height
    holders: dict[tuple[int, int], list[int]] = {}
    for (down, across), device in zip(places.tolist(), placement.device_ids.tolist(), strict=True):
        holders.setdefault((down, across), []).append(device)
    rows, cols = (spread(count, MOST_TILES).tolist() for count in parts)
    return TileGrid(
        holders=tuple(tuple(tuple(sorted(holders[row, col])) for col in cols) for row in rows),
        counts=(parts[0], parts[1]),
    )


def describe_devices(devices: Sequence[int], most: int = 4) -> str:
    """``3``, ``0, 4``, ``0-3``, ``0, 2, ... 62 (32)``.

    >>> describe_devices([0, 1, 2]), describe_devices([0, 4]), describe_devices(range(0, 64, 2))
    ('0-2', '0, 4', '0, 2, ... 62 (32)')
    """
    if len(devices) > 2 and devices[-1] - devices[0] == len(devices) - 1:
        return f"{devices[0]}-{devices[-1]}"
    if len(devices) <= most:
        return ", ".join(map(str, devices))
    return f"{devices[0]}, {devices[1]}, ... {devices[-1]} ({len(devices)})"
