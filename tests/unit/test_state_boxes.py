"""The training state as boxes, and back; on one device. Worlds of several are in multiprocess/."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from meshfeed.pipeline.assemble.state_builder import StateBuilder
from meshfeed.pipeline.assemble.state_leaves import (
    LeafKind,
    StateLeaf,
    describe,
    leaves_of,
    without_weak_types,
)
from meshfeed.pipeline.plan.boxes import Boxes
from meshfeed.pipeline.plan.errors import ConfigError, DisagreementError
from stored_state import StoredState


class Moments(NamedTuple):
    """As an optimizer keeps them."""

    count: Any
    mu: Any
    nu: Any


def a_state() -> dict[str, Any]:
    w = jnp.arange(12, dtype=jnp.float32).reshape(4, 3) / 7
    return {
        "params": {"w": w, "b": (w[0] * 3).astype(jnp.bfloat16), "q": w.astype(jnp.int8)},
        "optimizer": (Moments(jnp.int32(5), {"w": w * 2}, {"w": w * w}), None),
        "key": jax.random.key(3),
        "keys": jax.random.split(jax.random.key(4, impl="rbg"), 6),
        "empty": jnp.zeros((0, 4)),
        "table": np.arange(6).reshape(2, 3),
        "step": 17,
        "rate": 0.25,
        "frozen": True,
    }


def _shardings(state: Any) -> Any:
    """One for each leaf that lies on devices."""
    return {name: None if name == "table" else _sharding() for name in state}


def _sharding() -> NamedSharding:
    return NamedSharding(Mesh(np.array(jax.devices()[:1]), ("data",)), PartitionSpec())


def box(*bounds: tuple[int, int]) -> Boxes:
    return np.array(bounds, dtype=np.int64).reshape(len(bounds), 2)


def same(a: Any, b: Any) -> None:
    """That two trees are alike, bit for bit."""
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for path, leaf in leaves_of(a).items():
        other = leaves_of(b)[path]
        assert type(leaf) is type(other), path
        if isinstance(leaf, jax.Array | np.ndarray):
            assert (leaf.dtype, leaf.shape) == (other.dtype, other.shape), path
        mine, theirs = (StoredState.of({"x": x}) for x in (leaf, other))
        for (_, _, x), (_, _, y) in zip(mine.pieces(), theirs.pieces(), strict=True):
            assert x.tobytes() == y.tobytes(), path


def test_a_state_survives_boxes() -> None:
    state = a_state()
    held = StoredState.of(state)
    builder = StateBuilder(state, _shardings(state))
    builder.check(held.leaves)
    for path, one, cells in held.pieces():
        builder.put(path, one, cells)
    same(builder.finish(), state)


def test_boxes_may_be_asked_for_and_come_in_any_pieces_and_as_bytes() -> None:
    state = {"w": a_state()["params"]["w"].astype(jnp.bfloat16)}
    held = StoredState.of(state)
    builder = StateBuilder(jax.eval_shape(lambda: state), {"w": _sharding()})
    for part in (box((2, 4), (0, 3)), box((0, 2), (1, 3)), box((0, 2), (0, 1))):
        cells = held.read("['w']", part)
        builder.put("['w']", part, np.frombuffer(cells.tobytes(), dtype=np.uint8))
    same(builder.finish(), state)


def test_descriptions_are_plain_data() -> None:
    for path, leaf in leaves_of(a_state()).items():
        described = describe(path, leaf)
        again = StateLeaf.from_data(json.loads(json.dumps(described.as_data())))
        assert not described.differs_from(again)
        np.testing.assert_array_equal(described.boxes, again.boxes)


def test_leaves_say_what_they_are() -> None:
    state = a_state()
    described = {path: describe(path, leaf) for path, leaf in leaves_of(state).items()}
    keys = described["['keys']"]
    assert (keys.kind, keys.shape, keys.dtype, keys.key_impl) == (
        *(LeafKind.KEY, (6, 4)),
        *("uint32", "rbg"),
    )
    assert described["['optimizer'][0].count"].shape == ()
    assert described["['params']['b']"].itemsize == 2
    assert described["['empty']"].boxes.shape == (0, 2, 2)
    abstract = jax.eval_shape(lambda: {"key": jax.random.key(0)})
    assert describe("x", abstract["key"]).shape == (2,)


def test_what_cannot_be_moved_is_named() -> None:
    with pytest.raises(ConfigError, match=r"state\['name'\]: a leaf of type str"):
        StoredState.of({"name": "model"})
    with pytest.raises(ConfigError, match=r"shardings\['w'\]: None is no sharding"):
        StateBuilder({"w": jnp.ones(2)}, {"w": None})
    with pytest.raises(ConfigError, match="more than 64 bits"):
        StoredState.of({"seed": 1 << 70})


def test_another_model_is_refused() -> None:
    held = StoredState.of({"w": jnp.ones((2, 3)), "b": jnp.ones(2)})
    builder = StateBuilder({"w": jnp.ones((3, 2)), "b": jnp.ones(2)}, _sharding())
    with pytest.raises(ConfigError, match=r"state\['w'\]: .* shape \[3, 2\] and \[2, 3\]"):
        builder.check(held.leaves)
    with pytest.raises(ConfigError, match=r"state\['b'\]: the state that is asked for has no"):
        StateBuilder({"w": jnp.ones((2, 3))}, _sharding()).check(held.leaves)
    with pytest.raises(ConfigError, match=r"state\['c'\]: the state that was saved has no"):
        StateBuilder(
            {"w": jnp.ones((2, 3)), "b": jnp.ones(2), "c": jnp.ones(1)}, _sharding()
        ).check(held.leaves)


def test_cells_that_lack_or_come_twice_are_found() -> None:
    builder = StateBuilder({"w": jnp.ones((4, 2))}, _sharding())
    builder.put("['w']", box((0, 3), (0, 2)), np.ones((3, 2), dtype=np.float32))
    with pytest.raises(DisagreementError, match=r"state\['w'\]: 2 cells never came"):
        builder.finish()
    with pytest.raises(DisagreementError, match=r"cells of \[2:4, 0:2\] came twice"):
        builder.put("['w']", box((2, 4), (0, 2)), np.ones((2, 2), dtype=np.float32))
    with pytest.raises(DisagreementError, match=r"float32 \[3\] came for \[3:4, 0:2\]"):
        builder.put("['w']", box((3, 4), (0, 2)), np.ones(3, dtype=np.float32))
    with pytest.raises(DisagreementError, match=r"of \[0:5\] only 4 of 5 cells"):
        StoredState.of({"w": jnp.ones(4)}).read("['w']", box((0, 5)))


def test_copies_are_ours_alone() -> None:
    state = {"w": jnp.ones((256, 256)), "n": np.ones(4)}
    held = StoredState.of(state)
    held.memory[:] = 0
    assert float(state["w"].min()) == state["n"].min() == 1.0
    held = StoredState.of(state)
    builder = StateBuilder(state, {"w": _sharding(), "n": None})
    for path, one, cells in held.pieces():
        builder.put(path, one, cells)
        cells[...] = 9
    built = builder.finish()
    held.memory[:] = 0
    assert float(built["w"].min()) == float(built["w"].max()) == 1.0
    assert built["n"].tolist() == [1.0] * 4


def _pointers(state: Any) -> list[int]:
    return [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(state)]


def test_a_step_still_donates_after_a_snapshot_and_after_a_move() -> None:
    step = jax.jit(lambda s: jax.tree.map(lambda x: x + 1, s), donate_argnums=0)
    state = step({"w": jnp.zeros((512, 512)), "m": jnp.zeros((512, 512))})
    before = _pointers(state)
    for _ in range(3):
        stored = StoredState.of(state)
        state = step(state)
    assert sorted(_pointers(state)) == sorted(before)
    builder = StateBuilder(state, _sharding())
    for path, one, cells in stored.pieces():
        builder.put(path, one, cells)
    moved = builder.finish()
    before = _pointers(moved)
    assert sorted(_pointers(step(moved))) == sorted(before)


def test_weak_types_are_made_strong() -> None:
    weak = jax.jit(lambda: {"x": jnp.asarray(1.5), "y": jnp.float32(2)})()
    assert weak["x"].weak_type
    strong = without_weak_types(weak)
    assert not strong["x"].weak_type
    assert (strong["x"] * jnp.bfloat16(1)).dtype == jnp.float32
    same(strong, weak)
