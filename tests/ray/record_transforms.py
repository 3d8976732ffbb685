"""Transforms that tests name: readers import this module."""

from __future__ import annotations

import os
import random
import signal
import time
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from meshfeed.pipeline.data.transforms import vectorized


@vectorized
def dawdle(table: pa.Table) -> pa.Table:
    """Changes nothing, but takes a while that nobody can foretell."""
    time.sleep(random.uniform(0.0, 0.08))
    return table


@vectorized
def dawdle_long(table: pa.Table) -> pa.Table:
    """Changes nothing, and takes two seconds."""
    time.sleep(2.0)
    return table


@vectorized
def keep_tenth(table: pa.Table) -> pa.Table:
    """Keeps the records whose id ends in 3."""
    first = pc.list_element(table["ids"], 0)
    return table.filter(pc.equal(pc.subtract(first, pc.multiply(pc.divide(first, 10), 10)), 3))


def drop_multiples_of_7(record: dict[str, Any]) -> bool:
    """Keeps the records whose id is no multiple of 7."""
    return bool(record["ids"][0] % 7)


@vectorized
def stop_once(table: pa.Table) -> pa.Table:
    """Changes nothing, but the first process to come here stops, as if it hung."""
    try:
        with open(os.environ["MESHFEED_TEST_STOP"], "x"):
            os.kill(os.getpid(), signal.SIGSTOP)
    except FileExistsError:
        pass
    return table


def nothing(_record: dict[str, Any]) -> bool:
    """Keeps no record."""
    return False


def die_at_13(record: dict[str, Any]) -> bool:
    """Keeps every record, but a process that comes to record 13 ends at once."""
    if record["ids"][0] == 13:
        os.kill(os.getpid(), signal.SIGKILL)
    return True
