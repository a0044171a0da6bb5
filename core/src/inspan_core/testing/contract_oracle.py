"""What the wire contract says about every request and late answer, written without the machine in sight.

Sources: the wire contract (`seed`, `activate`, `close`, the table of refusals, the table of activation
answers) and the specification's session rules. Nothing here reads a table or a handler of the machine: the
oracle knows the session's phase, who waits, which orders are awaited, and what it remembers itself.

Two questions:

- `expected(standing, session, request)`: how is this request answered, now or later?
- `settlement(standing, waiting, event, after)`: with what may a client that waits be answered at last?

`Standing` is the oracle's memory, moved on by `hear` and `given`: accepted bodies, answers that were given
(they are replayed word for word), and what the sandbox told. It is hashable, so that a walk can carry it
beside the session. `inspan_core.testing.contract_judge.judge` does all of it for one step of the machine.
"""

from enum import Enum

from attrs import evolve, frozen

from inspan_core.effects import ActivationBody, Body, CloseBody, ErrorBody, Reply, SeedBody
from inspan_core.events import (
    Abandoned,
    ActivateRequested,
    CloseRequested,
    Collected,
    Cookie,
    Event,
    EvidenceMissing,
    InstallFailed,
    Parsed,
    Path,
    Request,
    Restarted,
    SandboxGone,
    SandboxUnavailable,
    SeedRequested,
    StageFailed,
    StepFailed,
    StepTimedOut,
    TerminationConfirmed,
    TerminationRefuted,
)
from inspan_core.findings import CollectResult, Outcome
from inspan_core.session import Phase, RunPhase, Session


class Kind(Enum):
    """What a client waits for."""

    SEED = "seed"
    ACTIVATION = "activation"
    CLOSE = "close"


@frozen(kw_only=True)
class Expected:
    """How a request is answered.

    Attributes:
        status: The status, 503 standing for every 5xx; None when the request waits.
        body: The kind of body; None when the request waits.
        replay: The body that it must equal word for word, or None when none was given yet.
    """

    status: int | None = None
    body: type | None = None
    replay: Body | None = None

    def allows(self, reply: Reply) -> bool:
        """Whether ``reply`` is what is expected."""
        return (
            self.status is not None
            and family(reply.status) == self.status
            and type(reply.body) is self.body
            and (self.replay is None or self.replay == reply.body)
        )


WAITS = Expected()
CONFLICT = Expected(status=409, body=ErrorBody)
OPENED = Expected(status=200, body=SeedBody)
GRADABLE = Expected(status=200, body=ActivationBody)
RETRY_MAY_FIX = Expected(status=503, body=ErrorBody)
RETRY_CANNOT_FIX = Expected(status=422, body=ErrorBody)


@frozen(kw_only=True)
class Standing:
    """What the oracle remembers of a session since it has a record.

    Attributes:
        seed: The accepted seed's body digest, or None.
        activation: The bound activation's body digest, or None.
        setup_error: Whether a retry may fix what made the set-up fail, or None when nothing did.
        answered: The answer that the activation got, or None when it got none yet.
        closed: The answer of the successful close, or None.
        confirmed: A receipt said that the harness ran and was stopped.
        refuted: A receipt said that it could not be proven stopped.
        collected: The artifacts came out, whole or cut at a bound.
        parsed: What the parser found, or None.
        unfixable: Staging found a fault that a retry cannot fix.
        missing: A release step failed or evidence was missing in this attempt to close.
        unreleased: The event at hand says that a step of the release failed.
        abandoned: The operator gave up.
    """

    seed: str | None = None
    activation: str | None = None
    setup_error: bool | None = None
    answered: Expected | None = None
    closed: Expected | None = None
    confirmed: bool = False
    refuted: bool = False
    collected: bool = False
    parsed: Outcome | None = None
    unfixable: bool = False
    missing: bool = False
    unreleased: bool = False
    abandoned: bool = False


