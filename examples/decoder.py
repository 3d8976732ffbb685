"""A decoder-only transformer in plain JAX: small, complete, and meant to be changed.

``train(job)`` is the whole training loop. It runs once in every process for each generation of
hosts: the state that ``job.state`` gives has already been laid over the new mesh.

Parameters are a dict of arrays; those of the blocks have the block as their first dimension, and a
scan goes over it. Layouts follow from names and shapes (``LAYOUT``), so the same code runs on any
number of devices: rows and one dimension of each matrix are split over the data axes (``data``,
``fsdp``), heads, hidden units and vocabulary over the model axes (``model``, ``tensor``).

Letters in shapes: B rows, T columns, D width, N heads, H head width, F hidden width, V vocabulary,
L blocks.

Sources of the ideas: rotary positions, arXiv:2104.09864; RMSNorm, arXiv:1910.07467; gated MLP,
arXiv:2002.05202; the norm of queries and keys, arXiv:2302.05442; ZeRO/FSDP, arXiv:1910.02054.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

DATA_AXES = ("data", "fsdp")
MODEL_AXES = ("model", "tensor")

Params = dict[str, Any]
Batch = dict[str, jax.Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Sizes and settings. ``vocabulary`` is at least the tokenizer's; ``hidden`` of each MLP."""

    vocabulary: int = 8192
    width: int = 96
    blocks: int = 2
    heads: int = 2
    hidden: int = 288
    tied: bool = True
    dropout: float = 0.1
    compute: str = "float32"  # or "bfloat16"; parameters and optimizer stay float32
    remat: bool = False  # compute a block's activations again in the backward pass
    seed: int = 0
    learning_rate: float = 3e-3
    warmup_steps: int = 20
    weight_decay: float = 0.1
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        if self.width % (2 * self.heads):
            raise ValueError(
                f"width {self.width} gives {self.heads} heads no even width:"
                f" take a multiple of {2 * self.heads}"
            )


MODELS = {
    "tiny": Model(width=48, hidden=144),  # 0.4 million parameters, 5 MB of state
    "small": Model(),  # 1.0 million parameters, 12 MB of state
    "medium": Model(width=240, blocks=8, heads=4, hidden=792),  # 8.4 million, 100 MB
}
"""By name; the environment variable ``DECODER`` chooses what ``train`` trains.

The widths divide by 6 and by 8, so that 1, 2, 3 and 4 hosts of 2 devices hold equal parts.
"""


class State(NamedTuple):
    """All that a step changes, and so all that a checkpoint or a resize must carry.

    ``key`` holds the words of a PRNG key, uint32 [2]: an array like the others.
    """

    params: Params
    optimizer: optax.OptState
    key: jax.Array


# ---------------------------------------------------------------------------- where arrays lie

LAYOUT: dict[str, tuple[tuple[str, ...] | None, ...]] = {
    "embedding": (MODEL_AXES, DATA_AXES),  # [V, D]
    "output": (MODEL_AXES, DATA_AXES),  # [V, D]
    "query": (None, DATA_AXES, MODEL_AXES, None),  # [L, D, N, H]
    "key": (None, DATA_AXES, MODEL_AXES, None),
    "value": (None, DATA_AXES, MODEL_AXES, None),
    "attended": (None, MODEL_AXES, None, DATA_AXES),  # [L, N, H, D]
    "gate": (None, DATA_AXES, MODEL_AXES),  # [L, D, F]
    "up": (None, DATA_AXES, MODEL_AXES),
    "down": (None, MODEL_AXES, DATA_AXES),  # [L, F, D]
}
"""The axes over which each dimension of a matrix is split; what is not named lies everywhere."""


def shardings(mesh: Mesh, model: Model) -> State:
    """A sharding for each array of the state, as a tree like it.

    Adam's moments have the names and shapes of their parameters, and so their layouts too.
    """
    shapes = jax.eval_shape(partial(init, model))
    return jax.tree_util.tree_map_with_path(partial(_sharding, mesh), shapes)


def _sharding(mesh: Mesh, path: tuple[Any, ...], array: jax.ShapeDtypeStruct) -> NamedSharding:
    names = [entry.key for entry in path if isinstance(entry, jax.tree_util.DictKey)]
    rule = LAYOUT.get(names[-1], ()) if names else ()
    spec = [_axes(mesh, axes, size) for axes, size in zip(rule, array.shape, strict=False)]
    return NamedSharding(mesh, PartitionSpec(*spec))


def _axes(mesh: Mesh, axes: tuple[str, ...] | None, size: int) -> tuple[str, ...] | None:
    """Those of the axes that the mesh has; none where the size does not divide over them."""
    there = tuple(axis for axis in axes or () if axis in mesh.shape)
    return there if size % math.prod(mesh.shape[axis] for axis in there) == 0 else None


