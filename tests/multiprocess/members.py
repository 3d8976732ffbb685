"""Processes that a test orders to join worlds, train, leave, and that it kills or stops."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

LIMIT_S = 120.0
PROGRAM = Path(__file__).with_name("member_program.py")
SEARCH_PATH = os.pathsep.join(
    [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
)
"""Where the program finds what all tests share."""


class Member:
    """One process that carries out orders, one after the other.

    Args:
        name: for its log, ``folder/name.log``.
        folder: where the log goes.
        environment: variables on top of those of this process.
    """

    def __init__(self, name: str, folder: Path, environment: dict[str, str] | None = None) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        with self.log.open("wb") as sink:
            self._process = subprocess.Popen(
                [sys.executable, str(PROGRAM)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=sink,
                env={**os.environ, "PYTHONPATH": SEARCH_PATH, **(environment or {})},
            )
        self._answers: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, name=f"meshfeed-{name}", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(b"{"):  # gloo prints as well
                self._answers.put(json.loads(line))
        self._answers.put(None)

    def begin(self, order: str, **arguments: Any) -> None:
        """Gives an order and does not wait."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"order": order, **arguments}).encode() + b"\n")
        self._process.stdin.flush()

    def end(self, limit_s: float = LIMIT_S) -> Any:
        """The answer to the order that was given first.

        Raises:
            RuntimeError: the order failed or the process has ended; with the end of its log.
        """
        answer = self._answers.get(timeout=limit_s)
        if answer is None or "error" in answer:
            log = self.log.read_text(errors="replace")[-3000:]
            said = "it has ended" if answer is None else answer["error"]
            raise RuntimeError(f"{self.name}: {said}\n{log}")
        return answer["value"]

    def do(self, order: str, **arguments: Any) -> Any:
        """Gives an order and waits for its answer."""
        self.begin(order, **arguments)
        return self.end()

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal."""
        os.kill(self._process.pid, number)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def close(self) -> None:
        """Kills it and waits for its end."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()


@contextmanager
def members(
    count: int, folder: Path, environment: dict[str, str] | None = None
) -> Iterator[list[Member]]:
    """That many members, killed at the end."""
    started = [Member(f"member-{index}", folder, environment) for index in range(count)]
    try:
        yield started
    finally:
        for member in started:
            member.close()


def all_do(group: Sequence[Member], order: str, **arguments: Any) -> list[Any]:
    """The same order for all of them at once; their answers."""
    for member in group:
        member.begin(order, **arguments)
    return [member.end() for member in group]


def all_join(group: Sequence[Member], address: str, generation: int, **arguments: Any) -> list[Any]:
    """Lets them form a world, in the order given."""
    for index, member in enumerate(group):
        member.begin(
            "join",
            address=address,
            generation=generation,
            process_index=index,
            process_count=len(group),
            **arguments,
        )
    return [member.end() for member in group]
