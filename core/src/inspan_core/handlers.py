"""What the rules of SESSION do: each writes the draft and may ask for the climb, but gives no order itself.

A handler may branch, but only to phases that its row declares; `inspan_core.machine.step` holds it to that.
"""

from typing import Any

from inspan_core.draft import Draft
from inspan_core.effects import CloseBody, ErrorBody, SeedBody, Timer
from inspan_core.events import ActivateRequested, ClientGone, CloseRequested, SeedRequested
from inspan_core.learning import failure_text
from inspan_core.outcome import activation_answer, close_gaps, setup_answer
from inspan_core.session import Pending, Phase, Retained, Run, RunPhase, SandboxFact

CANCELLABLE = frozenset({RunPhase.CONNECTING, RunPhase.INSTALLING, RunPhase.QUEUED, RunPhase.STAGING})
"""Orders that a close cancels (a create is joined instead: its cancellation waits for its end)."""

SUPERSEDED = frozenset({RunPhase.REST, RunPhase.RUNNING, RunPhase.AWAITING})
"""Run phases that give way to a close at once. All others are joined: their answer goes on with the close."""


# --- Seed ---------------------------------------------------------------------------------------------


def open_session(draft: Draft, event: SeedRequested) -> None:
    """Take the seed and begin the set-up."""
    draft.seed_digest = event.body_digest
    draft.owned = event.owned
    _begin_setup(draft, (event.waiter,))


def _begin_setup(draft: Draft, waiters: tuple[int, ...]) -> None:
    draft.phase = Phase.SEEDING
    draft.seed_waiters = waiters
    draft.generation += 1
    _start_lease(draft)
    draft.climb = True


def _start_lease(draft: Draft) -> None:
    if draft.owned and draft.settings.lease_s is not None:
        draft.start_timer(Timer.LEASE, draft.settings.lease_s)


def join_seed(draft: Draft, event: SeedRequested) -> None:
    """Let an identical seed wait with the others."""
    draft.seed_waiters = (*draft.seed_waiters, event.waiter)


def confirm_seed(draft: Draft, event: SeedRequested) -> None:
    """Answer an identical seed of an open session."""
    draft.reply((event.waiter,), 200, SeedBody())


def publish(draft: Draft, _: object) -> None:
    """The set-up is complete: the session may be activated."""
    draft.phase = Phase.READY
    draft.reply(draft.seed_waiters, 200, SeedBody())
    draft.seed_waiters = ()


def unwind(draft: Draft, _: object) -> None:
    """The set-up failed: undo it before anybody hears of it."""
    draft.phase = Phase.UNWINDING
    draft.climb = True


def forget_setup(draft: Draft, _: object) -> None:
    """All is undone: drop the record, or start afresh for seeds that came after a restart had cut it off."""
    if draft.setup_error is None and draft.seed_waiters:
        owned, digest, waiters = draft.owned, draft.seed_digest, draft.seed_waiters
        _forget(draft)
        draft.owned, draft.seed_digest = owned, digest
        _begin_setup(draft, waiters)
        return
    _answer_seeds_with_error(draft)
    _forget(draft)


def keep_partial(draft: Draft, _: object) -> None:
    """The set-up could not be undone: keep what is left for close."""
    draft.phase = Phase.SETUP_FAILED
    _answer_seeds_with_error(draft)
    _retry_later(draft)


def _answer_seeds_with_error(draft: Draft) -> None:
    error = setup_answer(draft)
    draft.reply(draft.seed_waiters, error.status, ErrorBody(detail=error.detail))
    draft.seed_waiters = ()


def _forget(draft: Draft) -> None:
    draft.phase = Phase.NEW
    draft.take_run(Run())
    draft.timer = 0
    draft.seed_digest = None
    draft.activation_digest = None
    draft.run_timeout_s = 0.0
    draft.deadline_at = None
    draft.seed_waiters = ()
    draft.answer = None
    draft.setup_error = None
    draft.close_answer = None
    draft.failures = 0