# ---------------------------------------------------------------------------- the model


def init(model: Model) -> State:
    """The state before the first step. Under ``jit``, each device makes only what it holds."""
    key, params_key = jax.random.split(jax.random.key(model.seed))
    params = init_params(model, params_key)
    adam = optimizer(model).init(params)
    return State(params=params, optimizer=adam, key=jax.random.key_data(key))


def init_params(model: Model, key: jax.Array) -> Params:
    """Matrices normal with the deviation ``1 / sqrt(fan in)``, scales 1."""
    n_blocks, width, heads = model.blocks, model.width, model.heads
    head = width // heads
    keys = iter(jax.random.split(key, 16))

    def matrix(*shape: int, fan_in: int) -> jax.Array:
        return jax.random.normal(next(keys), shape) / math.sqrt(fan_in)

    blocks = {
        "attention_scale": jnp.ones((n_blocks, width)),
        "query": matrix(n_blocks, width, heads, head, fan_in=width),
        "key": matrix(n_blocks, width, heads, head, fan_in=width),
        "value": matrix(n_blocks, width, heads, head, fan_in=width),
        "query_scale": jnp.ones((n_blocks, head)),
        "key_scale": jnp.ones((n_blocks, head)),
        "attended": matrix(n_blocks, heads, head, width, fan_in=2 * n_blocks * width),
        "mlp_scale": jnp.ones((n_blocks, width)),
        "gate": matrix(n_blocks, width, model.hidden, fan_in=width),
        "up": matrix(n_blocks, width, model.hidden, fan_in=width),
        "down": matrix(n_blocks, model.hidden, width, fan_in=2 * n_blocks * model.hidden),
    }
    params = {
        "embedding": matrix(model.vocabulary, width, fan_in=width),
        "blocks": blocks,
        "final_scale": jnp.ones(width),
    }
    if not model.tied:
        params["output"] = matrix(model.vocabulary, width, fan_in=width)
    return params


def project(x: jax.Array, matrix: jax.Array) -> jax.Array:
    """``x`` [B, T, ...] times a matrix whose first dimensions are the last of ``x``.

    As one plain product over B * T: on a CPU its gradient takes half the time.
    """
    inner = math.prod(x.shape[2:])
    outer = matrix.shape[x.ndim - 2 :]
    flat = x.reshape(-1, inner) @ matrix.reshape(inner, -1)
    return flat.reshape(*x.shape[:2], *outer)


def rms_norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    """``x`` [..., D] to the root mean square of 1, in float32, times ``scale`` [D]."""
    wide = x.astype(jnp.float32)
    wide *= jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + 1e-6)
    return (wide * scale).astype(x.dtype)


def rotate(x: jax.Array, positions: jax.Array) -> jax.Array:
    """Turns the pairs of ``x`` [B, T, N, H] by their ``positions`` [B, T] within the segment."""
    half = x.shape[-1] // 2
    frequencies = 10_000.0 ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles = positions[:, :, None, None].astype(jnp.float32) * frequencies
    sin, cos = jnp.sin(angles), jnp.cos(angles)
    first, second = x[..., :half].astype(jnp.float32), x[..., half:].astype(jnp.float32)
    turned = [first * cos - second * sin, second * cos + first * sin]
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)


def visible(segment_ids: jax.Array) -> jax.Array:
    """Bool [B, 1, T, T]: which column (last) each column sees: its segment's, up to itself."""
    columns = jnp.arange(segment_ids.shape[1])
    same = segment_ids[:, :, None] == segment_ids[:, None, :]
    return (same & (columns[None, :] <= columns[:, None]))[:, None]


def dropout(x: jax.Array, rate: float, key: jax.Array | None) -> jax.Array:
    """Zeroes a share of ``rate`` and scales the rest; nothing without a key."""
    if key is None or rate == 0.0:
        return x
    return jnp.where(jax.random.bernoulli(key, 1.0 - rate, x.shape), x / (1.0 - rate), 0)


def block(
    model: Model, x: jax.Array, params: Params, batch: Batch, key: jax.Array | None
) -> jax.Array:
    """One block: ``x`` [B, T, D] plus attention, plus the gated MLP."""
    attention_key, mlp_key = (None, None) if key is None else jax.random.split(key)
    y = rms_norm(x, params["attention_scale"])
    query, keys, value = (project(y, params[name]) for name in ("query", "key", "value"))
    query = rotate(rms_norm(query, params["query_scale"]), batch["positions"])
    keys = rotate(rms_norm(keys, params["key_scale"]), batch["positions"])
    y = jax.nn.dot_product_attention(query, keys, value, mask=visible(batch["segment_ids"]))
    x += dropout(project(y, params["attended"]), model.dropout, attention_key)
    y = rms_norm(x, params["mlp_scale"])
    y = jax.nn.silu(project(y, params["gate"])) * project(y, params["up"])
    return x + dropout(project(y, params["down"]), model.dropout, mlp_key)


