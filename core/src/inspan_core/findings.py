"""What the driver finds in requests and in artifacts, as closed sets: the machine never sees the contents."""

from enum import Enum


class Cookie(Enum):
    """What the request's session cookie says, compared with the session that the request is about."""

    ABSENT = "absent"
    SAME = "same"
    OTHER = "other"
    MALFORMED = "malformed"


class Path(Enum):
    """What the activation's rollout path says, compared with the seeded capture key."""

    MATCHES = "matches"
    OTHER_KEY = "other_key"
    UNPREFIXED = "unprefixed"


class CollectResult(Enum):
    """How the one collection of artifacts ended.

    ``OK`` and ``LIMIT`` (cut at a bound) are gradable; ``ERROR`` means that the harness's own hook refused
    what it found, ``FAILED`` that nothing could be copied, ``TIMEOUT`` that the step's budget ended first,
    and ``UNAVAILABLE`` that there was nothing left to copy from.
    """

    # As for `inspan_core.session.Phase`: identity will do, and Enum's own hash is dear in table look-ups.
    __hash__ = object.__hash__

    OK = "ok"
    LIMIT = "limit"
    ERROR = "error"
    FAILED = "failed"
    TIMEOUT = "timeout"
    UNAVAILABLE = "unavailable"


class Outcome(Enum):
    """What the harness's artifacts say about the run, as its parser found."""

    # As for `inspan_core.session.Phase`: identity will do, and Enum's own hash is dear in table look-ups.
    __hash__ = object.__hash__

    COMPLETED = "completed"
    INCOMPLETE = "incomplete"
    FAILED = "failed"
    UNPROCESSABLE = "unprocessable"
