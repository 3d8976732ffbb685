"""Meshes refined to sub-axes, on which both shardings and everything between can be written.

An axis of 8 may have to be taken as 2 x 4 for another mesh's sake, and as 2 x 2 x 2 so that parts
of it can move by themselves. A ``Frame`` is an order of devices with such sub-axes. Two meshes have
one frame in common where the strides of their axes nest: 8 and 2 x 4 do, 2 x 3 and 3 x 2 do not,
and neither do orders of devices that no transposition explains. Else each has a frame of its own.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshfeed.pipeline.plan.mesh import MeshLayout
from meshfeed.pipeline.plan.reshard.placement import Placement

SubSpec = tuple[tuple[int, ...], ...]
"""Sub-axes of each dimension, major first."""

MOST_SPECS = 720
"""Specs of one frame that are looked at in all; beyond, sub-axes are joined, then a choice made."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Frame:
    """An order of devices, and the sub-axes of a mesh over it.

    Attributes:
        device_ids: int64 [devices], in order.
        process_of_device: int32 [devices].
        axis_names: of the mesh.
        sizes: of each sub-axis, major first.
        owners: the axis of the mesh that each sub-axis is a part of.
        known: specs of the array on these sub-axes: source's, target's, or both.
    """

    device_ids: npt.NDArray[np.int64]
    process_of_device: npt.NDArray[np.int32]
    axis_names: tuple[str, ...]
    sizes: tuple[int, ...]
    owners: tuple[str, ...]
    known: tuple[SubSpec, ...]

    def placement(self, spec: SubSpec) -> Placement:
        """A spec on the sub-axes as a placement, parts of an axis joined where it uses them so."""
        runs = [
            run
            for joined in _runs(len(self.sizes), (spec,))
            for run in _by_owner(joined, self.owners)
        ]
        used = {axis for axes in spec for axis in axes}
        names = _names([(self.owners[run[0]], run[0] in used) for run in runs])
        axes: dict[str, int] = {}
        for owner in self.axis_names:
            own = [at for at, run in enumerate(runs) if self.owners[run[0]] == owner]
            axes |= {names[at]: math.prod(self.sizes[axis] for axis in runs[at]) for at in own}
            if not own:
                axes[owner] = 1
        mesh = MeshLayout(
            axis_names=tuple(axes),
            shape=tuple(axes.values()),
            process_of_device=self.process_of_device,
        )
        name_of = {run[0]: name for run, name in zip(runs, names, strict=True)}
        named = tuple(tuple(name_of[a] for a in axes if a in name_of) for axes in spec)
        return Placement(mesh=mesh, spec=named, device_ids=self.device_ids)

    def specs(self, dimensions: int) -> list[SubSpec]:
        """Specs that may be worth going through, each once."""
        if _number_of_specs(len(self.sizes), dimensions) <= MOST_SPECS:
            return list(_every_spec(tuple((i,) for i in range(len(self.sizes))), dimensions))
        runs = _runs(len(self.sizes), self.known)
        if _number_of_specs(len(runs), dimensions) <= MOST_SPECS:
            return list(_every_spec(runs, dimensions))
        found: dict[SubSpec, None] = {}
        for spec in self.known:
            found.update(dict.fromkeys(_extensions(spec, runs)))
        return list(found)


def frames_of(source: Placement, target: Placement, dimensions: int) -> list[Frame]:
    """The frame of both, or one of each."""
    seen_from_source = _strides_in(target, source.device_ids)
    own = _own_strides(source.mesh.shape)
    if seen_from_source is not None:
        cuts = _cuts([*own, *seen_from_source], source.mesh.num_devices)
        if cuts is not None:
            specs = (
                _sub_spec(source, own, cuts, dimensions),
                _sub_spec(target, seen_from_source, cuts, dimensions),
            )
            if None not in specs:
                known = tuple(spec for spec in specs if spec is not None)
                return [_frame(source, cuts, known)]
    frames = []
    for placement in (source, target):
        strides = _own_strides(placement.mesh.shape)
        cuts = _cuts(strides, placement.mesh.num_devices)
        if cuts is None:
            continue
        spec = _sub_spec(placement, strides, cuts, dimensions)
        if spec is not None:
            frames.append(_frame(placement, cuts, (spec,)))
    return frames


Strides = list[tuple[int, int, int]]
"""(axis, size, stride) of each part of each axis, major first; parts of size 1 left out."""


def _primes(number: int) -> list[int]:
    found, divisor = [], 2
    while number > 1:
        while number % divisor == 0:
            found.append(divisor)
            number //= divisor
        divisor += 1
    return found


def _own_strides(shape: Sequence[int]) -> Strides:
    stride, strides = math.prod(shape), []
    for axis, size in enumerate(shape):
        for prime in _primes(size):
            stride //= prime
            strides.append((axis, prime, stride))
    return strides


def _strides_in(placement: Placement, order: npt.NDArray[np.int64]) -> Strides | None:
    """The strides of a placement's axes over another order of the same devices, if it has any."""
    if not np.array_equal(np.sort(order), np.sort(placement.device_ids)):
        return None
    by_id = np.argsort(order, kind="stable")
    place = by_id[np.searchsorted(order[by_id], placement.device_ids)]
    parts = _own_strides(placement.mesh.shape)
    laid = place.reshape([size for _, size, _ in parts] or [1])
    origin = int(laid.reshape(-1)[0])
    strides: Strides = []
    again = np.full(laid.shape, origin)
    for dim, (axis, size, _) in enumerate(parts):
        step = int(np.moveaxis(laid, dim, 0).reshape(size, -1)[1, 0]) - origin
        if step <= 0:
            return None
        strides.append((axis, size, step))
        again = again + (np.arange(size) * step).reshape([-1] + [1] * (laid.ndim - dim - 1))
    return strides if origin == 0 and np.array_equal(again, laid) else None


