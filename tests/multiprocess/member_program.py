"""A process that joins and leaves worlds as it is told on its standard input.

One line of JSON is an order, carried out by this thread, and one line of JSON on the standard
output is its answer. Training runs in a thread of its own where the order says so.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from member_state import MemberState

from meshfeed.pipeline.assemble.worlds import World, current_world, join_world
from meshfeed.pipeline.assemble.worlds.compilation_cache import (
    cache_counts,
    enable_compilation_cache,
    foreseen_devices,
)

DEVICES = 2
P = PartitionSpec


class Member:
    """What the orders act on."""

    def __init__(self) -> None:
        self.trained = 0
        self.failure = ""
        self.kept: Any = None
        self._trainer: threading.Thread | None = None
        self._state = MemberState()

    @property
    def world(self) -> World:
        world = current_world()
        assert world is not None
        return world

    def join(self, **place: Any) -> dict[str, Any]:
        world = join_world(place.pop("address"), devices=DEVICES, **place)
        return {
            "process": [jax.process_index(), jax.process_count()],
            "devices": [jax.device_count(), jax.local_device_count()],
            "world": [world.generation, world.process_index, world.process_count],
        }

    def leave(self) -> bool:
        """Whether the devices are still in use afterwards."""
        world = self.world
        world.leave()
        return world.in_use

    def abort(self) -> int:
        return self.world.abort()

    def lost(self) -> bool:
        return self.world.service_lost

    def configure(self, name: str, value: Any) -> None:
        jax.config.update(name, value)

    def usage(self) -> dict[str, int]:
        """Threads and open files of this process, those of C++ too."""
        return {
            "threads": len(os.listdir("/proc/self/task")),
            "files": len(os.listdir("/proc/self/fd")),
            "python_threads": threading.active_count(),
        }

    def sum_over_all(self) -> dict[str, Any]:
        """One collective, and what the tools of JAX that span processes say."""
        array = self._array()
        total = jax.jit(jnp.sum, out_shardings=NamedSharding(array.sharding.mesh, P()))
        gathered = multihost_utils.process_allgather(np.int32(10 + jax.process_index()))
        multihost_utils.sync_global_devices("together")
        first = multihost_utils.broadcast_one_to_all(np.int32(7 + jax.process_index()))
        return {
            "sum": float(total(array)),
            "gathered": np.asarray(gathered).reshape(-1).tolist(),
            "first": int(first),
        }

    def enable_cache(self, folder: str) -> None:
        enable_compilation_cache(folder)

    def compile_ahead(self, process_count: int, process_index: int) -> dict[str, int]:
        """Compiles what ``run_programs`` will run in a world of that size."""
        before = cache_counts()
        with foreseen_devices(process_count, process_index, DEVICES) as devices:
            for program, shapes in programs(devices):
                program.lower(*shapes).compile()
        return asdict(cache_counts().since(before))

    def run_programs(self) -> dict[str, Any]:
        """Runs them, and says what the cache gave and what came out."""
        before = cache_counts()
        values = []
        for program, shapes in programs(jax.devices()):
            given = [_ones(shape) for shape in shapes]
            values.append(float(np.asarray(program(*given).addressable_data(0)).sum()))
        return {"values": values, **asdict(cache_counts().since(before))}

    def state(self, call: str, **arguments: Any) -> Any:
        """An order for the training state."""
        if "folder" in arguments:
            arguments["folder"] = Path(arguments["folder"])
        return getattr(self._state, call)(**arguments)

    def keep(self) -> None:
        """Keeps an array, and so the devices of this world."""
        self.kept = self._array()

    def read_kept(self) -> list[float]:
        values = [float(x) for s in self.kept.addressable_shards for x in np.asarray(s.data)]
        self.kept = None
        return values

    def train(self, steps: int, pause_s: float = 0.0) -> int:
        """Steps with a collective each, in this thread."""
        array = self._array()
        step = jax.jit(lambda x: x - x.mean() + 1.0, out_shardings=array.sharding)
        for _ in range(steps):
            array = step(array)
            array.block_until_ready()
            self.trained += 1
            time.sleep(pause_s)
        return self.trained

    def train_beside(self, steps: int, pause_s: float) -> None:
        """The same in a thread of its own."""
        self.failure = ""

        def run() -> None:
            try:
                self.train(steps, pause_s)
            except jax.errors.JaxRuntimeError as error:
                self.failure = str(error)

        self._trainer = threading.Thread(target=run, name="training", daemon=True)
        self._trainer.start()

    def join_trainer(self, limit_s: float) -> dict[str, Any]:
        assert self._trainer is not None
        self._trainer.join(limit_s)
        return {
            "runs": self._trainer.is_alive(),
            "trained": self.trained,
            "failure": self.failure,
        }

    def _array(self) -> jax.Array:
        devices = np.array(jax.devices())
        sharding = NamedSharding(Mesh(devices, ("data",)), P("data"))
        whole = np.arange(4 * len(devices), dtype=np.float32)
        return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])


def programs(devices: list[Any]) -> list[tuple[Any, list[jax.ShapeDtypeStruct]]]:
    """Programs on a mesh of these devices, with the shapes and places of their arguments."""
    mesh = Mesh(np.array(devices).reshape(-1, 2), ("data", "model"))
    rows, columns, whole = (
        NamedSharding(mesh, spec) for spec in (P("data"), P(None, "model"), P())
    )

    def layer(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.tanh(x @ w) / x.shape[0]

    def loss(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.mean(layer(x, w) ** 2)

    x = jax.ShapeDtypeStruct((24, 16), jnp.float32, sharding=rows)
    w = jax.ShapeDtypeStruct((16, 8), jnp.float32, sharding=columns)
    return [
        (jax.jit(layer, out_shardings=rows), [x, w]),
        (jax.jit(jax.grad(loss, argnums=1), out_shardings=columns), [x, w]),
        (jax.jit(loss, out_shardings=whole), [x, w]),
    ]


def _ones(like: jax.ShapeDtypeStruct) -> jax.Array:
    ones = np.ones(like.shape, like.dtype)
    return jax.make_array_from_callback(like.shape, like.sharding, lambda index: ones[index])


def main() -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    jax.config.update("jax_platforms", "cpu")
    member = Member()
    for line in sys.stdin:
        order = json.loads(line)
        carry_out: Callable[..., Any] = getattr(member, order.pop("order"))
        try:
            answer = {"value": carry_out(**order)}
        except Exception as error:
            logging.exception("order failed")
            answer = {"error": f"{type(error).__name__}: {error}"}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
