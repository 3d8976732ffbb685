"""Asks JAX for the box of each device, for many meshes and specs, in a process of its own.

``python jax_boxes.py OUT.json``: so that the tests' own process needs no devices.
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any

SHAPE = (16, 24)
DEVICES = 8
MESHES: list[dict[str, int]] = [
    {"data": 8},
    {"data": 4, "model": 2},
    {"model": 4, "data": 2},
    {"data": 2, "seq": 2, "model": 2},
    {"data": 1, "fsdp": 4, "tensor": 2},
]
ORDERS: dict[str, list[int]] = {
    "in order": [0, 1, 2, 3, 4, 5, 6, 7],
    "interleaved": [0, 2, 4, 6, 1, 3, 5, 7],
    "backwards": [7, 6, 5, 4, 3, 2, 1, 0],
    "askew": [0, 3, 5, 6, 1, 2, 4, 7],
}


def specs_of(axes: list[str]) -> list[list[list[str] | None]]:
    """Every spec of two dimensions that uses each axis at most once."""
    entries: list[list[str] | None] = [None]
    for count in range(1, len(axes) + 1):
        entries += [list(some) for some in itertools.permutations(axes, count)]
    return [
        [rows, cols]
        for rows in entries
        for cols in entries
        if not set(rows or ()) & set(cols or ())
    ]


def main(out: Path) -> None:
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    jax.config.update("jax_num_cpu_devices", DEVICES)
    devices = jax.devices()
    answers: list[dict[str, Any]] = []
    for axes, (order, ids) in itertools.product(MESHES, ORDERS.items()):
        laid = np.array([devices[i] for i in ids]).reshape(tuple(axes.values()))
        mesh = Mesh(laid, tuple(axes))
        for spec in specs_of(list(axes)):
            entries = (None if e is None else tuple(e) for e in spec)
            sharding = NamedSharding(mesh, PartitionSpec(*entries))
            indices = sharding.devices_indices_map(SHAPE)
            boxes = []
            for device in laid.flat:
                (top, bottom, _), (left, right, _) = (
                    part.indices(size) for part, size in zip(indices[device], SHAPE, strict=True)
                )
                boxes.append([top, bottom, left, right])
            answers.append({"axes": axes, "order": order, "spec": spec, "boxes": boxes})
    out.write_text(json.dumps(answers))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
