"""Machines that are wrong on purpose, to prove that the explorer can find it.

A mutant changes one entry of the machine's tables for as long as its context lasts. Those in `MUTANTS` are
written by hand, each a mistake that somebody could make, with the promise that it breaks. `mechanical` makes
many more: every rung dropped or swapped with the next, every lesson unlearnt, every rule's handler idle.
"""

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

from attrs import evolve, frozen

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
from inspan_core.rules import Ignored, Rule, Rung, learns
from inspan_core.session import Evidence, Failure, Phase, Run, RunPhase, SandboxFact
from inspan_core.tables import LADDERS, LEARN, SESSION, Goal, Key

Ladder = tuple[Rung, ...]


@frozen
class Mutant:
    """One wrong machine.

    Attributes:
        name: What is wrong with it.
        table: The table that is changed: SESSION, LEARN, LADDERS or CHECKS.
        key: The entry that is changed.
        value: What it is changed to.
        breaks: The invariants of which the explorer may report one first; empty for any.
    """

    name: str
    table: dict[Any, Any]
    key: object
    value: object
    breaks: tuple[int, ...] = ()

    @contextmanager
    def applied(self) -> Generator[None]:
        """Make the machine wrong for as long as the context lasts."""
        kept = self.table[self.key]
        self.table[self.key] = self.value
        try:
            yield
        finally:
            self.table[self.key] = kept


def _row(name: str, phase: Phase, key: Key, row: object, *breaks: int) -> Mutant:
    return Mutant(name, SESSION, phase, {**SESSION[phase], key: row}, breaks)


def _lesson(name: str, phase: RunPhase, kind: type, lesson: object, *breaks: int) -> Mutant:
    return Mutant(name, LEARN, phase, {**LEARN[phase], kind: lesson}, breaks)


def _ladder(name: str, goal: Goal, change: Callable[[Ladder], Ladder], *breaks: int) -> Mutant:
    return Mutant(name, LADDERS, goal, change(LADDERS[goal]), breaks)


def _without(*then: RunPhase | Signal) -> Callable[[Ladder], Ladder]:
    return lambda ladder: tuple(rung for rung in ladder if rung.then not in then)


def _first(then: RunPhase) -> Callable[[Ladder], Ladder]:
    def moved(ladder: Ladder) -> Ladder:
        rung = next(rung for rung in ladder if rung.then is then)
        at = next(at for at, other in enumerate(ladder) if other.then is RunPhase.STOPPING)
        rest = [other for other in ladder if other is not rung]
        return (*rest[:at], rung, *rest[at:])

    return moved


def _when(then: RunPhase | Signal, when: Callable[[Draft], bool]) -> Callable[[Ladder], Ladder]:
    return lambda ladder: tuple(evolve(rung, when=when) if rung.then is then else rung for rung in ladder)


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


