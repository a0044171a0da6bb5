"""Judge one step of the machine by the contract oracle: every reply that it gave, or failed to give."""

from attrs import evolve

from inspan_core.effects import Effect, Reply
from inspan_core.events import ActivateRequested, CloseRequested, Event, Request, SeedRequested
from inspan_core.session import Phase, Session
from inspan_core.testing.contract_oracle import (
    CONFLICT,
    WAITS,
    Kind,
    Standing,
    expected,
    given,
    hear,
    settlement,
)


def judge(
    standing: Standing, before: Session, event: Event, after: Session, effects: tuple[Effect, ...]
) -> tuple[Standing, list[str]]:
    """Compare every reply of one step with the contract.

    Args:
        standing: What happened before.
        before: The session before the step.
        event: What was told.
        after: The session after the step.
        effects: What came of it.

    Returns:
        The memory after the step, and a sentence a disagreement.
    """
    heard = hear(standing, before, event)
    replies = {effect.waiter: effect for effect in effects if isinstance(effect, Reply)}
    problems: list[str] = []
    known = evolve(heard, unreleased=False)
    for kind, waiter in _waiters(before):
        reply = replies.pop(waiter, None)
        if reply is None:
            continue
        want = settlement(heard, kind, event, after)
        if not want.allows(reply):
            problems.append(f"{kind.value} that waited is answered {_tell(reply)}, the contract: {want}")
        known = given(known, before, after, reply, kind)
    if isinstance(event, SeedRequested | ActivateRequested | CloseRequested):
        kind = _KINDS[type(event)]
        reply = None if event.waiter is None else replies.pop(event.waiter, None)
        problems += _judge_request(standing, heard, before, event, after, effects, reply)
        if reply is not None and reply.status != 409:
            known = given(known, before, after, reply, kind)
    problems += [f"{_tell(reply)} to a client that does not wait" for reply in replies.values()]
    if after.phase is Phase.CLOSING and before.phase is not Phase.CLOSING:
        known = evolve(known, missing=False)
    if after.phase is Phase.NEW:
        known = Standing()
    elif before.phase is Phase.UNWINDING and after.phase is Phase.SEEDING:
        known = Standing(seed=known.seed)
    return known, problems


def _judge_request(
    standing: Standing,
    heard: Standing,
    before: Session,
    request: Request,
    after: Session,
    effects: tuple[Effect, ...],
    reply: Reply | None,
) -> list[str]:
    want = expected(standing, before, request)
    name = type(request).__name__
    if want == WAITS:
        kind = _KINDS[type(request)]
        if reply is not None:
            at_last = settlement(heard, kind, request, after)
            return [] if at_last.allows(reply) else [f"{name} should wait, got {_tell(reply)}"]
        waits = request.waiter is None or (kind, request.waiter) in _waiters(after)
        return [] if waits else [f"{name} should wait, and is forgotten"]
    if request.waiter is not None and (reply is None or not want.allows(reply)):
        got = "nothing" if reply is None else _tell(reply)
        return [f"{name} in {before.phase.value}: got {got}, the contract: {want}"]
    if before.phase is not Phase.NEW or want == CONFLICT:
        others = [effect for effect in effects if effect is not reply]
        if after != before or others:
            return [f"{name} in {before.phase.value} is refused or replayed, yet changes something"]
    return []


def _waiters(session: Session) -> list[tuple[Kind, int]]:
    return [
        *((Kind.SEED, waiter) for waiter in session.seed_waiters),
        *((Kind.ACTIVATION, waiter) for waiter in session.activation_waiters),
        *((Kind.CLOSE, waiter) for waiter in session.close_waiters),
    ]


def _tell(reply: Reply) -> str:
    return f"{reply.status} {type(reply.body).__name__}"


_KINDS: dict[type, Kind] = {
    SeedRequested: Kind.SEED,
    ActivateRequested: Kind.ACTIVATION,
    CloseRequested: Kind.CLOSE,
}
