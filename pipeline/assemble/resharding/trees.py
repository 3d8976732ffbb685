"""Whole trees of live arrays from their shardings to others.

Each leaf goes by the route with the fewest bytes, one leaf at a time, in the order that keeps the
peak of memory lowest. In a world of several processes every process calls with the same tree.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, Sharding

from meshfeed.pipeline.assemble.resharding.hops import run_hop
from meshfeed.pipeline.assemble.resharding.placements import (
    DeviceTable,
    named,
    placement_of,
    sharding_of,
)
from meshfeed.pipeline.plan.errors import ConfigError
from meshfeed.pipeline.plan.reshard.order import lowest_peak_order
from meshfeed.pipeline.plan.reshard.plan import ReshardPlan
from meshfeed.pipeline.plan.reshard.planner import plan_reshard

logger = logging.getLogger(__name__)

LOG_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a tree is.

    Attributes:
        leaves_done: leaves that are there.
        leaves: of the tree.
        received_bytes: that a device has received, the mean.
        to_receive_bytes: that it receives in all.
    """

    leaves_done: int
    leaves: int
    received_bytes: float
    to_receive_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Leaf:
    """A leaf to be moved: a value of the host's has no plan, PRNG keys go as numbers."""

    name: str
    value: Any
    target: NamedSharding
    plan: ReshardPlan | None
    key_type: str | None = None


