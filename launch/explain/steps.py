"""What a training step is to ``explain-partition``, and how a user's own is found and checked.

A user names ``module:function``. The function is called once, as ``function(mesh, batch)``::

    mesh    jax.sharding.Mesh over CPU devices, with the axes that were asked for
    batch   {name of a leaf: jax.ShapeDtypeStruct of the global [batch_size, seq_len] array}

and returns ``(step, state)``::

    step    step(state, batch) -> (new state, anything); traced, so free of side effects
    state   a tree of arrays, or of ShapeDtypeStruct, which are filled with zeros; a leaf without
            a NamedSharding over the mesh lies whole on every device

The step is compiled once per partition type. The state keeps its shardings and is donated, so that
only what comes in with the batch differs.
"""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from meshfeed.pipeline.plan.errors import ConfigError

SETTING = "MODULE:FUNCTION"
_RETURNS = "Return (step, state), with step(state, batch) -> (new state, anything)"

Abstract = dict[str, jax.ShapeDtypeStruct]
"""A batch by name of the leaf, each [batch_size, seq_len]."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingStep:
    """A step, and the state that it starts from.

    Attributes:
        name: as the user wrote it, or what the default step is.
        step: ``step(state, batch) -> (new state, anything)``.
        state: tree of arrays on the mesh.
    """

    name: str
    step: Callable[[Any, Any], Any]
    state: Any

    @property
    def shardings(self) -> Any:
        """Tree of the state's shardings."""
        return jax.tree.map(lambda leaf: leaf.sharding, self.state)

    @property
    def state_bytes(self) -> int:
        """Bytes of the state on a device."""
        return sum(
            int(np.prod(leaf.sharding.shard_shape(leaf.shape))) * leaf.dtype.itemsize
            for leaf in jax.tree.leaves(self.state)
        )


def load_step(name: str, mesh: Mesh, batch: Abstract) -> TrainingStep:
    """The step that a user names.

    Args:
        name: ``module:function``.
        mesh: the mesh.
        batch: what a global batch looks like.

    Raises:
        ConfigError: it is not there, raises, or does not return what it should.
    """
    function = _find(name)
    try:
        returned = function(mesh, batch)
    except Exception as error:  # noqa: BLE001 - whatever a user's code raises; reported
        _raised(name, error)
    if not isinstance(returned, tuple) or len(returned) != 2 or not callable(returned[0]):
        shown = type(returned).__name__
        if isinstance(returned, tuple):
            shown = f"({', '.join(type(part).__name__ for part in returned)})"
        raise ConfigError(SETTING, f"{name} returned {shown}", _RETURNS)
    step, state = returned
    placed = jax.tree_util.tree_map_with_path(
        lambda path, leaf: _placed(name, jax.tree_util.keystr(path), leaf, mesh), state
    )
    if not jax.tree.leaves(placed):
        raise ConfigError(SETTING, f"{name} returned a state without an array", _RETURNS)
    return checked(TrainingStep(name=name, step=step, state=placed), batch)


def checked(step: TrainingStep, batch: Abstract) -> TrainingStep:
    """The step itself, if it takes such a batch and gives a state of the same kind back.

    Raises:
        ConfigError: it does not.
    """
    try:
        out = jax.eval_shape(step.step, step.state, batch)
    except Exception as error:  # noqa: BLE001 - whatever a user's code raises; reported
        _raised(f"the step of {step.name}", error)
    if not isinstance(out, tuple) or len(out) != 2:
        raise ConfigError(SETTING, f"the step of {step.name} gives no pair back", _RETURNS)
    structure: Any = jax.tree.structure(step.state)
    if structure != jax.tree.structure(out[0]):
        raise ConfigError(
            SETTING,
            f"the step of {step.name} gives a state of another structure back than it takes",
            _RETURNS,
        )
    before = jax.tree_util.tree_leaves_with_path(step.state)
    for (path, leaf), new in zip(before, jax.tree.leaves(out[0]), strict=True):
        if leaf.shape != new.shape or leaf.dtype != new.dtype:
            raise ConfigError(
                SETTING,
                f"the step of {step.name} takes state{jax.tree_util.keystr(path)} as "
                f"{leaf.dtype}{list(leaf.shape)} and gives {new.dtype}{list(new.shape)} back",
                "The new state must be like the old one",
            )
    return step


def _find(name: str) -> Callable[..., Any]:
    module_name, _, function_name = name.partition(":")
    if not module_name or not function_name:
        raise ConfigError(SETTING, f"{name!r} is no module:function", "Write my_model.train:make")
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise ConfigError(
                SETTING,
                f"there is no module {module_name!r}",
                "It is looked for in this folder and on PYTHONPATH",
            ) from None
        _raised(f"importing {module_name}", error)
    except Exception as error:  # noqa: BLE001 - whatever a user's module raises; reported
        _raised(f"importing {module_name}", error)
    function = getattr(module, function_name, None)
    if not callable(function):
        what = "has no" if function is None else "holds no function"
        raise ConfigError(SETTING, f"module {module_name!r} {what} {function_name!r}")
    return function  # type: ignore[no-any-return]


def _placed(name: str, path: str, leaf: Any, mesh: Mesh) -> jax.Array:
    """A leaf of the state on the mesh."""
    sharding = _sharding_of(leaf, mesh)
    if set(sharding.device_set) != set(mesh.devices.flat):
        raise ConfigError(
            SETTING,
            f"{name} returned state{path} on {len(sharding.device_set)} devices, the mesh has "
            f"{mesh.devices.size}",
            "Build its sharding on the mesh that the function is given",
        )
    try:
        if not isinstance(leaf, jax.ShapeDtypeStruct):
            placed: jax.Array = jax.device_put(leaf, sharding)
        else:
            zeros = functools.partial(jnp.zeros, leaf.shape, leaf.dtype)
            placed = jax.jit(zeros, out_shardings=sharding)()
    except (TypeError, ValueError) as error:
        _raised(f"placing state{path} of {name}", error)
    return placed


def _sharding_of(leaf: Any, mesh: Mesh) -> NamedSharding:
    own = getattr(leaf, "sharding", None)
    return own if isinstance(own, NamedSharding) else NamedSharding(mesh, PartitionSpec())


def _raised(what: str, error: Exception) -> NoReturn:
    """A user's own error in one line, with the last place in code that is not JAX's."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "/jax/" not in f.filename and "/meshfeed/" not in f.filename]
    where = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
    said = " ".join(str(error).split())
    if len(said) > 300:
        said = said[:297] + "..."
    raise ConfigError(SETTING, f"{what} raised {type(error).__name__}: {said}{where}") from error
