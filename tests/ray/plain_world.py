"""Worlds of ordinary ``python`` processes next to a run, seen from the test.

A world stays up for many tests, since starting one takes seconds; what each process says is put
together here: hosts must agree, and their boxes must make up the whole global batch.
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
import world_program

from meshfeed.pipeline.data.batches.agreement import BoxDigest, agreed_digest, join_boxes

LIMIT_S = 180.0
"""Longer than any answer takes, even where the machine is busy with other things."""


class WorldError(Exception):
    """Some process of a world failed; ``errors`` are (type, message) by process."""

    def __init__(self, errors: dict[int, tuple[str, str]]) -> None:
        self.errors = errors
        super().__init__("; ".join(f"process {p}: {k}: {m}" for p, (k, m) in errors.items()))


@dataclass(frozen=True)
class GlobalStep:
    """One step on which all hosts agreed.

    Attributes:
        step: its number.
        rows: that are not padding.
        digest: of all leaves.
        shape: of the global batch, padding included.
        specs: how each leaf lies.
        leaves: the values of those that were asked for, padding included.
        local: on each host, the shapes of its devices' parts of each leaf.
    """

    step: int
    rows: int
    digest: int
    shape: tuple[int, int]
    specs: dict[str, str]
    local: list[dict[str, list[list[int]]]]
    leaves: dict[str, npt.NDArray[Any]] = field(repr=False)

    def ids(self) -> list[int]:
        """The token of each unmasked position, row by row."""
        return self.leaves["tokens"][self.leaves["segment_ids"] > 0].tolist()


class PlainWorld:
    """``hosts`` processes of ``devices`` CPU devices each, in one JAX world.

    Args:
        hosts: processes.
        devices: of each.
        logs: folder for what they print.
        environment: beside this process's own.
    """

    def __init__(
        self, hosts: int, devices: int, logs: Path, environment: dict[str, str] | None = None
    ) -> None:
        self.hosts, self.devices = hosts, devices
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self._logs = [logs / f"world-{hosts}x{devices}-{i}.log" for i in range(hosts)]
        self._processes = []
        for index, log in enumerate(self._logs):
            command = [sys.executable, world_program.__file__, index, hosts, devices, port]
            with log.open("wb") as sink:
                process = subprocess.Popen(
                    [str(word) for word in command],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    bufsize=0,  # so that select sees every line that is left
                    stderr=sink,
                    env=os.environ | {"RAY_LOG_TO_DRIVER": "0"} | (environment or {}),
                )
            self._processes.append(process)
        self._job = 0
        self._job_of = [0] * hosts

    def wait_until_up(self) -> None:
        """Returns when all processes have joined."""
        assert set(self._answers(range(self.hosts))) == {self.hosts * self.devices}

    def ask(self, do: str, *, on: Sequence[int] | None = None, **arguments: Any) -> list[Any]:
        """Has every process (or those ``on``) do something; what each answered.

        Raises:
            WorldError: some of them failed.
        """
        self.tell(do, on=on, **arguments)
        return self._answers(range(self.hosts) if on is None else on)

    def tell(self, do: str, *, on: Sequence[int] | None = None, **arguments: Any) -> None:
        """Has processes begin something; ``hear`` gives what they answer."""
        self._job += 1
        line = json.dumps({"job": self._job, "do": do, **arguments}).encode() + b"\n"
        for index in range(self.hosts) if on is None else on:
            self._job_of[index] = self._job
            stdin = self._processes[index].stdin
            assert stdin is not None
            stdin.write(line)
            stdin.flush()

    def hear(self, *, on: Sequence[int] | None = None) -> list[Any]:
        """The answers to ``tell``."""
        return self._answers(range(self.hosts) if on is None else on)

    def printed(self) -> str:
        """What the processes have written to their standard error."""
        return "\n".join(log.read_text(errors="replace") for log in self._logs)

    def pids(self) -> list[int]:
        """Process ids, by process index."""
        return [process.pid for process in self._processes]

    def feed(self, run_dir: str | Path, name: str = "feed", **options: Any) -> WorldFeed:
        """Connects a feed on all processes."""
        options.setdefault("mesh", {"data": self.hosts * self.devices})
        self.ask("open", name=name, run_dir=str(run_dir), **options)
        return WorldFeed(self, name)

    def kill(self) -> None:
        """Ends all processes at once."""
        for process in self._processes:
            process.kill()
        self.stop()

    def stop(self) -> None:
        """Ends all processes."""
        for process in self._processes:
            if process.stdin is not None and process.poll() is None:
                process.stdin.close()
        end = time.monotonic() + 20
        for process in self._processes:
            try:
                process.wait(timeout=max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()

    def _answers(self, processes: Sequence[int]) -> list[Any]:
        end = time.monotonic() + LIMIT_S
        answers = {index: self._answer(index, end) for index in processes}
        errors = {
            index: (answer["error"], answer["message"])
            for index, answer in answers.items()
            if "error" in answer
        }
        if errors:
            raise WorldError(errors)
        return [answer["value"] for answer in answers.values()]

    def _answer(self, index: int, end: float) -> dict[str, Any]:
        stdout = self._processes[index].stdout
        assert stdout is not None
        while True:
            ready, _, _ = select.select([stdout], [], [], max(0.1, end - time.monotonic()))
            line = stdout.readline() if ready else b""
            if not line:
                why = "no answer in time" if not ready else "it has ended"
                raise RuntimeError(f"process {index}: {why}\n{self.printed()[-6000:]}")
            if not line.startswith(b"{"):
                continue  # Ray prints its warnings there
            answer: dict[str, Any] = json.loads(line)
            if answer["job"] >= self._job_of[index]:
                return answer  # and not to what a test that failed has asked


class WorldFeed:
    """A feed that all processes of a world have open."""

    def __init__(self, world: PlainWorld, name: str) -> None:
        self._world = world
        self._name = name

    def take(
        self, count: int | None = None, *, keep: Sequence[str] = (), pause: float = 0.0
    ) -> list[GlobalStep]:
        """The next steps of the global batch."""
        self.begin(count, keep=keep, pause=pause)
        return self.finish()

    def begin(
        self, count: int | None = None, *, keep: Sequence[str] = (), pause: float = 0.0
    ) -> None:
        """Has the hosts begin to take steps; ``finish`` gives them."""
        self._world.tell("take", name=self._name, count=count, keep=keep, pause=pause)

    def finish(self) -> list[GlobalStep]:
        """The steps that ``begin`` asked for."""
        answers = self._world.hear()
        lengths = {len(own) for own in answers}
        assert len(lengths) == 1, f"hosts took different numbers of steps: {lengths}"
        return [_together(parts) for parts in zip(*answers, strict=True)]

    def ids(self, count: int | None = None) -> list[int]:
        """The unmasked tokens of the next steps."""
        return [i for step in self.take(count, keep=("tokens", "segment_ids")) for i in step.ids()]

    def skip(self, count: int | None = None, pause: float = 0.0) -> list[int]:
        """Takes steps without looking at them; how many each host took."""
        answers = self._world.ask(
            "take", name=self._name, count=count, keep=[], pause=pause, quick=True
        )
        return [len(own) for own in answers]

    def state(self) -> str:
        """``get_state``, which must be the same on all hosts."""
        states = set(self._world.ask("state", name=self._name))
        assert len(states) == 1, f"hosts have different states: {states}"
        return str(states.pop())

    def set_state(self, state: str) -> None:
        """``set_state`` on all hosts."""
        self._world.ask("set_state", name=self._name, state=state)

    def facts(self) -> list[dict[str, Any]]:
        """See ``world_program.Host.facts``, for every host."""
        return self._world.ask("facts", name=self._name)

    def close(self) -> None:
        """Ends the feed on all hosts."""
        self._world.ask("close", name=self._name)

    def ended_for(self) -> str:
        """Why there are no more batches; the same on all hosts."""
        said = set(self._world.ask("ended_for", name=self._name))
        assert len(said) == 1, f"hosts ended for different reasons: {said}"
        return str(said.pop())

    def __enter__(self) -> WorldFeed:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def kill_all(process: subprocess.Popen[bytes]) -> None:
    """Ends a process and all below it with SIGKILL, as the loss of a machine would."""
    if process.poll() is None:
        own = psutil.Process(process.pid)
        family = [*own.children(recursive=True), own]
        for one in family:
            one.suspend()
        for one in family:
            one.kill()
        psutil.wait_procs(family[:-1], timeout=30)
    process.wait(timeout=30)
    if process.stdout is not None:
        process.stdout.close()


def _together(parts: Sequence[dict[str, Any]]) -> GlobalStep:
    first = parts[0]
    for part in parts:
        for key in ("step", "rows", "shape", "specs", "dtypes"):
            assert part[key] == first[key], (key, part[key], first[key])
    rows, shape = first["rows"], tuple(first["shape"])
    digest = agreed_digest(
        {
            process: [BoxDigest(leaf, tuple(box), dtype, d) for leaf, box, dtype, d in p["digests"]]
            for process, p in enumerate(parts)
        },
        leaves=list(first["specs"]),
        shape=(rows, shape[1]),
    )
    leaves = {
        leaf: join_boxes(
            [(tuple(box), np.array(tile)) for part in parts for box, tile in part["tiles"][leaf]],
            shape,
        )
        for leaf in first["tiles"]
    }
    return GlobalStep(
        step=first["step"],
        rows=rows,
        digest=digest,
        shape=shape,
        specs=first["specs"],
        local=[part["local"] for part in parts],
        leaves=leaves,
    )
