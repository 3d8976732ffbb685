"""The link that outlives its target, the cutting of sockets to peers, and stale variables."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from meshfeed.pipeline.assemble.worlds.environment import (
    COLLECTIVE_FLAG,
    limit_collectives,
    warn_of_stale_environment,
)
from meshfeed.pipeline.assemble.worlds.link import Link
from meshfeed.pipeline.assemble.worlds.peer_sockets import (
    cut,
    listening,
    read_address,
    write_address,
)
from meshfeed.pipeline.plan.errors import ConfigError

LIMIT_S = 20.0


@contextmanager
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(LIMIT_S)
        yield server


@contextmanager
def linked(server: socket.socket) -> Iterator[tuple[Link, socket.socket, socket.socket]]:
    """A link to the server, a connection to it, and the server's end of that."""
    link = Link(f"127.0.0.1:{server.getsockname()[1]}")
    host, port = link.address.split(":")
    with socket.create_connection((host, int(port)), timeout=LIMIT_S) as near:
        far, _ = server.accept()
        with far:
            far.settimeout(LIMIT_S)
            yield link, near, far
    link.close()


def test_a_link_carries_bytes_both_ways() -> None:
    with listener() as server, linked(server) as (link, near, far):
        payload = os.urandom(300_000)
        near.sendall(payload)
        got = b""
        while len(got) < len(payload):
            got += far.recv(1 << 16)
        assert got == payload
        far.sendall(b"answer")
        assert near.recv(100) == b"answer"
        assert not link.lost


def test_a_link_stays_open_when_its_target_goes() -> None:
    with listener() as server, linked(server) as (link, near, far):
        far.close()
        near.settimeout(1.0)
        with pytest.raises(TimeoutError):
            near.recv(1)
        assert link.lost
        near.sendall(b"to no one")
        with pytest.raises(TimeoutError):
            near.recv(1)


def test_a_link_that_is_closed_cuts_its_connections() -> None:
    with listener() as server, linked(server) as (link, near, far):
        near.sendall(b"x")
        assert far.recv(1) == b"x"
        link.close()
        for end in (near, far):
            with suppress(ConnectionResetError):
                assert end.recv(1) == b""


def test_a_link_to_no_one_says_so() -> None:
    with listener() as server:
        port = server.getsockname()[1]
    link = Link(f"127.0.0.1:{port}")
    host, own = link.address.split(":")
    with socket.create_connection((host, int(own)), timeout=LIMIT_S) as near:
        assert near.recv(1) == b""
    assert link.lost
    link.close()


def test_a_port_that_is_taken_is_named() -> None:
    with listener() as server:
        port = server.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"):
            Link("127.0.0.1:1", port=port)


def test_only_connections_of_the_listeners_are_cut() -> None:
    before = listening()
    with listener() as ours, listener() as other:
        address = ours.getsockname()
        assert listening() - before == {address, other.getsockname()}
        with (
            socket.create_connection(address, timeout=LIMIT_S) as out,
            socket.create_connection(other.getsockname(), timeout=LIMIT_S) as kept,
        ):
            inward, kept_inward = ours.accept()[0], other.accept()[0]
            with inward, kept_inward:
                assert read_address(write_address(address)) == address
                assert cut(frozenset([address])) == 2  # both ends are in this process
                assert out.recv(1) == b""
                assert inward.recv(1) == b""
                kept.sendall(b"still there")
                assert kept_inward.recv(100) == b"still there"
                assert cut(frozenset()) == 0


def test_case_18_only_variables_that_differ_are_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("JAX_NUM_PROCESSES", "3")
    monkeypatch.setenv("JAX_PROCESS_ID", "1")
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "8")
    with caplog.at_level(logging.WARNING):
        assert warn_of_stale_environment("h:1", 1, 2, None) == ["JAX_NUM_PROCESSES"]
        assert warn_of_stale_environment("h:1", 1, 3, 2) == ["JAX_NUM_CPU_DEVICES"]
    assert "JAX_NUM_PROCESSES=3 in the environment is not used: process 1 of 2" in caplog.text


def test_a_given_time_out_of_collectives_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=/x")
    limit_collectives(70)
    assert os.environ["XLA_FLAGS"] == f"--xla_dump_to=/x {COLLECTIVE_FLAG}=70"
    limit_collectives(80)
    assert os.environ["XLA_FLAGS"] == f"--xla_dump_to=/x {COLLECTIVE_FLAG}=70"
