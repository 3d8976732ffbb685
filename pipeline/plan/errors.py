"""The exception tree. Every error says what was wrong, where, and what to do.

::

    MeshfeedError
    ├── ConfigError        a setting is wrong: names the setting, its value, what would do
    │   └── BudgetError    a byte budget too small: carries the smallest that works
    ├── DataError          a shard or record is wrong: names the file and the place in it
    ├── ReadError          storage failed after all retries: names the file and the attempts
    ├── ChangedError       data set, order setting or tokenizer is not that of the run
    ├── StallError         a wait ran past its limit: names generation, host, stage, shard
    ├── StaleGenerationError  a message of an older generation
    ├── DisagreementError  hosts of one slice group, or two runs of one window, differ
    ├── MissingStateError  a part of the live state lies nowhere: names the leaf and the part
    └── FeedError          another part of the run failed; carries that part's own message

All of them survive pickling, since they cross Ray and process boundaries.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def _rebuild(cls: type[MeshfeedError], args: tuple[Any, ...], state: dict[str, Any]) -> Exception:
    error = cls.__new__(cls)
    Exception.__init__(error, *args)
    error.__dict__.update(state)
    return error


class MeshfeedError(Exception):
    """Base of all errors that meshfeed raises on purpose."""

    def __reduce__(self) -> tuple[Callable[..., Exception], tuple[Any, ...]]:
        return _rebuild, (type(self), self.args, dict(self.__dict__))


class ConfigError(MeshfeedError):
    """A setting is wrong.

    Args:
        setting: the setting's name as the user writes it, e.g. ``batch_size``.
        problem: what is wrong with it, with its value.
        hint: what to do.
    """

    def __init__(self, setting: str, problem: str, hint: str = "") -> None:
        self.setting = setting
        super().__init__(f"{setting}: {problem}" + (f". {hint}" if hint else ""))


class BudgetError(ConfigError):
    """A byte budget is smaller than the smallest that works, ``needed_bytes``."""

    def __init__(self, setting: str, given_bytes: int, needed_bytes: int, why: str) -> None:
        self.given_bytes = given_bytes
        self.needed_bytes = needed_bytes
        super().__init__(
            setting,
            f"{given_bytes} bytes is too small; the smallest that works is {needed_bytes}",
            why,
        )


class DataError(MeshfeedError):
    """The content of a shard is wrong, the same on every machine and every time.

    Args:
        shard: the file's path or address.
        problem: what is wrong.
        place: where in the file (``record 17``, ``byte 4096``), empty for the file as a whole.
        hint: what to do.
    """

    def __init__(self, shard: str, problem: str, *, place: str = "", hint: str = "") -> None:
        self.shard = shard
        self.place = place
        self.problem = problem
        where = f"{shard}, {place}" if place else shard
        super().__init__(f"{where}: {problem}" + (f". {hint}" if hint else ""))


class ReadError(MeshfeedError):
    """Storage failed after all retries; says nothing about the content."""

    def __init__(self, shard: str, attempts: int, cause: str) -> None:
        self.shard = shard
        self.attempts = attempts
        super().__init__(
            f"{shard}: could not be read in {attempts} attempts, last error: {cause}. "
            "Check the storage and its credentials; read_attempts and read_timeout_seconds are its "
            "limits"
        )


class ChangedError(MeshfeedError):
    """The data set, an order setting or the tokenizer is not the one that the run began with."""


class StallError(MeshfeedError):
    """A wait ran past its limit; names who waited for what."""

    def __init__(
        self,
        waited_for: str,
        seconds: float,
        *,
        generation: int = 0,
        host: str = "",
        stage: str = "",
        shard: str = "",
    ) -> None:
        self.waited_for = waited_for
        self.seconds = seconds
        self.generation = generation
        self.host = host
        self.stage = stage
        self.shard = shard
        details = [f"generation {generation}"]
        details += [
            f"{k} {v}" for k, v in (("host", host), ("stage", stage), ("shard", shard)) if v
        ]
        super().__init__(f"no {waited_for} for {seconds:.1f} s ({', '.join(details)})")


class StaleGenerationError(MeshfeedError):
    """A message of an older generation was refused."""

    def __init__(self, sent: int, current: int) -> None:
        self.sent = sent
        self.current = current
        super().__init__(
            f"message of generation {sent} refused: the run is in generation {current}. "
            "The sender belongs to a membership that has ended and should stop"
        )


class DisagreementError(MeshfeedError):
    """Two copies of what must be the same bytes differ."""


class MissingStateError(MeshfeedError):
    """A part of the live state lies on no node any more."""

    def __init__(self, leaf: str, box: str, host: str) -> None:
        self.leaf = leaf
        self.box = box
        self.host = host
        super().__init__(
            f"no vault holds {leaf}{box}, which host {host} needs. Restore the last checkpoint"
        )


class FeedError(MeshfeedError):
    """Another part of the run failed; the message is that part's own."""
