"""Requests that are refused: the status, the sentence, and that nothing changed."""

import pytest

from inspan_core.effects import CloseBody, ErrorBody, Reply
from inspan_core.errors import NotAllowed
from inspan_core.events import (
    Abandoned,
    ActivateRequested,
    CloseRequested,
    Cookie,
    Disconnected,
    Installed,
    Parsed,
    Path,
    SandboxReady,
    SeedRequested,
    Staged,
    WindowEnded,
)
from inspan_core.machine import new_session, step
from inspan_core.session import Session
from inspan_core.testing.player import Player


def refusal(session: Session, event: SeedRequested | ActivateRequested | CloseRequested) -> str:
    """Feed a request that is refused, and give its sentence."""
    after, effects = step(session, event)
    assert after is session
    (reply,) = effects
    assert isinstance(reply, Reply)
    assert isinstance(reply.body, ErrorBody)
    assert (reply.waiter, reply.status) == (event.waiter, 409)
    return reply.body.detail


def seed(**changes: object) -> SeedRequested:
    fields = {"at": 0.0, "waiter": 9, "body_digest": "A", "owned": False, "cookie": Cookie.ABSENT}
    return SeedRequested(**{**fields, **changes})


def activation(**changes: object) -> ActivateRequested:
    fields = {
        "at": 0.0,
        "waiter": 9,
        "body_digest": "A",
        "cookie": Cookie.SAME,
        "path": Path.MATCHES,
        "run_timeout_s": 60.0,
    }
    return ActivateRequested(**{**fields, **changes})


def close(**changes: object) -> CloseRequested:
    fields = {"at": 0.0, "waiter": 9, "cookie": Cookie.SAME, "same_episode": True}
    return CloseRequested(**{**fields, **changes})


@pytest.fixture
def opened() -> Session:
    player = Player("s1")
    player.seed()
    player.answer(SandboxReady)
    player.answer(Installed)
    return player.session


@pytest.mark.parametrize(
    ("event", "sentence"),
    [
        (seed(body_digest="B"), "session s1 was seeded with another body"),
        (seed(cookie=Cookie.OTHER), "the session cookie names another session than s1"),
        (seed(cookie=Cookie.MALFORMED), "the session cookie is malformed"),
        (activation(cookie=Cookie.OTHER), "the session cookie names another session than s1"),
        (
            activation(cookie=Cookie.ABSENT),
            "session s1 is open or retained, and is activated with its session cookie only",
        ),
        (activation(path=Path.UNPREFIXED), "session s1 is activated under its rollout path only"),
        (
            activation(path=Path.OTHER_KEY),
            "the rollout path is not the capture key that session s1 was seeded with",
        ),
        (close(cookie=Cookie.OTHER), "the session cookie names another session than s1"),
        (close(same_episode=False), "session s1 belongs to another episode"),
    ],
)
def test_an_open_session_refuses_what_is_not_meant_for_it(
    opened: Session, event: SeedRequested | ActivateRequested | CloseRequested, sentence: str
) -> None:
    assert refusal(opened, event) == sentence


@pytest.mark.parametrize("event", [seed(cookie=Cookie.SAME), close(cookie=Cookie.SAME)])
def test_a_cookie_outlives_its_record(event: SeedRequested | CloseRequested) -> None:
    assert (
        refusal(new_session("s1"), event) == "the session cookie names session s1, whose record has expired"
    )


def test_a_second_different_activation_is_refused_while_the_first_runs(opened: Session) -> None:
    active, _ = step(opened, activation())
    sentence = "session s1 was activated with another request, and has one activation only"
    assert refusal(active, activation(waiter=10, body_digest="B")) == sentence


def test_a_session_that_is_not_ready_is_not_activated() -> None:
    expired = "the session cookie names session s1, whose record has expired"
    assert refusal(new_session("s1"), activation()) == expired
    seeding, _ = step(new_session("s1"), seed())
    assert refusal(seeding, activation()) == "session s1 is still being set up"
    closing, _ = step(seeding, close())
    assert refusal(closing, activation()) == "session s1 is being closed"
    assert refusal(closing, seed()) == "session s1 is being closed"


def test_a_close_before_its_seed_fences_the_id() -> None:
    fenced, effects = step(new_session("s1"), close(cookie=Cookie.ABSENT))
    assert effects[-1] == Reply(waiter=9, status=200, body=CloseBody(seeded=False))
    assert refusal(fenced, seed()) == "session s1 was closed before it was seeded"
    assert refusal(fenced, close(same_episode=False)) == "session s1 belongs to another episode"


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (Staged(at=0.0, order=1), "Staged is not allowed in phase SEEDING: it is no answer to order 1"),
        (Parsed(at=0.0, order=1, outcome=None, detail=None), "Parsed is not allowed"),  # type: ignore[arg-type]
        (Disconnected(at=0.0, order=1), "Disconnected is not allowed"),
        (Abandoned(at=0.0), "only a session whose release has failed can be abandoned"),
        (WindowEnded(at=0.0, timer=0), "no answer is retained"),
        (object(), "object is not allowed in phase SEEDING: it is not an event"),
    ],
)
def test_what_cannot_be_is_an_error_and_changes_nothing(event: object, reason: str) -> None:
    seeding, _ = step(new_session("s1"), seed())
    with pytest.raises(NotAllowed, match=reason):
        step(seeding, event)  # type: ignore[arg-type]


def test_a_refused_close_of_the_embedding_program_raises() -> None:
    seeding, _ = step(new_session("s1"), seed())
    with pytest.raises(NotAllowed, match="belongs to another episode"):
        step(seeding, close(waiter=None, same_episode=False))


def test_late_answers_and_timers_are_ignored(opened: Session) -> None:
    assert step(opened, Installed(at=0.0, order=2)) == (opened, ())
    assert step(opened, SandboxReady(at=0.0, order=1)) == (opened, ())
    assert step(opened, WindowEnded(at=0.0, timer=77)) == (opened, ())
