"""What could be restored: what counts, what is whole, what is newest, what may go."""

from __future__ import annotations

import pytest

from meshfeed.pipeline.plan.elastic.state_book import StateBook
from meshfeed.pipeline.plan.elastic.worlds import HostId, Part, Restore, RestoreKind, World

WORLD = World(
    generation=3,
    members=(HostId("a"), HostId("b")),
    mesh=(("data", 2),),
    restore=Restore(),
)


def store(
    book: StateBook,
    step: int,
    vaults: dict[str, tuple[str, ...]],
    *,
    kind: RestoreKind = RestoreKind.SNAPSHOT,
    copies: int = 2,
) -> bool:
    counts = False
    for owner, lie_in in vaults.items():
        counts = book.add(kind, step, WORLD, Part(owner=owner, vaults=lie_in), copies=copies)
    return counts


TWICE = {"a": ("a", "b"), "b": ("a", "b")}


def test_a_snapshot_counts_with_all_parts_on_enough_nodes() -> None:
    book = StateBook()
    assert not store(book, 5, {"a": ("a", "b")})
    assert not store(book, 5, {"b": ("b",)})
    assert book.best() == Restore()
    assert store(book, 5, {"b": ("a",)})
    assert book.best() == Restore(
        kind=RestoreKind.SNAPSHOT,
        step=5,
        generation=3,
        parts=(Part(owner="a", vaults=("a", "b")), Part(owner="b", vaults=("a", "b"))),
    )


def test_once_it_counts_one_vault_for_each_part_is_enough() -> None:
    book = StateBook()
    store(book, 5, TWICE)
    restore = book.best()
    book.lose_vault("a")
    assert book.still_has(restore)
    assert book.best().parts == (Part(owner="a", vaults=("b",)), Part(owner="b", vaults=("b",)))
    book.lose_vault("b")
    assert not book.still_has(restore)
    assert book.best().kind is RestoreKind.INIT


@pytest.mark.parametrize(
    ("snapshot", "checkpoint", "kind"),
    [
        (5, 4, RestoreKind.SNAPSHOT),
        (5, 5, RestoreKind.SNAPSHOT),
        (5, 6, RestoreKind.CHECKPOINT),
    ],
)
def test_the_newest_is_restored_and_of_equal_ones_what_needs_no_storage(
    snapshot: int, checkpoint: int, kind: RestoreKind
) -> None:
    book = StateBook()
    store(book, snapshot, TWICE)
    book.add_checkpoint(checkpoint, 3)
    book.add_checkpoint(checkpoint - 1, 2)
    best = book.best()
    assert (best.kind, best.step) == (kind, max(snapshot, checkpoint))
    assert book.still_has(best)


def test_the_live_state_goes_before_a_snapshot_of_the_same_step() -> None:
    book = StateBook()
    store(book, 5, TWICE)
    store(book, 5, {"a": ("a",), "b": ("b",)}, kind=RestoreKind.LIVE, copies=1)
    assert book.best().kind is RestoreKind.LIVE
    book.lose_vault("a")
    assert book.best().kind is RestoreKind.SNAPSHOT


def test_what_is_said_late_to_lie_in_a_lost_vault_does_not() -> None:
    book = StateBook()
    book.lose_vault("a")
    assert not store(book, 5, {"a": ("a",), "b": ("b",)}, copies=1)
    book.new_vault("a")
    assert store(book, 5, {"a": ("a",)}, copies=1)


def test_two_that_count_are_kept() -> None:
    book = StateBook()
    store(book, 5, TWICE)
    assert not book.prune()
    store(book, 10, {"a": ("a", "b")})
    assert not book.prune()
    store(book, 10, {"b": ("a", "b")})
    assert book.prune()
    assert not book.prune()
    store(book, 15, TWICE)
    assert book.prune()
    assert book.oldest_step == 10
    assert [state.step for state in book.stored] == [10, 15]
    assert not store(book, 5, TWICE), "what has been given up is not taken up again"


def test_a_world_that_begins_earlier_stores_anew() -> None:
    book = StateBook()
    for step in (5, 10, 15):
        store(book, step, TWICE)
        book.prune()
    store(book, 20, {"a": ("a", "b")})
    book.begin_world(Restore(kind=RestoreKind.CHECKPOINT, step=4))
    assert book.stored == []
    assert store(book, 5, TWICE)
