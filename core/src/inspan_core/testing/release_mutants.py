"""Mistakes that somebody could make about the order in which a run is finalized and its sandbox let go."""

from collections.abc import Callable

from attrs import evolve

from inspan_core import handlers, learning
from inspan_core.answers import TerminationRefuted
from inspan_core.draft import Draft
from inspan_core.effects import CloseBody, Order, StopHarness
from inspan_core.events import Abandoned, Restarted, Signal
from inspan_core.orders import ORDERS
from inspan_core.rules import Rule, Rung, learns
from inspan_core.session import Evidence, Phase, RunPhase, SandboxFact
from inspan_core.tables import Goal
from inspan_core.testing.mutant import (
    Ladder,
    Mutant,
    only_when,
    without,
    wrong_ladder,
    wrong_lesson,
    wrong_row,
)


def _instead(then: RunPhase, other: RunPhase) -> Callable[[Ladder], Ladder]:
    """Give another order wherever the ladder gives this one."""
    return lambda ladder: tuple(evolve(rung, then=other) if rung.then is then else rung for rung in ladder)


def _before(then: RunPhase, other: RunPhase) -> Callable[[Ladder], Ladder]:
    """Move the rung that leads to `other` up, before the one that leads to `then`."""

    def moved(ladder: Ladder) -> Ladder:
        rung = next(rung for rung in ladder if rung.then is other)
        rest = [each for each in ladder if each is not rung]
        at = next(at for at, each in enumerate(rest) if each.then is then)
        return (*rest[:at], rung, *rest[at:])

    return moved


def _then(after: RunPhase, when: Callable[[Draft], bool], then: RunPhase) -> Callable[[Ladder], Ladder]:
    """Put one more rung behind the one that leads to `after`."""

    def longer(ladder: Ladder) -> Ladder:
        at = next(at for at, rung in enumerate(ladder) if rung.then is after)
        return (*ladder[: at + 1], Rung("a mutant", when, then), *ladder[at + 1 :])

    return longer


def _failed_or_none(draft: Draft) -> bool:
    missing = draft.collect not in learning.GRADABLE_COLLECTIONS
    return draft.evidence is Evidence.CONFIRMED and missing


def _released_and_collected(draft: Draft) -> bool:
    return draft.evidence is Evidence.CONFIRMED and draft.collect is not None


def _is_creating(draft: Draft) -> bool:
    return draft.pending is not None and draft.pending.phase is RunPhase.CONNECTING


def _forget_at_once(draft: Draft, signal: object) -> None:
    handlers.forget_setup(draft, signal)


def _abandon_well(draft: Draft, event: object) -> None:
    handlers.abandon(draft, event)
    body = CloseBody(seeded=True)
    if draft.close_answer is not None:
        draft.close_answer = evolve(draft.close_answer, status=200, body=body)


def _create_anew(draft: Draft, event: Restarted) -> None:
    handlers.restart_setup(draft, event)
    draft.phase = Phase.SEEDING
    draft.sandbox = SandboxFact.NONE


def _keep_partial_for_ever(draft: Draft, signal: object) -> None:
    handlers.keep_partial(draft, signal)
    draft.effects.pop()


def _stop_without_bound(draft: Draft, number: int) -> Order:
    return StopHarness(number=number, timeout_s=None)


RELEASE_MUTANTS: tuple[Mutant, ...] = (
    wrong_ladder("the harness is never installed", Goal.SETUP, without(RunPhase.INSTALLING), 14),
    wrong_ladder("the input is staged without a slot", Goal.FINALIZE, without(RunPhase.QUEUED), 1),
    wrong_ladder("the harness is launched without input", Goal.FINALIZE, without(RunPhase.STAGING), 1),
    wrong_ladder(
        "a close launches the harness",
        Goal.RELEASE_BORROWED,
        _then(RunPhase.CANCELLING, lambda d: d.staged and not d.launched, RunPhase.RUNNING),
        1,
    ),
    wrong_ladder(
        "the exec is released before the receipt",
        Goal.FINALIZE,
        _before(RunPhase.AWAITING, RunPhase.RELEASING_EXEC),
        3,
    ),
    wrong_ladder(
        "the exec is released before the artifacts are collected",
        Goal.RELEASE_BORROWED,
        _before(RunPhase.COLLECTING, RunPhase.RELEASING_EXEC),
        3,
    ),
    wrong_ladder(
        "artifacts are collected again after the release of the exec",
        Goal.FINALIZE,
        _then(RunPhase.RELEASING_EXEC, _released_and_collected, RunPhase.COLLECTING),
        2,
        9,
    ),
    wrong_ladder(
        "a collection that failed is made again by the close",
        Goal.RELEASE_BORROWED,
        only_when(RunPhase.COLLECTING, _failed_or_none),
        2,
    ),
    wrong_ladder("a run is not collected", Goal.FINALIZE, without(RunPhase.COLLECTING), 14),
    wrong_ladder("a run is not parsed", Goal.FINALIZE, without(RunPhase.PARSING), 14),
    wrong_lesson(
        "a negative receipt is asked for for ever",
        RunPhase.STOPPING,
        TerminationRefuted,
        learns(learning.refuted),
        13,
    ),
    wrong_ladder(
        "a supplied sandbox is stopped",
        Goal.RELEASE_BORROWED,
        _instead(RunPhase.DISCONNECTING, RunPhase.STOPPING_SANDBOX),
        4,
    ),
    wrong_ladder(
        "an owned sandbox is merely left",
        Goal.RELEASE_OWNED,
        _instead(RunPhase.STOPPING_SANDBOX, RunPhase.DISCONNECTING),
        4,
    ),
    wrong_ladder(
        "files are removed while they are written",
        Goal.RELEASE_BORROWED,
        only_when(RunPhase.CANCELLING, _is_creating),
        5,
        13,
    ),
    wrong_ladder(
        "the stop of a sandbox does not stand in for a failed step",
        Goal.RELEASE_OWNED,
        lambda ladder: (
            Rung("any step failed", lambda d: d.failed is not None, Signal.RELEASE_FAILED),
            *ladder[2:],
        ),
        4,
    ),
    Mutant("a close has a step without a bound", ORDERS, RunPhase.STOPPING, _stop_without_bound, (13,)),
    wrong_row(
        "a failed set-up is not undone",
        Phase.SEEDING,
        Signal.SETUP_FAILED,
        Rule(_forget_at_once, to={Phase.NEW}),
        10,
    ),
    wrong_row(
        "a restart creates a second sandbox",
        Phase.SEEDING,
        Restarted,
        Rule(_create_anew, to={Phase.SEEDING}),
        12,
    ),
    wrong_row(
        "no timer leads out of a failed set-up",
        Phase.UNWINDING,
        Signal.RELEASE_FAILED,
        Rule(_keep_partial_for_ever, to={Phase.SETUP_FAILED}),
        10,
    ),
    wrong_row(
        "an abandoned session's close is called a success",
        Phase.CLOSE_FAILED,
        Abandoned,
        Rule(_abandon_well, to={Phase.CLOSED}),
        9,
    ),
)
"""Mistakes about the ladders, and about what ends a session."""
