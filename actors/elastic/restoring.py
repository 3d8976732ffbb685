"""Taking the live state from the vaults: each host just the boxes that it lacks.

Every host works the whole plan out for itself, from what the vaults hold and from the shardings of
the new mesh, and carries out its part: what its own vault holds is read from shared memory, the
rest comes in one flat buffer for each vault and stage.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import ray

from meshfeed.actors.elastic.images import Bytes, LeafImage, copy_box, map_file, pieces
from meshfeed.actors.elastic.messages import Source
from meshfeed.actors.elastic.state_tree import LeafBoxes
from meshfeed.pipeline.assemble.state_builder import StateBuilder
from meshfeed.pipeline.plan.boxes import Boxes, no_boxes, sizes
from meshfeed.pipeline.plan.errors import ChangedError
from meshfeed.pipeline.plan.moves import LeafPlacement, Move, MovePlan, plan_moves

STAGE_BYTES = 64 << 20
"""That a host receives, and a vault gives, at a time."""

AHEAD = 2
"""Stages that are under way at a time."""


class Restorer:
    """Of one host.

    Args:
        source: where the state lies.
        hosts: of the new generation, by process index.
        process_index: of this process.
        leaves: of the state on the new mesh.
    """

    def __init__(
        self, source: Source, hosts: Sequence[str], process_index: int, leaves: list[LeafBoxes]
    ) -> None:
        began = time.monotonic()
        self._source = source
        self._host = hosts[process_index]
        self._process_index = process_index
        self._leaves = leaves
        self._check()
        self._plan = plan_moves(
            [self._placement(leaf, hosts) for leaf in leaves],
            {host: host for host in hosts if host in source.vaults},
            limit_bytes=STAGE_BYTES,
        )
        self._own = self._map_own()
        self._kept: dict[str, list[Move]] = defaultdict(list)
        for move in self._plan.local(target=self._host):
            self._kept[move.leaf].append(move)
        self.seconds = {"plan": time.monotonic() - began}
        self.facts: dict[str, Any] = {}

    @property
    def plan(self) -> MovePlan:
        """Of all hosts."""
        return self._plan

    def restore(self, builder: StateBuilder, timeout_s: float) -> Any:
        """The state on the devices.

        Raises:
            MeshfeedError: a vault cannot give what it held.
        """
        began = time.monotonic()
        moves = list(self._plan.moves(target=self._host))
        itemsizes = {own.leaf.path: own.leaf.itemsize for own in self._leaves}
        fetching = _Fetching(self._source, moves, itemsizes, timeout_s)
        peak = 0
        for own in self._leaves:
            name = own.leaf.path
            fetched = fetching.take(name)
            needed = own.held[self._process_index]
            buffers = int(sizes(needed).sum()) * own.leaf.itemsize
            peak = max(peak, fetching.held + buffers)
            for box, cells in fetched:
                builder.put(name, box, cells.reshape(-1))
            for move in self._kept[name]:
                builder.put(name, move.box, self._local(own, move.box))
            fetching.drop(name)
        state = builder.finish()
        self.seconds["move"] = time.monotonic() - began
        self.facts = {
            "bytes_received": fetching.received,
            "bytes_moved": self._plan.bytes_moved,
            "bytes_bound": self._plan.bytes_bound,
            "peak_extra_bytes": peak,
        }
        return state

    def _local(self, own: LeafBoxes, box: Boxes) -> Bytes:
        """A box out of this host's own vault, as bytes."""
        lengths = (box[:, 1] - box[:, 0]).tolist()
        cells = np.empty([*lengths, own.leaf.itemsize], np.uint8)
        copy_box(cells, box, self._own[own.leaf.path])
        return cells.reshape(-1)

    def _check(self) -> None:
        """The live state has the form of the one that is asked for.

        Raises:
            ChangedError: it has not; names the first leaf that differs.
        """
        images = [image for held in self._source.images.values() for image, _ in held]
        live = {leaf.name: (leaf.shape, leaf.dtype) for leaf in images[0].leaves}
        asked = {own.leaf.path: (own.leaf.shape, own.leaf.dtype) for own in self._leaves}
        for name in (*asked, *live):
            if live.get(name) != asked.get(name):
                raise ChangedError(
                    f"the state's leaf {name} is {_words(asked.get(name))} in this generation, the "
                    f"live state has {_words(live.get(name))}. init must give the same in each"
                )

    def _placement(self, own: LeafBoxes, hosts: Sequence[str]) -> LeafPlacement:
        leaf, none = own.leaf, no_boxes(len(own.leaf.shape))
        held = {}
        for vault, images in self._source.images.items():
            stored = [part for image, _ in images for part in image.leaves]
            boxes = [part.boxes for part in stored if part.name == leaf.path]
            held[vault] = np.concatenate([none, *boxes])
        return LeafPlacement(
            name=leaf.path,
            shape=leaf.shape,
            itemsize=leaf.itemsize,
            held=held,
            needed=dict(zip(hosts, own.held, strict=True)),
        )

    def _map_own(self) -> dict[str, list[tuple[Bytes, LeafImage]]]:
        """What this host's own vault holds of each leaf, in shared memory."""
        own: dict[str, list[tuple[Bytes, LeafImage]]] = defaultdict(list)
        for image, path in self._source.images.get(self._host, ()):
            memory = map_file(Path(path), image.nbytes)
            for leaf in image.leaves:
                own[leaf.name].append((memory, leaf))
        return own


