"""One simulated host: a Ray actor with a process of a ``jax.distributed`` world on the CPU."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from meshfeed.actors.run import Run
from meshfeed.pipeline.data.batches.agreement import BoxDigest
from meshfeed.pipeline.plan.mesh import MeshLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One step as it lies on one host's devices."""

    step: int
    rows: int
    boxes: tuple[BoxDigest, ...]
    waited: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSummary:
    """What one host held, needed, fetched and waited for."""

    host: int
    shapes: dict[str, list[list[int]]]
    bytes_needed: int
    metrics: dict[str, Any]
    state: dict[str, Any]


class SimHost:
    """A host of a simulated world; never touches an accelerator.

    Args:
        index: ``jax.process_index()`` that it takes.
    """

    def __init__(self, index: int) -> None:
        self._index = index
        self._feed: Any = None
        self._mesh: Any = None
        self._needed = 0
        self._shapes: dict[str, list[list[int]]] = {}

    def free_port(self) -> int:
        """A port on loopback for the coordination service, which host 0 runs."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
            return port

    def form(self, hosts: int, devices: int, port: int, layout: MeshLayout, seconds: float) -> None:
        """Joins the world and lays the mesh over its devices."""
        import jax

        from meshfeed.pipeline.assemble.shardings import mesh_of

        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", devices)
        jax.distributed.initialize(
            f"127.0.0.1:{port}",
            num_processes=hosts,
            process_id=self._index,
            initialization_timeout=round(seconds),
        )
        self._mesh = mesh_of(layout)

    def connect(self, run: Run, feed: str, state: Any = None) -> None:
        """Opens the feed."""
        from meshfeed.actors.connect import connect

        self._feed = connect(run, mesh=self._mesh, feed=feed, state=state)

    def steps(self, count: int, dump: str | None) -> list[StepRecord]:
        """The next steps, fewer at the end: digests of every box on this host's devices."""
        from meshfeed.pipeline.assemble.readback import box_digests

        records = []
        for _ in range(count):
            began = time.monotonic()
            step = self._feed.step
            batch = next(self._feed, None)
            if batch is None:
                break
            waited = time.monotonic() - began
            rows = self._feed.real_rows
            first = step * self._feed.plan.batch_size
            boxes = box_digests(batch, first_row=first, real_rows=rows)
            records.append(StepRecord(step=step, rows=rows, boxes=boxes, waited=waited))
            self._needed += self._bytes_needed(rows)
            self._shapes = {
                n: [list(s.data.shape) for s in a.addressable_shards] for n, a in batch.items()
            }
            if dump is not None:
                self._dump(Path(dump), step, batch)
        return records

    def summary(self) -> HostSummary:
        """Shapes, bytes and waiting of this host."""
        return HostSummary(
            host=self._index,
            shapes=self._shapes,
            bytes_needed=self._needed,
            metrics=self._feed.metrics(),
            state=self._feed.get_state(),
        )

    def close(self) -> None:
        """Ends the feed and leaves the world."""
        import jax

        self._feed.close()
        jax.distributed.shutdown()

    def _bytes_needed(self, real_rows: int) -> int:
        """Bytes of this host's slice of a step, from the indices that JAX itself gives."""
        from meshfeed.pipeline.assemble.shardings import needed_bytes

        batch = self._feed.plan
        return needed_bytes(
            self._feed.shardings, batch.global_shape, self._feed.wire_bytes, real_rows
        )

    def _dump(self, folder: Path, step: int, batch: dict[str, Any]) -> None:
        """Gathers the global leaves and lets host 0 write them."""
        from jax.experimental import multihost_utils

        whole = {
            name: np.asarray(multihost_utils.process_allgather(array, tiled=True))
            for name, array in batch.items()
        }
        if self._index == 0:
            folder.mkdir(parents=True, exist_ok=True)
            np.savez(folder / f"step-{step:06d}.npz", allow_pickle=False, **whole)
