"""Steps that a user could name, good and bad ones, as ``meshfeed explain-partition`` finds them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

Step = Callable[[Any, Any], Any]
WIDTH = 24
LOOPS = 5


def one_gradient(mesh: Mesh, batch: Any) -> tuple[Step, Any]:
    """A replicated weight: its gradient is summed over the parts of the batch, once."""

    def loss(weight: jax.Array, batch: dict[str, jax.Array]) -> jax.Array:
        rows = batch["inputs_segmentation"][:, :1] * weight
        return jnp.square(rows).sum()

    def step(weight: jax.Array, batch: dict[str, jax.Array]) -> tuple[jax.Array, None]:
        return weight - jax.grad(loss)(weight, batch), None

    return step, jax.ShapeDtypeStruct((WIDTH,), jnp.float32)


def in_a_loop(mesh: Mesh, batch: Any) -> tuple[Step, Any]:
    """The same in a loop, already compiled, with a key and a counter in the state."""

    def body(weight: jax.Array, rows: jax.Array) -> tuple[jax.Array, None]:
        return weight - (rows * weight).sum(axis=0) / 1024, None

    @jax.jit
    def step(state: Any, batch: dict[str, jax.Array]) -> tuple[Any, jax.Array]:
        rows = batch["segment_ids"][:, :1].astype(jnp.float32)
        weight, _ = jax.lax.scan(body, state["weight"], jnp.stack([rows] * LOOPS))
        return {**state, "weight": weight, "count": state["count"] + 1}, weight.sum()

    weight = jax.device_put(jnp.ones(WIDTH), NamedSharding(mesh, PartitionSpec()))
    return step, {"weight": weight, "count": 0, "key": jax.random.key(0)}


def keeps(state: Any, batch: Any) -> tuple[Any, None]:
    return state, None


def raises(mesh: Mesh, batch: Any) -> Any:
    raise KeyError("heads")


def returns_no_pair(mesh: Mesh, batch: Any) -> Any:
    return 3


def returns_no_step(mesh: Mesh, batch: Any) -> Any:
    return {"a": 1}, keeps


def has_no_state(mesh: Mesh, batch: Any) -> Any:
    return keeps, {}


def step_raises(mesh: Mesh, batch: Any) -> Any:
    return (lambda state, batch: (state @ batch["tokens"], None)), jnp.ones((3, 4))


def step_gives_no_pair(mesh: Mesh, batch: Any) -> Any:
    return (lambda state, batch: state), jnp.ones(4)


def changes_shape(mesh: Mesh, batch: Any) -> Any:
    return (lambda state, batch: ({"w": state["w"][:2]}, None)), {"w": jnp.ones(4)}


def changes_structure(mesh: Mesh, batch: Any) -> Any:
    return (lambda state, batch: ([state], None)), jnp.ones(4)


def does_not_divide(mesh: Mesh, batch: Any) -> Any:
    rows = NamedSharding(mesh, PartitionSpec("data"))
    return keeps, {"w": jax.ShapeDtypeStruct((3,), jnp.float32, sharding=rows)}


def on_another_mesh(mesh: Mesh, batch: Any) -> Any:
    half = Mesh(mesh.devices[:1], mesh.axis_names)
    return keeps, jax.device_put(jnp.ones(4), NamedSharding(half, PartitionSpec()))


def holds_text(mesh: Mesh, batch: Any) -> Any:
    return keeps, {"a": "hello"}


no_function = 3
