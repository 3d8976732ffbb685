"""One host of a JAX world that assembles the same global batch under every mesh and partition.

``python assemble_program.py PROCESS HOSTS DEVICES PORT OUT.json``
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import numpy.typing as npt
from jax.sharding import Mesh

from meshfeed.pipeline.assemble.global_arrays import BatchTarget
from meshfeed.pipeline.assemble.readback import box_digests, read_boxes
from meshfeed.pipeline.assemble.shardings import layout_of, needed_bytes
from meshfeed.pipeline.plan.batch_plan import plan_batch
from meshfeed.pipeline.plan.config import LEAF_PRESETS, LEAVES
from meshfeed.pipeline.plan.errors import MeshfeedError
from meshfeed.pipeline.plan.partition import resolve
from meshfeed.pipeline.plan.run_config import UnevenBatch

SEQ_LEN = 8
FIRST_ROW = 1_000
DTYPES = {leaf: np.dtype("float32" if leaf == "loss_weights" else "int32") for leaf in LEAVES}
NAMES = LEAF_PRESETS["meshfeed"]
PARTITIONS: dict[str, Any] = {
    "FULL": "FULL",
    "DATA": "DATA",
    "BATCH": "BATCH",
    "REPLICATED": "REPLICATED",
    "columns alone": "P(None, 'data')",
    "by leaf": {"tokens": "BATCH", "targets": "FULL", "positions": "REPLICATED"},
}


def leaf_at(
    leaf: str, rows: npt.NDArray[np.int64], cols: npt.NDArray[np.int64], real_rows: int
) -> npt.NDArray[Any]:
    """A leaf's values at global rows x columns: the row is the record's id, 0 where padding."""
    real = (rows < real_rows)[:, None] & np.ones(len(cols), dtype=bool)[None, :]
    place = LEAVES.index(leaf) * 10_000 + rows[:, None] * 100 + cols[None, :]
    values = np.ones_like(place) if leaf == "loss_weights" else place
    return np.where(real, values, 0).astype(DTYPES[leaf])


def meshes(hosts: int) -> dict[str, Mesh]:
    """By name: every order of the devices under every shape of the mesh."""
    devices = np.array(jax.devices())
    in_turn = devices.reshape(hosts, -1).T  # [devices per host, hosts]
    snake = [row[::-1] if i % 2 else row for i, row in enumerate(in_turn)]
    orders = {
        "by host": devices,
        "interleaved": in_turn.reshape(-1),
        "backwards": devices[::-1],
        "snake": np.concatenate(snake),  # a host's devices lie askew
    }
    half = len(devices) // 2
    shapes = {
        ("data",): (len(devices),),
        ("data", "model"): (half, 2),
        ("seq", "data"): (2, half),
    }
    return {
        f"{order} {'x'.join(axes)}": Mesh(laid.reshape(shape), axes)
        for (order, laid), (axes, shape) in itertools.product(orders.items(), shapes.items())
    }


def assemble(mesh: Mesh, partition: Any, batch_size: int) -> dict[str, Any]:
    """One global batch, and everything that the test wants to know of it."""
    layout = layout_of(mesh)
    plan = plan_batch(
        layout,
        resolve(partition, layout),
        batch_size=batch_size,
        seq_len=SEQ_LEN,
        uneven_batch=UnevenBatch.PAD,
    )
    target = BatchTarget.build(plan, mesh, dtypes=DTYPES, leaf_names=NAMES)
    local = {
        leaf: [
            leaf_at(leaf, part.row_index(), part.col_index(), batch_size)
            for part in target.fetched.parts
        ]
        for leaf in LEAVES
    }
    arrays = target.assemble(local)
    boxes = read_boxes("tokens", arrays["tokens"], real_rows=batch_size)
    weights = read_boxes("loss_weights", arrays["loss_weights"], real_rows=plan.rows)
    shardings = [arrays[leaf].sharding for leaf in LEAVES]
    return {
        "shape": list(arrays["tokens"].shape),
        "specs": {leaf: list(arrays[leaf].sharding.spec) for leaf in LEAVES},
        "digests": box_digests(arrays, first_row=FIRST_ROW, real_rows=batch_size),
        "tokens": [[box, tile.tolist()] for box, tile in boxes],
        "weights": [[box, tile.tolist()] for box, tile in weights],
        "grid": target.fetched.is_grid,
        "supplied": target.fetched.wire_bytes(lambda rows, cols: rows * cols),
        "needed": needed_bytes(shardings, plan.global_shape, lambda rows, cols: rows * cols),
    }


def refusals(mesh: Mesh) -> dict[str, str]:
    """What is said to a host that passes what it should not."""
    layout = layout_of(mesh)
    plan = plan_batch(layout, resolve("DATA", layout), batch_size=8, seq_len=SEQ_LEN)
    target = BatchTarget.build(plan, mesh, dtypes={"tokens": np.int32}, leaf_names=NAMES)
    (part,) = target.fetched.parts
    good = leaf_at("tokens", part.row_index(), part.col_index(), 8)
    other = Mesh(np.array(jax.devices())[::-1], ("data",))
    attempts: dict[str, Any] = {
        "short": lambda: target.assemble({"tokens": [good[:-1]]}),
        "whole batch of another size": lambda: target.assemble(
            {"tokens": [np.concatenate([good] * 3)]}
        ),
        "int64": lambda: target.assemble({"tokens": [good.astype(np.int64)]}),
        "no part": lambda: target.assemble({"tokens": []}),
        "another leaf": lambda: target.assemble({"targets": [good]}),
        "int64 leaf": lambda: BatchTarget.build(
            plan, mesh, dtypes={"tokens": np.int64}, leaf_names=NAMES
        ),
        "plan of another mesh": lambda: BatchTarget.build(
            plan, other, dtypes={"tokens": np.int32}, leaf_names=NAMES
        ),
    }
    said = {}
    for name, attempt in attempts.items():
        try:
            attempt()
        except MeshfeedError as error:
            said[name] = str(error)
    return said


def main() -> None:
    process, hosts, devices, port = (int(argument) for argument in sys.argv[1:5])
    jax.config.update("jax_num_cpu_devices", devices)
    if hosts > 1:
        jax.distributed.initialize(f"127.0.0.1:{port}", hosts, process)
    results = {}
    for (name, mesh), (kind, partition) in itertools.product(
        meshes(hosts).items(), PARTITIONS.items()
    ):
        if kind == "columns alone" and SEQ_LEN % mesh.shape["data"]:
            continue
        for batch_size in (8, 7):
            results[f"{name}, {kind}, {batch_size}"] = assemble(mesh, partition, batch_size)
    said = refusals(Mesh(np.array(jax.devices()), ("data",)))
    Path(sys.argv[5]).write_text(
        json.dumps({"devices": devices, "results": results, "refusals": said})
    )


if __name__ == "__main__":
    main()
