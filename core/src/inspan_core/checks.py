"""Findings that refuse a request in whatever phase, in the order in which they are looked at."""

from inspan_core.events import ActivateRequested, CloseRequested, Cookie, Path, SeedRequested
from inspan_core.rules import Check, Refused
from inspan_core.session import Phase

_MALFORMED = Check(
    lambda session, event: event.cookie is Cookie.MALFORMED,
    Refused(409, "the session cookie is malformed"),
)
_OTHER_COOKIE = Check(
    lambda session, event: event.cookie is Cookie.OTHER,
    Refused(409, "the session cookie names another session than {name}"),
)
_EXPIRED = Check(
    lambda session, event: event.cookie is Cookie.SAME and session.phase is Phase.NEW,
    Refused(409, "the session cookie names session {name}, whose record has expired"),
)

CHECKS: dict[type, tuple[Check, ...]] = {
    SeedRequested: (
        _MALFORMED,
        _OTHER_COOKIE,
        _EXPIRED,
        Check(
            lambda session, event: session.seed_digest not in (None, event.body_digest),
            Refused(409, "session {name} was seeded with another body"),
        ),
    ),
    ActivateRequested: (
        _MALFORMED,
        _OTHER_COOKIE,
        _EXPIRED,
        Check(
            lambda session, event: event.cookie is Cookie.ABSENT,
            Refused(409, "session {name} is open or retained, and is activated with its session cookie only"),
        ),
        Check(
            lambda session, event: event.path is Path.UNPREFIXED,
            Refused(409, "session {name} is activated under its rollout path only"),
        ),
        Check(
            lambda session, event: event.path is Path.OTHER_KEY,
            Refused(409, "the rollout path is not the capture key that session {name} was seeded with"),
        ),
        Check(
            lambda session, event: session.activation_digest not in (None, event.body_digest),
            Refused(409, "session {name} was activated with another request, and has one activation only"),
        ),
    ),
    CloseRequested: (
        _MALFORMED,
        _OTHER_COOKIE,
        _EXPIRED,
        Check(
            lambda session, event: not event.same_episode and session.phase is not Phase.NEW,
            Refused(409, "session {name} belongs to another episode"),
        ),
    ),
}
