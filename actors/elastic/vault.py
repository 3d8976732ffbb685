"""The vault: keeps a host's part of the live state beyond its trainer process, and a replica.

It holds two images of its own host and two of a neighbour's, in shared memory, each pair of one
step. The trainer writes into a file of its own vault; what another host must be able to give when
this one is lost travels once, through the object store. An image is *safe* once all of it lies on
two nodes. The one that is safe is never written over before a newer one is.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import ray
from ray.actor import ActorHandle

from meshfeed.actors.elastic.images import Bytes, Image, copy_box, map_file, pieces, view_box
from meshfeed.actors.elastic.messages import Neighbour
from meshfeed.actors.reading.shared_memory import NodeFolder, remove_leftovers
from meshfeed.pipeline.plan.boxes import Boxes
from meshfeed.pipeline.plan.errors import (
    BudgetError,
    DisagreementError,
    MeshfeedError,
    StaleGenerationError,
    StallError,
)

log = logging.getLogger(__name__)

KEPT = 2
"""Images of each host: the safe one and the one being written."""

OWN, REPLICA = "own", "replica"

NOTHING = (0, -1, 0)
"""What a vault has stored at first."""


@dataclass(slots=True)
class _Slot:
    """A file and what lies in it."""

    path: Path
    image: Image | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VaultBeat:
    """What a vault has.

    Attributes:
        stored: generation and step of its host's newest image, and on how many nodes it lies.
        neighbour: the host on whose node the other lies, "" where there is none.
        is_snapshot: training goes on beyond it.
    """

    stored: tuple[int, int, int]
    neighbour: str
    is_snapshot: bool

    @property
    def is_safe(self) -> bool:
        """It lies wherever it is to lie."""
        return self.stored[2] == (2 if self.neighbour else 1)


class Vault:
    """Wrapped as a Ray actor, on the node of its host's trainer.

    Args:
        host: its name.
        run_id: of the run.
        budget_bytes: that it may hold.
        timeout_s: of every wait.
    """

    def __init__(self, host: str, run_id: str, budget_bytes: int, timeout_s: float) -> None:
        self._host = host
        self._budget = budget_bytes
        self._timeout_s = timeout_s
        self._folder = NodeFolder(run_id)
        self._slots: dict[str, list[_Slot]] = {
            kind: [_Slot(self._folder.path / f"{kind}-{n}.image") for n in range(KEPT)]
            for kind in (OWN, REPLICA)
        }
        self._memory: dict[Path, Bytes] = {}
        self._generation = 0
        self._safe = (0, -1)
        self._beat = VaultBeat(stored=NOTHING, neighbour="", is_snapshot=False)
        self._changed = threading.Condition()
        self._stopping = threading.Event()

    def ready(self) -> int:
        """It is up; gives the process id."""
        return os.getpid()

    def reserve(self, own_bytes: int, replica_bytes: int) -> None:
        """Images of these sizes will come.

        Raises:
            BudgetError: two of each do not fit.
        """
        needed = KEPT * (own_bytes + replica_bytes)
        if needed > self._budget:
            raise BudgetError(
                "vault_budget",
                self._budget,
                needed,
                f"Host {self._host} keeps {KEPT} images of {own_bytes} bytes of its own and "
                f"{KEPT} of {replica_bytes} bytes of a neighbour",
            )

    def enter(self, generation: int) -> None:
        """A generation begins; what older ones send is refused from now on."""
        with self._changed:
            self._generation = max(self._generation, generation)
            self._changed.notify_all()

    def place(self, generation: int, step: int, nbytes: int) -> str:
        """A file of ``nbytes`` for the host's image of a step, once the last one is safe.

        Raises:
            StaleGenerationError: of a membership that has ended.
            StallError: the last one did not become safe in time.
        """
        return str(self._place(OWN, generation, step, nbytes).path)

    def seal(
        self,
        image: Image,
        path: str,
        neighbour: Neighbour | None,
        away: Sequence[npt.NDArray[np.bool_]] | None,
        *,
        is_snapshot: bool,
    ) -> None:
        """The host's image is whole; what ``away`` keeps of it goes to a neighbour's vault too.

        Args:
            image: what lies where.
            path: what ``place`` gave.
            neighbour: of another node.
            away: of each leaf, which boxes must lie there: bool [n]; None: none of them.
            is_snapshot: training goes on beyond it.
        """
        with self._changed:
            self._check(image.generation)
            slot = next(s for s in self._slots[OWN] if str(s.path) == path)
            slot.image = image
            self._tell(image, 1, neighbour if away is not None else None, is_snapshot)
        if neighbour is not None and away is not None:
            try:
                self._replicate(image, slot, neighbour.vault, away)
            except (MeshfeedError, ray.exceptions.RayError) as error:  # nobody waits for this call
                log.warning(
                    "generation %d: step %d of %s lies on no second node: %s",
                    *(image.generation, image.step, self._host, error),
                )
                raise
            with self._changed:
                self._tell(image, 2, neighbour, is_snapshot)

    def keep(self, image: Image, payload: list[Any]) -> None:
        """A replica of a neighbour's image."""
        data: Bytes = ray.get(payload[0], timeout=self._timeout_s)
        slot = self._place(REPLICA, image.generation, image.step, image.nbytes)
        memory = self._map(slot.path, image.nbytes)
        memory[: len(data)] = data
        with self._changed:
            self._check(image.generation)
            slot.image = image

    def safe(self, generation: int, step: int) -> None:
        """All images of a step lie on two nodes: older ones may be written over."""
        with self._changed:
            self._safe = max(self._safe, (generation, step))
            self._changed.notify_all()

    def beat(self, known: tuple[int, int, int]) -> VaultBeat:
        """What it has, as soon as that is not what is ``known``, or a little later."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._beat.stored != known or self._stopping.is_set(), 0.5
            )
            return self._beat

    def images(self) -> list[tuple[Image, str]]:
        """All that it holds, with the files."""
        with self._changed:
            slots = [slot for kind in self._slots.values() for slot in kind]
            return [(slot.image, str(slot.path)) for slot in slots if slot.image is not None]

    def give(self, key: tuple[int, int], wanted: Sequence[tuple[str, Boxes]]) -> Bytes:
        """Boxes of leaves of a state, one after the other at multiples of 64 bytes: uint8 [n].

        Args:
            key: (generation, step) of the state.
            wanted: name of a leaf and int64 [d, 2] of each box.

        Raises:
            DisagreementError: it does not hold them.
        """
        with self._changed:
            slots = [s for kind in self._slots.values() for s in kind]
            held = [(self._map(s.path, s.image.nbytes), s.image) for s in slots if s.image]
        leaves = [
            {leaf.name: (memory, leaf) for leaf in image.leaves}
            for memory, image in held
            if image.key == key
        ]
        stored = [[own[name] for own in leaves if name in own] for name, _ in wanted]
        if not all(stored):
            missing = next(name for (name, _), own in zip(wanted, stored, strict=True) if not own)
            raise DisagreementError(f"vault of {self._host} holds no {missing} of {key}")
        sized = [(box, own[0][1].itemsize) for (_, box), own in zip(wanted, stored, strict=True)]
        places = list(pieces(sized))
        buffer = np.empty(places[-1][1] if places else 0, np.uint8)
        for (begin, end, shape), (_, box), own in zip(places, wanted, stored, strict=True):
            copy_box(buffer[begin:end].reshape(shape), box, own)
        return buffer

    def settle(self, key: tuple[int, int]) -> None:
        """A generation has begun from this state: all others of older ones are of no use."""
        with self._changed:
            for slot in (s for kind in self._slots.values() for s in kind):
                if slot.image and slot.image.generation <= key[0] and slot.image.key != key:
                    slot.image = None
            self._safe = max(self._safe, key)
            self._changed.notify_all()

    def sweep(self) -> None:
        """Removes what vaults and node servers that are gone have left on this node."""
        remove_leftovers()

    def stop(self) -> None:
        """Removes the shared memory."""
        self._stopping.set()
        with self._changed:
            self._changed.notify_all()
            self._memory.clear()
        self._folder.close()

    def _tell(
        self, image: Image, copies: int, neighbour: Neighbour | None, is_snapshot: bool
    ) -> None:
        if image.key >= self._beat.stored[:2]:
            self._beat = VaultBeat(
                stored=(*image.key, copies),
                neighbour="" if neighbour is None else neighbour.host,
                is_snapshot=is_snapshot,
            )
            self._changed.notify_all()

    def _replicate(
        self, image: Image, slot: _Slot, neighbour: ActorHandle, away: Sequence[npt.NDArray[Any]]
    ) -> None:
        part = image.only(away)
        memory = self._map(slot.path, image.nbytes)
        payload = np.empty(part.nbytes, np.uint8)
        for leaf, own, kept in zip(part.leaves, image.leaves, away, strict=True):
            for place, source in enumerate(np.flatnonzero(kept).tolist()):
                view_box(payload, leaf, place)[...] = view_box(memory, own, source)
        ray.get(neighbour.keep.remote(part, [ray.put(payload)]), timeout=self._timeout_s)

    def _place(self, kind: str, generation: int, step: int, nbytes: int) -> _Slot:
        """The slot that holds nothing that may still be needed."""
        until = time.monotonic() + self._timeout_s
        with self._changed:
            while True:
                self._check(generation)
                for slot in self._slots[kind]:
                    if slot.image is None or slot.image.key < self._safe:
                        slot.image = None
                        self._map(slot.path, nbytes, create=True)
                        return slot
                if not self._changed.wait(max(0.0, until - time.monotonic())):
                    raise StallError(
                        f"safe image before step {step}",
                        self._timeout_s,
                        generation=generation,
                        host=self._host,
                        stage="snapshot",
                    )

    def _check(self, generation: int) -> None:
        if generation < self._generation:
            raise StaleGenerationError(generation, self._generation)

    def _map(self, path: Path, nbytes: int, *, create: bool = False) -> Bytes:
        """The memory of a file; a file that was long enough once stays as long."""
        memory = self._memory.get(path)
        if memory is None or len(memory) < nbytes:
            memory = self._memory[path] = map_file(path, nbytes, create=create)
        return memory[:nbytes]
