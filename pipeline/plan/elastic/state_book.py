"""Where state lies: which steps a new world could be restored to, and from which vaults.

A live state counts once every member has stored its part at the barrier; a snapshot once every
part lies on ``copies`` nodes (fewer where there are fewer nodes). Either can be restored as long as
every part lies in some vault that is still there. Two are kept.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from meshfeed.pipeline.plan.elastic.worlds import Part, Restore, RestoreKind, World

KEPT = 2


@dataclass(slots=True, kw_only=True)
class StoredState:
    """The state before a step, as far as it has been stored.

    Attributes:
        kind: ``LIVE`` or ``SNAPSHOT``.
        step: steps before this one are in it.
        generation: the world whose state it is.
        owners: names of that world's members, by ``process_index``.
        vaults: of each owner, the hosts in whose vaults its part lies.
        counts: it has once been whole, on enough nodes.
    """

    kind: RestoreKind
    step: int
    generation: int
    owners: tuple[str, ...]
    vaults: dict[str, set[str]] = field(default_factory=dict)
    counts: bool = False

    @property
    def is_whole(self) -> bool:
        """Every part lies in some vault."""
        return all(self.vaults.get(owner) for owner in self.owners)

    def as_restore(self) -> Restore:
        """What a world is told."""
        return Restore(
            kind=self.kind,
            step=self.step,
            generation=self.generation,
            parts=tuple(
                Part(owner=owner, vaults=tuple(sorted(self.vaults[owner]))) for owner in self.owners
            ),
        )


@dataclass(slots=True, kw_only=True)
class StateBook:
    """All that is stored.

    Attributes:
        stored: in the vaults.
        checkpoint: step of the last checkpoint.
        checkpoint_generation: the world that wrote it.
        oldest_step: older state has been given up.
        lost: hosts whose vaults are gone.
    """

    stored: list[StoredState] = field(default_factory=list)
    checkpoint: int | None = None
    checkpoint_generation: int = 0
    oldest_step: int = 0
    lost: set[str] = field(default_factory=set)

    def add(self, kind: RestoreKind, step: int, world: World, part: Part, *, copies: int) -> bool:
        """A member's part lies in vaults; True if the state counts: ``copies`` of all parts."""
        if step < self.oldest_step:
            return False
        for known in self.stored:
            if (known.kind, known.step, known.generation) == (kind, step, world.generation):
                state = known
                break
        else:
            state = StoredState(
                kind=kind, step=step, generation=world.generation, owners=world.names
            )
            self.stored.append(state)
        state.vaults.setdefault(part.owner, set()).update(set(part.vaults) - self.lost)
        if not state.counts and len(state.vaults) == len(state.owners):
            state.counts = all(len(vaults) >= copies for vaults in state.vaults.values())
        return state.counts

    def add_checkpoint(self, step: int, generation: int) -> None:
        """The state before ``step`` is durable."""
        if self.checkpoint is None or step > self.checkpoint:
            self.checkpoint = step
            self.checkpoint_generation = generation

    def lose_vault(self, name: str) -> None:
        """What lay there is gone."""
        self.lost.add(name)
        for state in self.stored:
            for vaults in state.vaults.values():
                vaults.discard(name)

    def new_vault(self, name: str) -> None:
        """There is a vault of that name again."""
        self.lost.discard(name)

    def usable(self) -> list[StoredState]:
        """What could be restored from vaults, the newest first, live before a snapshot."""
        whole = [state for state in self.stored if state.counts and state.is_whole]
        return sorted(
            whole, key=lambda s: (s.step, s.generation, s.kind is RestoreKind.LIVE), reverse=True
        )

    def best(self) -> Restore:
        """What a new world restores: the newest there is; of equal ones that nearest to hand."""
        usable = self.usable()
        if usable and (self.checkpoint is None or usable[0].step >= self.checkpoint):
            return usable[0].as_restore()
        if self.checkpoint is not None:
            return Restore(
                kind=RestoreKind.CHECKPOINT,
                step=self.checkpoint,
                generation=self.checkpoint_generation,
            )
        return Restore()

    def still_has(self, restore: Restore) -> bool:
        """Whether what a world restores from is whole."""
        if restore.kind in (RestoreKind.INIT, RestoreKind.CHECKPOINT):
            return True
        return any(
            (state.kind, state.step, state.generation)
            == (restore.kind, restore.step, restore.generation)
            for state in self.usable()
        )

    def begin_world(self, restore: Restore) -> None:
        """A world has begun at a step: what a given-up one has stored beyond it is no more."""
        self.stored = [state for state in self.stored if state.step <= restore.step]
        self.oldest_step = min(self.oldest_step, restore.step)

    def prune(self) -> bool:
        """Gives up what is older than the two newest that count; True if ``oldest_step`` rose."""
        usable = self.usable()
        if len(usable) < KEPT or usable[KEPT - 1].step <= self.oldest_step:
            return False
        self.oldest_step = usable[KEPT - 1].step
        self.stored = [state for state in self.stored if state.step >= self.oldest_step]
        return True
