"""How long this process has spent on tracing and compiling, as JAX tells it."""

from __future__ import annotations

import threading

import jax

_EVENTS = "/jax/core/compile/"

_lock = threading.Lock()
_listens = False
_seconds = 0.0


def compile_seconds() -> float:
    """Seconds so far, of all threads, from the first call on."""
    global _listens
    with _lock:
        if not _listens:
            jax.monitoring.register_event_duration_secs_listener(_hear)
            _listens = True
        return _seconds


def _hear(event: str, duration_secs: float, **_: object) -> None:
    global _seconds
    if event.startswith(_EVENTS):
        with _lock:
            _seconds += duration_secs
