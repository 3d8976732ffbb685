"""One host of a JAX world, an ordinary process as any trainer's, told by a test what to do.

``python world_program.py PROCESS HOSTS DEVICES PORT`` reads one JSON object a line, ``{"job": N,
"do": NAME, ...arguments}``, and answers each with one line, ``{"job": N, "value": ...}`` or
``{"job": N, "error": ..., "message": ...}``. It joins the JAX world itself and reaches the run by
``meshfeed.connect`` alone.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import jax
import numpy as np

import meshfeed
from meshfeed.pipeline.assemble.readback import box_digests, read_boxes
from meshfeed.pipeline.assemble.shardings import needed_bytes

LEAVES = ("tokens", "targets", "segment_ids", "positions", "loss_weights")


class Host:
    """The feeds that this process has open, by the names that the test gave them."""

    def __init__(self) -> None:
        self._feeds: dict[str, Any] = {}
        self._outputs: dict[str, str] = {}
        self._needed: dict[str, int] = {}

    def open(
        self,
        name: str,
        run_dir: str,
        *,
        mesh: dict[str, int],
        interleaved: bool = False,
        output: str = "global",
        **options: Any,
    ) -> int:
        """Connects a feed; the step that comes next."""
        feed = meshfeed.connect(run_dir, mesh=mesh_of(mesh, interleaved), output=output, **options)
        self._feeds[name], self._outputs[name], self._needed[name] = feed, output, 0
        return int(feed.step)

    def take(
        self, name: str, count: int | None, keep: list[str], pause: float = 0.0, quick: bool = False
    ) -> list[dict[str, Any]]:
        """The next batches, all that are left for ``count`` None.

        Args:
            name: of the feed.
            count: at most.
            keep: leaves whose values the test wants to see.
            pause: seconds after each batch.
            quick: say nothing of the batches but their steps and rows.
        """
        feed, batches = self._feeds[name], []
        while count is None or len(batches) < count:
            step = feed.step
            batch = next(feed, None)
            if batch is None:
                break
            if self._outputs[name] == "local":
                batch = as_a_trainer_would(feed, batch)
            rows = feed.real_rows
            self._needed[name] += needed_bytes(
                feed.shardings, feed.plan.global_shape, feed.wire_bytes, rows
            )
            said = {"step": step, "rows": rows}
            if not quick:
                said |= self._describe(batch, step * feed.plan.batch_size, rows, keep)
            batches.append(said)
            time.sleep(pause)
        return batches

    def fail_at(self, name: str, step: int, message: str) -> None:
        """A trainer whose step fails."""
        with self._feeds[name] as feed:
            while feed.step < step:
                next(feed)
            raise RuntimeError(message)

    def ended_for(self, name: str) -> str:
        """Why a feed gives no more."""
        return str(self._feeds[name].ended_for)

    def state(self, name: str) -> str:
        """``get_state``, as the JSON text that a checkpoint would hold."""
        return json.dumps(self._feeds[name].get_state())

    def set_state(self, name: str, state: str) -> int:
        """``set_state``; the step that comes next."""
        self._feeds[name].set_state(state)
        return int(self._feeds[name].step)

    def facts(self, name: str) -> dict[str, Any]:
        """What a test may want to know of an open feed."""
        import grain
        import ray

        feed = self._feeds[name]
        nodes = feed._host._fetcher.nodes.values()
        return {
            "is_grain_iterator": isinstance(feed, grain.DatasetIterator),
            "needed": self._needed[name],
            "metrics": feed.metrics(),
            "cuts": sum(ray.get([node.cuts.remote() for node in nodes])),
        }

    def close(self, name: str) -> None:
        """Ends a feed."""
        self._feeds.pop(name).close()

    def jax_is_fine(self) -> float:
        """A computation, to see that the devices work."""
        return float(jax.numpy.ones(4).sum())

    @staticmethod
    def _describe(
        batch: dict[str, Any], first_row: int, rows: int, keep: list[str]
    ) -> dict[str, Any]:
        array = next(iter(batch.values()))
        tiles = {
            leaf: [[box, tile.tolist()] for box, tile in read_boxes(leaf, whole, real_rows=height)]
            for leaf, whole in batch.items()
            for height in [whole.shape[0]]
            if leaf in keep
        }
        return {
            "shape": list(array.shape),
            "local": {
                n: [list(s.data.shape) for s in a.addressable_shards] for n, a in batch.items()
            },
            "specs": {name: str(a.sharding.spec) for name, a in batch.items()},
            "dtypes": {name: str(a.dtype) for name, a in batch.items()},
            "digests": box_digests(batch, first_row=first_row, real_rows=rows),
            "tiles": tiles,
        }


def as_a_trainer_would(feed: Any, local: dict[str, Any]) -> dict[str, Any]:
    """Global arrays out of process-local ones, with JAX's own function."""
    shardings = dict(zip(local, feed.shardings, strict=True))
    shape = feed.plan.global_shape
    return {
        name: jax.make_array_from_process_local_data(shardings[name], array, shape)
        for name, array in local.items()
    }


def mesh_of(axes: dict[str, int], interleaved: bool) -> jax.sharding.Mesh:
    """A mesh of all devices, one host after another or one device of each host in turn."""
    devices = np.array(sorted(jax.devices(), key=lambda d: (d.process_index, d.id)))
    if interleaved:
        devices = devices.reshape(jax.process_count(), -1).T.reshape(-1)
    return jax.sharding.Mesh(devices.reshape(tuple(axes.values())), tuple(axes))


def main() -> None:
    process, hosts, devices, port = (int(argument) for argument in sys.argv[1:5])
    jax.config.update("jax_num_cpu_devices", devices)
    jax.distributed.initialize(f"127.0.0.1:{port}", hosts, process)
    host = Host()
    answer: dict[str, Any] = {"job": 0, "value": jax.device_count()}
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
    for line in sys.stdin:
        job = json.loads(line)
        number = job.pop("job")
        if job["do"] == "crash":
            raise RuntimeError(job["message"])
        try:
            answer = {"value": getattr(host, job.pop("do"))(**job)}
        except Exception as error:  # noqa: BLE001 - the test judges
            answer = {"error": type(error).__name__, "message": str(error)}
        sys.stdout.write(json.dumps(answer | {"job": number}) + "\n")
        sys.stdout.flush()
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()
