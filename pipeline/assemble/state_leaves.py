"""The leaves of a training state as plain arrays: what each is, and which boxes a process has.

The state is any pytree. Its leaves may be ``jax.Array``s of any sharding, typed PRNG keys, numpy
arrays and Python numbers. A key is moved as its data (uint32, one dimension more), a Python number
as an array of no dimension; ``LeafKind`` says what to make of it again. A ``None`` is no leaf.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.sharding import Sharding

from meshfeed.pipeline.plan.boxes import Boxes, box_of_index, distinct, fits, whole
from meshfeed.pipeline.plan.errors import ConfigError

PYTHON_NUMBERS: Mapping[type, str] = {
    bool: "bool",
    int: "int64",
    float: "float64",
    complex: "complex128",
}


class LeafKind(Enum):
    """What a leaf is besides its cells."""

    ARRAY = "array"
    KEY = "key"
    NUMPY = "numpy"
    PYTHON = "python"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StateLeaf:
    """One leaf of a state, as data.

    Attributes:
        path: where it is in the tree, as JAX writes it: ``['params']['w']``, ``.mu['w']``.
        kind: what it is.
        shape: of its cells; of a key's data, which has one dimension more than the key.
        dtype: by its name, ``bfloat16``.
        key_impl: of a key, ``threefry2x32``.
        boxes: int64 [n, d, 2], distinct; what the process that describes it holds.
    """

    path: str
    kind: LeafKind
    shape: tuple[int, ...]
    dtype: str
    key_impl: str = ""
    boxes: Boxes

    def __post_init__(self) -> None:
        if not fits(self.boxes, self.shape):
            raise ConfigError(
                f"state{self.path}", f"boxes {self.boxes.tolist()} are not within {self.shape}"
            )

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The dtype, JAX's own ones included."""
        return jnp.dtype(self.dtype)

    @property
    def itemsize(self) -> int:
        """Bytes of a cell in host memory."""
        return self.numpy_dtype.itemsize

    def as_data(self) -> dict[str, Any]:
        """Plain data, for messages and files."""
        return {
            "path": self.path,
            "kind": self.kind.value,
            "shape": list(self.shape),
            "dtype": self.dtype,
            "key_impl": self.key_impl,
            "boxes": self.boxes.tolist(),
        }

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> StateLeaf:
        """What ``as_data`` gave."""
        shape = tuple(data["shape"])
        return cls(
            path=data["path"],
            kind=LeafKind(data["kind"]),
            shape=shape,
            dtype=data["dtype"],
            key_impl=data["key_impl"],
            boxes=np.array(data["boxes"], dtype=np.int64).reshape(
                len(data["boxes"]), len(shape), 2
            ),
        )

    def differs_from(self, other: StateLeaf) -> str:
        """What is not the same, boxes apart, in words; empty where all is.

        An array may lie on devices in one state and in host memory in the other.
        """
        arrays = (LeafKind.ARRAY, LeafKind.NUMPY)
        kinds = ["array" if one.kind in arrays else one.kind.value for one in (self, other)]
        words = [
            f"{name} {mine} and {theirs}"
            for name, mine, theirs in (
                ("kind", *kinds),
                ("shape", list(self.shape), list(other.shape)),
                ("dtype", self.dtype, other.dtype),
                ("key", self.key_impl, other.key_impl),
            )
            if mine != theirs
        ]
        return ", ".join(words)


def leaves_of(state: Any) -> dict[str, Any]:
    """The leaves of a tree by path, in JAX's order."""
    return {
        jax.tree_util.keystr(path): leaf
        for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]
    }


