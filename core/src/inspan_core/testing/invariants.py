"""The invariants that the explorer holds over every transition, numbered as in the design of the machine.

Each check reads the world's own book, and raises `Violation` with one sentence. Number 9 (every session can
end) and the obligations of number 14 look ahead, and are in `inspan_core.testing.prospects`; what concerns a
single order is in `inspan_core.testing.order_invariants`.
"""

from collections.abc import Callable

from inspan_core.effects import (
    ActivationBody,
    AwaitReceipt,
    CancelPending,
    CloseBody,
    CreateSandbox,
    GapCode,
    Launch,
    ReleaseExec,
    SeedBody,
    StopSandbox,
    Timer,
)
from inspan_core.events import (
    ANSWER_TYPES,
    Abandoned,
    ActivateRequested,
    ClientGone,
    CloseRequested,
    ExpiryReached,
    Restarted,
    RetryDue,
    SeedRequested,
    TerminationRefuted,
)
from inspan_core.session import Phase, Session
from inspan_core.testing.oracle import (
    ORACLE,
    Due,
    is_released,
    is_success,
    owed_activation,
    owed_seed,
    replies_fault,
)
from inspan_core.testing.order_invariants import ORDER_CHECKS
from inspan_core.testing.transitions import RELEASING, Transition, require

CLIMBING = frozenset({Phase.SEEDING, Phase.UNWINDING, Phase.ACTIVE, Phase.CLOSING})
ENDED = frozenset({Phase.NEW, Phase.CLOSED, Phase.FENCED})
_RESTING_WITH_TIMER = {
    Phase.CLOSED: Timer.WINDOW,
    Phase.FENCED: Timer.WINDOW,
    Phase.SETUP_FAILED: Timer.RETRY,
    Phase.CLOSE_FAILED: Timer.RETRY,
}
_LEASED = frozenset({Phase.SEEDING, Phase.READY, Phase.ACTIVE, Phase.FINISHED})
_ANSWERS = frozenset(ANSWER_TYPES)


def _rank(session: Session) -> frozenset[int]:
    return frozenset((*session.seed_waiters, *session.activation_waiters, *session.close_waiters))


def one_order_at_a_time(t: Transition) -> None:
    """13: a climbing session has exactly one order in flight, a resting one none; numbers only grow."""
    session, world = t.session, t.after.world
    require(len(t.orders) <= 1, 13, "two orders are given at once")
    for order in t.orders:
        require(order.number > t.before.session.number, 13, "an order's number was used before")
        busy = t.told.order is not None and not isinstance(t.event, Restarted)
        gives_way = t.told.order in (Launch, AwaitReceipt) or isinstance(order, CancelPending)
        require(not busy or gives_way, 13, f"{type(order).__name__} is ordered while another is in flight")
    in_flight = session.run.order != 0
    require(in_flight == (world.order is not None), 13, "the machine awaits what nobody was ordered to do")
    climbing = session.phase in CLIMBING
    require(in_flight == climbing, 13, f"phase {session.phase.value} with {world.order} in flight")
    pending = session.run.pending is not None
    require(pending == (world.pending is not None), 13, "the machine lost an order that is being cancelled")


def waiters_answered_once(t: Transition) -> None:
    """13: nobody is answered twice, forgotten, or left waiting in a resting phase."""
    before, after = _rank(t.before.session), _rank(t.session)
    waiter: int | None = getattr(t.event, "waiter", None)
    waiting: frozenset[int] = frozenset() if isinstance(t.event, Restarted) else before
    if isinstance(t.event, ClientGone):
        waiting -= {t.event.waiter}
    elif waiter is not None:
        waiting |= {waiter}
    answered = [reply.waiter for reply in t.replies]
    require(len(answered) == len(set(answered)), 13, "a waiter is answered twice")
    require(waiting.issuperset(answered), 13, "somebody is answered who does not wait")
    require(after == waiting.difference(answered), 13, "a waiter is forgotten, or kept after its answer")
    require(not after or t.session.phase in CLIMBING, 13, f"somebody waits in phase {t.session.phase.value}")


