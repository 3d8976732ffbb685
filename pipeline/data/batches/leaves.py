"""The leaves of a batch: what a model is given, derived from a region.

==================  ===============  =========================================================
leaf                dtype            value at a token of segment s (1, 2, ... within the row)
==================  ===============  =========================================================
``tokens``          int32            the token
``targets``         int32            the next token of the same record, 0 where the weight is 0
``segment_ids``     int32            s
``positions``       int32            how far the token is from the first of its segment
``loss_weights``    float32          1 where the next token is one of the same record that counts
==================  ===============  =========================================================

All are [rows, cols] and 0 at padding. A weight belongs to the target token. ``loss_weights`` of an
integer dtype hold the segment id where the weight is 1 (MaxText's ``targets_segmentation``).

A region is a list of *runs*: maximal stretches of tokens of one segment, or of padding. Leaves that
are constant or rise by one within a run are expanded run by run with ``np.repeat`` and copied into
place, in a third of the time that ``np.cumsum`` over the starts takes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from meshfeed.pipeline.data.batches.regions import Region
from meshfeed.pipeline.data.memory import Bytes, aligned_empty, round_up
from meshfeed.pipeline.plan.config import LEAF_PRESETS, LEAVES
from meshfeed.pipeline.plan.errors import ConfigError

Leaf = npt.NDArray[Any]

_TOKENS_AT_ONCE = 1 << 18
"""A larger region is done some rows at a time, so that what is expanded stays in the cache."""

DEFAULT_DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(np.float32 if name == "loss_weights" else np.int32) for name in LEAVES
}


def name_leaves(names: str | Mapping[str, str]) -> dict[str, str]:
    """The user's name of each leaf of ``LEAVES``.

    Args:
        names: a preset of ``LEAF_PRESETS``, or names by leaf; a leaf not named keeps its own.

    Raises:
        ConfigError: an unknown preset.
    """
    if not isinstance(names, str):
        return {leaf: names.get(leaf, leaf) for leaf in LEAVES}
    if names not in LEAF_PRESETS:
        raise ConfigError(
            "leaf_names", f"{names!r} is not known", f"Known: {', '.join(LEAF_PRESETS)}"
        )
    return LEAF_PRESETS[names]


def named_dtypes(leaves: Iterable[str], names: Mapping[str, str]) -> dict[str, np.dtype[Any]]:
    """Dtype of each leaf under the user's names; MaxText's weights are segment ids, integers."""
    dtypes = {leaf: DEFAULT_DTYPES[leaf] for leaf in leaves}
    if names["loss_weights"].endswith("_segmentation") and "loss_weights" in dtypes:
        dtypes["loss_weights"] = np.dtype(np.int32)
    return dtypes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Runs:
    """The runs of a region, over its tokens row by row.

    Attributes:
        counts: int64 [runs], tokens in each.
        ids: int32 [runs], segment ids, 0 for padding.
        origins: int32 [runs], where position 0 lies or would lie, past the end for padding.
        last: int64 [k], tokens whose next token is of another segment or padding.
        padded: some run is padding.
    """

    counts: npt.NDArray[np.int64]
    ids: npt.NDArray[np.int32]
    origins: npt.NDArray[np.int32]
    last: npt.NDArray[np.int64]
    padded: bool


def derive(
    region: Region,
    wanted: Iterable[str] = LEAVES,
    dtypes: Mapping[str, npt.DTypeLike] | None = None,
    *,
    out: Mapping[str, Leaf] | None = None,
    memory: Callable[[int], Bytes] = aligned_empty,
) -> dict[str, Leaf]:
    """The leaves of a region.

    Args:
        region: what was cut and sent.
        wanted: names of ``LEAVES``.
        dtypes: dtypes other than the default, by leaf.
        out: arrays to write into, by leaf, C-contiguous. Only for who knows that no live array
            shares their memory: ``jax.device_put`` on a CPU takes aligned memory over.
        memory: gives aligned bytes for the others; see ``recycle``.

    Returns:
        [rows, cols] for each wanted leaf; those not in ``out`` share one piece of memory, each at
        a multiple of 64 bytes.

    Raises:
        ConfigError: an unknown leaf, or an array of ``out`` that does not fit.
    """
    leaves = _allocate(region, tuple(wanted), dtypes or {}, out or {}, memory)
    step = max(1, _TOKENS_AT_ONCE // region.cols)
    if region.rows <= step:
        _fill(region, leaves)
        return leaves
    for begin in range(0, region.rows, step):
        some = slice(begin, begin + step)
        part = Region(
            format=region.format,
            header=region.header[some],
            tokens=region.tokens[some],
            starts=region.starts[some],
            loss=None if region.loss is None else region.loss[some],
        )
        _fill(part, {name: leaf[some] for name, leaf in leaves.items()})
    return leaves


def _fill(region: Region, leaves: dict[str, Leaf]) -> None:
    """Write all leaves of a region, one pass over each."""
    if not region.rows:
        return
    if "tokens" in leaves:
        np.copyto(leaves["tokens"], region.tokens[:, :-1], casting="unsafe")
        if len(leaves) == 1:
            return
    runs = _find_runs(region)
    ignored = _ignored(region)
    if "targets" in leaves:
        np.copyto(leaves["targets"], region.tokens[:, 1:], casting="unsafe")
        _clear(leaves["targets"], runs, ignored)
    if "segment_ids" in leaves:
        _expand(leaves["segment_ids"], runs.ids, runs)
    if "positions" in leaves:
        _expand(leaves["positions"], runs.origins, runs)
        positions = leaves["positions"].reshape(-1)
        np.subtract(_iota(len(positions)), positions, out=positions, casting="unsafe")
        if runs.padded:
            np.maximum(positions, 0, out=positions)
    if "loss_weights" in leaves:
        weights = leaves["loss_weights"]
        if weights.dtype.kind in "iu":
            _expand(weights, runs.ids, runs)
        elif runs.padded:
            _expand(weights, (runs.ids > 0).astype(weights.dtype), runs)
        else:
            weights.fill(1)
        _clear(weights, runs, ignored)


def _expand(leaf: Leaf, values: npt.NDArray[Any], runs: _Runs) -> None:
    """Write each run's value at all of its tokens."""
    np.copyto(leaf.reshape(-1), np.repeat(values, runs.counts), casting="unsafe")


