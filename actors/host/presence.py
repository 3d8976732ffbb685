"""A host's part in its membership: it hears at once when that ends, and says when it leaves."""

from __future__ import annotations

import atexit
import logging
import sys
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import ray
from ray.actor import ActorHandle

from meshfeed.actors.host.feed_limits import cause_of
from meshfeed.actors.host.line import AGAIN_S
from meshfeed.pipeline.plan.errors import MeshfeedError
from meshfeed.pipeline.plan.membership import told_error

log = logging.getLogger(__name__)

LEAVE_LIMIT_S = 10.0
"""A process that ends does not wait longer until the coordinator has heard that it leaves."""

NO_FAILURE = (StopIteration, StopAsyncIteration, GeneratorExit)
"""Exceptions that end a loop in good order."""


class Presence:
    """One host in one opening of a feed.

    Args:
        coordinator: of the run.
        feed: its name.
        generation: of the opening.
        process_index: of this host.
        step: tells the step that this host would take next.
        on_end: told what has ended the membership.
        on_restart: told that the coordinator is another one.
    """

    def __init__(
        self,
        coordinator: ActorHandle,
        feed: str,
        generation: int,
        process_index: int,
        *,
        step: Callable[[], int],
        on_end: Callable[[BaseException], None],
        on_restart: Callable[[], None],
    ) -> None:
        self._coordinator = coordinator
        self._name = (feed, generation, process_index)
        self._step = step
        self._on_end = on_end
        self._on_restart = on_restart
        self._has_left = False
        _present.add(self)

    def take_part(self, incarnation: int) -> None:
        """Takes part with the coordinator that there is now."""
        self._call = self._coordinator.present.remote(*self._name, incarnation)
        self._coordinator.attend.remote(*self._name, [self._call])
        self._call.future().add_done_callback(self._heard)

    def leave(self, error: BaseException | None = None) -> None:
        """Takes no further step, in good order or because of an error, which all others hear."""
        if self._has_left:
            return
        self._has_left = True
        _present.discard(self)
        step = self._step()
        told = None if error is None else told_error(error, self._name[2], step)
        end = time.monotonic() + LEAVE_LIMIT_S
        while time.monotonic() < end:
            try:
                left = self._coordinator.leave.remote(*self._name, step, told)
                ray.get(left, timeout=LEAVE_LIMIT_S)
                return
            except ray.exceptions.ActorUnavailableError:
                time.sleep(AGAIN_S)
            except (MeshfeedError, ray.exceptions.RayError) as unheard:
                # The membership is over already, or nobody is there to hear it.
                log.debug("feed %s, generation %d, host %d leaves: %s", *self._name, unheard)
                return

    def _heard(self, call: Future[Any]) -> None:
        if self._has_left or not ray.is_initialized():
            return
        failure = call.exception()
        ended = call.result() if failure is None else cause_of(failure)
        if ended is None or isinstance(ended, ray.exceptions.ActorUnavailableError):
            self._on_restart()
        else:
            self._on_end(ended)


def failure_in_flight() -> BaseException | None:
    """The exception that is being handled where this is called, if it is a failure.

    So a feed that is closed in a ``finally`` or ``except`` tells why.
    """
    error = sys.exc_info()[1]
    return None if isinstance(error, NO_FAILURE) else error


_present: weakref.WeakSet[Presence] = weakref.WeakSet()


@atexit.register
def _leave_all() -> None:
    """A process that ends with a feed open leaves it, with what has ended the process."""
    interactive = hasattr(sys, "ps1")  # where an old exception is no reason to end
    uncaught = None if interactive else getattr(sys, "last_value", None)
    for presence in list(_present):
        presence.leave(uncaught)
