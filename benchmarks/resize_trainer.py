"""What ``benchmarks.resize`` trains: nothing worth learning, on a state of a given size.

A step takes a tenth of a second or so, and reports how long its commit took, in the place of a
loss.
"""

from __future__ import annotations

import os
import time
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

STATE_MB = "MESHFEED_BENCH_STATE_MB"
LEAVES = 12


def train(job: Any) -> None:
    """Parameters and two moments, split over all hosts."""
    rows = int(os.environ.get(STATE_MB, "100")) * 10**6 // (LEAVES * 1024 * 4) // 12 * 12
    split = NamedSharding(job.mesh, P("data"))
    laid = {f"leaf{n}": split for n in range(LEAVES)}

    def init() -> dict[str, jax.Array]:
        return {name: jnp.zeros((rows, 1024)) for name in laid}

    def step(state: dict[str, jax.Array], tokens: jax.Array) -> dict[str, jax.Array]:
        more = tokens.mean().astype(jnp.float32)
        return {name: leaf * 0.9 + more for name, leaf in state.items()}

    update = jax.jit(step, donate_argnums=0, out_shardings=laid)
    state = job.state(init, laid)
    took = 0.0
    for batch in job.feed:
        state = update(state, batch["tokens"])
        jax.block_until_ready(state)
        job.report({"loss": took})
        began = time.monotonic()
        job.commit(state)
        took = time.monotonic() - began
