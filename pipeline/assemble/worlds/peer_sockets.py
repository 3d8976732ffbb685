"""The sockets over which the processes of a world exchange data on CPU, found and cut.

When a process dies or hangs in the middle of a collective, the others wait in it: those that wait
for each other are not told, and would wait until the time-out of the collective, which must be
longer than any healthy wait. Gloo gives no way to end a collective from outside, but a connection
that is shut down fails at once on both sides, so the thread that is stuck raises within
milliseconds, and so do the peers that were waiting for this process.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

Address = tuple[str, int]

DESCRIPTORS = Path("/proc/self/fd")


def listening() -> frozenset[Address]:
    """(host, port) of all TCP sockets on which this process listens."""
    found = set()
    for name in os.listdir(DESCRIPTORS):
        with _tcp_socket(int(name)) as one:
            if one is not None and _listens(one):
                found.add(_short(one.getsockname()))
    return frozenset(found)


def cut(listeners: frozenset[Address]) -> int:
    """Shuts down this process's connections that were made through any of ``listeners``.

    Args:
        listeners: (host, port), own ones and those of other processes.

    Returns:
        How many there were.
    """
    count = 0
    for name in os.listdir(DESCRIPTORS):
        with _tcp_socket(int(name)) as one:
            if one is not None and not _listens(one) and _ends(one) & listeners:
                try:
                    one.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue  # it has ended by itself
                count += 1
    return count


def write_address(address: Address) -> str:
    """``host port``."""
    return f"{address[0]} {address[1]}"


def read_address(text: str) -> Address:
    """What ``write_address`` wrote."""
    host, port = text.split(" ")
    return host, int(port)


@contextmanager
def _tcp_socket(descriptor: int) -> Iterator[socket.socket | None]:
    """A second handle of a TCP socket: the number may be another's by the time it is used."""
    try:
        copy = os.dup(descriptor)
    except OSError:
        yield None
        return
    try:
        handle = socket.socket(fileno=copy)
    except OSError:  # no socket
        os.close(copy)
        yield None
        return
    with handle:
        inet = handle.family in (socket.AF_INET, socket.AF_INET6)
        yield handle if inet and handle.type == socket.SOCK_STREAM else None


def _listens(one: socket.socket) -> bool:
    return bool(one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _ends(one: socket.socket) -> frozenset[Address]:
    try:
        return frozenset((_short(one.getsockname()), _short(one.getpeername())))
    except OSError:  # not connected, or no longer
        return frozenset()


def _short(name: tuple[str, int] | tuple[str, int, int, int]) -> Address:
    return name[0], name[1]