_RELEASE_STEPS = frozenset(
    {
        RunPhase.STOPPING,
        RunPhase.RELEASING_EXEC,
        RunPhase.REMOVING_FILES,
        RunPhase.DISCONNECTING,
        RunPhase.STOPPING_SANDBOX,
    }
)


# --- How a request is answered --------------------------------------------------------------------


def expected(standing: Standing, session: Session, request: Request) -> Expected:
    """How ``request`` is answered in ``session``'s phase.

    Args:
        standing: What happened to the session until now.
        session: The session, of which only the phase is read.
        request: A seed, activation or close.

    Returns:
        For example ``Expected(status=409, body=ErrorBody)``, or `WAITS`.
    """
    if request.cookie in (Cookie.MALFORMED, Cookie.OTHER):
        return CONFLICT
    if isinstance(request, SeedRequested):
        return _seed(standing, session.phase, request)
    if isinstance(request, ActivateRequested):
        return _activation(standing, session.phase, request)
    return _close(standing, session.phase, request)


def _seed(standing: Standing, phase: Phase, request: SeedRequested) -> Expected:
    if phase is Phase.NEW:
        # A cookie that names a session without a record: the record has expired.
        return CONFLICT if request.cookie is Cookie.SAME else WAITS
    if phase not in (Phase.SEEDING, Phase.UNWINDING, Phase.READY, Phase.ACTIVE, Phase.FINISHED):
        return CONFLICT
    if request.body_digest != standing.seed:
        return CONFLICT
    return WAITS if phase in (Phase.SEEDING, Phase.UNWINDING) else OPENED


def _activation(standing: Standing, phase: Phase, request: ActivateRequested) -> Expected:
    if phase not in (Phase.READY, Phase.ACTIVE, Phase.FINISHED):
        return CONFLICT
    if request.cookie is Cookie.ABSENT or request.path is not Path.MATCHES:
        return CONFLICT
    if phase is Phase.READY:
        return WAITS
    if request.body_digest != standing.activation:
        return CONFLICT
    if phase is Phase.ACTIVE:
        return WAITS
    return standing.answered or _fate(standing)


def _close(standing: Standing, phase: Phase, request: CloseRequested) -> Expected:
    if phase is Phase.NEW:
        if request.cookie is Cookie.SAME:
            return CONFLICT
        return Expected(status=200, body=CloseBody, replay=CloseBody(seeded=False))
    if not request.same_episode:
        return CONFLICT
    if phase in (Phase.CLOSED, Phase.FENCED):
        return standing.closed or _release(standing)
    return WAITS


# --- How a waiting client is answered at last -----------------------------------------------------


def settlement(standing: Standing, kind: Kind, event: Event, after: Session) -> Expected:
    """With what a client may be answered that waited for ``kind`` before ``event`` led to ``after``.

    Args:
        standing: What happened, ``event`` included.
        kind: What the client waits for.
        event: What was told to the machine.
        after: The session that came of it, of which only the phase is read.

    Returns:
        The answer; `WAITS` when nobody may be answered yet.
    """
    phase = after.phase
    if kind is Kind.CLOSE:
        if phase is Phase.CLOSED:
            return _release(standing)
        # Close fails only for missing evidence or a failed release step.
        return RETRY_MAY_FIX if phase is Phase.CLOSE_FAILED and standing.missing else WAITS
    if kind is Kind.ACTIVATION:
        if phase is Phase.FINISHED:
            return _fate(standing)
        return WAITS if phase is Phase.ACTIVE else RETRY_MAY_FIX
    if phase is Phase.READY:
        return OPENED
    if phase in (Phase.SEEDING, Phase.UNWINDING):
        return WAITS
    if phase is Phase.CLOSING and standing.setup_error is None and isinstance(event, CloseRequested):
        return CONFLICT
    # The set-up failed, by itself or because the sandbox's lease ended; a close that comes later changes
    # nothing about why.
    return RETRY_CANNOT_FIX if standing.setup_error is False else RETRY_MAY_FIX


