"""Fetching: which rows of which windows this process needs, and where in its batch they go.

A *stretch* is some consecutive steps fetched at once: one request to each node that holds some
of their rows, answered with one flat buffer.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import numpy.typing as npt
import ray
import xxhash

from meshfeed.actors.messages import FeedUpdate, FetchRequest, Opening
from meshfeed.pipeline.data.batches.regions import Region, region_nbytes, view_region
from meshfeed.pipeline.data.packing.blocks import BlockFormat
from meshfeed.pipeline.plan.batch_plan import BatchPlan
from meshfeed.pipeline.plan.cursor import Cursor
from meshfeed.pipeline.plan.errors import DisagreementError
from meshfeed.pipeline.plan.feed_state import WindowKey
from meshfeed.pipeline.plan.schedule import RowPlaces

NOWHERE = -2
"""In place of a node: none holds the window now; some will."""

PADDING = -1
"""In place of a node: the row lies past the end of the feed, or fills the batch up."""


class Stretch:
    """The steps [begin, end) of one process's slice, under way or here.

    Attributes:
        nbytes: that have arrived.
        requests: that were made.
        digest: of all that arrived, node by node; the same for hosts that need the same.
        moves: of windows that were known when it was asked for.
        unheld: windows that no node holds, as far as is known, and where they did lie.
    """

    def __init__(self, begin: int, end: int, fetcher: Fetcher) -> None:
        self.begin = begin
        self.end = end
        self.nbytes = 0
        self.requests = 0
        self.digest = 0
        self.moves = 0
        self.unheld: dict[WindowKey, int] = {}
        self._fetcher = fetcher
        self._answers: list[tuple[int, tuple[WindowKey, ...], Any]] = []
        self._node_of_row: list[npt.NDArray[np.int32]] = []
        self._place: list[npt.NDArray[np.int64]] = []
        self._regions: dict[tuple[int, int], Region] = {}

    def wait(self, timeout_s: float) -> bool:
        """Waits for all answers and checks that what came is what was sent.

        Returns:
            False where a node is gone or does not hold a window: ``unheld`` says which.

        Raises:
            DisagreementError: bytes changed on the way.
        """
        for node, windows, answer in self._answers:
            try:
                reply = ray.get(answer, timeout=timeout_s)
                if isinstance(reply, list):
                    self.unheld |= dict.fromkeys(reply, node)
                    continue
                buffer, digest = reply
                if isinstance(buffer, list):
                    buffer = ray.get(buffer[0], timeout=timeout_s)
            except (ray.exceptions.RayActorError, ray.exceptions.ObjectLostError):
                self.unheld |= dict.fromkeys(windows, node)
                continue
            if xxhash.xxh3_64_intdigest(buffer) != digest:
                raise DisagreementError(
                    f"steps {self.begin}..{self.end - 1} from node {node}: what arrived is not "
                    "what was sent"
                )
            self.nbytes += buffer.nbytes
            self.digest ^= int(digest)
            self._cut(node, buffer)
        self._answers = []
        return not self.unheld

    def region(self, begin: int, end: int, index: int) -> Region:
        """Region ``index`` of the steps [begin, end), as ``HostSlice.regions`` lists them.

        One step below the other: [steps * local rows, columns].
        """
        rows = self._fetcher.region_rows[index]
        at = slice((begin - self.begin) * rows, (end - self.begin) * rows)
        nodes, place = self._node_of_row[index][at], self._place[index][at]
        first = int(nodes[0])
        if first != PADDING and (nodes == first).all():
            whole = self._regions[first, index]
            return _take(whole, slice(int(place[0]), int(place[0]) + len(nodes)))
        return self._gather(index, nodes, place)

    def _cut(self, node: int, buffer: npt.NDArray[np.uint8]) -> None:
        at = 0
        for index, (begin, end) in enumerate(self._fetcher.columns):
            rows = int((self._node_of_row[index] == node).sum())
            size = region_nbytes(self._fetcher.format, rows, end - begin)
            part = buffer[at : at + size]
            self._regions[node, index] = view_region(part, self._fetcher.format, rows, end - begin)
            at += size

    def _gather(
        self, index: int, nodes: npt.NDArray[np.int32], place: npt.NDArray[np.int64]
    ) -> Region:
        """Rows from several nodes, and padding."""
        begin, end = self._fetcher.columns[index]
        out = _empty_region(self._fetcher.format, len(nodes), end - begin)
        for node in np.unique(nodes):
            if node != PADDING:
                where = np.flatnonzero(nodes == node)
                part = _take(self._regions[int(node), index], place[where])
                out.header[where] = part.header
                out.tokens[where] = part.tokens
                out.starts[where] = part.starts
                if out.loss is not None and part.loss is not None:
                    out.loss[where] = part.loss
        return out


class Fetcher:
    """Turns rows of the schedule into requests to nodes.

    Args:
        feed: name.
        opening: of the feed.
        plan: who supplies what.
        process_index: of this process.
    """

    def __init__(self, feed: str, opening: Opening, plan: BatchPlan, process_index: int) -> None:
        self.format: BlockFormat = BlockFormat.of(opening.spec)
        self.nodes: dict[int, Any] = {}
        self.moves = opening.incarnation << 32
        self._lock = threading.Lock()
        self._feed = feed
        self._generation = opening.generation
        self._batch_size = plan.batch_size
        self._node_of: dict[WindowKey, int] = {}
        group = plan.group_of(process_index)
        self.group = group
        self.group_size = len(plan.members(group))
        held = plan.slice_of(process_index)
        self.columns = tuple(cols for _, cols in held.regions)
        self._rows = [
            np.concatenate([np.arange(begin, end) for begin, end in rows])
            for rows, _ in held.regions
        ]
        self.region_rows = [len(rows) for rows in self._rows]
        self.step_bytes = sum(
            region_nbytes(self.format, len(rows), end - begin)
            for rows, (begin, end) in zip(self._rows, self.columns, strict=True)
        )

    def learn(self, update: FeedUpdate) -> None:
        """Takes in where windows lie."""
        with self._lock:
            self._learn(update)

    def _learn(self, update: FeedUpdate) -> None:
        self.nodes.update(update.nodes)
        for source, epoch, window, rows, _, node in update.events.tolist():
            if rows:
                self._node_of[WindowKey(source, epoch, window)] = NOWHERE if node < 0 else node
        for source, epoch, window, node in update.moved.tolist():
            self._node_of[WindowKey(source, epoch, window)] = node
        self.moves += len(update.moved)

    def forget_nodes(self, incarnation: int) -> None:
        """All nodes are gone with a coordinator, and all windows are to be run again."""
        with self._lock:
            self.nodes = {}
            self._node_of = dict.fromkeys(self._node_of, NOWHERE)
            self.moves = incarnation << 32

    def has_moved(self, stretch: Stretch) -> bool:
        """What no node held when a stretch was asked for lies somewhere else now."""
        return all(
            self._node_of.get(key, NOWHERE) not in (node, NOWHERE)
            for key, node in stretch.unheld.items()
        )

    def request(self, begin: int, end: int, places: RowPlaces) -> Stretch:
        """Asks for this process's part of the steps [begin, end).

        Args:
            begin: first step.
            end: step after the last.
            places: of the global rows of these steps that exist, in order.
        """
        stretch = Stretch(begin, end, self)
        keys, window_of_row = _distinct(places)
        with self._lock:
            stretch.moves = self.moves
            node_of_window = np.array([self._node_of.get(k, NOWHERE) for k in keys], np.int32)
        wanted: dict[int, list[tuple[Any, Any, tuple[int, int]]]] = {}
        for index, rows in enumerate(self._rows):
            steps = np.arange(end - begin)[:, None] * self._batch_size
            at = (steps + rows[None, :]).reshape(-1)
            real = np.broadcast_to(rows < self._batch_size, (end - begin, len(rows))).reshape(-1)
            real = real & (at < len(places.row))
            at = np.where(real, at, 0)
            nodes = np.where(real, node_of_window[window_of_row[at]], PADDING).astype(np.int32)
            place = np.zeros(len(at), np.int64)
            nowhere = np.unique(window_of_row[at[real & (nodes == NOWHERE)]])
            stretch.unheld |= {keys[i]: NOWHERE for i in nowhere.tolist()}
            for node in np.unique(nodes[real & (nodes != NOWHERE)]).tolist():
                chosen = nodes == node
                place[chosen] = np.arange(chosen.sum())
                picked = at[chosen]
                wanted.setdefault(node, [_NOTHING] * len(self._rows))[index] = (
                    window_of_row[picked],
                    places.row[picked],
                    self.columns[index],
                )
            stretch._node_of_row.append(nodes)
            stretch._place.append(place)
        for node, regions in wanted.items():
            stretch._answers.append((node, *self._ask(node, keys, regions, stretch)))
        stretch.requests = len(wanted)
        return stretch

    def forget_before(self, cursor: Cursor) -> None:
        """Forgets where windows lie whose rows all come before a cursor."""
        places = [(source.epoch, source.window) for source in cursor.sources]
        self._node_of = {
            key: node for key, node in self._node_of.items() if key[1:] >= places[key.source]
        }

    def _ask(
        self, node: int, keys: list[WindowKey], regions: Any, stretch: Stretch
    ) -> tuple[tuple[WindowKey, ...], Any]:
        used = np.unique(np.concatenate([windows for windows, _, _ in regions]))
        renumbered = np.searchsorted(used, np.arange(len(keys)))
        # Hosts that know of different moves may ask this node for different rows of these steps.
        share = (
            f"{self._generation}/{self.group}/{stretch.begin}-{stretch.end}/{stretch.moves}"
            if self.group_size > 1
            else ""
        )
        windows = tuple(keys[i] for i in used)
        answer = self.nodes[node].fetch.remote(
            FetchRequest(
                feed=self._feed,
                generation=self._generation,
                windows=windows,
                regions=tuple(
                    (renumbered[windows].astype(np.int32), rows.astype(np.int32), cols)
                    for windows, rows, cols in regions
                ),
                share_key=share,
                share_count=self.group_size,
            )
        )
        return windows, answer


_NOTHING: tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], tuple[int, int]] = (
    np.zeros(0, np.int32),
    np.zeros(0, np.int32),
    (0, 1),
)


def _distinct(places: RowPlaces) -> tuple[list[WindowKey], npt.NDArray[np.int64]]:
    """The windows of some rows, and for each row which of them: int64[rows]."""
    names = np.stack([places.source, places.epoch, places.window], axis=1).astype(np.int64)
    distinct, which = np.unique(names, axis=0, return_inverse=True)
    return [WindowKey(*name) for name in distinct.tolist()], which.reshape(-1)


def _take(region: Region, rows: Any) -> Region:
    return Region(
        format=region.format,
        header=region.header[rows],
        tokens=region.tokens[rows],
        starts=region.starts[rows],
        loss=None if region.loss is None else region.loss[rows],
    )


def _empty_region(format: BlockFormat, rows: int, cols: int) -> Region:
    return view_region(np.zeros(region_nbytes(format, rows, cols), np.uint8), format, rows, cols)
