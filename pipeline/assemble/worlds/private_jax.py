"""Everything that forming a world again needs of JAX and that JAX does not promise to keep.

JAX joins one world in the life of a process, and lets process 0 run the coordination service, so
that all die with it. The calls behind ``jax.distributed`` can do more. They are private: all of
them are here, and ``supported`` says why not where one has changed. The fallback is new processes.

Seen to work with jax 0.10 on CPU.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import socket
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.extend.backend

from meshfeed.pipeline.plan.errors import ConfigError

logger = logging.getLogger(__name__)

PORT_ATTEMPTS = 5

CACHING_MODULES = ("jax.experimental.multihost_utils", "meshfeed.pipeline.assemble.")
"""With caches that hold meshes and programs, and so their devices; JAX clears its own only."""

PATIENCE_S = 20 * 24 * 3600
"""Seconds after which JAX gives up on a process or a service; gRPC counts milliseconds in 31 bits.

JAX's client ends its process when it gives up, be it in the middle of connecting. Whoever waits has
limits of its own here, and a loss is noticed by others."""

SERVICE_ARGUMENTS = ("heartbeat_timeout", "shutdown_timeout", "recoverable")
CLIENT_ARGUMENTS = ("init_timeout", "shutdown_timeout", "shutdown_on_destruction")
CLIENT_METHODS = ("connect", "shutdown", "wait_at_barrier", "key_value_set", "key_value_dir_get")
CACHE_NAMES = ("_cache", "_cache_initialized", "put_executable_and_time", "reset_cache")
STATE_FIELDS = ("client", "service", "process_id", "num_processes", "coordinator_address")


def supported() -> str | None:
    """Why a process cannot leave its world and join another, or None where it can."""
    platforms = jax.config.jax_platforms  # type: ignore[attr-defined]
    if platforms != "cpu":
        return (
            f"jax_platforms is {platforms or 'not set'}; forming a world again in the same process "
            "has been seen to work on cpu only, an accelerator is given back when its process ends"
        )
    return missing()


def missing() -> str | None:
    """Which of JAX's calls are not as this module knows them, or None where all are.

    They are needed for the first world of a process as well, on any platform.
    """
    try:
        from jax._src import compilation_cache, compiler, dispatch, distributed, xla_bridge
        from jax._src.lib import _jax, xla_client  # type: ignore[attr-defined]
    except ImportError as error:
        return f"jax {jax.__version__} is not built as expected: {error}"
    lacking = [
        *_lacking_arguments(_jax, "get_distributed_runtime_service", SERVICE_ARGUMENTS),
        *_lacking_arguments(_jax, "get_distributed_runtime_client", CLIENT_ARGUMENTS),
        *_lacking(getattr(_jax, "DistributedRuntimeClient", None), CLIENT_METHODS),
        *_lacking(getattr(distributed, "global_state", None), STATE_FIELDS),
        *_lacking(xla_bridge, ("backends_are_initialized", "_clear_backends")),
        *_lacking(compiler, ("_cache_write",)),
        *_lacking(compilation_cache, CACHE_NAMES),
        *_lacking(dispatch, ("runtime_tokens",)),
        *_lacking(_jax, ("make_gloo_tcp_collectives",)),
        *_lacking(xla_client, ("make_cpu_client",)),
        *_lacking(jax.extend.backend, ("clear_backends",)),
    ]
    return f"jax {jax.__version__} lacks {', '.join(lacking)}" if lacking else None


def _lacking(owner: object, names: tuple[str, ...]) -> list[str]:
    return [name for name in names if not hasattr(owner, name)]


def _lacking_arguments(module: object, function: str, arguments: tuple[str, ...]) -> list[str]:
    signature = getattr(module, function, None).__doc__ or ""
    return [f"{function}({name})" for name in arguments if f"{name}:" not in signature]


def start_service(process_count: int) -> tuple[Any, str]:
    """A coordination service for processes any of which may die; ``shutdown()`` ends it.

    It must not be ended while a client is connected that has not been shut down: that ends the
    client's process.

    Args:
        process_count: processes of the world.

    Returns:
        The service, and its address on loopback.

    Raises:
        ConfigError: no port could be had.
    """
    from jax._src.lib import _jax  # type: ignore[attr-defined]

    for _ in range(PORT_ATTEMPTS):
        with socket.socket() as probe:  # gRPC does not say which port it took for 0
            probe.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{probe.getsockname()[1]}"
        try:
            service = _jax.get_distributed_runtime_service(
                address,
                process_count,
                heartbeat_timeout=PATIENCE_S,
                cluster_register_timeout=PATIENCE_S,
                shutdown_timeout=1,
                recoverable=True,
            )
        except RuntimeError as error:  # another process was quicker to take the port
            problem = error
        else:
            return service, address
    raise ConfigError("coordination service", f"cannot listen on loopback: {problem}")


def make_client(address: str, process_index: int) -> Any:
    """A client of the service at ``address``, which waits in ``connect()`` for all processes."""
    from jax._src.lib import _jax  # type: ignore[attr-defined]

    return _jax.get_distributed_runtime_client(
        address,
        process_index,
        init_timeout=PATIENCE_S,
        shutdown_timeout=1,
        heartbeat_timeout=PATIENCE_S,
        shutdown_on_destruction=False,
        use_compression=True,
    )


def enter(client: Any, address: str, process_index: int, process_count: int) -> None:
    """Tells JAX of its world, as ``jax.distributed.initialize`` would.

    ``jax.process_index``, ``multihost_utils`` and checkpoint libraries read it from there.
    """
    from jax._src import distributed

    state = distributed.global_state
    state.client = client
    state.service = None
    state.process_id = process_index
    state.num_processes = process_count
    state.coordinator_address = address


def leave() -> None:
    """Makes JAX forget its world, so that ``jax.devices`` would make a backend for one process."""
    from jax._src import distributed

    state = distributed.global_state
    state.client = None
    state.service = None
    state.process_id = 0
    state.num_processes = 1
    state.coordinator_address = None


def in_a_world() -> bool:
    """Whether JAX has joined a world, by this module or by ``jax.distributed``."""
    from jax._src import distributed

    return distributed.global_state.client is not None


def backends_exist() -> bool:
    """Whether a backend is there, made by the first use of a device."""
    from jax._src import xla_bridge

    return xla_bridge.backends_are_initialized()


def forget_backends() -> None:
    """Drops all backends and everything compiled for them.

    A backend ends when the last array, mesh or thread that uses it does. Arrays stay readable.
    """
    from jax._src import dispatch

    try:
        jax.extend.backend.clear_backends()
    except jax.errors.JaxRuntimeError:
        # An ordered effect of a computation that failed with its world.
        dispatch.runtime_tokens.clear()
        jax.extend.backend.clear_backends()
    for name, module in tuple(sys.modules.items()):
        if name.startswith(CACHING_MODULES):
            for function in tuple(vars(module).values()):
                if hasattr(function, "cache_clear"):
                    function.cache_clear()
    gc.collect()


def watch_backend() -> Callable[[], bool]:
    """A function that says whether the backend of now is still in use by anything."""
    backend = weakref.ref(jax.extend.backend.get_backend())
    return lambda: backend() is not None


def use_cache(cache: Any) -> None:
    """Lets the compilation cache read from ``cache`` and every process write to it.

    Args:
        cache: has ``get(key)`` and ``put(key, value)``.
    """
    from jax._src import compilation_cache, compiler

    compilation_cache.reset_cache()
    compilation_cache._cache = cache
    compilation_cache._cache_initialized = True
    compiler._cache_write = _write_from_any_process


def _write_from_any_process(  # noqa: PLR0917 - the arguments are JAX's
    cache_key: str,
    compile_time_secs: float,
    module_name: str,
    backend: Any,
    executable: Any,
    host_callbacks: Any,
) -> None:
    """As JAX's own, which does nothing where the process is not 0."""
    from jax._src import compilation_cache

    if host_callbacks:
        return  # they are addresses of this process
    try:
        compilation_cache.put_executable_and_time(
            cache_key, module_name, executable, backend, int(compile_time_secs)
        )
    except (OSError, jax.errors.JaxRuntimeError) as error:
        logger.warning("%s was compiled and could not be kept: %s", module_name, error)


