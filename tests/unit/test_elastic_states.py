"""The table of transitions, and the documentation that is drawn from it."""

from __future__ import annotations

from doc_pages import DOCS, blocks, sections, tables

from meshfeed.pipeline.plan.elastic.records import Outcome
from meshfeed.pipeline.plan.elastic.states import (
    PHASE_OF_STATE,
    PHASES,
    TERMINAL,
    TRANSITIONS,
    Cause,
    State,
    diagram,
)

PAGE = DOCS / "resize.md"


def test_a_cause_leads_from_a_state_to_one_other() -> None:
    pairs = [(t.source, t.cause) for t in TRANSITIONS]
    assert len(set(pairs)) == len(pairs)
    assert {t.cause for t in TRANSITIONS} == set(Cause)


def test_every_state_is_reached_and_only_the_ends_are_never_left() -> None:
    reached, new = {State.GATHERING}, {State.GATHERING}
    while new:
        new = {t.target for t in TRANSITIONS if t.source in new} - reached
        reached |= new
    assert reached == set(State)
    assert set(State) - {t.source for t in TRANSITIONS} == TERMINAL


def test_from_every_state_the_run_can_still_end() -> None:
    ends = set(TERMINAL)
    while more := {t.source for t in TRANSITIONS if t.target in ends} - ends:
        ends |= more
    assert ends == set(State)


def test_states_of_a_resize_are_phases_of_the_report() -> None:
    assert set(PHASE_OF_STATE.values()) | {"first_step"} == set(PHASES)


def test_the_diagram_in_the_documentation_is_that_of_the_code() -> None:
    (drawn,) = [block.text for block in blocks(PAGE) if block.kind == "mermaid"]
    assert drawn == diagram()


def test_the_diagram_has_every_transition() -> None:
    """Those that all states in a world have in common are drawn from their frame."""
    lines = [line.strip() for line in diagram().splitlines()]
    for source, cause, target in TRANSITIONS:
        assert {f"{source} --> {target}: {cause}", f"in_a_world --> {target}: {cause}"} & set(lines)
    assert len(lines) == len(set(lines))


def test_the_page_explains_every_state_and_outcome() -> None:
    parts = sections(PAGE)
    (states,) = tables(parts["States"])
    assert [row["state"].strip("`") for row in states] == list(State)
    (found,) = tables(parts["What becomes of a wish"])
    assert [row["outcome"].strip("`") for row in found] == list(Outcome)
