"""Variables of the environment that a world depends on, or that speak of another one."""

from __future__ import annotations

import logging
import os

logger = logging.getLogger(__name__)

COLLECTIVE_FLAG = "--xla_cpu_collective_timeout_seconds"

COLLECTIVE_LIMIT_S = 600
"""After which Gloo ends a wait for a peer by itself; longer than any healthy wait for one."""


def warn_of_stale_environment(
    address: str, process_index: int, process_count: int, devices: int | None
) -> list[str]:
    """Names the variables that differ from the given values, which win.

    JAX itself would take some of them where it is not told, and wait for processes that no one
    starts.

    Returns:
        The names of these variables.
    """
    given = {
        "JAX_COORDINATOR_ADDRESS": address,
        "JAX_COORDINATOR_BIND_ADDRESS": None,
        "JAX_COORDINATOR_PORT": address.rpartition(":")[2],
        "JAX_NUM_PROCESSES": str(process_count),
        "JAX_PROCESS_COUNT": str(process_count),
        "JAX_PROCESS_ID": str(process_index),
        "JAX_PROCESS_INDEX": str(process_index),
        "JAX_LOCAL_DEVICE_IDS": None,
        "JAX_NUM_CPU_DEVICES": None if devices is None else str(devices),
    }
    stale = []
    for name, value in given.items():
        found = os.environ.get(name)
        if found is None or found == value or (name == "JAX_NUM_CPU_DEVICES" and devices is None):
            continue
        stale.append(name)
        logger.warning(
            "%s=%s in the environment is not used: process %d of %d joins the world at %s. "
            "Unset it",
            *(name, found, process_index, process_count, address),
        )
    return stale


def limit_collectives(seconds: int = COLLECTIVE_LIMIT_S) -> None:
    """Sets the time-out of CPU collectives, unless XLA_FLAGS has one.

    XLA reads its flags once, before the first backend of a process is made.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    if COLLECTIVE_FLAG not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {COLLECTIVE_FLAG}={seconds}".strip()
