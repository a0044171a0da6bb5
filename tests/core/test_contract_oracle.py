"""The machine answers as the wire contract says, in every reachable state; and wrong machines are found."""

import pytest

from inspan_core import handlers
from inspan_core.answers import InstallFailed, TerminationRefuted
from inspan_core.checks import CHECKS
from inspan_core.effects import CloseBody, ErrorBody
from inspan_core.events import ActivateRequested, CloseRequested, Cookie, Path, SeedRequested, Signal
from inspan_core.rules import Refused, Rule, learns
from inspan_core.session import Evidence, Phase, RunPhase, Session
from inspan_core.tables import LEARN, SESSION
from inspan_core.testing.contract_oracle import CONFLICT, WAITS, Standing, expected
from inspan_core.testing.contract_walk import compare
from inspan_core.testing.mutants import Mutant


@pytest.mark.timeout(600)
def test_the_machine_answers_as_the_contract_says_in_every_reachable_state():
    found = compare(waiters=2)
    assert [str(disagreement) for disagreement in found.disagreements.values()] == []
    assert found.states > 4_000
    assert found.requests > 150_000


def cut_off_with_409(draft, event):
    handlers._cut_off(draft, seed_status=409, run_status=409, detail="closing")
    handlers.join_close(draft, event)
    handlers._begin_release(draft)


def replay_in_other_words(draft, event):
    draft.reply((event.waiter,), draft.answer.status, ErrorBody(detail="the run was over already"))


def replay_without_gaps(draft, event):
    if event.waiter is not None:
        draft.reply((event.waiter,), 200, CloseBody(seeded=True))


def forget_the_second_seed(draft, event):
    draft.detail = f"waiter {event.waiter} is not kept"


def close_although_a_step_failed(draft, signal):
    handlers.complete_close(draft, signal)


def without(kind, number):
    return tuple(check for at, check in enumerate(CHECKS[kind]) if at != number)


WRONG = [
    (
        Mutant("cut off with 409", SESSION[Phase.ACTIVE], CloseRequested,
               Rule(cut_off_with_409, to={Phase.CLOSING})),
        "ACTIVE, CloseRequested: activation that waited is answered 409 ErrorBody",
    ),
    (
        Mutant("replays errors in other words", SESSION[Phase.FINISHED], ActivateRequested,
               Rule(replay_in_other_words)),
        "FINISHED, ActivateRequested: ActivateRequested in FINISHED: got 503 ErrorBody",
    ),
    (
        Mutant("replays a close without its gaps", SESSION[Phase.CLOSED], CloseRequested,
               Rule(replay_without_gaps)),
        "CLOSED, CloseRequested: CloseRequested in CLOSED: got 200 CloseBody",
    ),
    (
        Mutant("forgets who joins a seed", SESSION[Phase.SEEDING], SeedRequested,
               Rule(forget_the_second_seed)),
        "SEEDING, SeedRequested: SeedRequested should wait, and is forgotten",
    ),
    (
        Mutant("a second activation body is accepted", CHECKS, ActivateRequested,
               without(ActivateRequested, 6)),
        "ACTIVE, ActivateRequested: ActivateRequested in ACTIVE: got nothing",
    ),
    (
        Mutant("a close with another session's cookie is obeyed", CHECKS, CloseRequested,
               without(CloseRequested, 1)),
        "NEW, CloseRequested: CloseRequested in NEW: got 200 CloseBody",
    ),
    (
        Mutant("an id never seeded cannot be closed", SESSION[Phase.NEW], CloseRequested,
               Refused(409, "session {name} is unknown")),
        "NEW, CloseRequested: CloseRequested in NEW: got 409 ErrorBody",
    ),
    (
        Mutant("every failed installation may be retried", LEARN[RunPhase.INSTALLING], InstallFailed,
               learns(lambda draft, answer: draft.note_setup_error(answer.detail, retryable=True))),
        "seed that waited is answered 503 ErrorBody",
    ),
    (
        Mutant("a negative receipt counts as confirmed", LEARN[RunPhase.RUNNING], TerminationRefuted,
               learns(evidence=Evidence.CONFIRMED)),
        "activation that waited is answered 200 ActivationBody",
    ),
    (
        Mutant("a close succeeds although a step failed", SESSION[Phase.CLOSING],
               Signal.RELEASE_FAILED,
               Rule(close_although_a_step_failed, to={Phase.CLOSED})),
        "close that waited is answered 200 CloseBody",
    ),
]  # fmt: skip


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("mutant", "reason"), WRONG, ids=[mutant.name for mutant, _ in WRONG])
def test_a_wrong_machine_is_found(mutant, reason):
    with mutant.applied():
        found = compare(waiters=2, stop_at_first=True)
    assert any(reason in each for each in found.disagreements), list(found.disagreements)


def test_a_disagreement_is_told_as_a_story():
    mutant, _ = WRONG[0]
    with mutant.applied():
        (disagreement, *_) = compare(waiters=1, stop_at_first=True).disagreements.values()
        story = str(disagreement)
    assert "SeedRequested" in story
    assert "Reply(waiter=" in story


@pytest.mark.parametrize("cookie", [Cookie.OTHER, Cookie.MALFORMED])
@pytest.mark.parametrize("phase", list(Phase))
def test_a_bad_cookie_is_in_conflict_everywhere(phase, cookie):
    session = Session(name="s", phase=phase)
    request = CloseRequested(at=0.0, waiter=1, cookie=cookie, same_episode=True)
    assert expected(Standing(seed="A"), session, request) == CONFLICT


def test_what_is_expected_of_an_activation_follows_from_its_phase_and_body():
    standing = Standing(seed="S", activation="A")

    def asked(phase, digest):
        request = ActivateRequested(
            at=0.0, waiter=1, body_digest=digest, cookie=Cookie.SAME, path=Path.MATCHES, run_timeout_s=1.0
        )
        return expected(standing, Session(name="s", phase=phase), request)

    assert asked(Phase.ACTIVE, "A") == WAITS
    assert asked(Phase.ACTIVE, "B") == CONFLICT
    assert {asked(phase, "A") for phase in (Phase.SEEDING, Phase.CLOSING, Phase.CLOSED)} == {CONFLICT}
