"""A sharding as XLA's partitioner sees it: an array of devices over tiles and replicas.

This is ``HloSharding``: axis names are gone, dimension d is cut into ``counts[d]`` tiles, and
``devices[i, j, ..., :]`` are the devices that hold tile (i, j, ...). Devices are numbered by their
place in the program's device assignment, 0 to n - 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Axes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Tiling:
    """Tiles of an array and the devices that hold each.

    Attributes:
        counts: tiles of each dimension.
        devices: int64 [*counts, replicas], ascending over the replicas.
        axes: sizes of the mesh axes that cut each dimension, major first; None where they are not
            known or not those of the other tiling's mesh. Tilings are not told apart by them.
    """

    counts: tuple[int, ...]
    devices: Ints
    axes: Axes | None = None

    @classmethod
    def of(
        cls, counts: tuple[int, ...], devices: npt.ArrayLike, axes: Axes | None = None
    ) -> Tiling:
        """The tiling with ``devices`` in the order of tiles, replicas innermost."""
        laid = np.asarray(devices, dtype=np.int64).reshape(*counts, -1)
        return cls(counts, np.sort(laid, axis=-1) if laid.shape[-1] > 1 else laid, axes)

    @classmethod
    def whole(cls, dimensions: int, devices: int) -> Tiling:
        """The whole array on every one of ``devices`` devices."""
        return cls.of((1,) * dimensions, np.arange(devices))

    def __eq__(self, other: Any) -> bool:
        if not isinstance(other, Tiling):
            return NotImplemented
        return self.counts == other.counts and np.array_equal(self.devices, other.devices)

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def key(self) -> tuple[tuple[int, ...], bytes]:
        """What it is, for a table."""
        return self.counts, self.devices.tobytes()

    @property
    def replicas(self) -> int:
        """Devices that hold each tile."""
        return int(self.devices.shape[-1])

    @property
    def size(self) -> int:
        """Devices in all."""
        return int(self.devices.size)

    @property
    def share(self) -> Fraction:
        """The part of the array that a device holds."""
        return Fraction(1, math.prod(self.counts))

    @property
    def is_whole(self) -> bool:
        """Every device holds everything."""
        return math.prod(self.counts) == 1

    @property
    def is_partial(self) -> bool:
        """Cut, but several devices hold each tile."""
        return self.replicas > 1 and not self.is_whole

    @property
    def dims(self) -> tuple[int, ...]:
        """Counts, with the replicas as a last dimension where the tiling is partial."""
        return (*self.counts, self.replicas) if self.is_partial else self.counts

    def tile_of_device(self) -> Ints:
        """int64 [devices, dimensions], the tile that each device holds."""
        place = np.indices(self.devices.shape).reshape(self.devices.ndim, -1)[:-1].T
        tiles = np.empty((self.size, len(self.counts)), dtype=np.int64)
        tiles[self.devices.reshape(-1)] = place
        return tiles

    def can_be_cut(self, dim: int, outer: int) -> bool:
        """Whether axes of the mesh, one of them in two parts, make ``outer`` tiles.

        Where the axes are not known: whether any axes would.
        """
        if self.axes is None:
            return _is_prime_power(self.counts[dim])
        return _split_axes(self.axes[dim], outer) is not None

    def cut(self, dim: int, outer: int) -> Tiling:
        """Dimension ``dim`` as two: ``outer`` tiles, and the rest of its tiles within each."""
        counts = (*self.counts[:dim], outer, self.counts[dim] // outer, *self.counts[dim + 1 :])
        parts = None if self.axes is None else _split_axes(self.axes[dim], outer)
        axes = parts and self.axes and (*self.axes[:dim], *parts, *self.axes[dim + 1 :])
        return Tiling.of(counts, self.devices, axes)

    def joined(self, dim: int) -> Tiling:
        """Dimensions ``dim`` and ``dim + 1`` as one: undoes ``cut``."""
        both = self.counts[dim] * self.counts[dim + 1]
        counts = (*self.counts[:dim], both, *self.counts[dim + 2 :])
        axes = self.axes and (
            *self.axes[:dim],
            self.axes[dim] + self.axes[dim + 1],
            *self.axes[dim + 2 :],
        )
        return Tiling.of(counts, self.devices, axes)

    def replicated_over(self, dim: int) -> Tiling:
        """The tiles of ``dim`` put together on each device that held one of them."""
        counts = (*self.counts[:dim], 1, *self.counts[dim + 1 :])
        axes = self.axes and (*self.axes[:dim], (), *self.axes[dim + 1 :])
        return Tiling.of(counts, np.moveaxis(self.devices, dim, -1), axes)

    def grouped(self, dims: tuple[int, ...]) -> tuple[Ints, Tiling]:
        """Devices in groups by their tile along ``dims``, and the tiling within a group.

        Returns:
            int64 [groups, devices of a group], and a tiling of devices 0, 1, ... of a group.
        """
        rest = [d for d in range(self.devices.ndim) if d not in dims]
        groups = math.prod(self.counts[d] for d in dims)
        members = self.devices.transpose(*dims, *rest).reshape(groups, -1)
        counts = tuple(1 if d in dims else n for d, n in enumerate(self.counts))
        axes = self.axes and tuple(() if d in dims else own for d, own in enumerate(self.axes))
        return members, Tiling.of(counts, np.arange(members.shape[1]), axes)


def _split_axes(axes: tuple[int, ...], outer: int) -> Axes | None:
    """The axes that make ``outer`` tiles, and the rest; one may be cut. None where none do."""
    for at, size in enumerate(axes):
        if outer == 1:
            return axes[:at], axes[at:]
        if outer % size:
            return (
                ((*axes[:at], outer), (size // outer, *axes[at + 1 :]))
                if size % outer == 0
                else None
            )
        outer //= size
    return (axes, ()) if outer == 1 else None


def _is_prime_power(number: int) -> bool:
    divisor = next((d for d in range(2, number + 1) if number % d == 0), number)
    while divisor > 1 and number % divisor == 0:
        number //= divisor
    return number == 1
