"""Transforms that tests name: readers import this module."""

from __future__ import annotations

import os
import random
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
def keep_tenth(table: pa.Table) -> pa.Table:
    """Keeps the records whose id ends in 3."""
    first = pc.list_element(table["ids"], 0)
    return table.filter(pc.equal(pc.subtract(first, pc.multiply(pc.divide(first, 10), 10)), 3))


def drop_multiples_of_7(record: dict[str, Any]) -> bool:
    """Keeps the records whose id is no multiple of 7."""
    return bool(record["ids"][0] % 7)


@vectorized
def dawdle_in_reader_0(table: pa.Table) -> pa.Table:
    """50 ms for each window, as long as a certain file says which process is to be slow."""
    path = os.environ.get("MESHFEED_TEST_SLOW", "")
    if path and os.path.exists(path):
        time.sleep(0.05)
    return table


def nothing(_record: dict[str, Any]) -> bool:
    """Keeps no record."""
    return False
