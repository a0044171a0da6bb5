"""Which rows, targets, lessons and rungs of the tables an exploration has reached."""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

from attrs import define, evolve, field

from inspan_core.checks import CHECKS
from inspan_core.draft import Draft
from inspan_core.events import Signal
from inspan_core.rules import Check, Handler, Learn, Refused, Rule, Rung
from inspan_core.session import Phase
from inspan_core.tables import LADDERS, LEARN, SESSION, Goal, Key


@define
class Coverage:
    """What was reached, and what there is to reach.

    Attributes:
        reached: The names of reached places, as `places` names them.
    """

    reached: set[str] = field(factory=set[str])

    def missing(self) -> list[str]:
        """Name the places that were not reached."""
        return sorted(set(places()) - self.reached)


def key_name(key: Key) -> str:
    """Name an event or signal."""
    return key.value if isinstance(key, Signal) else key.__name__


def places() -> Iterator[str]:
    """Name every place that a complete exploration reaches.

    A row that refuses a signal is none: it stands for what the ladders make impossible, and the machine
    raises `TableError` there.
    """
    for phase, rows in SESSION.items():
        for key, row in rows.items():
            if isinstance(row, Rule):
                yield from (_target(phase, key, to) for to in (row.to or {phase}))
            elif not (isinstance(key, Signal) and isinstance(row, Refused)):
                yield _row(phase, key)
    for kind, checks in CHECKS.items():
        yield from (f"CHECKS {kind.__name__} {number}" for number in range(len(checks)))
    for run_phase, lessons in LEARN.items():
        yield from (f"LEARN {run_phase.value} {kind.__name__}" for kind in lessons)
    for goal, ladder in LADDERS.items():
        yield from (_rung(goal, number) for number in range(len(ladder)))


def _row(phase: Phase, key: Key) -> str:
    return f"SESSION {phase.value} {key_name(key)}"


def _target(phase: Phase, key: Key, to: Phase) -> str:
    return f"{_row(phase, key)} -> {to.value}"


def _rung(goal: Goal, number: int) -> str:
    return f"LADDERS {goal.value} {number + 1}"


@contextmanager
def recording() -> Generator[Coverage]:
    """Have the tables note what is reached, for as long as the context lasts."""
    coverage = Coverage()
    reached = coverage.reached
    session, learn, ladders, checks = dict(SESSION), dict(LEARN), dict(LADDERS), dict(CHECKS)
    for phase, rows in SESSION.items():
        SESSION[phase] = {
            key: Rule(_watched_handler(row.handler, phase, key, reached), to=row.to)
            if isinstance(row, Rule)
            else row
            for key, row in rows.items()
        }
    for run_phase, lessons in LEARN.items():
        LEARN[run_phase] = {
            kind: _watched_lesson(lesson, f"LEARN {run_phase.value} {kind.__name__}", reached)
            for kind, lesson in lessons.items()
        }
    for goal, ladder in LADDERS.items():
        LADDERS[goal] = tuple(
            _watched_rung(rung, _rung(goal, number), reached) for number, rung in enumerate(ladder)
        )
    for kind, asked in CHECKS.items():
        CHECKS[kind] = tuple(
            _watched_check(check, f"CHECKS {kind.__name__} {number}", reached)
            for number, check in enumerate(asked)
        )
    try:
        yield coverage
    finally:
        SESSION.update(session)
        LEARN.update(learn)
        LADDERS.update(ladders)
        CHECKS.update(checks)


def note_row(coverage: Coverage, phase: Phase, kind: type) -> None:
    """Note that a row without a handler was met."""
    coverage.reached.add(_row(phase, kind))


def _watched_handler(handler: Handler, phase: Phase, key: Key, reached: set[str]) -> Handler:
    def watched(draft: Draft, event: Any) -> None:
        handler(draft, event)
        reached.add(_target(phase, key, draft.phase))

    watched.__name__ = handler.__name__
    return watched


def _watched_lesson(lesson: Learn, name: str, reached: set[str]) -> Learn:
    def watched(draft: Draft, answer: Any) -> None:
        reached.add(name)
        if lesson.note is not None:
            lesson.note(draft, answer)

    return evolve(lesson, note=watched)


def _watched_rung(rung: Rung, name: str, reached: set[str]) -> Rung:
    def watched(draft: Draft) -> bool:
        holds = rung.when(draft)
        if holds:
            reached.add(name)
        return holds

    return evolve(rung, when=watched)


def _watched_check(check: Check, name: str, reached: set[str]) -> Check:
    def watched(session: Any, event: Any) -> bool:
        holds = check.when(session, event)
        if holds:
            reached.add(name)
        return holds

    return evolve(check, when=watched)