MUTANTS: tuple[Mutant, ...] = (
    _row("a restart launches the harness again", Phase.ACTIVE, Restarted, Rule(_relaunch), 1),
    _lesson("staging need not be answered well", RunPhase.STAGING, Staged, learns(staged=False), 9, 14),
    _ladder(
        "artifacts are collected while the harness runs",
        Goal.FINALIZE,
        _when(RunPhase.COLLECTING, lambda d: d.collect is None),
        2,
        14,
    ),
    _ladder(
        "a negative receipt is collected all the same",
        Goal.RELEASE_BORROWED,
        _when(RunPhase.COLLECTING, lambda d: d.evidence is not Evidence.NONE and d.collect is None),
        2,
    ),
    _ladder(
        "the exec is released before the stop", Goal.RELEASE_BORROWED, _first(RunPhase.RELEASING_EXEC), 3
    ),
    _ladder("an owned sandbox is stopped at once", Goal.RELEASE_OWNED, _stop_at_once, 4),
    _ladder(
        "files are removed before they are collected",
        Goal.RELEASE_BORROWED,
        _first(RunPhase.REMOVING_FILES),
        3,
        5,
    ),
    _ladder(
        "files are left in a supplied sandbox",
        Goal.RELEASE_BORROWED,
        _without(RunPhase.REMOVING_FILES),
        6,
        10,
    ),
    _row(
        "a failed close is called a success",
        Phase.CLOSING,
        Signal.RELEASE_FAILED,
        Rule(_succeed_anyway, to={Phase.CLOSED}),
        6,
        10,
    ),
    _ladder(
        "a sandbox is stopped while it is created", Goal.RELEASE_OWNED, _without(RunPhase.CANCELLING), 10, 13
    ),
    _row(
        "a lost client ends the run",
        Phase.ACTIVE,
        ClientGone,
        Rule(_close_for_lost_client, to={Phase.ACTIVE, Phase.CLOSING}),
        11,
    ),
    _row(
        "a close waits for the run instead of stopping it",
        Phase.ACTIVE,
        CloseRequested,
        Rule(_wait_for_run, to={Phase.CLOSING}),
        13,
    ),
    _row("a second close is never answered", Phase.CLOSING, CloseRequested, Rule(_forget_waiter), 13, 14),
    _row(
        "no timer leads out of a failed close",
        Phase.CLOSING,
        Signal.RELEASE_FAILED,
        Rule(_no_retry, to={Phase.CLOSE_FAILED}),
        10,
    ),
    _row(
        "a seed is confirmed before its sandbox is ready",
        Phase.SEEDING,
        SeedRequested,
        Rule(_confirm_early),
        14,
    ),
    _row(
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
    _lesson(
        "a lost exec is an outcome",
        RunPhase.RUNNING,
        ExecLost,
        learns(_lost_is_failed),
        14,
    ),
    _lesson(
        "the capture's error replaces the run's",
        RunPhase.COLLECTING,
        Collected,
        learns(_capture_counts_first),
        14,
    ),
    _lesson(
        "a launch that never was counts as stopped",
        RunPhase.AWAITING,
        NeverLaunched,
        learns(evidence=Evidence.CONFIRMED),
        2,
    ),
    _lesson("a receipt is not believed", RunPhase.STOPPING, TerminationConfirmed, learns(), 9, 13),
    _lesson(
        "a sandbox that was connected is forgotten",
        RunPhase.CONNECTING,
        SandboxReady,
        learns(sandbox=SandboxFact.NONE),
        9,
        12,
        14,
    ),
    _row(
        "a late answer does not resume a failed close",
        Phase.CLOSE_FAILED,
        Signal.STRAGGLER_ENDED,
        Rule(_forget_waiter, to={Phase.CLOSE_FAILED}),
        14,
    ),
)
"""Mistakes that somebody could make."""


def mechanical() -> Iterator[Mutant]:
    """Make every rung dropped, every two rungs swapped, every lesson unlearnt, every rule idle."""
    for goal, ladder in LADDERS.items():
        for at, rung in enumerate(ladder):
            name = f"{goal.value}, rung {at + 1} ({rung.says})"
            yield Mutant(f"{name}, dropped", LADDERS, goal, ladder[:at] + ladder[at + 1 :])
            if at + 1 < len(ladder):
                swapped = (*ladder[:at], ladder[at + 1], rung, *ladder[at + 2 :])
                yield Mutant(f"{name}, swapped with the next", LADDERS, goal, swapped)
    for run_phase, lessons in LEARN.items():
        for kind, lesson in lessons.items():
            if lesson != learns():
                yield _lesson(
                    f"{run_phase.value}: {kind.__name__} teaches nothing", run_phase, kind, learns()
                )
    for phase, rows in SESSION.items():
        for key, row in rows.items():
            if isinstance(row, Rule):
                name = key.value if isinstance(key, Signal) else key.__name__
                yield _row(f"{phase.value}: {name} is ignored", phase, key, Ignored("a mutant"))
