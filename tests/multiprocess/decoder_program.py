"""One host of a JAX world that trains ``examples/decoder.py`` on meshes of several shapes.

``python decoder_program.py PROCESS HOSTS DEVICES PORT OUT.json``
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.sharding import Mesh, NamedSharding, PartitionSpec

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import decoder

ROWS, SEQ_LEN, STEPS, MOVED_AT = 8, 32, 12, 5
TINY = decoder.Model(
    vocabulary=64, width=32, heads=2, hidden=64, learning_rate=1e-2, warmup_steps=4
)


def numpy_batch(step: int) -> dict[str, npt.NDArray[Any]]:
    """Rows of two segments, their border elsewhere in each row; each token follows from the last.

    The last column of a segment counts for nothing, and rows have more or fewer of them that do.
    """
    rng = np.random.default_rng(step)
    rows, columns = np.arange(ROWS)[:, None], np.arange(SEQ_LEN)
    border = 6 + 3 * rows
    second = columns >= border
    positions = np.where(second, columns - border, columns)
    tokens = (rng.integers(0, 64, (ROWS, 2))[rows, second.astype(int)] + 5 * positions) % 64
    last = (columns == border - 1) | (columns == SEQ_LEN - 1)
    weights = ~last & (columns >= rows)
    return {
        "tokens": tokens.astype(np.int32),
        "targets": np.where(last, 0, (tokens + 5) % 64).astype(np.int32),
        "segment_ids": (1 + second).astype(np.int32),
        "positions": positions.astype(np.int32),
        "loss_weights": weights.astype(np.float32),
    }


def global_batch(mesh: Mesh, step: int) -> dict[str, jax.Array]:
    """The batch of a step with its rows split over the data axis."""
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    return {
        name: jax.make_array_from_callback(whole.shape, sharding, partial(_part, whole))
        for name, whole in numpy_batch(step).items()
    }


def _part(whole: npt.NDArray[Any], index: Any) -> npt.NDArray[Any]:
    part: npt.NDArray[Any] = whole[index]
    return part


@dataclasses.dataclass(kw_only=True)
class Job:
    """What ``train`` asks of a job, for the steps of one generation."""

    mesh: Mesh
    steps: range
    before: decoder.State | None = None
    losses: list[float] = dataclasses.field(default_factory=list)
    last: Any = None

    @property
    def feed(self) -> Any:
        return (global_batch(self.mesh, step) for step in self.steps)

    def state(self, init: Callable[[], decoder.State], shardings: decoder.State) -> decoder.State:
        if self.before is None:
            return jax.jit(init, out_shardings=shardings)()
        return jax.device_put(self.before, shardings)

    def report(self, metrics: dict[str, jax.Array]) -> None:
        self.losses.append(float(metrics["loss"]))

    def commit(self, state: decoder.State) -> None:
        self.last = state


def mesh_of(data: int, model: int) -> Mesh:
    devices = np.array(jax.devices()[: data * model])
    return Mesh(devices.reshape(data, model), ("data", "model"))


def trained(mesh: Mesh, steps: range, before: decoder.State | None = None) -> Job:
    job = Job(mesh=mesh, steps=steps, before=before)
    decoder.train(job)
    return job


def one_device_report() -> dict[str, Any]:
    """What takes no mesh: who sees whom, the mean, the gradient, the settings."""
    plain = dataclasses.replace(TINY, dropout=0.0)
    params = jax.jit(partial(decoder.init, plain))().params
    batch = {name: jnp.asarray(leaf) for name, leaf in numpy_batch(0).items()}
    out = jax.jit(partial(decoder.hidden, plain, key=None, mesh=None))

    @jax.jit
    def mean(params: Any, batch: Any) -> tuple[jax.Array, jax.Array]:
        return decoder.loss(plain, params, batch)

    def changed(column: int) -> list[int]:
        """The columns of row 0 whose output another token in ``column`` changes."""
        other = {**batch, "tokens": batch["tokens"].at[0, column].add(1)}
        differs = (out(params, batch) != out(params, other)).any(-1)
        assert not differs[1:].any()
        return np.flatnonzero(differs[0]).tolist()

    scores = np.asarray(out(params, batch) @ params["embedding"].T, dtype=np.float64)
    log_sum = np.log(np.exp(scores).sum(-1))
    of_target = np.take_along_axis(scores, np.asarray(batch["targets"])[..., None], -1)[..., 0]
    weights = np.asarray(batch["loss_weights"])
    nothing = {**batch, "loss_weights": jnp.zeros_like(batch["loss_weights"])}
    masked = jnp.where(batch["loss_weights"] > 0, batch["targets"], 7)
    gradients = jax.jit(jax.grad(mean, has_aux=True))
    gradient, _ = gradients(params, batch)
    masked_gradient, _ = gradients(params, {**batch, "targets": masked})
    norm = float(decoder.optax.global_norm(gradient))
    along = jax.tree.map(lambda p, g: p + 1e-2 / norm * g, params, gradient)
    against = jax.tree.map(lambda p, g: p - 1e-2 / norm * g, params, gradient)
    variants = {
        "untied": dataclasses.replace(plain, tied=False),
        "bfloat16": dataclasses.replace(plain, compute="bfloat16"),
        "remat": dataclasses.replace(plain, remat=True),
    }
    return {
        "changed": {column: changed(column) for column in (2, 5, 6, 20)},
        "loss": float(mean(params, batch)[0]),
        "loss by numpy": float(((log_sum - of_target) * weights).sum() / weights.sum()),
        "loss of nothing": float(mean(params, nothing)[0]),
        "same gradient": jax.tree.all(
            jax.tree.map(lambda a, b: bool((a == b).all()), gradient, masked_gradient)
        ),
        "slope": float(mean(along, batch)[0] - mean(against, batch)[0]) / 2e-2,
        "gradient norm": norm,
        "variants": {name: _variant(model, batch) for name, model in variants.items()},
    }


def _variant(model: decoder.Model, batch: Any) -> tuple[float, float]:
    """Loss and the norm of its gradient."""
    params = jax.jit(partial(decoder.init, model))().params
    grad = jax.value_and_grad(partial(decoder.loss, model), has_aux=True)
    (mean, _), gradient = jax.jit(grad)(params, batch)
    return float(mean), float(decoder.optax.global_norm(gradient))


def resize_report() -> dict[str, Any]:
    """The state laid over another mesh on the way, whole, without its key, without Adam's."""
    first = trained(mesh_of(4, 2), range(MOVED_AT))
    moved = trained(mesh_of(2, 4), range(MOVED_AT, STEPS), first.last)
    again = trained(mesh_of(4, 2), range(MOVED_AT)).last
    fresh = jax.jit(partial(decoder.init, TINY))()
    rest = partial(trained, mesh_of(2, 4), range(MOVED_AT, MOVED_AT + 2))
    lost_key = rest(again._replace(key=fresh.key))
    again = trained(mesh_of(4, 2), range(MOVED_AT)).last
    lost_optimizer = rest(again._replace(optimizer=fresh.optimizer))
    return {
        "moved": first.losses + moved.losses,
        "lost key": lost_key.losses,
        "lost optimizer": lost_optimizer.losses,
    }


