"""Whether all hosts have the same global batch, from what each read back from its own devices.

Every process digests the boxes on its devices and sends the digests along with its
acknowledgement; whoever receives them all checks that copies agree and that the boxes make up the
whole batch, and adds them up. No collective is needed, so a disagreement cannot hang training.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from meshfeed.pipeline.data.batches.digest import combine
from meshfeed.pipeline.plan.errors import DisagreementError

Box = tuple[int, int, int, int]
"""Row begin, row end, column begin, column end, in the global batch."""


class BoxDigest(NamedTuple):
    """The digest of one leaf in one box, as it lies on the devices of a process.

    Attributes:
        leaf: the user's name of the leaf.
        box: without the padding rows at the batch's end.
        dtype: of the leaf on the device.
        digest: of ``digest.leaf_digest``.
    """

    leaf: str
    box: Box
    dtype: str
    digest: int


def agreed_digest(
    reports: Mapping[int, Sequence[BoxDigest]], *, leaves: Sequence[str], shape: tuple[int, int]
) -> int:
    """The digest of the global batch, if all processes agree on it.

    Args:
        reports: by process, the digests of the boxes on its devices.
        leaves: that the batch must have.
        shape: (rows, columns) of the batch without padding rows.

    Returns:
        A digest that does not depend on hosts, mesh or partition.

    Raises:
        DisagreementError: two processes differ in a box, or boxes are missing or overlap.
    """
    held: dict[tuple[str, Box], tuple[int, BoxDigest]] = {}
    for process, digests in sorted(reports.items()):
        for one in digests:
            other, first = held.setdefault((one.leaf, one.box), (process, one))
            if first != one:
                raise DisagreementError(
                    f"leaf {one.leaf}, {_place(one.box)}: process {other} has {first.dtype} with "
                    f"digest {first.digest:016x}, process {process} has {one.dtype} with "
                    f"{one.digest:016x}. They must have supplied the same data"
                )
    for leaf in leaves:
        found = {box: entry for (name, box), entry in held.items() if name == leaf}
        _check_tiling(leaf, list(found), shape)
        dtypes = {one.dtype: process for process, one in found.values()}
        if len(dtypes) > 1:
            kinds = " and ".join(f"{dtype} on process {p}" for dtype, p in dtypes.items())
            raise DisagreementError(f"leaf {leaf} is {kinds}")
    unknown = sorted({leaf for leaf, _ in held} - set(leaves))
    if unknown:
        raise DisagreementError(f"leaf {unknown[0]} is none of {', '.join(leaves)}")
    return combine(one.digest for _, one in held.values())


def join_boxes(
    tiles: Iterable[tuple[Box, npt.NDArray[Any]]], shape: tuple[int, int]
) -> npt.NDArray[Any]:
    """A leaf of the global batch, [rows, columns], out of the boxes of all processes.

    Args:
        tiles: each box with its array; copies may come more than once.
        shape: (rows, columns) of the batch without padding rows.

    Raises:
        DisagreementError: the boxes do not make up the batch, or copies differ.
    """
    distinct: dict[Box, npt.NDArray[Any]] = {}
    for box, array in tiles:
        first = distinct.setdefault(box, array)
        if first.dtype != array.dtype or first.tobytes() != array.tobytes():
            raise DisagreementError(f"two copies of {_place(box)} differ")
    _check_tiling("", list(distinct), shape)
    whole = np.empty(shape, dtype=next(iter(distinct.values())).dtype)
    for (top, bottom, left, right), array in distinct.items():
        whole[top:bottom, left:right] = array
    return whole


def _check_tiling(leaf: str, boxes: Sequence[Box], shape: tuple[int, int]) -> None:
    """That the boxes cover [rows, columns] once.

    Raises:
        DisagreementError: they do not; names the first place that is wrong.
    """
    which = f"leaf {leaf}: " if leaf else ""
    if not boxes:
        raise DisagreementError(f"{which}no process has any of it")
    edges = np.array(boxes)
    rows = np.unique(np.append(edges[:, :2], [0, shape[0]]))
    cols = np.unique(np.append(edges[:, 2:], [0, shape[1]]))
    at = [np.searchsorted(line, edges[:, i]) for i, line in enumerate((rows, rows, cols, cols))]
    copies = np.zeros((len(rows) - 1, len(cols) - 1), dtype=np.int64)
    for top, bottom, left, right in zip(*at, strict=True):
        copies[top:bottom, left:right] += 1
    inside = (rows[1:] <= shape[0])[:, None] & (cols[1:] <= shape[1])[None, :]
    wrong = np.argwhere(copies != inside)
    if len(wrong):
        row, col = wrong[0]
        box = (int(rows[row]), int(rows[row + 1]), int(cols[col]), int(cols[col + 1]))
        found = f"is there {copies[row, col]} times" if copies[row, col] else "is missing"
        raise DisagreementError(f"{which}{_place(box)} of the global batch {list(shape)} {found}")


def _place(box: Box) -> str:
    return f"rows {box[0]}-{box[1] - 1}, columns {box[2]}-{box[3] - 1}"
