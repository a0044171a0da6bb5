"""Mistakes that somebody could make about clients: who waits, who is answered what, and for how long."""

from typing import Any

from attrs import evolve

from inspan_core import handlers, machine
from inspan_core.answers import Answer
from inspan_core.checks import CHECKS
from inspan_core.draft import Draft
from inspan_core.effects import ActivationBody, CloseBody, ErrorBody
from inspan_core.events import (
    ActivateRequested,
    ClientGone,
    CloseRequested,
    ExpiryReached,
    Restarted,
    RetryDue,
    SeedRequested,
    Signal,
    WindowEnded,
)
from inspan_core.rules import Ignored, Refused, Rule
from inspan_core.session import Phase, Retained, Session
from inspan_core.tables import LEARN
from inspan_core.testing.mutant import Mutant, wrong_row

_MACHINE: dict[str, Any] = machine.__dict__
_REFUSED = Refused(409, "session {name} is refused, like every other")


def _forget_waiter(draft: Draft, _: object) -> None:
    """Do nothing: who should have joined is never answered."""


def _answer_first_seed_only(draft: Draft, signal: object) -> None:
    draft.seed_waiters = draft.seed_waiters[:1]
    handlers.publish(draft, signal)


def _answer_no_activation(draft: Draft, signal: object) -> None:
    draft.activation_waiters = ()
    handlers.finish_run(draft, signal)


def _answer_no_close(draft: Draft, signal: object) -> None:
    draft.close_waiters = ()
    handlers.complete_close(draft, signal)


def _answer_close_twice(draft: Draft, event: CloseRequested) -> None:
    handlers.replay_close(draft, event)
    handlers.replay_close(draft, event)


def _answer_close_at_once(draft: Draft, event: CloseRequested) -> None:
    handlers.close_session(draft, evolve(event, waiter=None))
    if event.waiter is not None:
        draft.reply((event.waiter,), 200, CloseBody(seeded=True))


def _always_well(draft: Draft, signal: object) -> None:
    draft.phase = Phase.FINISHED
    draft.rest()
    draft.answer = Retained(status=200, body=ActivationBody())
    draft.reply(draft.activation_waiters, 200, ActivationBody())
    draft.activation_waiters = ()


def _publish_failed(draft: Draft, signal: object) -> None:
    draft.setup_error = None
    handlers.publish(draft, signal)


def _replay_close_anew(draft: Draft, event: CloseRequested) -> None:
    if event.waiter is not None:
        draft.reply((event.waiter,), 409, ErrorBody(detail="it is closed already"))


def _replay_run_anew(draft: Draft, event: ActivateRequested) -> None:
    draft.reply((event.waiter,), 503, ErrorBody(detail="the run was over already"))


def _no_fence(draft: Draft, event: CloseRequested) -> None:
    if event.waiter is not None:
        draft.reply((event.waiter,), 200, CloseBody(seeded=False))


def _close_for_lost_seed(draft: Draft, event: ClientGone) -> None:
    handlers.drop_waiter(draft, event)
    if not draft.seed_waiters:
        handlers.release_again(draft, event)


def _retain_without_window(draft: Draft, signal: object) -> None:
    handlers.complete_close(draft, signal)
    draft.effects.pop()


def _restart_without_lease(draft: Draft, event: object) -> None:
    owned, draft.owned = draft.owned, False
    handlers.restart_idle(draft, event)
    draft.owned = owned


def _answer_by_kind(session: Session, event: Answer) -> object:
    """Take an answer for one to the order in flight, whatever its number."""
    if session.run.order and type(event) in LEARN[session.run.phase]:
        event = evolve(event, order=session.run.order)
    return _WORK_ANSWER(session, event)


_WORK_ANSWER = _MACHINE["_work_answer"]


def _without_last_check(name: str, kind: type, *breaks: int) -> Mutant:
    return Mutant(name, CHECKS, kind, CHECKS[kind][:-1], breaks)


