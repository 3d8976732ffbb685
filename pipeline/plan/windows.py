"""How an epoch of a source is cut into windows.

The chunks of the source, permuted over the whole of it unless shuffle is ``none``, form a stream
of units. *Groups* are the chunks whose start in that stream falls into the same bucket, of
``window_size`` units. Where records are shuffled the stream of ``n`` units is divided evenly into
``round(n / group_size)`` buckets, so that no group is so small that its rows are hardly mixed: the
windows of a group draw from all of its chunks, which a node keeps while it runs them. A group of
``s`` units is cut into ``round(s / window_size)`` windows of the same size. The number of records
in a chunk is only known once it is read, so a window owns a fraction ``[lo/den, hi/den)`` of its
group's records.

Sources with random access need no groups for ``record``: a window is a range of the permuted
records of the whole source.

The first group of a run is cut along a ramp, 1/16, 1/8, 1/4 and 1/2 of a window, so that the first
batch is there soon. Later epochs have none: it would only cost padding.

==========  =============================================================
index       runs over
==========  =============================================================
position    the chunks in the order of the epoch: ``[num_chunks]``
group       groups of consecutive positions: ``[groups]``
window      the windows of the epoch, group by group: ``[num_windows]``
==========  =============================================================
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshfeed.pipeline.plan.config import Shuffle
from meshfeed.pipeline.plan.manifest import ChunkRef, SourceManifest, Unit
from meshfeed.pipeline.plan.shuffle import derive_key, permute

Int64s = npt.NDArray[np.int64]

_RAMP = (16, 8, 4, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A window: what to read, and which of the records read belong to it.

    Attributes:
        source: name of the source.
        epoch: pass over the source.
        index: in its epoch.
        group: windows of one epoch with the same group read the same chunks.
        chunks: of the group, in the order in which their records are counted; none where
            ``records`` is given.
        lo, hi, den: of the ``N`` records of the group, the window owns those at
            ``[floor(N * lo / den), floor(N * hi / den))`` of the group's record order.
        record_key: permutes the records of the group (of the source, where ``records`` is
            given); 0: they keep their order.
        records: with random access, the range of the source's permuted records.
    """

    source: str
    epoch: int
    index: int
    group: int
    chunks: tuple[ChunkRef, ...]
    lo: int
    hi: int
    den: int
    record_key: int
    records: tuple[int, int] | None = None

    def span(self, num_records: int) -> tuple[int, int]:
        """The places ``[begin, end)`` in the record order that the window owns.

        Args:
            num_records: of the group; of the source, where ``records`` is given.
        """
        return num_records * self.lo // self.den, num_records * self.hi // self.den

    def record_order(self, num_records: int) -> Int64s:
        """The records of the window, in its order.

        Args:
            num_records: of the group; of the source, where ``records`` is given.

        Returns:
            int64 ``[k]``: indices of records, counted over the chunks of the group in order, or
            over the shards of the source where ``records`` is given.
        """
        begin, end = self.span(num_records)
        places = np.arange(begin, end, dtype=np.int64)
        return permute(places, num_records, self.record_key) if self.record_key else places