# --- Activation ---------------------------------------------------------------------------------------


def bind_activation(draft: Draft, event: ActivateRequested) -> None:
    """Bind the one activation, before anything else happens, and begin the run."""
    draft.phase = Phase.ACTIVE
    draft.activation_digest = event.body_digest
    draft.run_timeout_s = event.run_timeout_s
    draft.activation_waiters = (event.waiter,)
    draft.climb = True


def join_activation(draft: Draft, event: ActivateRequested) -> None:
    """Let an identical activation wait with the others."""
    draft.activation_waiters = (*draft.activation_waiters, event.waiter)


def replay_activation(draft: Draft, event: ActivateRequested) -> None:
    """Give the retained answer again, be it a result or an error."""
    if draft.answer is not None:
        draft.reply((event.waiter,), draft.answer.status, draft.answer.body)


def finish_run(draft: Draft, _: object) -> None:
    """The run ended: its answer is decided once and retained."""
    draft.phase = Phase.FINISHED
    draft.rest()
    draft.answer = activation_answer(draft)
    draft.reply(draft.activation_waiters, draft.answer.status, draft.answer.body)
    draft.activation_waiters = ()


# --- Close --------------------------------------------------------------------------------------------


def fence(draft: Draft, event: CloseRequested) -> None:
    """Close an id that was never seeded: a late seed for it is refused while the fence stands."""
    draft.phase = Phase.FENCED
    _retain_close(draft, Retained(status=200, body=CloseBody(seeded=False)))
    replay_close(draft, event)


def replay_close(draft: Draft, event: CloseRequested) -> None:
    """Give the retained close answer again."""
    if event.waiter is not None and draft.close_answer is not None:
        draft.reply((event.waiter,), draft.close_answer.status, draft.close_answer.body)


def close_session(draft: Draft, event: CloseRequested) -> None:
    """Close: those who wait for seed or activation are told at once, then finalize and release.

    A seed is in conflict with the close; a run that was cut off may be tried anew, as a whole.
    """
    detail = f"session {draft.name} is being closed"
    _cut_off(draft, seed_status=409, run_status=503, detail=detail)
    join_close(draft, event)
    _begin_release(draft)


def join_close(draft: Draft, event: CloseRequested) -> None:
    """Let a close wait with the others."""
    if event.waiter is not None:
        draft.close_waiters = (*draft.close_waiters, event.waiter)


def expire(draft: Draft, _: object) -> None:
    """The sandbox's lease is over: close without a client. A whole new attempt may succeed, hence 503."""
    detail = f"session {draft.name}: the lease of its sandbox is over"
    _cut_off(draft, seed_status=503, run_status=503, detail=detail)
    _begin_release(draft)


def release_again(draft: Draft, _: object) -> None:
    """Try a failed close again, without a client: a retry is due, or what was in the way has ended."""
    _begin_release(draft)


def _cut_off(draft: Draft, *, seed_status: int, run_status: int, detail: str) -> None:
    if draft.setup_error is not None:
        _answer_seeds_with_error(draft)
    draft.reply(draft.seed_waiters, seed_status, ErrorBody(detail=detail))
    draft.reply(draft.activation_waiters, run_status, ErrorBody(detail=detail))
    draft.seed_waiters = ()
    draft.activation_waiters = ()


def _begin_release(draft: Draft) -> None:
    draft.phase = Phase.CLOSING
    if draft.run_phase in CANCELLABLE:
        draft.pending = Pending(phase=draft.run_phase, number=draft.order)
        draft.climb = True
    elif draft.run_phase in SUPERSEDED:
        draft.climb = True


def complete_close(draft: Draft, _: object) -> None:
    """All is released: answer the closes, and retain that answer."""
    draft.phase = Phase.CLOSED
    _end(draft, Retained(status=200, body=CloseBody(seeded=True, gaps=close_gaps(draft))))