CLIENT_MUTANTS: tuple[Mutant, ...] = (
    wrong_row("every seed is refused", Phase.NEW, SeedRequested, _REFUSED, 14),
    wrong_row("every activation is refused", Phase.READY, ActivateRequested, _REFUSED, 14),
    wrong_row("every close is refused", Phase.READY, CloseRequested, _REFUSED, 0),
    wrong_row("a second seed is never answered", Phase.SEEDING, SeedRequested, Rule(_forget_waiter), 13),
    wrong_row(
        "a second activation is never answered", Phase.ACTIVE, ActivateRequested, Rule(_forget_waiter), 13
    ),
    wrong_row(
        "only the first seed hears that all is set up",
        Phase.SEEDING,
        Signal.PUBLISHED,
        Rule(_answer_first_seed_only, to={Phase.READY}),
        13,
    ),
    wrong_row(
        "an activation is forgotten when its run ends",
        Phase.ACTIVE,
        Signal.RUN_ENDED,
        Rule(_answer_no_activation, to={Phase.FINISHED}),
        13,
    ),
    wrong_row(
        "a close is forgotten when all is released",
        Phase.CLOSING,
        Signal.RELEASED,
        Rule(_answer_no_close, to={Phase.CLOSED}),
        13,
    ),
    wrong_row("a close is answered twice", Phase.CLOSED, CloseRequested, Rule(_answer_close_twice), 13),
    wrong_row(
        "a close is answered before the release",
        Phase.READY,
        CloseRequested,
        Rule(_answer_close_at_once, to={Phase.CLOSING}),
        6,
        14,
    ),
    wrong_row(
        "an activation is answered 200 whatever became of its run",
        Phase.ACTIVE,
        Signal.RUN_ENDED,
        Rule(_always_well, to={Phase.FINISHED}),
        7,
    ),
    wrong_row(
        "a seed is answered 200 although the set-up failed",
        Phase.SEEDING,
        Signal.SETUP_FAILED,
        Rule(_publish_failed, to={Phase.READY}),
        14,
    ),
    wrong_row("a close's replay differs", Phase.CLOSED, CloseRequested, Rule(_replay_close_anew), 14),
    wrong_row(
        "an activation's replay differs", Phase.FINISHED, ActivateRequested, Rule(_replay_run_anew), 14
    ),
    _without_last_check("a seed with a second body joins the first", SeedRequested, 14),
    _without_last_check("another episode's close is obeyed", CloseRequested, 14),
    wrong_row(
        "a close before its seed leaves no fence",
        Phase.NEW,
        CloseRequested,
        Rule(_no_fence, to={Phase.NEW}),
        6,
        14,
    ),
    wrong_row(
        "a lost client ends the set-up",
        Phase.SEEDING,
        ClientGone,
        Rule(_close_for_lost_seed, to={Phase.SEEDING, Phase.CLOSING}),
        11,
    ),
    wrong_row("a closed session's window never ends", Phase.CLOSED, WindowEnded, Ignored("a mutant"), 10),
    wrong_row("a fence's window never ends", Phase.FENCED, WindowEnded, Ignored("a mutant"), 10),
    wrong_row(
        "a close answer is retained without a window",
        Phase.CLOSING,
        Signal.RELEASED,
        Rule(_retain_without_window, to={Phase.CLOSED}),
        10,
    ),
    wrong_row("a failed close is not tried again", Phase.CLOSE_FAILED, RetryDue, Ignored("a mutant"), 9, 10),
    wrong_row("a lease that is over is ignored", Phase.FINISHED, ExpiryReached, Ignored("a mutant"), 11),
    wrong_row("a restart forgets the lease", Phase.READY, Restarted, Rule(_restart_without_lease), 11),
    Mutant(
        "a late answer is taken for the one that is awaited", _MACHINE, "_work_answer", _answer_by_kind, (2,)
    ),
    Mutant("a timer that was replaced still counts", _MACHINE, "_TIMED", frozenset[type](), (2,)),
)
"""Mistakes about requests, waiters, retained answers and timers."""
