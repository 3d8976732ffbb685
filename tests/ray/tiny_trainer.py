"""A model so small that its compilation, not its training, takes the time; its state has a key."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

VOCABULARY = 512
WIDTH = 24  # divides over one to four hosts

State = dict[str, Any]


def init() -> State:
    """Parameters, momentum, a key and a count."""
    parameters = {
        "embed": 0.1 * jax.random.normal(jax.random.key(0), (VOCABULARY, WIDTH)),
        "out": jnp.zeros((WIDTH, VOCABULARY)),
    }
    momentum = jax.tree.map(jnp.zeros_like, parameters)
    return {
        "parameters": parameters,
        "momentum": momentum,
        "key": jax.random.key_data(jax.random.key(1)),
        "count": jnp.zeros((), jnp.int32),
    }


def _loss(parameters: State, batch: State, key: jax.Array) -> jax.Array:
    hidden = parameters["embed"][batch["tokens"] % VOCABULARY]
    hidden = hidden * jax.random.bernoulli(key, 0.9, (WIDTH,))
    scores = jax.nn.log_softmax(hidden @ parameters["out"])
    right = jnp.take_along_axis(scores, (batch["targets"] % VOCABULARY)[..., None], -1)[..., 0]
    weights = batch["loss_weights"].astype(jnp.float32)
    return -(right * weights).sum() / jnp.maximum(weights.sum(), 1)


def _update(state: State, batch: State) -> tuple[State, jax.Array]:
    key, dropout = jax.random.split(jax.random.wrap_key_data(state["key"]))
    loss, gradients = jax.value_and_grad(_loss)(state["parameters"], batch, dropout)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, state["momentum"], gradients)
    parameters = jax.tree.map(lambda p, m: p - 0.3 * m, state["parameters"], momentum)
    count = state["count"] + 1
    key = jax.random.key_data(key)
    return {"parameters": parameters, "momentum": momentum, "key": key, "count": count}, loss


def shardings(mesh: Any) -> State:
    """Parameters and momentum split over the data axis."""
    split = {"embed": NamedSharding(mesh, P(None, "data")), "out": NamedSharding(mesh, P("data"))}
    whole = NamedSharding(mesh, P())
    return {"parameters": split, "momentum": split, "key": whole, "count": whole}


def train(job: Any) -> None:
    """The loop of every user."""
    laid = shardings(job.mesh)
    whole = NamedSharding(job.mesh, P())
    update = jax.jit(_update, donate_argnums=0, out_shardings=(laid, whole))
    state = job.state(init, laid)
    for batch in job.feed:
        state, loss = update(state, batch)
        job.report({"loss": loss})
        job.commit(state)