def reshard(
    tree: Any,
    shardings: Any,
    *,
    donate: bool = False,
    memory_limit: int | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Any:
    """Moves every array of ``tree`` to its sharding.

    Args:
        tree: jax arrays, PRNG keys, numpy arrays and scalars in any containers. Of numpy arrays
            and scalars every process must have the same.
        shardings: a ``jax.sharding.NamedSharding`` for all leaves, or a tree of them that is the
            beginning of ``tree``. Their devices may be those of the arrays in any order; fewer,
            more or others where one process owns all of them, fewer where several do.
        donate: the arrays are not needed afterwards: their memory is given back as they go.
        memory_limit: bytes of a device that the move of one array may take, source and result
            included.
        on_progress: called after every leaf.

    Returns:
        The tree with the same values in the given shardings, all of them there.

    Raises:
        ConfigError: a sharding does not fit its array or cannot be reached from here, or JAX
            would change a leaf's dtype.
        BudgetError: no route fits into ``memory_limit``.
    """
    paths, structure = jax.tree_util.tree_flatten_with_path(tree)
    targets = _targets(shardings, tree, len(paths))
    leaves = [
        _leaf(jax.tree_util.keystr(path) or "array", value, target, memory_limit, donate)
        for (path, value), target in zip(paths, targets, strict=True)
    ]
    moved: list[Any] = [None] * len(leaves)
    report = _Report(leaves, on_progress)
    for at in _order(leaves, donate=donate):
        moved[at] = _move(leaves[at], donate=donate)
        report.done(leaves[at])
    return jax.tree_util.tree_unflatten(structure, moved)


def _targets(shardings: Any, tree: Any, count: int) -> list[NamedSharding]:
    if isinstance(shardings, Sharding):
        found: list[Any] = [shardings] * count
    else:
        try:
            found = jax.tree.leaves(
                jax.tree.broadcast(shardings, tree, is_leaf=lambda x: isinstance(x, Sharding))
            )
        except ValueError as error:
            raise ConfigError(
                "shardings",
                f"do not begin as the tree does: {str(error).splitlines()[0]}",
                "Give one sharding, or a tree with a sharding where the arrays or their containers "
                "are",
            ) from error
    targets = []
    for sharding in found:
        target = named(sharding)
        if target is None:
            raise ConfigError(
                "shardings",
                f"{sharding!r} is no NamedSharding",
                "Give jax.sharding.NamedSharding(mesh, PartitionSpec(...))",
            )
        targets.append(target)
    return targets


def _leaf(
    name: str, value: Any, target: NamedSharding, memory_limit: int | None, donate: bool
) -> _Leaf:
    if not isinstance(value, jax.Array):
        _check_host_value(name, value)
        placement_of(target).check(np.shape(value), f"shardings{name}")
        return _Leaf(name=name, value=value, target=target, plan=None)
    source = named(value.sharding)
    shape = value.shape
    key_type = None
    if source is not None and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        key_type = str(jax.random.key_impl(value))
        value = _as_numbers(source)(value)
    if source is None or not _same_memory(source, target):
        placement_of(target).check(shape, f"shardings{name}")
        return _Leaf(name=name, value=value, target=target, plan=None)
    plan = plan_reshard(
        value.shape,
        str(value.dtype),
        placement_of(source),
        placement_of(target),
        memory_limit=memory_limit,
        donate=donate,
    )
    return _Leaf(name=name, value=value, target=target, plan=plan, key_type=key_type)


def _same_memory(source: NamedSharding, target: NamedSharding) -> bool:
    return source.memory_kind == target.memory_kind


def _check_host_value(name: str, value: Any) -> None:
    """That JAX takes the value as it is.

    Raises:
        ConfigError: it is no array, or JAX would change its dtype.
    """
    dtype = getattr(value, "dtype", None)
    if dtype is None and not isinstance(value, bool | int | float | complex):
        raise ConfigError(
            f"leaf {name}", f"{type(value).__name__} is no array", "Move arrays and scalars only"
        )
    if dtype is not None:
        kept = np.dtype(jax.dtypes.canonicalize_dtype(dtype))
        if kept != dtype:
            raise ConfigError(
                f"leaf {name}",
                f"JAX would turn {dtype} into {kept} without a word",
                f"Pass {kept}, or switch jax_enable_x64 on",
            )


def _order(leaves: Sequence[_Leaf], *, donate: bool) -> list[int]:
    """Leaves in the order that keeps the peak of a device's memory lowest."""
    needs, changes = [], []
    for leaf in leaves:
        if leaf.plan is None:
            size = float(np.size(leaf.value)) if not isinstance(leaf.value, jax.Array) else 0.0
            needs.append(size)
            changes.append(size)
            continue
        before = leaf.plan.bytes_of(leaf.plan.hops[0].before)
        after = leaf.plan.bytes_of(leaf.plan.hops[-1].after)
        needs.append(leaf.plan.peak_bytes - before)
        changes.append(after - before if donate else after)
    return lowest_peak_order(needs, changes)


def _move(leaf: _Leaf, *, donate: bool) -> jax.Array:
    """The leaf in its sharding, there."""
    moved: jax.Array
    if leaf.plan is None:
        moved = jax.device_put(leaf.value, leaf.target)
    elif leaf.value.sharding == leaf.target:
        moved = leaf.value
    else:
        moved = _run(leaf.value, leaf.plan, leaf.target, donate=donate or leaf.key_type is not None)
    if leaf.key_type is not None:
        moved = _as_keys(leaf.key_type, leaf.target)(moved)
    moved.block_until_ready()
    return moved


def _run(array: jax.Array, plan: ReshardPlan, target: NamedSharding, *, donate: bool) -> jax.Array:
    """One array along its route."""
    source = named(array.sharding)
    devices = DeviceTable(*(one for one in (source, target) if one is not None))
    for n, hop in enumerate(plan.hops):
        last = n == len(plan.hops) - 1
        there = target if last else sharding_of(hop.target, devices)
        array = run_hop(array, hop, there, plan, devices, free=donate or n > 0)
        if not last:
            # Else the next result could be allocated while this hop's temporary memory is there.
            array.block_until_ready()
    return array


@lru_cache(maxsize=256)
def _as_numbers(source: NamedSharding) -> Any:
    """PRNG keys as the numbers that they are, each key's own in a dimension behind."""
    return jax.jit(jax.random.key_data, out_shardings=source)


@lru_cache(maxsize=256)
def _as_keys(key_type: str, target: NamedSharding) -> Any:
    return jax.jit(partial(jax.random.wrap_key_data, impl=key_type), out_shardings=target)


class _Report:
    """Says how far a tree is: to the caller after every leaf, to the log every few seconds."""

    def __init__(
        self, leaves: Sequence[_Leaf], on_progress: Callable[[Progress], None] | None
    ) -> None:
        self._leaves = len(leaves)
        self._to_receive = sum(leaf.plan.received_bytes for leaf in leaves if leaf.plan)
        self._on_progress = on_progress
        self._done = 0
        self._received = 0.0
        self._logged = time.monotonic()

    def done(self, leaf: _Leaf) -> None:
        """A leaf is there."""
        self._done += 1
        self._received += leaf.plan.received_bytes if leaf.plan else 0.0
        if self._on_progress is not None:
            self._on_progress(
                Progress(
                    leaves_done=self._done,
                    leaves=self._leaves,
                    received_bytes=self._received,
                    to_receive_bytes=self._to_receive,
                )
            )
        now = time.monotonic()
        if now - self._logged >= LOG_SECONDS:
            self._logged = now
            logger.info(
                "process %d: resharded %d of %d arrays, %.0f of %.0f MiB received a device",
                jax.process_index(),
                self._done,
                self._leaves,
                self._received / 2**20,
                self._to_receive / 2**20,
            )
