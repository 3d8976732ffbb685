"""A host's calls to the coordinator, which may be started again meanwhile."""

from __future__ import annotations

import logging
import time
from typing import Any

import ray
from ray.actor import ActorHandle

from meshfeed.actors.messages import FeedUpdate, Opening

log = logging.getLogger(__name__)

AGAIN_S = 0.5
"""A coordinator that is being started again is asked again after so long."""


class Line:
    """From one host, for one opening of a feed, to the coordinator that there is.

    Args:
        coordinator: its handle, which outlives its process.
        feed: name.
        opening: of the feed.
        process_index: of this host.
        timeout_s: for an answer.
    """

    def __init__(
        self,
        coordinator: ActorHandle,
        feed: str,
        opening: Opening,
        process_index: int,
        timeout_s: float,
    ) -> None:
        self.incarnation = opening.incarnation
        self._coordinator = coordinator
        self._name = (feed, opening.generation, process_index)
        self._timeout_s = timeout_s

    def poll(self, **asked: Any) -> FeedUpdate | None:
        """See ``Coordinator.poll``; None where this host has to ``rejoin``."""
        update: FeedUpdate | None = self._call("poll", *self._name, self.incarnation, **asked)
        return update

    def rejoin(self, cursor: dict[str, Any], granted: int) -> None:
        """See ``Coordinator.rejoin``."""
        self.incarnation = self._call("rejoin", *self._name, cursor, granted)
        log.info("feed %s, generation %d, host %d: the coordinator is another one", *self._name)

    def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Its answer, from whichever process there is within the limit.

        Raises:
            RayActorError: there is none, and will be none.
        """
        end = time.monotonic() + self._timeout_s
        while True:
            try:
                answer = getattr(self._coordinator, method).remote(*args, **kwargs)
                return ray.get(answer, timeout=self._timeout_s)
            except ray.exceptions.ActorUnavailableError:
                if time.monotonic() > end:
                    raise
                time.sleep(AGAIN_S)