class EpochWindows:
    """The windows of one epoch of a source, a pure function of the arguments.

    Args:
        manifest: of the source.
        shuffle: how records are mixed.
        seed: of the feed.
        epoch: pass over the source, from 0.
    """

    def __init__(self, manifest: SourceManifest, shuffle: Shuffle, seed: int, epoch: int) -> None:
        self._manifest = manifest
        self._epoch = epoch
        self._names = (seed, manifest.name, epoch)
        self._by_record = shuffle is Shuffle.RECORD
        self._whole_source = self._by_record and manifest.random_access
        if self._whole_source and manifest.unit is not Unit.RECORDS:
            raise ValueError(f"{manifest.name}: random access needs sizes in records, not bytes")
        sizes = manifest.chunk_sizes
        if self._whole_source:
            total = int(sizes.sum())
            order = np.zeros(0, np.int64)
            firsts = np.zeros(1 if total else 0, np.int64)
            units = np.full(len(firsts), total)
        else:
            order = self._chunk_order(shuffle)
            bucket = manifest.window_size
            if self._by_record:
                bucket = _even_part(int(sizes.sum()), manifest.group_size)
            firsts, units = _groups(sizes[order], bucket)
        self._order = order
        self._group_positions = np.append(firsts, len(order))
        self._group_units = units
        windows = np.maximum(1, _rounded(units, manifest.window_size))
        self._ramp: list[int] = []
        if epoch == 0 and len(units):
            self._ramp = _ramp_cuts(int(units[0]), manifest.window_size)
            windows[0] = len(self._ramp) - 1
        self._group_windows = np.concatenate([np.zeros(1, np.int64), np.cumsum(windows)])

    @property
    def num_windows(self) -> int:
        """Windows of the epoch; 0 for a source without chunks."""
        return int(self._group_windows[-1])

    @property
    def num_groups(self) -> int:
        """Groups of the epoch."""
        return len(self._group_units)

    def window(self, index: int) -> Window:
        """The window with this index.

        Raises:
            IndexError: the epoch has no such window.
        """
        group = self._group(index)
        first, end = self._group_windows[group : group + 2].tolist()
        if group == 0 and self._ramp:
            lo, hi, den = self._ramp[index], self._ramp[index + 1], self._ramp[-1]
        else:
            lo, hi, den = index - first, index - first + 1, end - first
        if self._whole_source:
            total = int(self._group_units[0])
            records = (total * lo // den, total * hi // den)
            lo, hi, den = *records, total
        return Window(
            source=self._manifest.name,
            epoch=self._epoch,
            index=index,
            group=self.group(index),
            chunks=() if self._whole_source else self._chunks(group),
            lo=lo,
            hi=hi,
            den=den,
            record_key=self._record_key(group),
            records=records if self._whole_source else None,
        )

    def group(self, index: int) -> int:
        """``Window.group`` of a window, without the rest of it.

        Raises:
            IndexError: the epoch has no such window.
        """
        group = self._group(index)
        return index if self._whole_source else group

    def _group(self, index: int) -> int:
        if not 0 <= index < self.num_windows:
            raise IndexError(
                f"window {index} of {self._manifest.name}, epoch {self._epoch}, which has "
                f"{self.num_windows}"
            )
        return int(np.searchsorted(self._group_windows, index, side="right")) - 1

    def _chunk_order(self, shuffle: Shuffle) -> Int64s:
        """The chunk at each position: [num_chunks]."""
        num_chunks = self._manifest.num_chunks
        order = np.arange(num_chunks, dtype=np.int64)
        if shuffle is Shuffle.NONE:
            return order
        return permute(order, num_chunks, derive_key("chunks", *self._names))

    def _record_key(self, group: int) -> int:
        return derive_key("records", *self._names, group) if self._by_record else 0

    def _chunks(self, group: int) -> tuple[ChunkRef, ...]:
        first, end = self._group_positions[group : group + 2]
        chunk = self._order[first:end]
        starts = self._manifest.chunk_starts
        shard = np.searchsorted(starts, chunk, side="right") - 1
        begin = (chunk - starts[shard]) * self._manifest.chunk_size
        end_unit = begin + self._manifest.chunk_sizes[chunk]
        return tuple(map(ChunkRef, shard.tolist(), begin.tolist(), end_unit.tolist()))


def _groups(sizes: Int64s, bucket: int) -> tuple[Int64s, Int64s]:
    """Cuts the stream of chunks: sizes [num_chunks] -> first position, units: [groups] each."""
    if not len(sizes):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    ends = np.cumsum(sizes)
    in_bucket = (ends - sizes) // bucket
    firsts = np.flatnonzero(np.diff(in_bucket, prepend=-1))
    return firsts, np.diff(ends[np.append(firsts[1:], len(ends)) - 1], prepend=0)


def _even_part(total: int, size: int) -> int:
    """Size, rounded up, of the even parts of ``total`` that are nearest to ``size``; at least 1."""
    parts = max(1, (2 * total + size) // (2 * size))
    return max(1, -(-total // parts))


def _rounded(units: Int64s, size: int) -> Int64s:
    """``units / size`` to the nearest integer, halves up: [n] -> [n]."""
    rounded: Int64s = (2 * units + size) // (2 * size)
    return rounded


def _ramp_cuts(units: int, window_size: int) -> list[int]:
    """Where the first group is cut, in units, from 0 to ``units``.

    The ramp ends early where what is left would be less than the window before it.
    """
    cuts = [0]
    for part in _RAMP:
        size = window_size // part
        if size == 0 or cuts[-1] + 2 * size > units:
            break
        cuts.append(cuts[-1] + size)
    begin = cuts[-1]
    rest = units - begin
    pieces = max(1, (2 * rest + window_size) // (2 * window_size))
    return cuts + [begin + rest * piece // pieces for piece in range(1, pieces + 1)]