def abandonment_ends(t: Transition) -> None:
    """9: where no evidence can ever come, the operator's word ends the session, and it is not gradable."""
    if isinstance(t.event, Abandoned):
        ended = t.session.phase is Phase.CLOSED and not t.session.gradable
        require(ended, 9, f"a session is abandoned, and {t.session.phase.value}")
        closed = t.session.close_answer
        unproven = closed is not None and closed.status != 200
        require(unproven, 9, "an abandoned session's close is answered as if it were released")


def only_close_cancels(t: Transition) -> None:
    """11: a lost client changes nothing, and nothing but a close, an expiry or a retry releases a session."""
    was, now = t.before.session, t.session
    if isinstance(t.event, ClientGone):
        same = (was.phase, was.run, was.answer, was.timer) == (now.phase, now.run, now.answer, now.timer)
        require(same and not t.effects, 11, "a lost client changed more than who waits")
    if isinstance(t.event, ExpiryReached) and was.phase in _LEASED:
        require(now.phase is Phase.CLOSING, 11, f"a lease that is over is ignored in phase {was.phase.value}")
    if now.phase is not Phase.CLOSING or was.phase is Phase.CLOSING:
        return
    allowed = (
        isinstance(t.event, CloseRequested)
        or (isinstance(t.event, ExpiryReached) and t.told.owned)
        or (
            was.phase in (Phase.CLOSE_FAILED, Phase.SETUP_FAILED)
            and isinstance(t.event, RetryDue | Restarted)
        )
        or (was.phase is Phase.CLOSE_FAILED and type(t.event) in _ANSWERS)
    )
    require(allowed, 11, f"{type(t.event).__name__} closed a session in phase {was.phase.value}")


def nothing_left(t: Transition) -> None:
    """10: nothing is ordered and nothing lives once a session has ended, except by abandonment."""
    was, phase = t.before.session.phase, t.session.phase
    if phase in ENDED:
        require(not t.orders, 10, f"an order is given in phase {phase.value}")
        if phase is not was and was not in ENDED and not isinstance(t.event, Abandoned):
            require(is_released(t.told), 10, f"something lives on in phase {phase.value}")
            require(t.told.pending is None, 10, f"an order is still being cancelled in phase {phase.value}")
            require(not t.told.exec_held, 10, f"an exec is held in phase {phase.value}")
    timer = _RESTING_WITH_TIMER.get(phase)
    require(timer is None or t.after.world.timer is timer, 10, f"no timer leads out of phase {phase.value}")
    if phase in _LEASED and t.after.world.owned:
        require(t.after.world.timer is Timer.LEASE, 11, f"no lease is counted in phase {phase.value}")


def stop_stands_in(t: Transition) -> None:
    """4: our own sandbox's release fails only where its stop failed, or a create may still make one."""
    failed = t.session.phase in (Phase.CLOSE_FAILED, Phase.SETUP_FAILED)
    if failed and t.before.session.phase in RELEASING and t.told.owned:
        before = t.before.world
        tried = before.order is StopSandbox or before.pending is CreateSandbox
        require(tried, 4, "a release failed, and nobody tried to stop the sandbox")


def requests_as_agreed(t: Transition) -> None:
    """8 and 14: what becomes of a request at once is what the contract says."""
    column = _COLUMNS.get(type(t.event))
    waiter: int | None = getattr(t.event, "waiter", None)
    if column is None or waiter is None:
        return
    was, due = t.before.session, ORACLE[t.before.session.phase][column]
    reply = next((reply for reply in t.replies if reply.waiter == waiter), None)
    if due is Due.WAIT:
        holds = reply is None
    elif reply is None:
        holds = False
    elif due is Due.OK:
        holds = is_success(reply, SeedBody) or is_success(reply, CloseBody)
    elif due is Due.REFUSED:
        holds = reply.status == 409
    else:
        kept = was.answer if column == 1 else was.close_answer
        holds = kept is not None and (reply.status, reply.body) == (kept.status, kept.body)
    name = type(t.event).__name__
    require(holds, 14, f"{name} in phase {was.phase.value}: {due.value} is owed, and {reply} was given")
    if isinstance(t.event, ActivateRequested) and due is Due.WAIT:
        require(t.session.activation_digest is not None, 8, "an activation waits without being bound")


_COLUMNS: dict[type, int] = {SeedRequested: 0, ActivateRequested: 1, CloseRequested: 2}


