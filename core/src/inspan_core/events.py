"""The facts that a session's machine is told, each a frozen value in the past tense.

Three kinds, and every one carries ``at``, the monotonic time in seconds at which it became known:

- *requests and notices* (here): what clients, timers and the operator did;
- *answers* (`inspan_core.answers`, importable from here): what became of an order;
- *signals* (below, not part of `Event`): what the run tells the session inside one step. Nobody feeds them.

Contents never come in here: bodies are digests, cookies and paths are findings, artifacts stay outside.
"""

from enum import Enum
from typing import TypeAlias

from attrs import frozen

from inspan_core.answers import (
    ANSWER_TYPES,
    Answer,
    Collected,
    Disconnected,
    EvidenceMissing,
    ExecLost,
    ExecReleased,
    ExecReturned,
    FilesRemoved,
    Installed,
    InstallFailed,
    NeverLaunched,
    Parsed,
    SandboxGone,
    SandboxReady,
    SandboxStopped,
    SandboxUnavailable,
    SlotGranted,
    Staged,
    StageFailed,
    StepFailed,
    StepTimedOut,
    TerminationConfirmed,
    TerminationRefuted,
)
from inspan_core.findings import CollectResult, Cookie, Outcome, Path

__all__ = [
    "ANSWER_TYPES",
    "EVENT_TYPES",
    "NOTICE_TYPES",
    "REQUEST_TYPES",
    "Abandoned",
    "ActivateRequested",
    "Answer",
    "ClientGone",
    "CloseRequested",
    "CollectResult",
    "Collected",
    "Cookie",
    "Disconnected",
    "Event",
    "EvidenceMissing",
    "ExecLost",
    "ExecReleased",
    "ExecReturned",
    "ExpiryReached",
    "FilesRemoved",
    "InstallFailed",
    "Installed",
    "NeverLaunched",
    "Notice",
    "Outcome",
    "Parsed",
    "Path",
    "Request",
    "Restarted",
    "RetryDue",
    "SandboxGone",
    "SandboxReady",
    "SandboxStopped",
    "SandboxUnavailable",
    "SeedRequested",
    "Signal",
    "SlotGranted",
    "StageFailed",
    "Staged",
    "StepFailed",
    "StepTimedOut",
    "TerminationConfirmed",
    "TerminationRefuted",
    "WindowEnded",
]

# --- Requests and time ----------------------------------------------------------------------------


@frozen(kw_only=True)
class SeedRequested:
    """A client asked to open the session. ``owned``: no sandbox was supplied, so we create and stop one."""

    at: float
    waiter: int
    body_digest: str
    owned: bool
    cookie: Cookie


@frozen(kw_only=True)
class ActivateRequested:
    """A client asked for the session's one run. ``run_timeout_s`` is its resolved budget, above zero."""

    at: float
    waiter: int
    body_digest: str
    cookie: Cookie
    path: Path
    run_timeout_s: float


@frozen(kw_only=True)
class CloseRequested:
    """Somebody asked to close the session. ``waiter`` is None when the embedding program itself closes."""

    at: float
    waiter: int | None
    cookie: Cookie
    same_episode: bool


@frozen(kw_only=True)
class ClientGone:
    """A waiter's connection is gone: it gets no answer, and nothing else changes."""

    at: float
    waiter: int


@frozen(kw_only=True)
class WindowEnded:
    """The retention timer ``timer`` fired: a retained close answer or a fence may be forgotten."""

    at: float
    timer: int


@frozen(kw_only=True)
class ExpiryReached:
    """The lease timer ``timer`` fired: an owned sandbox has lived as long as it may."""

    at: float
    timer: int


@frozen(kw_only=True)
class RetryDue:
    """The retry timer ``timer`` fired: a failed close is tried again."""

    at: float
    timer: int


@frozen(kw_only=True)
class Restarted:
    """The server died, the session was folded from its journal: waiters, timers, orders, handles are lost."""

    at: float


@frozen(kw_only=True)
class Abandoned:
    """The operator gave up a session whose release can never be proven. It ends, and is never gradable."""

    at: float


# --- Signals from the run to its session: never fed from outside ----------------------------------


class Signal(Enum):
    """What the climb of a ladder, or a late answer, tells the session."""

    # As for `inspan_core.session.Phase`: identity will do, and Enum's own hash is dear in table look-ups.
    __hash__ = object.__hash__

    PUBLISHED = "Published"
    SETUP_FAILED = "SetupFailed"
    RUN_ENDED = "RunEnded"
    RELEASED = "Released"
    RELEASE_FAILED = "ReleaseFailed"
    STRAGGLER_ENDED = "StragglerEnded"


Request: TypeAlias = SeedRequested | ActivateRequested | CloseRequested
Notice: TypeAlias = ClientGone | WindowEnded | ExpiryReached | RetryDue | Restarted | Abandoned
Event: TypeAlias = Request | Notice | Answer

REQUEST_TYPES: tuple[type, ...] = Request.__args__
NOTICE_TYPES: tuple[type, ...] = Notice.__args__
EVENT_TYPES: tuple[type, ...] = REQUEST_TYPES + NOTICE_TYPES + ANSWER_TYPES
