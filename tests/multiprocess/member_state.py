"""The training state of a member: made, stepped, written down as boxes and built from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from meshfeed.pipeline.assemble.state_builder import StateBuilder
from meshfeed.pipeline.assemble.state_leaves import leaves_of
from stored_state import StoredState

P = PartitionSpec
ROWS, COLUMNS = 48, 16


class Moments(NamedTuple):
    """As an optimizer keeps them."""

    count: Any
    mu: Any
    nu: Any


def whole_state(step: int) -> dict[str, Any]:
    """The global state after that many steps, as numpy arrays; keys as keys of this process."""
    sign = -1.0 if step % 2 else 1.0
    w = np.arange(ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS) / 7
    return {
        "params": {
            "w": sign * w,
            "half": (sign * w / 3).astype(jnp.bfloat16),
            "tiny": (np.arange(ROWS) + step).astype(np.int8),
        },
        "optimizer": (
            Moments(np.int32(step), {"w": (sign * w / 5)[:, :4]}, {"w": np.square(w)}),
            None,
        ),
        "dropout": jax.random.key(11),
        "keys": jax.random.split(jax.random.key(5, impl="rbg"), ROWS),
        "table": np.arange(5) + step,
        "step": step,
    }


def shardings_of(mesh: Mesh) -> Any:
    """The tree of the state's shardings; the last two leaves have none."""

    def on(*spec: Any) -> NamedSharding:
        return NamedSharding(mesh, P(*spec))

    return {
        "params": {"w": on("data", "model"), "half": on("model"), "tiny": on(("data", "model"))},
        "optimizer": (Moments(on(), {"w": on("data")}, {"w": on(None, "model")}), None),
        "dropout": on(),
        "keys": on("data"),
        "table": None,
        "step": None,
    }


def _array(value: Any, sharding: Any) -> Any:
    if sharding is None:
        return value
    if isinstance(value, jax.Array):  # a key
        data = np.asarray(jax.random.key_data(value))
        return jax.random.wrap_key_data(
            _array(data, sharding), impl=str(jax.random.key_impl(value))
        )
    return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])


def _is_none(leaf: Any) -> bool:
    return leaf is None


def _negate(x: jax.Array) -> jax.Array:
    return -x


def advance(state: dict[str, Any]) -> dict[str, Any]:
    """One step: exact in every dtype, and it donates what it can."""
    flip = jax.jit(_negate, donate_argnums=0)
    add = jax.jit(lambda x: x + 1, donate_argnums=0)
    params, (moments, none) = state["params"], state["optimizer"]
    return {
        **state,
        "params": {
            "w": flip(params["w"]),
            "half": flip(params["half"]),
            "tiny": add(params["tiny"]),
        },
        "optimizer": (
            Moments(add(moments.count), {"w": flip(moments.mu["w"])}, moments.nu),
            none,
        ),
        "table": state["table"] + 1,
        "step": state["step"] + 1,
    }


class MemberState:
    """The state of this process."""

    def __init__(self) -> None:
        self.state: Any = None
        self._builder: StateBuilder | None = None

    def make(self) -> None:
        """Step 0, on the mesh of the world."""
        whole = whole_state(0)
        each = jax.tree.map(
            lambda sharding, value: _array(value, sharding),
            _shardings(),
            whole,
            is_leaf=_is_none,
        )
        self.state = each

    def step(self, count: int) -> None:
        for _ in range(count):
            self.state = advance(self.state)

    def save(self, folder: Path) -> list[dict[str, Any]]:
        """Writes it down, as a vault would keep it; its description."""
        return StoredState.of(self.state).save(folder)

    def drop(self) -> None:
        """Forgets everything, as its devices will be gone."""
        self.state = self._builder = None

    def needed(self) -> dict[str, Any]:
        """What this process needs of the state in the world that it is in."""
        self._builder = StateBuilder(whole_state(0), _shardings())
        return {path: boxes.tolist() for path, boxes in self._builder.needed().items()}

    def build(self, moves: list[tuple[str, str, Any]]) -> None:
        """Builds the state from boxes, each in the folder of one that held it."""
        builder = self._builder
        assert builder is not None
        held = {folder: StoredState.load(Path(folder)) for _, folder, _ in moves}
        for path, folder, box in moves:
            builder.check(held[folder].leaves)
            shape = builder.leaves[path].shape
            part = np.array(box, dtype=np.int64).reshape(len(shape), 2)
            builder.put(path, part, held[folder].read(path, part))
        self.state, self._builder = builder.finish(), None

    def check(self, step: int) -> list[str]:
        """The leaves that are not as they should be after ``step`` steps, bit for bit."""
        whole, wrong = leaves_of(whole_state(step)), []
        for path, leaf in leaves_of(self.state).items():
            expected = next(cells for _, _, cells in StoredState.of(whole[path]).pieces())
            for _, box, cells in StoredState.of(leaf).pieces():
                place = tuple(slice(begin, end) for begin, end in box.tolist())
                if cells.tobytes() != expected[place].tobytes():
                    wrong.append(path)
            if isinstance(whole[path], int) and type(leaf) is not int:
                wrong.append(path)
        return wrong


def _shardings() -> Any:
    devices = np.array(jax.devices()).reshape(-1, 2)
    return shardings_of(Mesh(devices, ("data", "model")))
