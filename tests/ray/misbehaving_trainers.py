"""Training functions that fail in some way."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import tiny_trainer


def raises_at_step_3(job: Any) -> None:
    """On the host at place 1, between two steps; the others are in a collective by then."""
    laid = tiny_trainer.shardings(job.mesh)
    update = jax.jit(tiny_trainer._update, out_shardings=(laid, None))
    state = job.state(tiny_trainer.init, laid)
    for batch in job.feed:
        if job.step == 4 and jax.process_index() == 1:
            raise ArithmeticError("the loss is not a number")
        state, loss = update(state, batch)
        job.report({"loss": loss})
        job.commit(state)


def forgets_to_commit(job: Any) -> None:
    """And donates what it has committed once."""
    laid = tiny_trainer.shardings(job.mesh)
    update = jax.jit(tiny_trainer._update, donate_argnums=0, out_shardings=(laid, None))
    state = job.state(tiny_trainer.init, laid)
    for batch in job.feed:
        if job.step == 1:
            job.commit(jax.tree.map(jnp.array, state))
        state, loss = update(state, batch)
        job.report({"loss": loss})
