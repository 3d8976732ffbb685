"""What a route costs: bytes that devices receive, and the memory it takes on each of them."""

from __future__ import annotations

import re
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from meshfeed.pipeline.plan.errors import ConfigError
from meshfeed.pipeline.plan.reshard.collectives import MoveKind, Moves
from meshfeed.pipeline.plan.reshard.tiling import Tiling


def item_bytes(dtype: npt.DTypeLike | str) -> Fraction:
    """Bytes of an element; of types below a byte a part of one.

    Args:
        dtype: a numpy dtype, or the name of one of JAX's, ``"bfloat16"`` or ``"int4"``.

    Raises:
        ConfigError: it is no type of a fixed size.
    """
    name = dtype if isinstance(dtype, str) else str(np.dtype(dtype))
    low_bits = re.fullmatch(r"(?:u?int|float)([1-7])(?:_\w+)?", name)
    if low_bits:
        return Fraction(int(low_bits[1]), 8)
    try:
        size = np.dtype(dtype).itemsize
    except TypeError:
        bits = re.fullmatch(r"b?float(\d+)(?:_\w+)?", name)
        size = int(bits[1]) // 8 if bits else 0
    if not size:
        raise ConfigError("dtype", f"{name!r} has no fixed size", "Give a name such as 'bfloat16'")
    return Fraction(size)


def lacking(source: Tiling, target: Tiling) -> Fraction:
    """What a device needs of the array and does not hold, in parts of it: the mean over devices.

    No route brings less to the devices than this.
    """
    old, new = np.array(source.counts), np.array(target.counts)
    place, wanted = source.tile_of_device(), target.tile_of_device()
    # Along a dimension, in units of 1 / (old * new), a tile is [place * new, (place + 1) * new).
    low = np.maximum(place * new, wanted * old)
    high = np.minimum((place + 1) * new, (wanted + 1) * old)
    common = np.maximum(high - low, 0).prod(axis=1, dtype=np.int64)
    unit = Fraction(1, int((old * new).prod(dtype=np.int64)) * source.size)
    return target.share - int(common.sum()) * unit


def temporary(moves: Moves) -> Fraction:
    """Memory beside argument and result while the moves run, in parts of the array.

    As XLA's CPU backend lays out buffers: each move has a buffer for its result, freed after the
    next; an all-to-all takes its input apart and puts its output together. A slice is fused into
    what comes before it.
    """
    steps = [move for move in moves if move.kind is not MoveKind.SLICE]
    most = Fraction(0)
    for n, move in enumerate(steps):
        is_last = move is moves[-1]
        incoming = steps[n - 1].after if n else Fraction(0)
        outgoing = Fraction(0) if is_last else move.after
        if move.kind is MoveKind.ALL_TO_ALL:
            pieces = move.before * Fraction(move.group_size - 1, move.group_size)
            most = max(most, incoming + pieces + move.before, move.before + outgoing)
        else:
            most = max(most, incoming + outgoing)
    return most
