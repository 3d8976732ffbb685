"""The training step that is explained where the user names none: a small decoder-only transformer.

Laid out as trainers with tensor parallelism lay theirs out: attention heads, the hidden features of
the feed-forward layers and the vocabulary are split over the model axes (Shoeybi et al.,
"Megatron-LM", 2019), everything also over an axis named ``fsdp`` if the mesh has one. It reads all
five leaves: tokens of one segment attend to earlier ones of the same segment, positions turn
queries and keys (rotary), weights mask the loss. Gradients and an Adam update are part of the step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from meshfeed.launch.explain.steps import TrainingStep
from meshfeed.pipeline.plan.errors import ConfigError
from meshfeed.pipeline.plan.partition import AxisRoles

_RATE, _DECAY, _EPSILON = 1e-3, (0.9, 0.95), 1e-8
_EXPANSION = 4
_FAR = 10_000.0

Axes = tuple[str, ...] | None


class Activations(StrEnum):
    """Who says how activations lie between the blocks."""

    PINNED = "pinned"
    """The step: rows over the data axes, the sequence over the sequence axes."""

    FREE = "free"
    """XLA, from the shardings of batch and weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerShape:
    """Sizes of the transformer, and how its activations lie.

    Attributes:
        vocab_size: ids.
        width: features of a token.
        heads: of attention.
        blocks: attention and feed-forward layers.
        activations: who says how they lie.
    """

    vocab_size: int = 2048
    width: int = 128
    heads: int = 8
    blocks: int = 2
    activations: Activations = Activations.PINNED

    def __post_init__(self) -> None:
        for setting in ("vocab_size", "width", "heads", "blocks"):
            if getattr(self, setting) < 1:
                raise ConfigError(setting, f"{getattr(self, setting)} is below 1")
        if self.width % self.heads or self.width // self.heads % 2:
            raise ConfigError(
                "width",
                f"{self.width} is no even multiple of {self.heads} heads",
                f"{max(1, round(self.width / 2 / self.heads)) * 2 * self.heads} would do",
            )

    def __str__(self) -> str:
        return (
            f"transformer of {self.blocks} blocks, {self.width} wide, {self.heads} heads, "
            f"{self.vocab_size:,} ids, activations {self.activations}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """Where things lie on the mesh."""

    mesh: Mesh
    data: Axes
    sequence: Axes
    model: Axes
    fsdp: Axes

    @classmethod
    def of(cls, mesh: Mesh, roles: AxisRoles) -> _Layout:
        def present(axes: tuple[str, ...]) -> Axes:
            return tuple(axis for axis in mesh.axis_names if axis in axes) or None

        return cls(
            mesh=mesh,
            data=present(roles.data),
            sequence=present(roles.sequence),
            model=present(roles.model),
            fsdp=present(("fsdp",)),
        )

    def on(self, *spec: Axes) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec(*spec))

    def parts(self, axes: Axes) -> int:
        return math.prod(self.mesh.shape[axis] for axis in axes or ())


def transformer_step(mesh: Mesh, roles: AxisRoles, shape: TransformerShape) -> TrainingStep:
    """A step of the transformer on ``mesh``.

    Args:
        mesh: the mesh.
        roles: what its axes are for.
        shape: sizes.

    Raises:
        ConfigError: the sizes do not divide over the mesh.
    """
    layout = _Layout.of(mesh, roles)
    _check_parts(layout, shape)
    key = jax.random.key(0)
    shapes = jax.eval_shape(lambda: _weights(key, shape))
    shardings = _shardings(shapes, layout)
    weights = jax.jit(lambda: _weights(key, shape), out_shardings=shardings)()
    zeros = jax.jit(lambda: jax.tree.map(jnp.zeros_like, shapes), out_shardings=shardings)
    count = jax.device_put(jnp.zeros((), jnp.int32), layout.on())
    state = {"weights": weights, "mean": zeros(), "square": zeros(), "count": count}

    def step(state: Any, batch: dict[str, jax.Array]) -> tuple[Any, jax.Array]:
        loss, gradient = jax.value_and_grad(_loss)(state["weights"], batch, shape, layout)
        return _adam(state, gradient), loss

    return TrainingStep(name=str(shape), step=step, state=state)


def _check_parts(layout: _Layout, shape: TransformerShape) -> None:
    for setting, axes in (("heads", "model"), ("vocab_size", "model"), ("width", "fsdp")):
        parts, size = layout.parts(getattr(layout, axes)), getattr(shape, setting)
        if size % parts:
            raise ConfigError(
                setting,
                f"{size} does not divide over the {parts} parts of the {axes} axes",
                f"{max(1, size // parts) * parts} would do",
            )


def _weights(key: jax.Array, shape: TransformerShape) -> dict[str, Any]:
    """Seeded weights, float32."""
    width, head = shape.width, shape.width // shape.heads
    shapes = {
        "queries_keys_values": (width, 3, shape.heads, head),
        "attended": (shape.heads, head, width),
        "expand": (width, _EXPANSION * width),
        "contract": (_EXPANSION * width, width),
    }
    names = [f"block_{i}" for i in range(shape.blocks)]
    outer = {"embedding": (shape.vocab_size, width), "logits": (width, shape.vocab_size)}
    keys = iter(jax.random.split(key, len(outer) + len(names) * len(shapes)))

    def normal(size: tuple[int, ...]) -> Any:
        return jax.random.normal(next(keys), size) * width**-0.5

    made: dict[str, Any] = {name: normal(size) for name, size in outer.items()}
    for block in names:
        made[block] = {name: normal(size) for name, size in shapes.items()}
        made[block] |= {"attention_scale": jnp.ones(width), "feed_forward_scale": jnp.ones(width)}
    return made | {"scale": jnp.ones(width)}


def _shardings(weights: dict[str, Any], layout: _Layout) -> dict[str, Any]:
    fsdp, model = layout.fsdp, layout.model
    by_name = {
        "embedding": layout.on(model, fsdp),
        "logits": layout.on(fsdp, model),
        "queries_keys_values": layout.on(fsdp, None, model),
        "attended": layout.on(model, None, fsdp),
        "expand": layout.on(fsdp, model),
        "contract": layout.on(model, fsdp),
    }
    return {
        name: _shardings(leaf, layout) if isinstance(leaf, dict) else by_name.get(name, layout.on())
        for name, leaf in weights.items()
    }


def _loss(
    weights: dict[str, Any], batch: dict[str, jax.Array], shape: TransformerShape, layout: _Layout
) -> jax.Array:
    """Mean cross entropy over the targets that count."""

    def lay(x: jax.Array) -> jax.Array:
        if shape.activations is Activations.FREE:
            return x
        spec = layout.on(layout.data, layout.sequence, None)
        laid: jax.Array = jax.lax.with_sharding_constraint(x, spec)
        return laid

    x = lay(weights["embedding"][batch["tokens"]])  # [rows, seq_len, width]
    segments, columns = batch["segment_ids"], jnp.arange(batch["tokens"].shape[1])
    mask = (segments[:, :, None] == segments[:, None, :]) & (columns[:, None] >= columns[None])
    for index in range(shape.blocks):
        block = weights[f"block_{index}"]
        x = lay(x + _attention(block, _scaled(x, block["attention_scale"]), batch, mask))
        hidden = jax.nn.gelu(_scaled(x, block["feed_forward_scale"]) @ block["expand"])
        x = lay(x + hidden @ block["contract"])
    logits = jax.nn.log_softmax(_scaled(x, weights["scale"]) @ weights["logits"])
    picked = jnp.take_along_axis(logits, batch["targets"][..., None], axis=-1)[..., 0]
    counts = batch["loss_weights"]
    return -(picked * counts).sum() / jnp.maximum(counts.sum(), 1)


def _attention(
    block: dict[str, jax.Array], x: jax.Array, batch: dict[str, jax.Array], mask: jax.Array
) -> jax.Array:
    """[rows, seq_len, width], each token from earlier ones of its segment."""
    query, key, value = jnp.einsum("bsw,wchd->cbshd", x, block["queries_keys_values"])
    query, key = _turned(query, batch["positions"]), _turned(key, batch["positions"])
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) * query.shape[-1] ** -0.5
    shares = jax.nn.softmax(jnp.where(mask[:, None], scores, -1e9))
    mixed = jnp.einsum("bhqk,bkhd->bqhd", shares, value)
    return jnp.einsum("bqhd,hdw->bqw", mixed, block["attended"])


def _turned(x: jax.Array, positions: jax.Array) -> jax.Array:
    """Rotary positions (Su et al., "RoFormer", 2021) on [rows, seq_len, heads, head]."""
    half = x.shape[-1] // 2
    angles = positions[..., None, None] * _FAR ** (-jnp.arange(half) / half)
    first, second = x[..., :half], x[..., half:]
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def _scaled(x: jax.Array, scale: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.square(x).mean(axis=-1, keepdims=True) + 1e-6) * scale


def _adam(state: dict[str, Any], gradient: dict[str, Any]) -> dict[str, Any]:
    """Adam (Kingma and Ba, 2014) with a constant rate."""
    first, second = _DECAY
    count = state["count"] + 1

    def blend(decay: float, old: jax.Array, new: jax.Array) -> jax.Array:
        return decay * old + (1 - decay) * new

    mean = jax.tree.map(lambda m, g: blend(first, m, g), state["mean"], gradient)
    square = jax.tree.map(lambda s, g: blend(second, s, g * g), state["square"], gradient)

    def update(weight: jax.Array, m: jax.Array, s: jax.Array) -> jax.Array:
        m, s = m / (1 - first**count), s / (1 - second**count)
        return weight - _RATE * m / (jnp.sqrt(s) + _EPSILON)

    weights = jax.tree.map(update, state["weights"], mean, square)
    return {"weights": weights, "mean": mean, "square": square, "count": count}