def seeds_answered(t: Transition) -> None:
    """14: waiting seeds hear 200 when all is set up, else the first failure of the set-up."""
    for waiter in t.before.session.seed_waiters:
        for reply in t.replies:
            if reply.waiter != waiter:
                continue
            if reply.status == 200:
                whole = t.told.installed and t.told.setup is None
                ready = t.session.phase is Phase.READY and whole
                require(ready and is_success(reply, SeedBody), 14, "a seed is confirmed that is not set up")
            elif isinstance(t.event, CloseRequested | ExpiryReached) and t.told.setup is None:
                status = 409 if isinstance(t.event, CloseRequested) else 503
                require(reply.status == status, 14, f"a cut-off seed is answered {reply.status}")
            else:
                require(replies_fault(reply, owed_seed(t.told)), 14, f"a failed seed is answered {reply}")


def activations_answered(t: Transition) -> None:
    """7 and 14: 200 exactly when the run ended well; otherwise the failure that comes first."""
    fault = owed_activation(t.told)
    ended = t.before.session.phase is Phase.ACTIVE and t.session.phase is Phase.FINISHED
    for reply in t.replies:
        if isinstance(reply.body, ActivationBody) and not isinstance(t.event, ActivateRequested):
            require(ended and fault is None, 7, "an activation is answered 200 that did not end well")
        if reply.waiter in t.before.session.activation_waiters and not ended:
            cut = isinstance(t.event, CloseRequested | ExpiryReached)
            require(cut and reply.status == 503, 14, f"a cut-off activation is answered {reply.status}")
    answer = t.session.answer
    if not ended:
        require(answer == t.before.session.answer or t.session.phase in ENDED, 7, "a retained answer changed")
        return
    require(answer is not None, 14, "a run ended without an answer")
    if answer is None:
        return
    tried = t.told.evidence is None or t.before.world.order is ReleaseExec
    require(tried or not t.told.exec_held, 3, "a run ends with its exec held, and nobody tried to release it")
    if fault is None:
        require(answer.status == 200, 14, f"a run that ended well is answered {answer}")
    else:
        said = f"a run that failed by {fault} is answered {answer}"
        require(answer.status == fault.status, 14, said)
        require(fault.words in getattr(answer.body, "detail", ""), 14, said)


def stragglers_resume(t: Transition) -> None:
    """14: what a failed close had to leave in flight resumes it by its late answer."""
    if t.before.session.phase is Phase.CLOSE_FAILED and type(t.event) in _ANSWERS:
        require(
            t.session.phase is not Phase.CLOSE_FAILED, 14, "a late answer did not resume the failed close"
        )


def closes_answered(t: Transition) -> None:
    """6: a close succeeds only after the release, and fails only when a step of it did."""
    if t.before.session.phase is Phase.CLOSED or t.session.phase is Phase.FENCED:
        return
    for reply in t.replies:
        if isinstance(reply.body, CloseBody):
            require(
                reply.body.seeded and t.session.phase is Phase.CLOSED, 6, "a close succeeds out of its phase"
            )
            require(is_released(t.told), 6, "a close succeeds before the release")
            codes = [gap.code for gap in reply.body.gaps]
            refuted = t.told.evidence is TerminationRefuted
            require(
                refuted == (GapCode.TERMINATION_REFUTED in codes), 6, f"a close is answered with gaps {codes}"
            )
            whole = t.told.collected is True and t.told.parsed is not None
            require(whole or bool(codes), 6, "a close without artifacts names no gap")
        elif reply.waiter in t.before.session.close_waiters:
            failed = t.session.phase is Phase.CLOSE_FAILED and reply.status == 503
            require(failed, 6, f"a close is answered {reply.status} in phase {t.session.phase.value}")


TRANSITION_CHECKS: tuple[Callable[[Transition], None], ...] = (
    one_order_at_a_time,
    waiters_answered_once,
    only_close_cancels,
    abandonment_ends,
    nothing_left,
    stop_stands_in,
    requests_as_agreed,
    seeds_answered,
    activations_answered,
    closes_answered,
    stragglers_resume,
)


def check_transition(t: Transition) -> None:
    """Hold every invariant over one transition.

    Raises:
        Violation: The first that does not hold.
    """
    for order in t.orders:
        for check_order in ORDER_CHECKS:
            check_order(t, order, t.told)
    for check in TRANSITION_CHECKS:
        check(t)