def _fate(standing: Standing) -> Expected:
    """How the run ended, by the table of activation answers."""
    if standing.unfixable:
        return RETRY_CANNOT_FIX
    if standing.refuted or not standing.confirmed or not standing.collected:
        return RETRY_MAY_FIX
    if standing.parsed in (Outcome.COMPLETED, Outcome.INCOMPLETE):
        return GRADABLE
    return RETRY_CANNOT_FIX if standing.parsed is Outcome.UNPROCESSABLE else RETRY_MAY_FIX


def _release(standing: Standing) -> Expected:
    """A close succeeds after release; an abandoned session was never proven released."""
    return (
        RETRY_MAY_FIX if standing.abandoned or standing.unreleased else Expected(status=200, body=CloseBody)
    )


# --- Memory ---------------------------------------------------------------------------------------


def hear(standing: Standing, before: Session, event: Event) -> Standing:
    """What is known once ``event`` was told in ``before``; answers to orders not awaited tell nothing."""
    if isinstance(event, Abandoned):
        return evolve(standing, abandoned=True)
    if isinstance(event, Restarted) and before.phase in (Phase.SEEDING, Phase.UNWINDING):
        # Cut off by the server's death: undone, and the retried seed is set up afresh.
        return evolve(standing, setup_error=None)
    if isinstance(event, SeedRequested | ActivateRequested | CloseRequested):
        return _asked(standing, before, event)
    number = getattr(event, "order", None)
    pending = before.run.pending
    if number is None or number not in (before.run.order, pending.number if pending else before.run.order):
        return standing
    if isinstance(event, EvidenceMissing | StepFailed | StepTimedOut | SandboxUnavailable):
        of_release = number == before.run.order and before.run.phase in _RELEASE_STEPS
        standing = evolve(standing, missing=True, unreleased=of_release)
    if before.phase is Phase.SEEDING and standing.setup_error is None:
        standing = _setup_ended(standing, event)
    if isinstance(event, StageFailed) and not event.retryable and before.phase is Phase.ACTIVE:
        return evolve(standing, unfixable=True)
    if isinstance(event, TerminationConfirmed):
        # A receipt without a return code: the harness was never started.
        return evolve(standing, confirmed=event.return_code is not None)
    if isinstance(event, TerminationRefuted):
        return evolve(standing, refuted=True)
    if isinstance(event, Collected):
        return evolve(standing, collected=event.result in (CollectResult.OK, CollectResult.LIMIT))
    return evolve(standing, parsed=event.outcome) if isinstance(event, Parsed) else standing


def _asked(standing: Standing, before: Session, request: Request) -> Standing:
    if expected(standing, before, request) != WAITS:
        return standing
    if isinstance(request, SeedRequested):
        return evolve(standing, seed=request.body_digest)
    if isinstance(request, ActivateRequested):
        return evolve(standing, activation=request.body_digest)
    return standing


def _setup_ended(standing: Standing, event: Event) -> Standing:
    if isinstance(event, SandboxUnavailable | InstallFailed):
        return evolve(standing, setup_error=event.retryable)
    if isinstance(event, StepFailed | StepTimedOut | SandboxGone):
        return evolve(standing, setup_error=True)
    return standing


def given(standing: Standing, before: Session, after: Session, reply: Reply, kind: Kind) -> Standing:
    """Keep the answers that must come again word for word."""
    answer = Expected(status=family(reply.status), body=type(reply.body), replay=reply.body)
    if kind is Kind.ACTIVATION and after.phase is Phase.FINISHED and standing.answered is None:
        return evolve(standing, answered=answer)
    if kind is Kind.CLOSE and after.phase in (Phase.CLOSED, Phase.FENCED) and standing.closed is None:
        return evolve(standing, closed=answer)
    return standing


def family(status: int) -> int:
    """The status that stands for all that mean the same: 503 for every 5xx."""
    return 503 if 500 <= status <= 599 else status
