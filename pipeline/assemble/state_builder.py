"""A training state on a new mesh, put together from boxes that come in any order.

::

    builder = StateBuilder(like, shardings)          # like: jax.eval_shape(init)
    needed = builder.needed()                        # path -> boxes, to plan the moves with
    for path, box, cells in pieces:
        builder.put(path, box, cells)                # a leaf is made as soon as it is complete
    state = builder.finish()

The arrays are made in memory of the devices' own. An array that lay in memory of ours, or in the
object store, could not be donated by the first step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
import numpy.typing as npt
from jax.sharding import Sharding

from meshfeed.pipeline.assemble.state_leaves import (
    PYTHON_NUMBERS,
    LeafKind,
    StateLeaf,
    boxes_needed,
    describe,
    leaves_of,
    sharding_of_each,
)
from meshfeed.pipeline.plan.boxes import (
    Boxes,
    box_of_index,
    describe_box,
    index_within,
    intersect,
    sizes,
    whole,
)
from meshfeed.pipeline.plan.errors import ConfigError, DisagreementError

DEVICE_ALIGNMENT = 64
"""JAX on CPU takes an array that begins on such a boundary for its own memory, without copying."""


@dataclass(slots=True, eq=False)
class _Growing:
    """A leaf whose boxes are being filled."""

    leaf: StateLeaf
    sharding: Sharding | None
    buffers: list[npt.NDArray[Any]] = field(default_factory=list)
    lacking: int = 0
    done: Any = None

    @property
    def complete(self) -> bool:
        return self.done is not None


class StateBuilder:
    """What this process needs of a state, and the arrays that it becomes.

    Args:
        like: the state or its ``jax.eval_shape``: the tree, shapes and dtypes.
        shardings: a tree of the same form, or a prefix of it, of the new mesh's shardings. Leaves
            that are numpy arrays or Python numbers need none, and become such again; a numpy
            array with a sharding becomes a ``jax.Array``.

    Raises:
        ConfigError: a leaf that cannot be moved, or that has no sharding.
    """

    def __init__(self, like: Any, shardings: Any) -> None:
        self._tree = jax.tree.structure(like)
        leaves = leaves_of(like)
        each = sharding_of_each(shardings, like)
        self._growing: dict[str, _Growing] = {}
        for (path, leaf), sharding in zip(leaves.items(), each, strict=True):
            self._growing[path] = self._begin(describe(path, leaf), sharding)

    def _begin(self, leaf: StateLeaf, sharding: Any) -> _Growing:
        kind = leaf.kind
        if kind is LeafKind.PYTHON or (kind is LeafKind.NUMPY and sharding is None):
            needed, sharding = whole(leaf.shape), None
        elif isinstance(sharding, Sharding):
            needed = boxes_needed(leaf.shape, sharding, jax.process_index())
            kind = LeafKind.ARRAY if kind is LeafKind.NUMPY else kind
        else:
            raise ConfigError(
                f"shardings{leaf.path}", f"{sharding!r} is no sharding", "Give one for each array"
            )
        described = StateLeaf(
            path=leaf.path,
            kind=kind,
            shape=leaf.shape,
            dtype=leaf.dtype,
            key_impl=leaf.key_impl,
            boxes=needed[sizes(needed) > 0],
        )
        growing = _Growing(leaf=described, sharding=sharding)
        growing.lacking = int(sizes(described.boxes).sum())
        return growing

    @property
    def leaves(self) -> Mapping[str, StateLeaf]:
        """By path, each with the boxes that this process needs."""
        return {path: growing.leaf for path, growing in self._growing.items()}

    def needed(self) -> dict[str, Boxes]:
        """int64 [n, d, 2] by path, the distinct boxes that this process needs."""
        return {path: growing.leaf.boxes for path, growing in self._growing.items()}

    def check(self, held: Mapping[str, StateLeaf]) -> None:
        """That a state described elsewhere is of the same leaves.

        Raises:
            ConfigError: it is not; names the first leaf that differs.
        """
        for path in {**self._growing, **held}:
            if path not in held or path not in self._growing:
                where = "that was saved" if path in self._growing else "that is asked for"
                raise ConfigError(f"state{path}", f"the state {where} has no such leaf")
            if words := self._growing[path].leaf.differs_from(held[path]):
                raise ConfigError(
                    f"state{path}", f"asked for and saved differ: {words}", "Use one model for both"
                )

    def put(self, path: str, box: Boxes, cells: npt.NDArray[Any]) -> None:
        """Takes the cells of one box, and makes the leaf's array if they were the last.

        Args:
            path: of the leaf.
            box: int64 [d, 2]; what this process does not need of it is left out.
            cells: of the leaf's dtype and the box's shape, or their bytes, uint8 [nbytes]. They
                are copied.

        Raises:
            DisagreementError: cells came twice, or are of another size than the box.
        """
        growing = self._growing[path]
        leaf = growing.leaf
        shape = tuple((box[:, 1] - box[:, 0]).tolist())
        try:
            cells = cells.view(leaf.numpy_dtype).reshape(shape)
        except ValueError as error:
            raise DisagreementError(
                f"state{path}: {cells.dtype} {list(cells.shape)} came for {describe_box(box)}, "
                f"which is {leaf.dtype} {list(shape)}"
            ) from error
        common, _, of = intersect(box[None], leaf.boxes)
        if growing.complete or int(sizes(common).sum()) > growing.lacking:
            raise DisagreementError(f"state{path}: cells of {describe_box(box)} came twice")
        if not growing.buffers:
            growing.buffers = [_buffer(own, leaf.numpy_dtype) for own in leaf.boxes]
        for part, i in zip(common, of.tolist(), strict=True):
            growing.buffers[i][index_within(part, leaf.boxes[i])] = cells[index_within(part, box)]
        growing.lacking -= int(sizes(common).sum())
        if not growing.lacking:
            self._make(growing)

    def finish(self) -> Any:
        """The state. Leaves of which this process needs nothing are made here.

        Raises:
            DisagreementError: cells are missing; names the leaf.
        """
        for path, growing in self._growing.items():
            if growing.lacking:
                raise DisagreementError(f"state{path}: {growing.lacking} cells never came")
            if not growing.complete:
                self._make(growing)
        return jax.tree.unflatten(self._tree, [each.done for each in self._growing.values()])

    def _make(self, growing: _Growing) -> None:
        leaf = growing.leaf
        if leaf.kind is LeafKind.PYTHON:
            kind = {dtype: kind for kind, dtype in PYTHON_NUMBERS.items()}[leaf.dtype]
            growing.done = kind(growing.buffers[0].item())
        elif growing.sharding is None:
            growing.done = (growing.buffers or [np.empty(leaf.shape, leaf.numpy_dtype)])[0]
        else:
            array = _on_devices(leaf, growing.sharding, growing.buffers)
            is_key = leaf.kind is LeafKind.KEY
            growing.done = jax.random.wrap_key_data(array, impl=leaf.key_impl) if is_key else array
        growing.buffers = []


def _on_devices(leaf: StateLeaf, sharding: Sharding, buffers: list[npt.NDArray[Any]]) -> jax.Array:
    """The global array, each box copied to every device of this process that has it."""
    at = {box.tobytes(): i for i, box in enumerate(leaf.boxes)}
    on_devices = []
    for device, index in sharding.addressable_devices_indices_map(leaf.shape).items():
        if index is None:
            continue
        box = box_of_index(index, leaf.shape)[0]
        i = at.get(box.tobytes())
        shape = tuple((box[:, 1] - box[:, 0]).tolist())
        cells = np.empty(shape, leaf.numpy_dtype) if i is None else buffers[i]
        on_devices.append(jax.device_put(cells, device))
    array = jax.make_array_from_single_device_arrays(
        leaf.shape, sharding, on_devices, dtype=leaf.numpy_dtype
    )
    jax.block_until_ready(array)  # the buffers are free from here on
    return array


def _buffer(box: Boxes, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Memory for a box that JAX does not take for its own, see ``DEVICE_ALIGNMENT``."""
    shape = tuple((box[:, 1] - box[:, 0]).tolist())
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    raw = np.empty(nbytes + DEVICE_ALIGNMENT, dtype=np.uint8)
    begin = (-raw.ctypes.data) % DEVICE_ALIGNMENT + DEVICE_ALIGNMENT // 4
    if begin > DEVICE_ALIGNMENT:
        begin -= DEVICE_ALIGNMENT
    return raw[begin : begin + nbytes].view(dtype).reshape(shape)
