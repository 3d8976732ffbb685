"""Every pair of shardings of a small mesh: bytes as compiled, against the plan and the bound.

All totals are read off compiled programs and given in parts of the array, summed over pairs: a
pair's own figure is what a device receives, the mean over devices. Pairs whose direct program some
versions of XLA abort over are counted apart. A program is compiled once for all pairs whose devices
hold the same tiles before and after.
"""

from __future__ import annotations

import itertools
import math
import platform
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from meshfeed.pipeline.assemble.hlo import Program, read_program
from meshfeed.pipeline.assemble.resharding.hops import program
from meshfeed.pipeline.assemble.resharding.placements import DeviceTable, sharding_of
from meshfeed.pipeline.plan.reshard.placement import Placement
from meshfeed.pipeline.plan.reshard.plan import ReshardPlan
from meshfeed.pipeline.plan.reshard.planner import plan_reshard

Shape = tuple[int, ...]
Pair = tuple[Placement, Placement]
AXES = "abc"
ITEM_BYTES = 4
CLEAR_EVERY = 256
"""Programs after which JAX forgets them: each is needed once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Pairs of shardings beside the main scan: of an array, from a mesh to meshes."""

    shape: Shape
    before: Shape
    after: tuple[Shape, ...]


SAMPLES = {
    "4x2": Sample(shape=(48, 48), before=(4, 2), after=((4, 2),)),
    "8": Sample(shape=(48, 48), before=(8,), after=((8,),)),
    "3x2": Sample(shape=(48, 48), before=(3, 2), after=((3, 2),)),
    "6x2": Sample(shape=(48, 48), before=(6, 2), after=((6, 2),)),
    "2x2x2, three dimensions": Sample(shape=(16, 16, 16), before=(2, 2, 2), after=((2, 2, 2),)),
    "8 to other meshes": Sample(shape=(48, 48), before=(8,), after=((4, 2), (2, 4), (2, 2, 2))),
    "4x2 to other meshes": Sample(shape=(48, 48), before=(4, 2), after=((8,), (2, 4), (2, 2, 2))),
    "3x2 to other meshes": Sample(shape=(48, 48), before=(3, 2), after=((6,), (2, 3))),
    "6x2 to other meshes": Sample(shape=(48, 48), before=(6, 2), after=((12,), (3, 4), (2, 6))),
}


@dataclass(slots=True)
class Totals:
    """Sums over pairs."""

    pairs: int = 0
    direct: Fraction = Fraction(0)
    planned: Fraction = Fraction(0)
    bound: Fraction = Fraction(0)
    direct_rematerializations: int = 0
    rematerializations: int = 0
    mismatches: list[str] = field(default_factory=list)
    worse: list[str] = field(default_factory=list)
    fragile: int = 0

    def summary(self) -> dict[str, Any]:
        """As the JSON line has it."""
        return {
            "pairs": self.pairs,
            "direct_total": round(float(self.direct), 3),
            "planned_total": round(float(self.planned), 3),
            "bound_total": round(float(self.bound), 3),
            "planned_to_bound": round(float(self.planned / self.bound), 4) if self.bound else 1.0,
            "direct_to_bound": round(float(self.direct / self.bound), 4) if self.bound else 1.0,
            "full_rematerializations": self.rematerializations,
            "direct_full_rematerializations": self.direct_rematerializations,
            "prediction_mismatches": len(self.mismatches),
            "worse_than_direct": len(self.worse),
            "direct_may_abort": self.fragile,
            **({"first_mismatch": self.mismatches[0]} if self.mismatches else {}),
            **({"first_worse": self.worse[0]} if self.worse else {}),
        }


class Compiled:
    """Programs by what their devices hold before and after."""

    def __init__(self, devices: DeviceTable) -> None:
        self._devices = devices
        self._known: dict[Any, Program] = {}

    def hop(self, shape: Shape, source: Placement, target: Placement) -> Program:
        """The program of one hop."""
        dims, order = len(shape), target.device_ids
        key = (shape, source.tiling(dims, order), target.tiling(dims, order))
        if key not in self._known:
            before, after = (sharding_of(one, self._devices) for one in (source, target))
            argument = jax.ShapeDtypeStruct(shape, jnp.float32, sharding=before)
            text = program(after).lower(argument).compile().as_text()
            self._known[key] = read_program(text)
            if len(self._known) % CLEAR_EVERY == 0:
                jax.clear_caches()
        return self._known[key]

    def __len__(self) -> int:
        return len(self._known)


