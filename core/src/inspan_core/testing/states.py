"""The explorer's states, and how states that no future can tell apart are made one.

- Numbers and waiters are names: the order under cancellation is 1, the one in flight 2, the timer 3, and
  waiters count from their kind's first number.
- Texts of errors are names too, one for each kind of error: which error is told first can still be seen.
- What only paces (budgets, doubling delays) is dropped, and so is what nothing reads any more in a phase.
- Results that the machine never tells apart are one: ``LIMIT`` and ``OK``, ``INCOMPLETE`` and ``COMPLETED``.
"""

from attrs import evolve, frozen

from inspan_core.effects import CloseBody, ErrorBody
from inspan_core.events import CollectResult, Outcome
from inspan_core.session import Failure, Pending, Phase, Retained, Run, Session
from inspan_core.testing.world import Fault, World

PENDING_NUMBER, ORDER_NUMBER, TIMER_NUMBER = 1, 2, 3
FIRST_SEED, FIRST_ACTIVATION, FIRST_CLOSE = 100, 200, 300

EXECUTION, CAPTURE, SETUP, KEPT = "the run's error", "the capture's error", "the set-up's error", "as before"

_COLLECTED = {
    CollectResult.LIMIT: CollectResult.OK,
    CollectResult.TIMEOUT: CollectResult.FAILED,
    CollectResult.UNAVAILABLE: CollectResult.FAILED,
}
_PARSED = {Outcome.INCOMPLETE: Outcome.COMPLETED, Outcome.UNPROCESSABLE: Outcome.FAILED}
_SETTING_UP = frozenset({Phase.SEEDING, Phase.UNWINDING})


@frozen
class State:
    """One state of session and world together.

    Attributes:
        session: The session, canonical.
        world: The world's own book, canonical.
        tried: The kinds of order given in this attempt to release, an order that it joined included.
    """

    session: Session
    world: World
    tried: frozenset[type] = frozenset()


def canonical(session: Session) -> Session:
    """Make sessions one that no future can tell apart."""
    phase = session.phase
    return evolve(
        session,
        run=_canonical_run(session.run, phase),
        number=TIMER_NUMBER,
        timer=TIMER_NUMBER if session.timer else 0,
        generation=0 if phase is Phase.NEW else 1,
        deadline_at=None,
        seed_waiters=tuple(range(FIRST_SEED, FIRST_SEED + len(session.seed_waiters))),
        activation_waiters=tuple(range(FIRST_ACTIVATION, FIRST_ACTIVATION + len(session.activation_waiters))),
        close_waiters=tuple(range(FIRST_CLOSE, FIRST_CLOSE + len(session.close_waiters))),
        answer=_canonical_answer(session.answer) if phase is Phase.FINISHED else None,
        setup_error=_canonical_failure(session.setup_error, SETUP) if phase in _SETTING_UP else None,
        close_answer=_canonical_answer(session.close_answer),
        failures=0,
    )


def _canonical_run(run: Run, phase: Phase) -> Run:
    pending = run.pending
    return evolve(
        run,
        order=ORDER_NUMBER if run.order else 0,
        pending=None if pending is None else Pending(phase=pending.phase, number=PENDING_NUMBER),
        slot=run.slot and not run.staged,
        exec_returned=False,
        evidence_detail=None,
        collect=None if run.collect is None else _COLLECTED.get(run.collect, run.collect),
        outcome=None if run.outcome is None else _PARSED.get(run.outcome, run.outcome),
        execution_error=_canonical_failure(run.execution_error, EXECUTION) if phase is Phase.ACTIVE else None,
        capture_error=None if run.capture_error is None else CAPTURE,
    )


def _canonical_failure(failure: Failure | None, name: str) -> Failure | None:
    return None if failure is None else evolve(failure, detail=name)


def _canonical_answer(answer: Retained | None) -> Retained | None:
    if answer is None:
        return None
    body = answer.body
    if isinstance(body, ErrorBody):
        return evolve(answer, body=ErrorBody(detail=KEPT))
    if isinstance(body, CloseBody):
        return evolve(answer, body=evolve(body, gaps=tuple(evolve(gap, detail=KEPT) for gap in body.gaps)))
    return answer


def canonical_world(world: World, phase: Phase) -> World:
    """Make the world's books one that no future can tell apart."""
    return evolve(
        world,
        setup=_canonical_fault(world.setup, SETUP) if phase in _SETTING_UP else None,
        execution=_canonical_fault(world.execution, EXECUTION) if phase is Phase.ACTIVE else None,
        capture=_canonical_fault(world.capture, CAPTURE) if phase is Phase.ACTIVE else None,
    )


def _canonical_fault(fault: Fault | None, name: str) -> Fault | None:
    return None if fault is None else Fault(status=fault.status, words=name)
