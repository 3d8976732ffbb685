"""The global batch as it lies on the devices, read back from there.

Each process reads the boxes of its own devices; ``pipeline.data.batches.agreement`` puts together
what all of them found. Padding rows at the end of the batch lie outside.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from meshfeed.pipeline.assemble.shardings import box_of
from meshfeed.pipeline.data.batches.agreement import Box, BoxDigest
from meshfeed.pipeline.data.batches.digest import leaf_digest
from meshfeed.pipeline.plan.errors import DisagreementError


def box_digests(
    arrays: Mapping[str, jax.Array], *, first_row: int, real_rows: int
) -> tuple[BoxDigest, ...]:
    """Digests of the boxes on this process's devices, each distinct box once.

    Waits until the arrays are there, and for no other process.

    Args:
        arrays: global [rows, columns] leaves by name.
        first_row: global row, in the order of the run, of the batch's row 0.
        real_rows: rows of the batch that are not padding.

    Raises:
        DisagreementError: two devices of this process have different copies of a box.
    """
    digests = []
    for name, array in arrays.items():
        for (top, bottom, left, right), tile in read_boxes(name, array, real_rows=real_rows):
            rows = np.arange(first_row + top, first_row + bottom, dtype=np.int64)
            digest = int(leaf_digest(name, rows, left, tile))
            digests.append(BoxDigest(name, (top, bottom, left, right), str(tile.dtype), digest))
    return tuple(digests)


def read_boxes(
    name: str, array: jax.Array, *, real_rows: int
) -> Iterator[tuple[Box, npt.NDArray[Any]]]:
    """The distinct boxes of a leaf on this process's devices, in ascending order.

    Args:
        name: of the leaf, for errors.
        array: global [rows, columns].
        real_rows: rows of the batch that are not padding; boxes end there.

    Yields:
        (box, [box rows, box columns]). The arrays may be views of device memory: copy what must
        outlive the batch.

    Raises:
        DisagreementError: two devices of this process have different copies of a box.
    """
    rows, columns = array.shape
    copies: dict[Box, list[Any]] = {}
    for shard in array.addressable_shards:
        copies.setdefault(box_of(shard.index, (rows, columns)), []).append(shard)
    for box, shards in sorted(copies.items()):
        top, bottom, left, right = box
        end = min(bottom, real_rows)
        if end <= top:
            continue
        tile = np.asarray(shards[0].data)[: end - top]
        for other in shards[1:]:
            if np.asarray(other.data)[: end - top].tobytes() != tile.tobytes():
                raise DisagreementError(
                    f"process {jax.process_index()}, leaf {name}, rows {top}-{end - 1}, columns "
                    f"{left}-{right - 1}: devices {shards[0].device} and {other.device} have "
                    "different copies"
                )
        yield (top, end, left, right), tile
