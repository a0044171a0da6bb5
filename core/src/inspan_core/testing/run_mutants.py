"""Mistakes that somebody could make about the run and its sandbox."""

from inspan_core import handlers, learning
from inspan_core.answers import ExecLost, NeverLaunched, SandboxReady, Staged, TerminationConfirmed
from inspan_core.checks import CHECKS
from inspan_core.draft import Draft
from inspan_core.effects import SeedBody
from inspan_core.events import (
    ActivateRequested,
    ClientGone,
    CloseRequested,
    Collected,
    Restarted,
    SeedRequested,
    Signal,
)
from inspan_core.rules import Rule, Rung, learns
from inspan_core.session import Evidence, Failure, Phase, Run, RunPhase, SandboxFact
from inspan_core.tables import Goal
from inspan_core.testing.mutant import (
    Ladder,
    Mutant,
    first,
    only_when,
    without,
    wrong_ladder,
    wrong_lesson,
    wrong_row,
)


def _relaunch(draft: Draft, event: Restarted) -> None:
    handlers.restart_run(draft, event)
    if draft.evidence is Evidence.NONE:
        draft.launched = False


def _run_again(draft: Draft, event: ActivateRequested) -> None:
    draft.take_run(Run(owned=draft.owned, sandbox=draft.sandbox, installed=True, files=True))
    handlers.bind_activation(draft, event)


def _close_for_lost_client(draft: Draft, event: ClientGone) -> None:
    handlers.drop_waiter(draft, event)
    if not draft.activation_waiters:
        handlers.release_again(draft, event)


def _wait_for_run(draft: Draft, event: CloseRequested) -> None:
    draft.phase = Phase.CLOSING
    handlers.join_close(draft, event)


def _forget_waiter(draft: Draft, _: object) -> None:
    """Do nothing: the close that should have joined is never answered."""


def _confirm_early(draft: Draft, event: SeedRequested) -> None:
    draft.reply((event.waiter,), 200, SeedBody())


def _capture_counts_first(draft: Draft, answer: Collected) -> None:
    learning.collected(draft, answer)
    if draft.capture_error is not None:
        draft.execution_error = Failure(detail=draft.capture_error, retryable=True)


def _lost_is_failed(draft: Draft, answer: ExecLost) -> None:
    draft.note_execution_error(answer.detail, retryable=True)


def _stop_at_once(ladder: Ladder) -> Ladder:
    at = next(at for at, rung in enumerate(ladder) if rung.then is RunPhase.STOPPING)
    rung = Rung("at once", lambda d: d.sandbox is SandboxFact.LIVE, RunPhase.STOPPING_SANDBOX)
    return (*ladder[:at], rung, *ladder[at:])


def _succeed_anyway(draft: Draft, _: object) -> None:
    draft.sandbox = SandboxFact.NONE
    handlers.complete_close(draft, _)


def _no_retry(draft: Draft, event: object) -> None:
    handlers.keep_for_retry(draft, event)
    draft.effects.pop()


RUN_MUTANTS: tuple[Mutant, ...] = (
    wrong_row("a restart launches the harness again", Phase.ACTIVE, Restarted, Rule(_relaunch), 1),
    wrong_lesson("staging need not be answered well", RunPhase.STAGING, Staged, learns(staged=False), 9, 14),
    wrong_ladder(
        "artifacts are collected while the harness runs",
        Goal.FINALIZE,
        only_when(RunPhase.COLLECTING, lambda d: d.collect is None),
        2,
        14,
    ),
    wrong_ladder(
        "a negative receipt is collected all the same",
        Goal.RELEASE_BORROWED,
        only_when(RunPhase.COLLECTING, lambda d: d.evidence is not Evidence.NONE and d.collect is None),
        2,
    ),
    wrong_ladder(
        "the exec is released before the stop", Goal.RELEASE_BORROWED, first(RunPhase.RELEASING_EXEC), 3
    ),
    wrong_ladder("an owned sandbox is stopped at once", Goal.RELEASE_OWNED, _stop_at_once, 4),
    wrong_ladder(
        "files are removed before they are collected",
        Goal.RELEASE_BORROWED,
        first(RunPhase.REMOVING_FILES),
        3,
        5,
    ),
    wrong_ladder(
        "files are left in a supplied sandbox",
        Goal.RELEASE_BORROWED,
        without(RunPhase.REMOVING_FILES),
        6,
        10,
    ),
    wrong_row(
        "a failed close is called a success",
        Phase.CLOSING,
        Signal.RELEASE_FAILED,
        Rule(_succeed_anyway, to={Phase.CLOSED}),
        6,
        10,
    ),
    wrong_ladder(
        "a sandbox is stopped while it is created", Goal.RELEASE_OWNED, without(RunPhase.CANCELLING), 10, 13
    ),
    wrong_row(
        "a lost client ends the run",
        Phase.ACTIVE,
        ClientGone,
        Rule(_close_for_lost_client, to={Phase.ACTIVE, Phase.CLOSING}),
        11,
    ),
    wrong_row(
        "a close waits for the run instead of stopping it",
        Phase.ACTIVE,
        CloseRequested,
        Rule(_wait_for_run, to={Phase.CLOSING}),
        13,
    ),
    wrong_row(
        "a second close is never answered", Phase.CLOSING, CloseRequested, Rule(_forget_waiter), 13, 14
    ),
    wrong_row(
        "no timer leads out of a failed close",
        Phase.CLOSING,
        Signal.RELEASE_FAILED,
        Rule(_no_retry, to={Phase.CLOSE_FAILED}),
        10,
    ),
    wrong_row(
        "a seed is confirmed before its sandbox is ready",
        Phase.SEEDING,
        SeedRequested,
        Rule(_confirm_early),
        14,
    ),
    wrong_row(
        "a finished run is run again",
        Phase.FINISHED,
        ActivateRequested,
        Rule(_run_again, to={Phase.ACTIVE}),
        1,
        7,
        14,
    ),
    Mutant(
        "a second, different activation joins the first",
        CHECKS,
        ActivateRequested,
        CHECKS[ActivateRequested][:-1],
        (8, 14),
    ),
    wrong_lesson(
        "a lost exec is an outcome",
        RunPhase.RUNNING,
        ExecLost,
        learns(_lost_is_failed),
        14,
    ),
    wrong_lesson(
        "the capture's error replaces the run's",
        RunPhase.COLLECTING,
        Collected,
        learns(_capture_counts_first),
        14,
    ),
    wrong_lesson(
        "a launch that never was counts as stopped",
        RunPhase.AWAITING,
        NeverLaunched,
        learns(evidence=Evidence.CONFIRMED),
        2,
    ),
    wrong_lesson("a receipt is not believed", RunPhase.STOPPING, TerminationConfirmed, learns(), 9, 13),
    wrong_lesson(
        "a sandbox that was connected is forgotten",
        RunPhase.CONNECTING,
        SandboxReady,
        learns(sandbox=SandboxFact.NONE),
        9,
        12,
        14,
    ),
    wrong_row(
        "a late answer does not resume a failed close",
        Phase.CLOSE_FAILED,
        Signal.STRAGGLER_ENDED,
        Rule(_forget_waiter, to={Phase.CLOSE_FAILED}),
        14,
    ),
)
"""Mistakes that somebody could make."""