def scan(pairs: int | None, sample: int, devices: int) -> dict[str, Any]:
    """The figures of all pairs, and of a sample for each other mesh.

    Args:
        pairs: only so many of the pairs, picked at random; None: all.
        sample: pairs of each other mesh.
        devices: CPU devices.
    """
    jax.config.update("jax_num_cpu_devices", devices)
    mesh = jax.make_mesh((devices,), ("x",))
    compiled = Compiled(DeviceTable(NamedSharding(mesh, jax.sharding.PartitionSpec())))
    pick = random.Random(0)
    every = list(itertools.permutations(distinct((2, 2, 2), 2), 2))
    chosen = every if pairs is None else pick.sample(every, pairs)
    return {
        **_total(chosen, (64, 64), compiled).summary(),
        "samples": {
            name: _total(_sampled(one, sample, pick), one.shape, compiled).summary()
            for name, one in SAMPLES.items()
        },
        "programs": len(compiled),
        "jax": jax.__version__,
        "python": platform.python_version(),
    }


def _sampled(sample: Sample, count: int, pick: random.Random) -> list[Pair]:
    """That many pairs of the sample picked at random, or all that there are."""
    sources = distinct(sample.before, len(sample.shape))
    targets = [one for mesh in sample.after for one in distinct(mesh, len(sample.shape))]
    every = [(a, b) for a in sources for b in targets if a != b]
    return every if len(every) <= count else pick.sample(every, count)


def distinct(mesh: Shape, dimensions: int) -> list[Placement]:
    """Shardings on a mesh, each arrangement of tiles on devices once."""
    found: dict[bytes, Placement] = {}
    shape = (math.prod(mesh),) * dimensions
    axes = dict(zip(AXES, mesh, strict=False))
    for spec in _specs(list(axes), dimensions):
        one = Placement.build(axes, spec)
        found.setdefault(one.boxes(shape).tobytes(), one)
    return list(found.values())


def _specs(axes: list[str], dimensions: int) -> Iterator[list[tuple[str, ...]]]:
    for used in range(len(axes) + 1):
        for order in itertools.permutations(axes, used):
            for ends in itertools.combinations_with_replacement(range(used + 1), dimensions - 1):
                yield [order[a:b] for a, b in itertools.pairwise((0, *ends, used))]


def _total(pairs: list[Pair], shape: Shape, compiled: Compiled) -> Totals:
    totals = Totals()
    whole = math.prod(shape) * ITEM_BYTES
    for source, target in pairs:
        plan = plan_reshard(shape, "float32", source, target)
        if plan.direct is None or plan.direct.fragile:
            totals.fragile += 1  # some versions of XLA would end this process
            continue
        direct = compiled.hop(shape, source, target)
        hops = [compiled.hop(shape, hop.source, hop.target) for hop in plan.hops]
        moved = sum((one.received_bytes for one in hops), Fraction(0)) / whole
        by_direct = direct.received_bytes / whole
        totals.pairs += 1
        totals.direct += by_direct
        totals.planned += moved
        totals.bound += plan.bound
        counts = target.counts(len(shape))
        is_cut = math.prod(counts) > 1
        totals.direct_rematerializations += is_cut and gathers_all(direct, whole)
        totals.rematerializations += any(
            math.prod(hop.target.counts(len(shape))) > 1 and gathers_all(one, whole)
            for hop, one in zip(plan.hops, hops, strict=True)
        )
        words = f"{list(shape)}: {source} -> {target}"
        if not agrees(plan, moved, by_direct):
            totals.mismatches.append(words)
        if moved > by_direct:
            totals.worse.append(words)
    return totals


def agrees(plan: ReshardPlan, moved: Fraction, by_direct: Fraction) -> bool:
    """Whether the planned route and the direct one move just the bytes that were predicted."""
    predicted = sum((hop.received for hop in plan.hops), Fraction(0))
    return predicted == moved and plan.direct is not None and plan.direct.received == by_direct


def gathers_all(compiled: Program, whole: int) -> bool:
    """Whether a device puts the whole array together on the way."""
    return any(
        one.kind == "all-gather"
        and one.received_bytes * one.group_size == whole * (one.group_size - 1)
        for one in compiled.collectives
    )
