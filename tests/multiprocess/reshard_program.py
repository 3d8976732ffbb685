"""One host of a JAX world that reshards arrays, and checks every value that it then holds.

``python reshard_program.py PROCESS HOSTS DEVICES PORT OUT.json``
"""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import sys
import warnings
from pathlib import Path
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0"  # quicker to compile

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import meshfeed
from meshfeed.pipeline.assemble.hlo import read_program
from meshfeed.pipeline.assemble.resharding.hops import program
from meshfeed.pipeline.assemble.resharding.placements import (
    DeviceTable,
    placement_of,
    same_order,
    sharding_of,
)
from meshfeed.pipeline.plan.errors import MeshfeedError
from meshfeed.pipeline.plan.reshard.planner import plan_reshard

warnings.simplefilter("error")

P = PartitionSpec
RANDOM_PAIRS = {1: 16, 4: 4}
"""By number of processes."""
MESHES = [(8,), (4, 2), (2, 4), (2, 2, 2)]
AXES = "abc"


def mesh(shape: tuple[int, ...], names: str, ids: list[int] | None = None) -> Mesh:
    devices = np.array(jax.devices(), dtype=object)
    chosen = devices[: math.prod(shape)] if ids is None else devices[ids]
    return Mesh(chosen.reshape(shape), tuple(names))


def pair(
    source: tuple[Mesh, PartitionSpec], target: tuple[Mesh, PartitionSpec]
) -> tuple[NamedSharding, NamedSharding]:
    return NamedSharding(*source), NamedSharding(*target)


def same_devices() -> dict[str, tuple[tuple[int, ...], NamedSharding, NamedSharding]]:
    """Moves over all eight devices, some of sizes that not every tile divides."""
    row, grid, cube = mesh((8,), "x"), mesh((4, 2), "ab"), mesh((2, 2, 2), "abc")
    mixed = mesh((4, 2), "ab", [7, 3, 1, 0, 2, 4, 6, 5])
    replicas = mesh((2, 4), "rt")
    return {
        "gather last": ((16, 24), *pair((row, P("x")), (replicas, P(None, "t")))),
        "slice first": ((16, 24), *pair((grid, P("a")), (grid, P(None, "b")))),
        "permute": ((16, 24), *pair((grid, P("a")), (grid, P("b")))),
        "all-to-all": ((16, 24), *pair((row, P("x")), (row, P(None, "x")))),
        "to all": ((16, 24), *pair((row, P("x")), (row, P()))),
        "from all": ((16, 24), *pair((row, P()), (row, P("x")))),
        "devices in another order": ((16, 24), *pair((row, P("x")), (mixed, P("b", "a")))),
        "other names": ((16, 24), *pair((row, P("x")), (cube, P(("a", "b", "c"))))),
        "sizes that few tiles divide": ((8, 7), *pair((row, P("x")), (grid, P("b")))),
        "three dimensions": ((4, 6, 8), *pair((cube, P("a", "b", "c")), (cube, P(None, "a", "b")))),
    }


def other_devices() -> dict[str, tuple[tuple[int, ...], NamedSharding, NamedSharding]]:
    """Moves to fewer, more and other devices; the first few can be made by several processes."""
    eight, four, six = mesh((8,), "x"), mesh((4,), "x"), mesh((6,), "x")
    last = mesh((4,), "x", [4, 5, 6, 7])
    return {
        "8 to 4": ((16, 24), *pair((eight, P("x")), (four, P(None, "x")))),
        "8 to the last 4": ((16, 24), *pair((eight, P(None, "x")), (last, P("x")))),
        "8 to 2 x 2": ((16, 24), *pair((eight, P("x")), (mesh((2, 2), "ab"), P("a", "b")))),
        "4 to 8": ((16, 24), *pair((four, P("x")), (eight, P(None, "x")))),
        "4 to the other 4": ((16, 24), *pair((four, P("x")), (last, P("x")))),
        "1 to 8": ((16, 24), *pair((mesh((1,), "x"), P()), (eight, P("x")))),
        "8 to 6": ((24, 24), *pair((eight, P("x")), (six, P(None, "x")))),
        "6 to 8": ((24, 24), *pair((six, P("x")), (eight, P("x")))),
        "6 to 4": ((24, 24), *pair((six, P("x")), (four, P("x")))),
    }


