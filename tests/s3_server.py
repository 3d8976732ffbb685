"""An S3 server on loopback that can be told to fail."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow.fs as pafs
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class FailingServer:
    """moto's S3 behind a gate.

    Attributes:
        fail_gets: so many of the next GET requests for objects are answered with 503.
        hold_gets: so many are not answered until ``release`` is set.
        requests: (method, path, query) of all requests so far.
        url: of the server.
    """

    def __init__(self) -> None:
        self.fail_gets = 0
        self.hold_gets = 0
        self.release = threading.Event()
        self.requests: list[tuple[str, str, str]] = []
        self._app: Wsgi = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def serve(self) -> None:
        self._server.serve_forever(poll_interval=0.05)

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        self.requests.append((method, path, environ["QUERY_STRING"]))
        is_object = path.rstrip("/").count("/") > 1
        if method == "GET" and is_object and self.fail_gets > 0:
            self.fail_gets -= 1
            start("503 Slow Down", [("Content-Type", "application/xml")])
            return [b"<Error><Code>SlowDown</Code><Message>told to fail</Message></Error>"]
        if method == "GET" and is_object and self.hold_gets > 0:
            self.hold_gets -= 1
            self.release.wait()
        return self._app(environ, start)


@contextmanager
def serving() -> Iterator[FailingServer]:
    server = FailingServer()
    thread = threading.Thread(target=server.serve, name="s3-server", daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join()


def filesystem(server: FailingServer) -> pafs.S3FileSystem:
    """For the tests' own writes."""
    return pafs.S3FileSystem(
        endpoint_override=server.url.removeprefix("http://"),
        scheme="http",
        region="us-east-1",
        access_key="test",
        secret_key="test",
        allow_bucket_creation=True,
    )


def put(server: FailingServer, files: dict[str, bytes]) -> None:
    """Write objects, ``bucket/key`` -> content."""
    store = filesystem(server)
    for bucket in {name.split("/")[0] for name in files}:
        store.create_dir(bucket)
    for name, content in files.items():
        with store.open_output_stream(name) as stream:
            stream.write(content)
