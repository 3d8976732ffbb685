"""The coordination service of one generation, run outside all processes of its world."""

from __future__ import annotations

import threading
from typing import Any

from meshfeed.pipeline.assemble.worlds import private_jax
from meshfeed.pipeline.assemble.worlds.link import Link
from meshfeed.pipeline.plan.errors import ConfigError, StallError

STOP_LIMIT_S = 20.0


class CoordinationService:
    """Where the processes of a world find each other. One per generation, in a process of none.

    So no process of the world is special: any may be killed, 0 included. It holds a few kilobytes
    for each process. Whoever reaches its port can join, so it belongs on a private network.

    Args:
        process_count: processes of the world.
        host: name or address on which to listen and by which the processes reach it.
        port: to listen on; 0: a free one.

    Raises:
        ConfigError: this version of JAX cannot, or the port is taken.
    """

    def __init__(self, process_count: int, *, host: str = "127.0.0.1", port: int = 0) -> None:
        if (reason := private_jax.missing()) is not None:
            raise ConfigError("world", reason)
        self.process_count = process_count
        service, inner = private_jax.start_service(process_count)
        self._service: Any = service
        self._ending: threading.Thread | None = None
        self._door = Link(inner, host=host, port=port)

    @property
    def address(self) -> str:
        """host:port for ``join_world``."""
        return self._door.address

    def retire(self) -> None:
        """Cuts off whoever is still there, begins to stop and returns at once."""
        if self._ending is None:
            self._door.close()
            self._ending = threading.Thread(
                target=self._service.shutdown, name="meshfeed-service-end", daemon=True
            )
            self._ending.start()

    def stop(self) -> None:
        """Cuts off whoever is still there, stops, and waits for the end.

        Raises:
            StallError: it did not end.
        """
        self.retire()
        if self._ending is not None:
            self._ending.join(STOP_LIMIT_S)
            if self._ending.is_alive():
                raise StallError(f"end of the coordination service {self.address}", STOP_LIMIT_S)
        self._service = None