def values(shape: tuple[int, ...]) -> dict[str, Any]:
    """By dtype, every element another where the type allows; two of them in several processes."""
    place = np.arange(math.prod(shape)).reshape(shape)
    if jax.process_count() > 1:
        return {"bfloat16": place.astype(jnp.bfloat16), "keys": place.astype(np.uint32)}
    return {
        "float32": (place * 1.25 - 7).astype(np.float32),
        "bfloat16": place.astype(jnp.bfloat16),
        "int8": (place % 251 - 125).astype(np.int8),
        "keys": place.astype(np.uint32),
    }


def put(kind: str, value: Any, sharding: NamedSharding) -> jax.Array:
    """The value on the devices, each process giving its own tiles."""
    array = jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])
    if kind != "keys":
        return array
    make = jax.vmap(jax.random.key)
    return jax.jit(
        lambda seeds: make(seeds.reshape(-1)).reshape(seeds.shape), out_shardings=sharding
    )(array)


def check(kind: str, value: Any, moved: jax.Array, sharding: NamedSharding) -> None:
    """That the array has the sharding and this process's tiles the right bits."""
    assert moved.sharding.is_equivalent_to(sharding, moved.ndim), (moved.sharding, sharding)
    if kind == "keys":
        assert jnp.issubdtype(moved.dtype, jax.dtypes.prng_key)
        moved = jax.jit(jax.random.key_data, out_shardings=moved.sharding)(moved)
    for shard in moved.addressable_shards:
        wanted = value[shard.index[: value.ndim]]
        got = np.asarray(shard.data)
        if kind == "keys":
            assert (got[..., 0] == 0).all()
            got = got[..., 1]
        assert got.tobytes() == np.ascontiguousarray(wanted).tobytes(), (kind, shard.index)


def move(
    shape: tuple[int, ...], source: NamedSharding, target: NamedSharding, *, donate: bool
) -> None:
    """All dtypes in one tree, and what is left of the source."""
    given = values(shape)
    tree = {kind: put(kind, value, source) for kind, value in given.items()}
    before = dict(tree)
    moved = meshfeed.reshard(tree, target, donate=donate)
    for kind, value in given.items():
        check(kind, value, moved[kind], target)
        if not donate:
            check(kind, value, before[kind], source)


def compiled_bytes(shape: tuple[int, ...], source: NamedSharding, target: NamedSharding) -> float:
    """That a device receives in the compiled program of one hop."""
    argument = jax.ShapeDtypeStruct(shape, jnp.float32, sharding=source)
    text = program(target).lower(argument).compile().as_text()
    return float(read_program(text).received_bytes)


def prediction(shape: tuple[int, ...], source: NamedSharding, target: NamedSharding) -> list[float]:
    """(predicted, compiled) bytes of the whole route, and of the direct one."""
    plan = plan_reshard(shape, "float32", placement_of(source), placement_of(target))
    table = DeviceTable(source, target)
    places = [source, *(sharding_of(hop.target, table) for hop in plan.hops[:-1]), target]
    total = sum(compiled_bytes(shape, a, b) for a, b in itertools.pairwise(places))
    return [
        plan.received_bytes,
        total,
        plan.direct_bytes or 0.0,
        compiled_bytes(shape, source, target),
    ]


def random_sharding(pick: random.Random, dimensions: int) -> NamedSharding:
    shape = pick.choice(MESHES)
    axes = pick.sample(AXES[: len(shape)], k=pick.randint(0, len(shape)))
    entries: list[list[str]] = [[] for _ in range(dimensions)]
    for axis in axes:
        pick.choice(entries).append(axis)
    return NamedSharding(mesh(shape, AXES[: len(shape)]), P(*(tuple(e) or None for e in entries)))