def layout_report(state: decoder.State) -> dict[str, Any]:
    """Specs by name, and the share of the state's bytes that one device holds."""
    leaves = jax.tree_util.tree_leaves_with_path(state)
    held = [math.prod(a.sharding.shard_shape(a.shape)) / max(1, a.size) for _, a in leaves]
    sizes = [a.nbytes for _, a in leaves]
    return {
        "specs": {jax.tree_util.keystr(path): str(a.sharding.spec) for path, a in leaves},
        "share": float(np.dot(held, sizes) / sum(sizes)),
    }


def main() -> None:
    process, hosts, devices, port = map(int, sys.argv[1:5])
    os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0"  # compiles in half the time
    os.environ["DECODER"] = "small"
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", devices)
    jax.config.update("jax_compilation_cache_dir", str(Path(sys.argv[5]).parent / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    if hosts > 1:
        jax.distributed.initialize(f"127.0.0.1:{port}", hosts, process)
    decoder.MODELS["small"] = TINY
    report: dict[str, Any] = {"losses": {}, "layouts": {}}
    total = hosts * devices
    shapes = [(8, 1), (4, 2), (2, 4), (1, 1)] if hosts == 1 else [(total // 2, 2)]
    for data, model in shapes:
        job = trained(mesh_of(data, model), range(STEPS))
        report["losses"][f"{data}x{model}"] = job.losses
        report["layouts"][f"{data}x{model}"] = layout_report(job.last)
    if hosts == 1:
        report["one device"] = one_device_report()
        report["resize"] = resize_report()
        again = trained(mesh_of(4, 2), range(STEPS))
        report["again"] = again.losses
        before = again.last
        trained(mesh_of(4, 2), range(1), before)
        report["donated"] = all(leaf.is_deleted() for leaf in jax.tree.leaves(before.params))
    if hosts > 1:
        jax.distributed.shutdown()
    Path(sys.argv[5]).write_text(json.dumps(report))


if __name__ == "__main__":
    main()
