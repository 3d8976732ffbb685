"""One hop of a route on the devices: a compiled program, a copy of tiles, or a copy of boxes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from meshfeed.pipeline.assemble.resharding.placements import Device, DeviceTable, same_order
from meshfeed.pipeline.plan.boxes import Boxes, box_of_index, index_within
from meshfeed.pipeline.plan.errors import ConfigError
from meshfeed.pipeline.plan.reshard.plan import Hop, HopKind, ReshardPlan


def run_hop(
    array: jax.Array,
    hop: Hop,
    target: NamedSharding,
    plan: ReshardPlan,
    devices: DeviceTable,
    *,
    free: bool,
) -> jax.Array:
    """Carries out one hop; the result may not be there yet when this returns.

    Args:
        array: in the hop's source sharding.
        hop: what to do.
        target: the hop's target sharding.
        plan: the plan that the hop is of.
        devices: all that the plan speaks of.
        free: the array is not needed afterwards, and its memory is given back.

    Raises:
        ConfigError: bytes would have to go to another process outside of a compiled program.
    """
    if hop.kind is HopKind.COMPILED:
        return _compiled(array, hop, target, free=free)
    if hop.crosses and jax.process_count() > 1:
        raise ConfigError(
            "shardings",
            f"{hop.source} to {hop.target} brings bytes to devices of other processes outside of "
            "a compiled program",
            "Several processes can move arrays over the devices that they have, and to fewer of "
            "them; for other devices resize the run, which takes the boxes from the vaults",
        )
    if hop.kind is HopKind.COPY:
        result = _copy_tiles(array, target, share=free)
    else:
        result = _copy_boxes(array, target, plan, devices)
    if free and hop.kind is HopKind.BOXES:
        result.block_until_ready()
        array.delete()
    return result


def _compiled(array: jax.Array, hop: Hop, target: NamedSharding, *, free: bool) -> jax.Array:
    # Only a result of the argument's size can take its place; for others XLA would warn.
    in_place = free and hop.before == hop.after
    source = array.sharding
    if isinstance(source, NamedSharding) and same_order(source, target):
        result: jax.Array = program(target, donate=in_place)(array)
    else:
        result = jax.device_put(array, target, donate=in_place)
    if free and not in_place and result is not array:
        array.delete()  # the runtime keeps the memory until the program has read it
    return result


@lru_cache(maxsize=4096)
def program(target: NamedSharding, *, donate: bool = False) -> Any:
    """The program that brings any array to ``target``; compiled once for each kind of array."""
    return jax.jit(_same, out_shardings=target, donate_argnums=(0,) if donate else ())


def _same(array: jax.Array) -> jax.Array:
    return array


def _copy_tiles(array: jax.Array, target: NamedSharding, *, share: bool) -> jax.Array:
    """Each device keeps its tile or gets it from one that has it, in turn where several have."""
    holders: dict[bytes, list[Any]] = {}
    for shard in array.addressable_shards:
        holders.setdefault(_key(shard.index, array.shape), []).append(shard)
    tiles = []
    indices = target.addressable_devices_indices_map(array.shape)
    for n, (device, index) in enumerate(indices.items()):
        having = holders[_key(index or (), array.shape)]
        own = [shard for shard in having if shard.device == device]
        shard = own[0] if own else having[n % len(having)]
        if own and share:
            tiles.append(shard.data)
        else:
            tiles.append(jax.device_put(shard.data, device, may_alias=False))
    return jax.make_array_from_single_device_arrays(array.shape, target, tiles, dtype=array.dtype)


def _key(index: tuple[slice, ...], shape: tuple[int, ...]) -> bytes:
    return box_of_index(index, shape).tobytes()


def _copy_boxes(
    array: jax.Array, target: NamedSharding, plan: ReshardPlan, devices: DeviceTable
) -> jax.Array:
    """Each device is brought just what it lacks, in pieces, and puts its tile together."""
    moves = plan.box_moves(by_process=False)
    held = {
        str(shard.device.id): (box_of_index(shard.index, array.shape)[0], shard.data)
        for shard in array.addressable_shards
    }
    tiles = []
    indices: Mapping[Any, Any] = target.addressable_devices_indices_map(array.shape)
    for device, index in indices.items():
        box = box_of_index(index or (), array.shape)[0]
        pieces: list[tuple[Boxes, jax.Array]] = []
        name = str(device.id)
        for move in (*moves.local(target=name), *moves.moves(target=name)):
            outer, data = held[move.source]
            piece = jax.device_put(data[index_within(move.box, outer)], devices[device.id])
            pieces.append((move.box, piece))
        tiles.append(_put_together(box, pieces, array.dtype, device))
    return jax.make_array_from_single_device_arrays(array.shape, target, tiles)


def _put_together(
    box: Boxes, pieces: list[tuple[Boxes, jax.Array]], dtype: Any, device: Device
) -> jax.Array:
    shape = tuple((box[:, 1] - box[:, 0]).tolist())
    tile: jax.Array = jax.device_put(jnp.zeros(shape, dtype), device)
    for part, piece in pieces:
        starts = np.array(part[:, 0] - box[:, 0], dtype=np.int32)
        tile = _write(tile, piece, jax.device_put(starts, device))
    return tile


@jax.jit
def _write(tile: jax.Array, piece: jax.Array, starts: jax.Array) -> jax.Array:
    return jax.lax.dynamic_update_slice(tile, piece, [starts[i] for i in range(tile.ndim)])