def _clear(leaf: Leaf, runs: _Runs, ignored: npt.NDArray[np.bool_] | None) -> None:
    """Write 0 at the tokens whose target has no weight; padding is 0 already."""
    leaf.reshape(-1)[runs.last] = 0
    if ignored is not None:
        np.copyto(leaf, 0, where=ignored)


def _ignored(region: Region) -> npt.NDArray[np.bool_] | None:
    """Tokens [rows, cols] whose target the loss mask leaves out."""
    if region.loss is None:
        return None
    bits = np.unpackbits(region.loss, axis=1, bitorder="little", count=region.cols + 1)
    return np.equal(bits[:, 1:], 0)


@functools.lru_cache(maxsize=8)
def _iota(size: int) -> npt.NDArray[np.int32]:
    iota = np.arange(size, dtype=np.int32)
    iota.flags.writeable = False
    return iota


def _allocate(
    region: Region,
    wanted: tuple[str, ...],
    dtypes: Mapping[str, npt.DTypeLike],
    out: Mapping[str, Leaf],
    memory: Callable[[int], Bytes],
) -> dict[str, Leaf]:
    shape = (region.rows, region.cols)
    kinds = {}
    for name in wanted:
        if name not in LEAVES:
            raise ConfigError("leaves", f"{name!r} is unknown", f"Known are {', '.join(LEAVES)}")
        dtype = DEFAULT_DTYPES[name] if name not in dtypes else np.dtype(dtypes[name])
        if name != "loss_weights" and (dtype.kind != "i" or dtype.itemsize < 4):
            raise ConfigError(f"leaves.{name}", f"{dtype} cannot hold it", "Use int32 or int64")
        leaf = out.get(name)
        if leaf is not None and not (
            leaf.shape == shape and leaf.dtype == dtype and leaf.flags.c_contiguous
        ):
            raise ConfigError(
                f"leaves.{name}",
                f"{leaf.dtype}{list(leaf.shape)} was given to hold {dtype}{list(shape)}",
                "Give C-contiguous arrays of the leaf's shape and dtype",
            )
        kinds[name] = dtype
    sizes = {name: shape[0] * shape[1] * kinds[name].itemsize for name in kinds if name not in out}
    piece = memory(sum(round_up(size) for size in sizes.values()))
    leaves, begin = dict(out), 0
    for name, size in sizes.items():
        leaves[name] = piece[begin : begin + size].view(kinds[name]).reshape(shape)
        begin += round_up(size)
    return {name: leaves[name] for name in kinds}


def _find_runs(region: Region) -> _Runs:
    """Runs begin at column 0, at every start, and where the padding begins (it has a start bit).

    A start in the column that is only a target makes an empty run at the end of its row.
    """
    rows, cols = region.rows, region.cols
    before, position, unmasked = region.header.T
    starts = region.starts.copy()
    goes_on = 1 - (starts[:, 0] & 1).astype(np.int32)
    starts[:, 0] |= 1
    row, col = _set_bits(starts)
    begins = row * cols + col
    inner = col > 0
    first = np.flatnonzero(~inner)

    counts = np.empty_like(begins)
    np.subtract(begins[1:], begins[:-1], out=counts[:-1])
    counts[-1] = rows * cols - begins[-1]
    ids = np.arange(1, len(row) + 1) - (first + goes_on - before)[row]
    origins = begins.astype(np.int32)
    origins[first] -= position * goes_on
    padded = bool(unmasked.min() < cols)
    if padded:
        padding = col >= unmasked[row]
        ids[padding] = 0
        origins[padding] = rows * cols
    return _Runs(
        counts=counts,
        ids=ids.astype(np.int32),
        origins=origins,
        last=begins[inner] - 1,
        padded=padded,
    )


def _set_bits(bitmap: Bytes) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Row and number of each bit that is set in ``bitmap`` [rows, bytes], in order.

    Few are: only the bytes that are not 0 are looked into.
    """
    places = np.flatnonzero(bitmap != 0)
    bits = np.unpackbits(bitmap.reshape(-1)[places], bitorder="little")
    found = np.flatnonzero(bits.view(np.bool_))
    row, byte = np.divmod(places[found >> 3], bitmap.shape[1])
    return row, 8 * byte + (found & 7)
