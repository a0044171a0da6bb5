"""What a step makes is as frozen, and as equal, as what is made by hand."""

import copy
import pickle

import attrs
import pytest

from inspan_core.draft import Draft
from inspan_core.events import Cookie, SandboxReady, SeedRequested
from inspan_core.machine import new_session, step
from inspan_core.session import Run, RunPhase, SandboxFact, Session

SEEDED = SeedRequested(at=1.0, waiter=1, body_digest="d", owned=True, cookie=Cookie.ABSENT)


def changed(kind):
    """A value of each field of a class that is not its default."""
    return {field.name: object() for field in attrs.fields(kind)}


def test_each_field_of_a_session_goes_through_a_draft_unchanged():
    run = Run(**changed(Run))
    session = Session(**{**changed(Session), "run": run})
    frozen = Draft(session, 0.0).freeze()
    assert frozen == session and hash(frozen) == hash(session) and frozen is not session
    assert type(frozen) is Session and type(frozen.run) is Run


def test_the_session_after_a_step_is_frozen():
    session, _ = step(new_session("s"), SEEDED)
    session, _ = step(session, SandboxReady(at=2.0, order=1))
    for value, name in ((session, "number"), (session.run, "order")):
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            setattr(value, name, 7)
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            delattr(value, name)
    by_hand = attrs.evolve(session, run=attrs.evolve(session.run))
    assert by_hand == session and hash(by_hand) == hash(session)
    assert (session.run.phase, session.run.sandbox) == (RunPhase.INSTALLING, SandboxFact.LIVE)


def test_the_session_after_a_step_can_be_copied_and_pickled():
    session, _ = step(new_session("s"), SEEDED)
    assert copy.deepcopy(session) == session
    assert pickle.loads(pickle.dumps(session)) == session