def abandon(draft: Draft, _: object) -> None:
    """The operator gives the session up: it ends, and its close never succeeds, so it is never graded."""
    draft.phase = Phase.CLOSED
    detail = f"session {draft.name} was abandoned by the operator: its release was never proven"
    _end(draft, Retained(status=503, body=ErrorBody(detail=detail)))


def _end(draft: Draft, answer: Retained) -> None:
    draft.reply(draft.close_waiters, answer.status, answer.body)
    draft.close_waiters = ()
    draft.take_run(Run(owned=draft.owned))
    draft.setup_error = None
    draft.deadline_at = None
    draft.failures = 0
    _retain_close(draft, answer)


def _retain_close(draft: Draft, answer: Retained) -> None:
    draft.close_answer = answer
    draft.start_timer(Timer.WINDOW, draft.settings.retry_window_s)


def keep_for_retry(draft: Draft, _: object) -> None:
    """A step failed: keep everything that a later close needs."""
    draft.phase = Phase.CLOSE_FAILED
    detail = f"session {draft.name} could not be closed: {draft.detail}"
    draft.reply(draft.close_waiters, 503, ErrorBody(detail=detail))
    draft.close_waiters = ()
    _retry_later(draft)


def _retry_later(draft: Draft) -> None:
    draft.rest()
    settings = draft.settings
    # Doubling 64 times is beyond any limit, and keeps the power a finite number.
    delay_s = settings.retry_delay_s * 2.0 ** min(draft.failures, 64)
    draft.failures += 1
    draft.start_timer(Timer.RETRY, min(delay_s, settings.retry_delay_limit_s))


def end_retention(draft: Draft, _: object) -> None:
    """The window is over: forget."""
    _forget(draft)


# --- Clients and restarts -----------------------------------------------------------------------------


def drop_waiter(draft: Draft, event: ClientGone) -> None:
    """Nobody is answered who is not there; nothing else changes."""
    gone = event.waiter
    draft.seed_waiters = tuple(waiter for waiter in draft.seed_waiters if waiter != gone)
    draft.activation_waiters = tuple(waiter for waiter in draft.activation_waiters if waiter != gone)
    draft.close_waiters = tuple(waiter for waiter in draft.close_waiters if waiter != gone)


def restart_setup(draft: Draft, _: object) -> None:
    """A cut-off set-up is undone, and then begun afresh for whoever asks again."""
    _lose_process(draft)
    draft.setup_error = None
    draft.phase = Phase.UNWINDING
    draft.climb = True


def restart_idle(draft: Draft, _: object) -> None:
    """Nothing is owed but the lease's timer."""
    _lose_process(draft)
    _start_lease(draft)


def restart_run(draft: Draft, _: object) -> None:
    """Go on with the run from its facts. A launch that was ordered never is again."""
    _lose_process(draft)
    _start_lease(draft)
    draft.climb = True


def restart_release(draft: Draft, _: object) -> None:
    """Release again what a close or an undone set-up had left."""
    _lose_process(draft)
    draft.phase = Phase.CLOSING
    draft.climb = True


def restart_retained(draft: Draft, _: object) -> None:
    """A retained answer or a fence gets its window again, in full: the old clock is not ours any more."""
    draft.start_timer(Timer.WINDOW, draft.settings.retry_window_s)


def _lose_process(draft: Draft) -> None:
    connecting = draft.run_phase is RunPhase.CONNECTING or (
        draft.pending is not None and draft.pending.phase is RunPhase.CONNECTING
    )
    if connecting and not draft.owned:
        draft.sandbox = SandboxFact.NONE
    draft.rest()
    draft.pending = None
    draft.slot = False
    draft.exec_held = False
    draft.deadline_at = None
    draft.seed_waiters = ()
    draft.activation_waiters = ()
    draft.close_waiters = ()


def note_failed_step(draft: Draft, phase: RunPhase, answer: Any) -> None:
    """Mark the step as failed for the climb that follows."""
    draft.failed = phase
    draft.detail = failure_text(phase, answer)
