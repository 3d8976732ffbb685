"""A link that carries a TCP connection on and keeps it open when its far end goes.

JAX's client ends its process as soon as the coordination service says goodbye or its connection
breaks, and cannot be told otherwise (a callback written in Python ends it too). So there is one
link before the service, which cuts all connections at once and without a word when a generation is
over, and one before each client, which then falls silent and says so. A process that was cut off,
or stopped and woken after its world had gone, goes on; it only cannot form new groups of devices
until it joins another world.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading

from meshfeed.pipeline.plan.errors import ConfigError, StallError

LIMIT_S = 20.0
CHUNK_BYTES = 64 * 1024


class Link:
    """One thread that carries bytes between those who connect to it and ``target``.

    Args:
        target: host:port.
        host: on which to listen.
        port: on which to listen; 0: a free one.

    Raises:
        ConfigError: it cannot listen there.
    """

    def __init__(self, target: str, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self._target = target
        self._host = host
        self._port = port
        self._lost = threading.Event()
        self._begun = threading.Event()
        self._refused: OSError | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed: asyncio.Event | None = None
        self._thread = threading.Thread(
            target=asyncio.run, args=[self._run()], name="meshfeed-world-link", daemon=True
        )
        self._thread.start()
        if not self._begun.wait(LIMIT_S):
            raise StallError(f"link to {target}", LIMIT_S)
        if self._refused is not None:
            raise ConfigError(
                "coordination service", f"cannot listen on {host}:{port}: {self._refused}"
            )

    @property
    def address(self) -> str:
        """host:port of the near end."""
        return f"{self._host}:{self._port}"

    @property
    def lost(self) -> bool:
        """Whether the target was not there, or a connection to it ended there or on the way."""
        return self._lost.is_set()

    def close(self) -> None:
        """Cuts all connections and ends the thread."""
        if self._loop is not None and self._closed is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._closed.set)
            self._thread.join(LIMIT_S)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._closed = asyncio.Event()
        try:
            server = await asyncio.start_server(self._serve, self._host, self._port)
        except OSError as error:
            self._refused = error
            self._begun.set()
            return
        self._port = server.sockets[0].getsockname()[1]
        self._begun.set()
        await self._closed.wait()
        server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until the near end closes it."""
        host, _, port = self._target.rpartition(":")
        try:
            from_target, to_target = await asyncio.open_connection(host.strip("[]"), int(port))
        except OSError:
            self._lost.set()
            writer.close()
            return
        back = asyncio.ensure_future(self._carry_back(from_target, writer))
        try:
            while data := await _read(reader):
                await _write(to_target, data)
        except asyncio.CancelledError:
            pass  # the link is closed; asyncio would log a cancelled server callback as a fault
        finally:
            back.cancel()
            to_target.transport.abort()
            writer.transport.abort()

    async def _carry_back(
        self, from_target: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while data := await _read(from_target):
            await _write(writer, data)
        self._lost.set()


async def _read(reader: asyncio.StreamReader) -> bytes:
    """What has come; nothing at the end, however it ended."""
    try:
        return await reader.read(CHUNK_BYTES)
    except OSError:
        return b""


async def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    with contextlib.suppress(OSError):  # the reading side of the connection says that it has ended
        writer.write(data)
        await writer.drain()