def _cuts(strides: Strides, devices: int) -> tuple[int, ...] | None:
    """Strides of sub-axes, major first, in which all of ``strides`` can be written."""
    marks = sorted({1, devices, *(s for _, _, s in strides), *(n * s for _, n, s in strides)})
    cuts = []
    for low, high in itertools.pairwise(marks):
        if high % low:
            return None
        stride = low
        for prime in _primes(high // low):
            cuts.append(stride)
            stride *= prime
    return tuple(reversed(cuts))


def _sub_spec(
    placement: Placement, strides: Strides, cuts: tuple[int, ...], dimensions: int
) -> SubSpec | None:
    """The placement's spec in sub-axes; None where a part of an axis is not a run of them."""
    names = placement.mesh.axis_names
    ends = (placement.mesh.num_devices, *cuts)
    axes_of: dict[str, list[int]] = {name: [] for name in names}
    for axis, size, stride in strides:
        inside = [i for i, cut in enumerate(cuts) if stride <= cut < stride * size]
        if not inside or ends[inside[0]] != stride * size or cuts[inside[-1]] != stride:
            return None
        axes_of[names[axis]] += inside
    spec = placement.spec_of(dimensions)
    return tuple(tuple(i for name in axes for i in axes_of[name]) for axes in spec)


def _frame(placement: Placement, cuts: tuple[int, ...], known: tuple[SubSpec, ...]) -> Frame:
    ends = (placement.mesh.num_devices, *cuts)
    sizes = tuple(end // cut for end, cut in zip(ends, cuts, strict=False))
    return Frame(
        device_ids=placement.device_ids,
        process_of_device=placement.mesh.process_of_device,
        axis_names=placement.mesh.axis_names,
        sizes=sizes,
        owners=_owners(placement.mesh, ends, cuts),
        known=known,
    )


def _owners(mesh: MeshLayout, ends: Sequence[int], cuts: Sequence[int]) -> tuple[str, ...]:
    """The axis of the mesh that each sub-axis is a part of."""
    bounds = []
    stride = mesh.num_devices
    for name, size in mesh.axes.items():
        bounds.append((name, stride // size, stride))
        stride //= size
    owners = []
    for end, cut in zip(ends, cuts, strict=False):
        inside = [name for name, low, high in bounds if low <= cut and end <= high]
        owners.append(inside[0])
    return tuple(owners)


def _by_owner(run: tuple[int, ...], owners: Sequence[str]) -> list[tuple[int, ...]]:
    return [tuple(group) for _, group in itertools.groupby(run, key=lambda axis: owners[axis])]


def _names(runs: Sequence[tuple[str, bool]]) -> tuple[str, ...]:
    """A name for each run of sub-axes, given its owner and whether it is used.

    The owner's where it is whole; ``_split`` and ``_replica`` where one part is used and the other
    is not; else numbered.
    """
    owners = [owner for owner, _ in runs]
    names: list[str] = []
    for n, (owner, used) in enumerate(runs):
        parts = sorted(use for other, use in runs if other == owner)
        if len(parts) == 1:
            name = owner
        elif parts == [False, True]:
            name = f"{owner}_split" if used else f"{owner}_replica"
        else:
            name = f"{owner}_{owners[:n].count(owner)}"
        while name in names or (name != owner and name in owners):
            name += "_"
        names.append(name)
    return tuple(names)


def _number_of_specs(axes: int, dimensions: int) -> int:
    if not dimensions:
        return 1
    return sum(
        math.comb(axes, used) * math.factorial(used) * math.comb(used + dimensions - 1, used)
        for used in range(axes + 1)
    )


def _every_spec(runs: tuple[tuple[int, ...], ...], dimensions: int) -> Iterator[SubSpec]:
    """Every way to give some runs of sub-axes to the dimensions, in every order."""
    if not dimensions:
        yield ()
        return
    for used in range(len(runs) + 1):
        for chosen in itertools.permutations(runs, used):
            for ends in itertools.combinations_with_replacement(range(used + 1), dimensions - 1):
                yield tuple(
                    tuple(itertools.chain(*chosen[begin:end]))
                    for begin, end in itertools.pairwise((0, *ends, used))
                )


def _runs(axes: int, known: Sequence[SubSpec]) -> tuple[tuple[int, ...], ...]:
    """Neighbouring sub-axes that all known specs use alike, as one."""
    runs: list[tuple[int, ...]] = [(0,)] if axes else []
    for axis in range(1, axes):
        if all(_follows(axis - 1, axis, spec) for spec in known):
            runs[-1] += (axis,)
        else:
            runs.append((axis,))
    return tuple(runs)


def _follows(first: int, second: int, spec: SubSpec) -> bool:
    for axes in spec:
        if first in axes:
            return axes[axes.index(first) + 1 : axes.index(first) + 2] == (second,)
        if second in axes:
            return False
    return True


def _extensions(spec: SubSpec, runs: Sequence[tuple[int, ...]]) -> Iterator[SubSpec]:
    """The spec with what it leaves unused added to some dimensions, innermost."""
    used = {axis for axes in spec for axis in axes}
    spare = [run for run in runs if used.isdisjoint(run)]
    places = range(-1, len(spec))
    choices: Iterator[tuple[int, ...]] = itertools.product(places, repeat=len(spare))
    for choice in itertools.islice(choices, MOST_SPECS):
        dims = [list(axes) for axes in spec]
        for run, dim in zip(spare, choice, strict=True):
            if dim >= 0:
                dims[dim] += run
        yield tuple(tuple(axes) for axes in dims)