def describe(path: str, leaf: Any) -> StateLeaf:
    """One leaf, with the boxes that this process holds; none for a ``ShapeDtypeStruct``.

    Raises:
        ConfigError: a leaf of a type that cannot be moved.
    """
    if isinstance(leaf, jax.Array | jax.ShapeDtypeStruct):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return _describe_key(path, leaf)
        return StateLeaf(
            path=path,
            kind=LeafKind.ARRAY,
            shape=tuple(leaf.shape),
            dtype=leaf.dtype.name,
            boxes=_held(leaf),
        )
    if isinstance(leaf, np.ndarray | np.generic) and leaf.dtype.kind not in "OSUMm":
        return StateLeaf(
            path=path,
            kind=LeafKind.NUMPY,
            shape=leaf.shape,
            dtype=leaf.dtype.name,
            boxes=distinct(whole(leaf.shape)),
        )
    if type(leaf) in PYTHON_NUMBERS:
        return StateLeaf(
            path=path,
            kind=LeafKind.PYTHON,
            shape=(),
            dtype=PYTHON_NUMBERS[type(leaf)],
            boxes=whole(()),
        )
    raise ConfigError(
        f"state{path}",
        f"a leaf of type {type(leaf).__name__} cannot be moved to another mesh",
        "Leaves are arrays, PRNG keys and numbers; keep the rest outside the state",
    )


def _describe_key(path: str, leaf: Any) -> StateLeaf:
    impls: list[str] = []

    def data_of(key: jax.Array) -> jax.Array:
        impls.append(str(jax.random.key_impl(key)))
        return jax.random.key_data(key)

    # Of an abstract key only a trace can tell.
    data = data_of(leaf) if isinstance(leaf, jax.Array) else jax.eval_shape(data_of, leaf)
    return StateLeaf(
        path=path,
        kind=LeafKind.KEY,
        shape=data.shape,
        dtype=data.dtype.name,
        key_impl=impls[0],
        boxes=_held(data),
    )


def _held(array: jax.Array | jax.ShapeDtypeStruct) -> Boxes:
    """The distinct boxes of this process's devices; that of an array of its own is all of it."""
    if isinstance(array, jax.ShapeDtypeStruct):
        return np.empty((0, len(array.shape), 2), dtype=np.int64)
    indices = array.sharding.addressable_devices_indices_map(array.shape)
    return _distinct_boxes(list(indices.values()), array.shape)


def boxes_needed(shape: tuple[int, ...], sharding: Sharding, process_index: int) -> Boxes:
    """int64 [n, d, 2], the distinct boxes that a process of the sharding's mesh must have.

    Args:
        shape: of the array; for a key that of its data.
        sharding: of the array.
        process_index: any process, this one or another.
    """
    indices: Mapping[Any, Any] = sharding.devices_indices_map(shape)
    own = [index for device, index in indices.items() if device.process_index == process_index]
    return _distinct_boxes(own, shape)


def _distinct_boxes(indices: list[Any], shape: tuple[int, ...]) -> Boxes:
    boxes = [box_of_index(index, shape) for index in indices if index is not None]
    none = np.empty((0, len(shape), 2), dtype=np.int64)
    return distinct(np.concatenate([none, *boxes]))


def cells_of(leaf: Any) -> jax.Array | npt.NDArray[Any]:
    """The array that is moved for a leaf: a key's data, a number as an array."""
    if isinstance(leaf, jax.Array):
        is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return jax.random.key_data(leaf) if is_key else leaf
    if type(leaf) in PYTHON_NUMBERS:
        try:
            return np.array(leaf, dtype=PYTHON_NUMBERS[type(leaf)])
        except OverflowError as error:
            raise ConfigError("state", f"{leaf} has more than 64 bits") from error
    return np.asarray(leaf)


def without_weak_types(state: Any) -> Any:
    """The state with every weakly typed array made a strong one of the same dtype.

    A moved array is always strong. Were it weak before, ``bfloat16`` times it would be another
    dtype after a resize than before; so the first generation begins with strong ones as well.
    """

    def strong(leaf: Any) -> Any:
        weak = isinstance(leaf, jax.Array) and getattr(leaf, "weak_type", False)
        return jax.lax.convert_element_type(leaf, leaf.dtype) if weak else leaf

    return jax.tree.map(strong, state)


def sharding_of_each(shardings: Any, like: Any) -> list[Any]:
    """What ``shardings``, a prefix of the tree ``like``, says of each of its leaves.

    Raises:
        ConfigError: it is no prefix.
    """
    each: list[Any] = []
    try:
        jax.tree.map(
            lambda one, below: each.extend([one] * len(jax.tree.leaves(below))),
            shardings,
            like,
            is_leaf=lambda one: one is None or isinstance(one, Sharding),
        )
    except ValueError as error:
        raise ConfigError("shardings", f"not of the form of the state: {error}") from error
    return each
