"""Joining a world of JAX processes, leaving it, and joining another in the same process.

::

    world = join_world(address, generation=1, process_index=0, process_count=4, devices=2)
    ...                # jax.devices() are those of all processes; train
    world.leave()      # or world.abort(), then leave(), when others have gone
    world = join_world(other_address, generation=2, process_index=0, process_count=3, devices=2)

Arrays of a world that was left keep their values on the host but cannot be computed with.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import jax

from meshfeed.pipeline.assemble.worlds import private_jax
from meshfeed.pipeline.assemble.worlds.environment import (
    limit_collectives,
    warn_of_stale_environment,
)
from meshfeed.pipeline.assemble.worlds.link import Link
from meshfeed.pipeline.assemble.worlds.peer_sockets import (
    Address,
    cut,
    listening,
    read_address,
    write_address,
)
from meshfeed.pipeline.plan.errors import ConfigError, StaleGenerationError, StallError

logger = logging.getLogger(__name__)

LISTENERS = "meshfeed/listeners/"
POLL_S = 0.05

_current: World | None = None
_newest = -1
_joining = threading.Lock()


class World:
    """This process's place in one generation. Made by ``join_world``.

    Attributes:
        generation: of the membership.
        process_index: of this process.
        process_count: of the world.
    """

    def __init__(
        self, *, generation: int, process_index: int, process_count: int, client: Any, link: Link
    ) -> None:
        self.generation = generation
        self.process_index = process_index
        self.process_count = process_count
        self._client: Any = client
        self._link = link
        self._listeners: frozenset[Address] = frozenset()
        self._in_use: Callable[[], bool] = lambda: False
        self._leaving = threading.Lock()
        self._left = False

    @property
    def service_lost(self) -> bool:
        """Whether the coordination service has gone: the generation is over, or its keeper died.

        What is compiled and running goes on; ask the coordinator which it is.
        """
        return not self._left and self._link.lost

    @property
    def in_use(self) -> bool:
        """Whether an array, a mesh or a thread still holds on to the devices of this world.

        After ``leave`` its memory and threads go when this turns false.
        """
        return self._in_use()

    def abort(self) -> int:
        """Ends the collectives in which any thread of this process waits, from any thread.

        They raise ``JaxRuntimeError`` at once, and so do those of peers that waited for this
        process. The world is of no use afterwards: leave it. About one thread in a hundred stays:
        Gloo forgets an operation that begins while its connection breaks, until
        ``environment.COLLECTIVE_LIMIT_S``. Leaving works none the less; wait for the thread a few
        seconds only.

        Returns:
            Connections that were cut; 0 where none was left.
        """
        return cut(self._listeners)

    def leave(self) -> None:
        """Leaves, without waiting for anyone; once is enough, from any thread.

        The thread that trains should have ended: what it holds keeps the old devices and their
        memory (``in_use``), and what it asks of JAX from now on goes to the next world or to a
        world of this process alone.
        """
        global _current
        with self._leaving:
            if self._left:
                return
            _sign_off(self._client)
            self._client = None
            private_jax.leave()
            private_jax.forget_backends()
            self._link.close()
            self._left = True
        with _joining:
            if _current is self:
                _current = None
        logger.info("process %d left generation %d", self.process_index, self.generation)

    def _complete(self, timeout_s: float) -> None:
        """Makes the devices and learns by which sockets the others are reached."""
        before = listening()
        devices = jax.devices()
        self._in_use = private_jax.watch_backend()
        own = [write_address(address) for address in listening() - before]
        self._client.key_value_set(f"{LISTENERS}{self.process_index}", own[0] if own else "")
        self._client.wait_at_barrier("meshfeed/known", _ms(timeout_s))
        known = [text for _, text in self._client.key_value_dir_get(LISTENERS) if text]
        self._listeners = frozenset(map(read_address, known))
        logger.info(
            "process %d of %d joined generation %d: %d devices, %d of them here",
            *(self.process_index, self.process_count, self.generation),
            *(len(devices), jax.local_device_count()),
        )


def join_world(
    address: str,
    *,
    generation: int,
    process_index: int,
    process_count: int,
    devices: int | None = None,
    timeout_s: float = 60.0,
) -> World:
    """Joins the world whose coordination service is at ``address`` and makes its devices.

    Whatever this process had computed outside a world is forgotten. The values given here win over
    those in the environment.

    Args:
        address: of the ``CoordinationService``.
        generation: higher than that of any world this process was in.
        process_index: of this process.
        process_count: of the world.
        devices: CPU devices of this process; None: as configured.
        timeout_s: within which all processes must have joined.

    Raises:
        ConfigError: this version of JAX cannot, the process is in a world, or it has been in one
            and its platform allows no other.
        StaleGenerationError: the process has been in that generation or a later one.
        StallError: not all processes joined in time.
    """
    global _current, _newest
    if (reason := private_jax.missing()) is not None:
        raise ConfigError("world", reason)
    with _joining:
        if generation <= _newest:
            raise StaleGenerationError(generation, _newest)
        if _newest >= 0 and (reason := private_jax.supported()) is not None:
            raise ConfigError("world", f"reuse is not possible: {reason}", "Use fresh")
        if _current is not None or private_jax.in_a_world():
            held = _current.generation if _current is not None else "made by jax.distributed"
            raise ConfigError("world", f"this process is still in world {held}", "Leave it first")
        warn_of_stale_environment(address, process_index, process_count, devices)
        if private_jax.backends_exist():
            private_jax.forget_backends()
        limit_collectives()
        if devices is not None:
            jax.config.update("jax_num_cpu_devices", devices)
        began = time.monotonic()
        link = Link(address)
        place = f"process {process_index} of {process_count}"
        client = private_jax.make_client(link.address, process_index)
        if (problem := _connect(client, link, timeout_s)) is not None:
            raise _stalled(address, place, generation, began, problem)
        world = World(
            generation=generation,
            process_index=process_index,
            process_count=process_count,
            client=client,
            link=link,
        )
        private_jax.enter(client, address, process_index, process_count)
        _current, _newest = world, generation
    try:
        world._complete(timeout_s)
    except RuntimeError as error:  # JAX wraps its own in it where a backend cannot be made
        world.leave()
        raise _stalled(address, place, generation, began, str(error)) from error
    return world


def current_world() -> World | None:
    """The world that this process is in."""
    return _current


def _connect(client: Any, link: Link, timeout_s: float) -> str | None:
    """Connects, which takes until all processes do so. What went wrong, or None.

    JAX's client can neither be called back nor fail without ending the process. Where not all come,
    it is left to wait: a thread and some sockets that stay until the process ends.
    """
    outcome: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def connect() -> None:
        try:
            client.connect()
        except jax.errors.JaxRuntimeError as error:
            outcome.put(str(error))
        else:
            outcome.put(None)

    threading.Thread(target=connect, name="meshfeed-world-connect", daemon=True).start()
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        try:
            return outcome.get(timeout=POLL_S)
        except queue.Empty:
            if link.lost:
                return "the coordination service is not there or was retired"
    return "not all processes came"


def _stalled(address: str, place: str, generation: int, began: float, problem: str) -> StallError:
    first_line = problem.partition("\n")[0][:300]
    return StallError(
        f"complete world at {address} ({first_line})",
        time.monotonic() - began,
        generation=generation,
        host=place,
        stage="join",
    )


def _sign_off(client: Any) -> None:
    """Tells the service, if it is there; the others do not wait for it."""
    try:
        client.shutdown()
    except jax.errors.JaxRuntimeError as error:
        logger.info("the coordination service has gone before: %s", str(error).partition("\n")[0])


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))