def random_pairs() -> list[list[float]]:
    """Random pairs of shardings, the same ones in every process; moved and compiled."""
    pick = random.Random(20)
    found = []
    for _ in range(RANDOM_PAIRS[jax.process_count()]):
        dimensions = pick.randint(1, 3)
        shape = tuple(pick.choice((8, 16, 24)) for _ in range(dimensions))
        source, target = (random_sharding(pick, dimensions) for _ in range(2))
        move(shape, source, target, donate=pick.random() < 0.5)
        found.append(prediction(shape, source, target))
    return found


def refusals() -> dict[str, str]:
    """What is said to those who ask for what cannot be."""
    row = NamedSharding(mesh((8,), "x"), P("x"))
    array = put("float32", np.zeros((8, 8), np.float32), row)
    columns = NamedSharding(row.mesh, P(None, "x"))
    attempts: dict[str, Any] = {
        "device": lambda: meshfeed.reshard(array, jax.devices()[0]),
        "text": lambda: meshfeed.reshard("text", row),
        "int64": lambda: meshfeed.reshard(np.zeros(8, np.int64), row),
        "uneven": lambda: meshfeed.reshard(np.zeros((12, 8), np.float32), row),
        "another tree": lambda: meshfeed.reshard({"w": array}, {"v": row}),
        "memory": lambda: meshfeed.reshard(array, columns, memory_limit=40),
    }
    if jax.process_count() > 1:
        few = NamedSharding(mesh((6,), "x"), P("x"))
        wide = put("float32", np.zeros((24, 8), np.float32), row)
        attempts["other processes"] = lambda: meshfeed.reshard(wide, few)
    said = {}
    for name, attempt in attempts.items():
        try:
            attempt()
        except MeshfeedError as error:
            said[name] = f"{type(error).__name__}: {error}"
    return said


def host_values() -> dict[str, Any]:
    """Numpy arrays, scalars and containers; and how far the caller was told that it was."""
    row = NamedSharding(mesh((8,), "x"), P("x"))
    whole = NamedSharding(row.mesh, P())
    told: list[Any] = []
    tree = {"step": 7, "scale": np.float32(0.5), "rows": (np.arange(8.0, dtype=np.float32), [])}
    moved = meshfeed.reshard(
        tree, {"step": whole, "scale": whole, "rows": row}, on_progress=told.append
    )
    assert moved["rows"][0].sharding == row
    assert moved["rows"][1] == []
    again = meshfeed.reshard(moved, {"step": whole, "scale": whole, "rows": row})
    return {
        "step": int(np.asarray(again["step"].addressable_data(0))),
        "scale": float(np.asarray(moved["scale"].addressable_data(0))),
        "same": again["rows"][0] is moved["rows"][0],
        "told": [[one.leaves_done, one.leaves] for one in told],
    }


def main() -> None:
    process, hosts, devices, port = (int(argument) for argument in sys.argv[1:5])
    jax.config.update("jax_num_cpu_devices", devices)
    if hosts > 1:
        jax.distributed.initialize(f"127.0.0.1:{port}", hosts, process)
    moves = same_devices()
    predicted = {name: prediction(*case) for name, case in moves.items() if same_order(*case[1:])}
    others = other_devices()
    if hosts > 1:
        others = dict(itertools.islice(others.items(), 3))
    for n, case in enumerate((*moves.values(), *others.values())):
        # Every process compiles every program, so in several each move is made one way alone.
        for donate in (False, True) if hosts == 1 else (bool(n % 2),):
            move(*case, donate=donate)
    report = {
        "moved": [*moves, *others],
        "predicted": predicted,
        "random": random_pairs(),
        "refusals": refusals(),
        "host_values": host_values(),
    }
    Path(sys.argv[5]).write_text(json.dumps(report))


if __name__ == "__main__":
    main()
