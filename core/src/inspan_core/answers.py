"""What may become of an order: the answers, each a frozen value in the past tense.

Each carries ``at`` (monotonic seconds) and ``order``, the number of the effect that it answers. An order
gets exactly one answer, and `ANSWERS` in `inspan_core.tables` says which answers each order may get. An
answer to a number that is not awaited any more is late, and is ignored.
"""

from typing import TypeAlias

from attrs import frozen

from inspan_core.findings import CollectResult, Outcome


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

ANSWER_TYPES: tuple[type, ...] = Answer.__args__