@contextlib.contextmanager
def pretended_world(process_count: int, process_index: int, devices: int) -> Iterator[list[Any]]:
    """The devices of a world as one of its processes sees them; all of them are in this process.

    Raises:
        ConfigError: they could not be made.
    """
    service, address = start_service(process_count)
    clients = [make_client(address, index) for index in range(process_count)]
    kept: list[Any] = []
    problems: list[str] = []

    def make(index: int) -> None:
        try:
            clients[index].connect()
            backend = _compiling_backend(clients[index], index, process_count, devices)
        except (RuntimeError, TypeError) as error:
            problems.append(str(error))
        else:
            if index == process_index:  # the others were only there to be seen by it
                kept.append(backend)

    threads = [
        threading.Thread(target=make, args=[index], name="meshfeed-pretend", daemon=True)
        for index in range(process_count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        if problems:
            raise ConfigError("compile ahead", f"no devices to compile for: {problems[0]}")
        yield kept[0].devices()
    finally:
        kept.clear()
        for client in clients:
            client.shutdown()
        service.shutdown()


def _compiling_backend(client: Any, index: int, process_count: int, devices: int) -> Any:
    from jax._src.lib import _jax, xla_client  # type: ignore[attr-defined]

    return xla_client.make_cpu_client(
        asynchronous=True,
        distributed_client=client,
        # Without it no program that spans processes can be compiled.
        collectives=_jax.make_gloo_tcp_collectives(distributed_client=client),
        node_id=index,
        num_nodes=process_count,
        num_devices=devices,
    )
