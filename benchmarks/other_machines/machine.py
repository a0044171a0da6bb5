"""inspan's session machine built with two general state machine packages, for benchmarks/step.py.

The same guards, targets, handlers and data: both are made from inspan's tables at import, and both keep the
facts in one `Draft` that the same functions write. What differs is who dispatches. They change that one
object in place and freeze nothing, which `inspan_core.machine.step` does at each event.
"""

from collections.abc import Callable
from typing import Any

from inspan_core.checks import CHECKS
from inspan_core.draft import Draft
from inspan_core.effects import ErrorBody
from inspan_core.events import ANSWER_TYPES, Event, Signal
from inspan_core.handlers import note_failed_step
from inspan_core.machine import new_session
from inspan_core.orders import ORDERS
from inspan_core.rules import Ignored, Learn, Refused, Rule, Rung
from inspan_core.session import Phase, RunPhase
from inspan_core.tables import LADDERS, LEARN, SESSION, Goal, Key

ANSWERS = frozenset(ANSWER_TYPES)
CLIMBS = {goal: f"climb_{goal.name.lower()}" for goal in Goal}
GOALS = {Phase.SEEDING: Goal.SETUP, Phase.ACTIVE: Goal.FINALIZE}


def name_of(key: Key) -> str:
    """The trigger of an event or signal."""
    return f"on_{key.value if isinstance(key, Signal) else key.__name__}"


class Facts:
    """The data, and what the two machines do alike when a transition is taken."""

    def __init__(self, name: str) -> None:
        self.draft = Draft(new_session(name), 0.0)
        self.event: Any = None
        self.work: Any = None

    def feed(self, event: Event) -> list[Any]:
        """Work one event; returns the effects."""
        draft, kind = self.draft, type(event)
        self.event = event
        draft.at, draft.effects, draft.climb, draft.failed, draft.detail = event.at, [], False, None, ""
        if kind not in ANSWERS:
            self.fire(name_of(kind))
        elif event.order == draft.order and draft.order:
            self.fire_answer(name_of(kind))
            self.climb()
        elif draft.pending is not None and event.order == draft.pending.number:
            self.learn(LEARN[draft.pending.phase][kind])
            draft.pending = None
            if draft.run_phase is RunPhase.CANCELLING:
                self.climb()
            elif draft.run_phase is RunPhase.REST:
                self.fire(name_of(Signal.STRAGGLER_ENDED))
        return draft.effects

    def climb(self) -> None:
        """Take the first rung that holds."""
        release = Goal.RELEASE_OWNED if self.draft.owned else Goal.RELEASE_BORROWED
        self.fire_answer(CLIMBS[GOALS.get(self.draft.phase, release)])
        if self.work is not None:
            signal, self.work = self.work, None
            self.event = signal
            self.fire(name_of(signal))

    def handle(self, rule: Rule) -> None:
        """Run a rule's handler."""
        draft = self.draft
        draft.climb = False
        rule.handler(draft, self.event)

    def climb_if_asked(self) -> None:
        """What a handler asked for."""
        draft = self.draft
        if draft.climb:
            draft.climb = False
            draft.failed = None if isinstance(self.event, Signal) else draft.failed
            self.climb()

    def refuse(self, row: Refused) -> None:
        """Answer a request that is refused."""
        reason = row.reason.format(name=self.draft.name)
        self.draft.reply((self.event.waiter,), row.status or 500, ErrorBody(detail=reason))

    def learn(self, lesson: Learn) -> None:
        """Write what an answer teaches."""
        draft = self.draft
        for name, value in lesson.facts.items():
            setattr(draft, name, value)
        if lesson.note is not None:
            lesson.note(draft, self.event)
        if lesson.fails:
            note_failed_step(draft, draft.run_phase, self.event)

    def take(self, rung: Rung) -> None:
        """Give the rung's order, or remember its signal."""
        draft, then = self.draft, rung.then
        if isinstance(then, Signal):
            draft.rest()
            self.work = then
            return
        draft.run_phase = then
        draft.order = draft.next_number()
        draft.effects.append(ORDERS[then](draft, draft.order))

    def fire(self, trigger: str) -> None:
        """Trigger the machine of session phases."""
        raise NotImplementedError

    def fire_answer(self, trigger: str) -> None:
        """Trigger the machine of run phases."""
        raise NotImplementedError


Guard = Callable[[Facts], bool]
Action = Callable[[Facts], None]


def _always(facts: Facts) -> bool:
    return True


def phase_transitions() -> list[tuple[str, str, str | None, Guard, Action]]:
    """Trigger, source, target or None, guard and action of every row, in the order in which they count."""
    found: list[tuple[str, str, str | None, Guard, Action]] = []
    for phase, rows in SESSION.items():
        for key, row in rows.items():
            trigger, source = name_of(key), phase.value
            found.extend(
                (trigger, source, None, _checks(check.when), _refuses(check.refusal))
                for check in (CHECKS.get(key, ()) if isinstance(key, type) else ())
            )
            if isinstance(row, Rule):
                targets = sorted(row.to - {phase}, key=lambda target: target is Phase.NEW)
                for target in targets or [None]:
                    guard = _starts_afresh if target is Phase.SEEDING and len(targets) > 1 else _always
                    value = target.value if target is not None else None
                    found.append((trigger, source, value, guard, _handles(row)))
            elif isinstance(row, Ignored):
                found.append((trigger, source, None, _always, lambda facts: None))
            elif row.status is not None:
                found.append((trigger, source, None, _always, _refuses(row)))
    return found


def run_transitions() -> list[tuple[str, str, str | None, Guard, Action]]:
    """The same for answers and rungs; of a rung the source is ``*``."""
    found: list[tuple[str, str, str | None, Guard, Action]] = []
    for phase, lessons in LEARN.items():
        for kind, lesson in lessons.items():
            found.append((name_of(kind), phase.value, None, _always, _learns(lesson)))
    for goal, ladder in LADDERS.items():
        for rung in ladder:
            target = rung.then.value if isinstance(rung.then, RunPhase) else RunPhase.REST.value
            found.append((CLIMBS[goal], "*", target, _holds(rung), _takes(rung)))
    return found


def _checks(when: Callable[..., bool]) -> Guard:
    return lambda facts: when(facts.draft, facts.event)


def _refuses(row: Refused) -> Action:
    return lambda facts: facts.refuse(row)


def _handles(row: Rule) -> Action:
    return lambda facts: facts.handle(row)


def _learns(lesson: Learn) -> Action:
    return lambda facts: facts.learn(lesson)


def _holds(rung: Rung) -> Guard:
    return lambda facts: rung.when(facts.draft)


def _takes(rung: Rung) -> Action:
    return lambda facts: facts.take(rung)


def _starts_afresh(facts: Facts) -> bool:
    return facts.draft.setup_error is None and bool(facts.draft.seed_waiters)
