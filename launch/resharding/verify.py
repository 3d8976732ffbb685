"""The hops of a plan compiled by XLA on CPU devices: what it moves, beside what was planned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshfeed.pipeline.plan.errors import ConfigError
from meshfeed.pipeline.plan.reshard.costs import item_bytes
from meshfeed.pipeline.plan.reshard.placement import Placement
from meshfeed.pipeline.plan.reshard.plan import Hop, HopKind, ReshardPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedHop:
    """One hop, planned and compiled. Bytes are of one device, the mean where devices differ.

    Attributes:
        collectives: that XLA runs, a line for each.
        planned_received, received: bytes that a device receives; None: not compiled.
        planned_temporary, temporary: bytes beside argument and result; None: not compiled.
    """

    collectives: str
    planned_received: float
    received: float | None
    planned_temporary: float
    temporary: int | None

    @property
    def agrees(self) -> bool:
        """Whether XLA moves the bytes that were planned."""
        return self.received is None or self.received == self.planned_received


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A plan, compiled.

    Attributes:
        hops: of the route.
        direct: what a plain ``jax.device_put`` compiles to, where it could be compiled.
    """

    hops: tuple[CheckedHop, ...]
    direct: CheckedHop | None

    @property
    def every(self) -> tuple[CheckedHop, ...]:
        """All that was looked at, the direct way once."""
        if self.direct is None or len(self.hops) == 1:
            return self.hops
        return (*self.hops, self.direct)


def compiled_as(dtype: str) -> str:
    """The element type with which a move is compiled.

    XLA's CPU backend widens floats below 32 bits to move them, which accelerators do not; so an
    unsigned integer of the same bytes stands for them.

    >>> compiled_as("bfloat16"), compiled_as("float8_e4m3fn"), compiled_as("float32")
    ('uint16', 'uint8', 'float32')
    """
    size = item_bytes(dtype)
    return f"uint{8 * size}" if "float" in dtype and size in (1, 2) else dtype


def devices_needed(plans: list[ReshardPlan]) -> int:
    """CPU devices on which all placements can be laid."""
    return max(int(p.device_ids.max()) + 1 for plan in plans for p in (plan.source, plan.target))


def verify(plan: ReshardPlan, devices: Mapping[int, Any]) -> Checked:
    """Compiles each hop of a plan, and the direct way.

    Args:
        plan: of one array.
        devices: CPU devices by number.

    Raises:
        ConfigError: JAX has no such element type, or cannot compile a hop.
    """
    direct = None if plan.direct is None else _check(plan, plan.direct, devices)
    return Checked(hops=tuple(_check(plan, hop, devices) for hop in plan.hops), direct=direct)


def _check(plan: ReshardPlan, hop: Hop, devices: Mapping[int, Any]) -> CheckedHop:
    planned = {
        "planned_received": plan.bytes_of(hop.received),
        "planned_temporary": plan.bytes_of(hop.temporary),
    }
    same_order = np.array_equal(hop.source.device_ids, hop.target.device_ids)
    if hop.kind is not HopKind.COMPILED or not same_order:
        why = hop.describe() if same_order else f"{hop.describe()}, by jax.device_put"
        return CheckedHop(collectives=why, received=None, temporary=None, **planned)
    from meshfeed.pipeline.assemble.hlo import read_program

    compiled = _compile(plan, hop, devices)
    program = read_program(compiled.as_text())
    words = [
        f"{one.kind}" if one.kind == "collective-permute" else f"{one.kind} of {one.group_size}"
        for one in program.collectives
        for _ in range(one.times)
    ]
    return CheckedHop(
        collectives="\n".join(words) or "no collective",
        received=float(program.received_bytes),
        temporary=compiled.memory_analysis().temp_size_in_bytes,
        **planned,
    )


def _compile(plan: ReshardPlan, hop: Hop, devices: Mapping[int, Any]) -> Any:
    import jax

    try:
        dtype = jax.numpy.dtype(compiled_as(plan.dtype))
    except TypeError as error:
        raise ConfigError("dtype", f"JAX has no {plan.dtype!r}", "Leave --verify out") from error
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise ConfigError(
            "dtype", f"{plan.dtype} would become another type in JAX", "Set JAX_ENABLE_X64=1"
        )
    source, target = (_sharding(one, devices) for one in (hop.source, hop.target))
    argument = jax.ShapeDtypeStruct(plan.shape, dtype, sharding=source)
    return jax.jit(lambda x: x, out_shardings=target).lower(argument).compile()


def _sharding(placement: Placement, devices: Mapping[int, Any]) -> Any:
    """The sharding that a placement stands for."""
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    laid = np.array([devices[i] for i in placement.device_ids.tolist()], dtype=object)
    mesh = Mesh(laid.reshape(placement.mesh.shape), placement.mesh.axis_names)
    return NamedSharding(mesh, PartitionSpec(*(axes or None for axes in placement.spec)))