def hidden(
    model: Model, params: Params, batch: Batch, *, key: jax.Array | None, mesh: Mesh | None
) -> jax.Array:
    """[B, T, D], what the blocks make of a batch; with dropout if there is a ``key``.

    Args:
        model: the sizes.
        params: as ``init_params`` makes them, in the dtype to compute in.
        batch: at least ``tokens``, ``segment_ids`` and ``positions``, int32 [B, T].
        key: for this step's dropout.
        mesh: rows stay split over its data axes; None: a single device.
    """

    def by_rows(x: jax.Array) -> jax.Array:
        if mesh is None:
            return x
        spec = PartitionSpec(_axes(mesh, DATA_AXES, x.shape[0]))
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec))

    x = by_rows(params["embedding"][batch["tokens"]])
    keys = None if key is None else jax.random.split(key, model.blocks)

    def one(x: jax.Array, of_block: tuple[Params, jax.Array | None]) -> tuple[jax.Array, None]:
        return by_rows(block(model, x, of_block[0], batch, of_block[1])), None

    x, _ = jax.lax.scan(jax.checkpoint(one) if model.remat else one, x, (params["blocks"], keys))
    return rms_norm(x, params["final_scale"])


def loss(
    model: Model,
    params: Params,
    batch: Batch,
    *,
    key: jax.Array | None = None,
    mesh: Mesh | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Mean over the targets that count in the whole global batch, and how many these are."""
    params = jax.tree.map(lambda p: p.astype(model.compute), params)
    output = params["embedding"] if model.tied else params["output"]  # [V, D]
    x = hidden(model, params, batch, key=key, mesh=mesh).reshape(-1, model.width)  # [B * T, D]
    targets, weights = batch["targets"].reshape(-1), batch["loss_weights"].reshape(-1)
    scores = jnp.matmul(x, output.T, preferred_element_type=jnp.float32)  # [B * T, V]
    # The target's score anew, not looked up in the scores, whose last dimension may be split
    of_target = jnp.einsum("td,td->t", x, output[targets], preferred_element_type=jnp.float32)
    nll = jax.nn.logsumexp(scores, axis=-1) - of_target
    counted = weights.sum()
    return (nll * weights).sum() / jnp.maximum(counted, 1.0), counted


# ---------------------------------------------------------------------------- training


def optimizer(model: Model) -> optax.GradientTransformation:
    """AdamW behind a clip of the global norm; the rate rises linearly, then stays."""
    first, warmup = model.learning_rate / model.warmup_steps, model.warmup_steps
    return optax.chain(
        optax.clip_by_global_norm(model.clip_norm),
        optax.adamw(
            optax.linear_schedule(first, model.learning_rate, warmup),
            b2=0.95,
            weight_decay=model.weight_decay,
            mask=partial(jax.tree_util.tree_map_with_path, _decays),
        ),
    )


def _decays(path: tuple[Any, ...], _: jax.Array) -> bool:
    return not path[-1].key.endswith("scale")


def make_train_step(
    mesh: Mesh, model: Model
) -> Callable[[State, Batch], tuple[State, dict[str, jax.Array]]]:
    """``(state, batch) -> (state, metrics)`` for a mesh, compiled; the old state is donated."""

    def train_step(state: State, batch: Batch) -> tuple[State, dict[str, jax.Array]]:
        key, step_key = jax.random.split(jax.random.wrap_key_data(state.key))
        of_params = jax.value_and_grad(
            lambda params: loss(model, params, batch, key=step_key, mesh=mesh), has_aux=True
        )
        (mean, counted), gradients = of_params(state.params)
        updates, adam = optimizer(model).update(gradients, state.optimizer, state.params)
        metrics = {
            "loss": mean,
            "tokens": counted,
            "gradient_norm": optax.global_norm(gradients),
        }
        params = optax.apply_updates(state.params, updates)
        return State(params, adam, jax.random.key_data(key)), metrics

    layouts = shardings(mesh, model)
    return jax.jit(train_step, donate_argnums=0, out_shardings=(layouts, None))


def train(job: Any) -> None:
    """Trains until the feed ends: at a resize, after which it is called again, or for good.

    Args:
        job: of this generation: ``mesh``, ``feed``, ``state``, ``report`` and ``commit``.
    """
    model = MODELS[os.environ.get("DECODER", "small")]
    state = job.state(partial(init, model), shardings(job.mesh, model))
    train_step = make_train_step(job.mesh, model)
    for batch in job.feed:
        state, metrics = train_step(state, batch)
        job.report(metrics)
        job.commit(state)
