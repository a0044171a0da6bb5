"""The shape of the tables: nothing missing, nothing unknown, and pages made from them alone."""

import itertools
import subprocess
import sys
from pathlib import Path

import pytest

from inspan_core import diagram
from inspan_core.answers import ANSWER_TYPES
from inspan_core.checks import CHECKS
from inspan_core.draft import Draft
from inspan_core.effects import ORDER_TYPES, CancelPending
from inspan_core.errors import TableError
from inspan_core.events import (
    NOTICE_TYPES,
    REQUEST_TYPES,
    ClientGone,
    Cookie,
    Installed,
    SandboxReady,
    SeedRequested,
    Signal,
)
from inspan_core.machine import new_session, step
from inspan_core.orders import ORDER_PHASES, ORDERS
from inspan_core.rules import Refused, Rule
from inspan_core.session import Phase, Run, RunPhase, Session
from inspan_core.tables import ANSWERS, LADDERS, LEARN, SESSION
from inspan_core.testing.mutants import Mutant

KEYS = {*REQUEST_TYPES, *NOTICE_TYPES, *Signal}
ROOT = Path(__file__).parents[2]


def test_session_has_a_row_for_every_phase_and_every_event_and_signal() -> None:
    assert set(SESSION) == set(Phase)
    for phase, rows in SESSION.items():
        assert set(rows) == KEYS, phase


def test_requests_are_refused_with_a_status_and_a_sentence() -> None:
    rows = [SESSION[phase][kind] for phase, kind in itertools.product(Phase, REQUEST_TYPES)]
    refusals = [row for row in rows if isinstance(row, Refused)]
    refusals.extend(check.refusal for checks in CHECKS.values() for check in checks)
    for refusal in refusals:
        assert refusal.status == 409
        assert refusal.reason.format(name="s1")[0].islower()
    assert set(CHECKS) == set(REQUEST_TYPES)


def test_learn_has_answers_only_and_every_answer_has_a_place() -> None:
    assert set(LEARN) == set(RunPhase)
    assert {kind for lessons in LEARN.values() for kind in lessons} == set(ANSWER_TYPES)


def test_lessons_set_facts_of_the_run() -> None:
    facts = {field.name for field in Run.__attrs_attrs__} - {"phase", "order", "pending"}
    for lessons in LEARN.values():
        for lesson in lessons.values():
            assert set(lesson.facts) <= facts


def test_every_ladder_ends_on_a_rung_that_always_holds() -> None:
    draft = Draft(new_session("s1"), at=0.0)
    for ladder in LADDERS.values():
        assert ladder[-1].when(draft)
        assert ladder[-1].says == "otherwise"


def test_every_order_has_its_run_phase_and_its_answers() -> None:
    assert set(ORDER_PHASES) == set(ORDER_TYPES) == set(ANSWERS)
    assert set(ORDERS) == set(RunPhase) - {RunPhase.REST} == set(ORDER_PHASES.values())
    assert all(ANSWERS.values())
    assert CancelPending in ANSWERS


def test_the_draft_has_every_field_of_session_and_run() -> None:
    session = {field.name for field in Session.__attrs_attrs__} - {"run"}
    run = {field.name for field in Run.__attrs_attrs__} - {"phase"}
    assert session | run <= set(Draft.__slots__)
    assert "run_phase" in Draft.__slots__


def test_a_draft_that_nobody_wrote_on_freezes_to_the_same_session() -> None:
    session = Session(
        name="s1", phase=Phase.ACTIVE, number=7, run=Run(phase=RunPhase.QUEUED, order=7), seed_waiters=(1,)
    )
    assert Draft(session, at=0.0).freeze() == session


@pytest.mark.parametrize("to", [frozenset(), frozenset({Phase.CLOSED})])
def test_a_handler_that_breaks_its_rows_promise_is_an_error(to: frozenset[Phase]) -> None:
    def astray(draft: Draft, _: object) -> None:
        draft.phase = Phase.FINISHED

    rows = {**SESSION[Phase.NEW], ClientGone: Rule(astray, to=to)}
    with Mutant("astray", SESSION, Phase.NEW, rows).applied(), pytest.raises(TableError, match="astray led"):
        step(new_session("s1"), ClientGone(at=0.0, waiter=1))


def test_a_signal_without_a_rule_is_an_error() -> None:
    rows = {**SESSION[Phase.SEEDING], Signal.PUBLISHED: Refused(None, "no such thing")}
    session, _ = step(
        new_session("s1"),
        SeedRequested(at=0.0, waiter=1, body_digest="A", owned=False, cookie=Cookie.ABSENT),
    )
    session, _ = step(session, SandboxReady(at=0.0, order=session.run.order))
    with Mutant("deaf", SESSION, Phase.SEEDING, rows).applied(), pytest.raises(TableError, match="Published"):
        step(session, Installed(at=0.0, order=session.run.order))


def test_the_diagram_draws_every_arrow_of_the_table() -> None:
    arrows = set()
    for line in diagram.mermaid().splitlines()[2:]:
        edge, names = line.strip().split(": ")
        start, end = edge.split(" --> ")
        arrows.update((start, name, end) for name in names.split(", "))
    expected = {
        (phase.value, diagram.key_name(key), to.value)
        for phase, rows in SESSION.items()
        for key, row in rows.items()
        if isinstance(row, Rule)
        for to in row.to - {phase}
    }
    assert arrows == expected


def test_the_page_has_a_line_for_every_rung_and_every_lesson() -> None:
    page = diagram.markdown()
    for ladder in LADDERS.values():
        for number, rung in enumerate(ladder, start=1):
            assert f"{number}. {rung.says} → " in page
    lessons = [line for line in page.splitlines() if line.startswith("| ") and line.count("|") == 4]
    assert len(lessons) == sum(len(lessons) for lessons in LEARN.values()) + 2


@pytest.mark.parametrize(("form", "made"), list(diagram.FORMATS.items()))
def test_the_command_shows_what_the_library_makes(form: str, made: object) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "inspan_core", "show", "--format", form],
        capture_output=True,
        encoding="utf-8",
        timeout=30,
        check=True,
    )
    assert callable(made)
    assert done.stdout == made()


def test_the_readmes_diagram_is_the_one_of_the_tables() -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    fence = "```mermaid\n"
    drawn = [part.split("```")[0] for part in page.split(fence)[1:] if part.startswith("stateDiagram-v2")]
    assert drawn == [diagram.mermaid()]
