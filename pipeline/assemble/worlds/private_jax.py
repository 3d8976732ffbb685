"""Everything that forming a world again needs of JAX and that JAX does not promise to keep.

JAX joins one world in the life of a process, and lets process 0 run the coordination service, so
that all die with it. The calls behind ``jax.distributed`` can do more. They are private: all of
them are here, and ``supported`` says why not where one has changed. The fallback is new processes.

Seen to work with jax 0.10 on CPU.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.extend.backend

PATIENCE_S = 20 * 24 * 3600
"""Seconds after which JAX gives up on a process or a service; gRPC counts milliseconds in 31 bits.

JAX's client ends its process when it gives up, be it in the middle of connecting. Whoever waits has
limits of its own here, and a loss is noticed by others."""

SERVICE_ARGUMENTS = ("heartbeat_timeout", "shutdown_timeout", "recoverable")
CLIENT_ARGUMENTS = ("init_timeout", "shutdown_timeout", "shutdown_on_destruction")
CLIENT_METHODS = ("connect", "shutdown", "wait_at_barrier", "key_value_set", "key_value_dir_get")
STATE_FIELDS = ("client", "service", "process_id", "num_processes", "coordinator_address")


def supported() -> str | None:
    """Why a process cannot leave its world and join another, or None where it can."""
    platforms = jax.config.jax_platforms  # type: ignore[attr-defined]
    if platforms != "cpu":
        return (
            f"jax_platforms is {platforms or 'not set'}; forming a world again in the same process "
            "has been seen to work on cpu only, an accelerator is given back when its process ends"
        )
    try:
        from jax._src import compiler, distributed, xla_bridge
        from jax._src.lib import _jax  # type: ignore[attr-defined]
    except ImportError as error:
        return f"jax {jax.__version__} is not built as expected: {error}"
    lacking = [
        *_lacking_arguments(_jax, "get_distributed_runtime_service", SERVICE_ARGUMENTS),
        *_lacking_arguments(_jax, "get_distributed_runtime_client", CLIENT_ARGUMENTS),
        *_lacking(getattr(_jax, "DistributedRuntimeClient", None), CLIENT_METHODS),
        *_lacking(getattr(distributed, "global_state", None), STATE_FIELDS),
        *_lacking(xla_bridge, ("backends_are_initialized", "_clear_backends")),
        *_lacking(compiler, ("_cache_write",)),
        *_lacking(jax.extend.backend, ("clear_backends",)),
    ]
    return f"jax {jax.__version__} lacks {', '.join(lacking)}" if lacking else None


def _lacking(owner: object, names: tuple[str, ...]) -> list[str]:
    return [name for name in names if not hasattr(owner, name)]


def _lacking_arguments(module: object, function: str, arguments: tuple[str, ...]) -> list[str]:
    signature = getattr(module, function, None).__doc__ or ""
    return [f"{function}({name})" for name in arguments if f"{name}:" not in signature]


def start_service(address: str, process_count: int) -> Any:
    """A coordination service for processes any of which may die; ``shutdown()`` ends it.

    Args:
        address: host:port to listen on.
        process_count: processes of the world.
    """
    from jax._src.lib import _jax  # type: ignore[attr-defined]

    return _jax.get_distributed_runtime_service(
        address,
        process_count,
        heartbeat_timeout=PATIENCE_S,
        cluster_register_timeout=PATIENCE_S,
        shutdown_timeout=1,
        recoverable=True,
    )


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
    # Its caches hold meshes, and are not among those that clear_backends knows.
    for function in vars(sys.modules.get("jax.experimental.multihost_utils", object)).values():
        if hasattr(function, "cache_clear"):
            function.cache_clear()
    gc.collect()


def watch_backend() -> Callable[[], bool]:
    """A function that says whether the backend of now is still in use by anything."""
    backend = weakref.ref(jax.extend.backend.get_backend())
    return lambda: backend() is not None