class _Fetching:
    """What comes from other vaults, some stages ahead of what is needed.

    Attributes:
        held: bytes that have come and are still needed.
        received: bytes that have come.
    """

    def __init__(
        self, source: Source, moves: Sequence[Move], itemsizes: Mapping[str, int], timeout_s: float
    ) -> None:
        self.held = self.received = 0
        self._source = source
        self._itemsizes = itemsizes
        self._timeout_s = timeout_s
        self._asked: list[list[tuple[Any, list[Move]]]] = []
        self._here: dict[str, list[tuple[Boxes, Bytes]]] = defaultdict(list)
        self._last: dict[str, int] = {}
        stages: dict[int, dict[str, list[Move]]] = defaultdict(lambda: defaultdict(list))
        for move in moves:
            stages[move.stage][move.source].append(move)
            self._last[move.leaf] = max(self._last.get(move.leaf, 0), move.stage)
        self._stages = [stages[number] for number in sorted(stages)]
        self._number = {number: place for place, number in enumerate(sorted(stages))}
        self._taken = 0

    def take(self, name: str) -> list[tuple[Boxes, Bytes]]:
        """All parts of a leaf that come from elsewhere."""
        if name in self._last:
            while self._taken <= self._number[self._last[name]]:
                self._ask(self._taken + AHEAD)
                self._receive(self._taken)
                self._taken += 1
        return self._here[name]

    def drop(self, name: str) -> None:
        """The leaf is where it belongs."""
        self.held -= sum(cells.nbytes for _, cells in self._here.pop(name, ()))

    def _ask(self, until: int) -> None:
        while len(self._asked) < min(until, len(self._stages)):
            calls = []
            key = (self._source.generation, self._source.step)
            for vault, moves in self._stages[len(self._asked)].items():
                wanted = [(move.leaf, move.box) for move in moves]
                handle = self._source.vaults[vault]
                calls.append((handle.give.remote(key, wanted), moves))
            self._asked.append(calls)

    def _receive(self, stage: int) -> None:
        for call, moves in self._asked[stage]:
            buffer: Bytes = ray.get(call, timeout=self._timeout_s)
            sized = [(move.box, self._itemsizes[move.leaf]) for move in moves]
            for (begin, end, shape), move in zip(pieces(sized), moves, strict=True):
                self._here[move.leaf].append((move.box, buffer[begin:end].reshape(shape)))
                self.received += end - begin
                self.held += end - begin
        self._asked[stage] = []


def _words(leaf: tuple[tuple[int, ...], str] | None) -> str:
    return "not there" if leaf is None else f"{leaf[1]}{list(leaf[0])}"
