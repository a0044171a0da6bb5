"""The facts that a session's machine is told, each a frozen value in the past tense.

Three kinds, and every one carries ``at``, the monotonic time in seconds at which it became known:

- *requests and time*: what clients, timers and the operator did;
- *answers*: what became of an order. Each carries ``order``, the number of the effect that it answers. An
  order gets exactly one answer, and `ANSWERS` in `inspan_core.tables` says which answers each order may get.
  An answer to a number that is not awaited any more is late, and is ignored;
- *signals* (below, not part of `Event`): what the run tells the session inside one step. Nobody feeds them.

Contents never come in here: bodies are digests, cookies and paths are findings, artifacts stay outside.
"""

from enum import Enum
from typing import TypeAlias

from attrs import frozen


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
    what it found, ``FAILED`` that nothing could be copied, ``TIMEOUT`` that the step's budget ended first, and
    ``UNAVAILABLE`` that there was nothing left to copy from.
    """

    OK = "ok"
    LIMIT = "limit"
    ERROR = "error"
    FAILED = "failed"
    TIMEOUT = "timeout"
    UNAVAILABLE = "unavailable"


class Outcome(Enum):
    """What the harness's artifacts say about the run, as its parser found."""

    COMPLETED = "completed"
    INCOMPLETE = "incomplete"
    FAILED = "failed"
    UNPROCESSABLE = "unprocessable"


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


# --- Answers --------------------------------------------------------------------------------------


@frozen(kw_only=True)
class SandboxReady:
    """The sandbox was created, or the supplied one was connected."""

    at: float
    order: int


@frozen(kw_only=True)
class SandboxUnavailable:
    """No sandbox: the provider says that none was created, or the supplied one cannot be connected."""

    at: float
    order: int
    detail: str
    retryable: bool


@frozen(kw_only=True)
class Installed:
    """The harness runtime is in the sandbox and its health check passed."""

    at: float
    order: int


@frozen(kw_only=True)
class InstallFailed:
    """The runtime could not be installed, or its installation was cancelled and has ended."""

    at: float
    order: int
    detail: str
    retryable: bool


@frozen(kw_only=True)
class SlotGranted:
    """A concurrency slot is ours. The run's deadline starts here."""

    at: float
    order: int


@frozen(kw_only=True)
class Staged:
    """The activation's input, the command and the supervisor are in the session directory."""

    at: float
    order: int


@frozen(kw_only=True)
class StageFailed:
    """Staging failed, or was cancelled and has ended."""

    at: float
    order: int
    detail: str
    retryable: bool


@frozen(kw_only=True)
class ExecReturned:
    """The exec that ran the supervisor returned. The code says nothing about the run: the receipt does."""

    at: float
    order: int
    exit_code: int | None


@frozen(kw_only=True)
class ExecLost:
    """The connection of the exec broke. It is not an outcome: the harness may well be running."""

    at: float
    order: int
    detail: str


@frozen(kw_only=True)
class TerminationConfirmed:
    """A well-formed receipt says that the harness stopped.

    ``return_code`` is None when the harness never ran; then ``error`` says why. ``timed_out`` is true only
    when the run's deadline fired.
    """

    at: float
    order: int
    return_code: int | None
    timed_out: bool
    error: str | None


@frozen(kw_only=True)
class TerminationRefuted:
    """A well-formed receipt says that the harness could not be proven stopped. It is final."""

    at: float
    order: int
    error: str | None


@frozen(kw_only=True)
class NeverLaunched:
    """No launch was claimed, and our fence is in its place: a late launch does nothing."""

    at: float
    order: int


@frozen(kw_only=True)
class EvidenceMissing:
    """There is no receipt, or none that can be read: whether the harness stopped is unknown."""

    at: float
    order: int
    detail: str


@frozen(kw_only=True)
class Collected:
    """The one collection ended; ``detail`` says what was wrong, and is None when nothing was."""

    at: float
    order: int
    result: CollectResult
    detail: str | None


@frozen(kw_only=True)
class Parsed:
    """The artifacts were parsed; ``detail`` is the text of the answer when it is an error."""

    at: float
    order: int
    outcome: Outcome
    detail: str | None


@frozen(kw_only=True)
class ExecReleased:
    """The provider's exec is released."""

    at: float
    order: int


@frozen(kw_only=True)
class FilesRemoved:
    """The session directory is gone from the sandbox, its launch fence kept."""

    at: float
    order: int


@frozen(kw_only=True)
class Disconnected:
    """The connection to a supplied sandbox is closed."""

    at: float
    order: int


@frozen(kw_only=True)
class SandboxStopped:
    """The provider confirms that our sandbox is stopped, or that there is none by its key."""

    at: float
    order: int


@frozen(kw_only=True)
class SandboxGone:
    """The provider confirms, while another order was performed, that the sandbox no longer exists."""

    at: float
    order: int


@frozen(kw_only=True)
class StepFailed:
    """The order failed; ``detail`` says how."""

    at: float
    order: int
    detail: str


@frozen(kw_only=True)
class StepTimedOut:
    """The order's budget ended before it did."""

    at: float
    order: int


# --- Signals from the run to its session: never fed from outside ----------------------------------


class Signal(Enum):
    """What the climb of a ladder, or a late answer, tells the session."""

    PUBLISHED = "Published"
    SETUP_FAILED = "SetupFailed"
    RUN_ENDED = "RunEnded"
    RELEASED = "Released"
    RELEASE_FAILED = "ReleaseFailed"
    STRAGGLER_ENDED = "StragglerEnded"


Request: TypeAlias = SeedRequested | ActivateRequested | CloseRequested
Notice: TypeAlias = ClientGone | WindowEnded | ExpiryReached | RetryDue | Restarted | Abandoned
Answer: TypeAlias = (
    SandboxReady
    | SandboxUnavailable
    | Installed
    | InstallFailed
    | SlotGranted
    | Staged
    | StageFailed
    | ExecReturned
    | ExecLost
    | TerminationConfirmed
    | TerminationRefuted
    | NeverLaunched
    | EvidenceMissing
    | Collected
    | Parsed
    | ExecReleased
    | FilesRemoved
    | Disconnected
    | SandboxStopped
    | SandboxGone
    | StepFailed
    | StepTimedOut
)
Event: TypeAlias = Request | Notice | Answer

REQUEST_TYPES: tuple[type, ...] = Request.__args__
NOTICE_TYPES: tuple[type, ...] = Notice.__args__
ANSWER_TYPES: tuple[type, ...] = Answer.__args__
EVENT_TYPES: tuple[type, ...] = REQUEST_TYPES + NOTICE_TYPES + ANSWER_TYPES
