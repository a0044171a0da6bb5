"""The orders that a session's machine gives, each a frozen value.

An *order* asks for one piece of work in the world. It carries ``number``, which its answer repeats, and
``timeout_s``, its own budget in seconds (None: no bound, which happens for `TakeSlot` only). Whoever obeys
performs each order in one coroutine and feeds exactly one answer of those that `inspan_core.tables.ANSWERS`
names; when the budget ends first, that answer is `StepTimedOut`.

At most one order of a session is awaited at a time, with two riders:

- `StopHarness` takes the place of a `Launch` or `AwaitReceipt` in flight. Their answers are late from then
  on; drop the waiting, but keep the exec itself until `ReleaseExec`: releasing it may kill the supervisor;
- `CancelPending` cancels an earlier order, which still answers under its own number (for example
  `InstallFailed` with the detail "cancelled"). That answer stands for both. Only when the earlier order has
  not ended within the budget does `CancelPending` itself answer, with `StepTimedOut` or `StepFailed`. A
  `CreateSandbox` must not be cut off: let it end, for its result is ours to stop.

`StartTimer` is answered by `WindowEnded`, `RetryDue` or `ExpiryReached` with its number; `Reply` by nothing.
"""

from enum import Enum
from typing import TypeAlias

from attrs import frozen


class Timer(Enum):
    """What a timer is for: retention of an answer or fence, a retried close, the life of an owned sandbox."""

    # As for `inspan_core.session.Phase`: identity will do, and Enum's own hash is dear in table look-ups.
    __hash__ = object.__hash__

    WINDOW = "window"
    RETRY = "retry"
    LEASE = "lease"


class GapCode(Enum):
    """Why evidence is missing from a close answer."""

    OBSERVATION_CAPTURE_FAILED = "observation_capture_failed"
    TERMINATION_REFUTED = "termination_refuted"
    TERMINATION_UNKNOWN = "termination_unknown"
    ARTIFACTS_UNAVAILABLE = "artifacts_unavailable"
    PARSE_FAILED = "parse_failed"
    NEVER_LAUNCHED = "never_launched"
    NEVER_ACTIVATED = "never_activated"


@frozen(kw_only=True)
class Gap:
    """One piece of evidence that a close answer lacks, and a sentence saying why."""

    code: GapCode
    detail: str


@frozen(kw_only=True)
class SeedBody:
    """The session is open: answer with its id and cookie."""


@frozen(kw_only=True)
class ActivationBody:
    """The run may be graded: answer with the retained response object, word for word."""


@frozen(kw_only=True)
class CloseBody:
    """The session is closed: answer with the retained observations, joined with ``gaps``.

    ``seeded`` is false for an id that was never seeded: then the answer holds nulls only.
    """

    seeded: bool
    gaps: tuple[Gap, ...] = ()


@frozen(kw_only=True)
class ErrorBody:
    """``{"detail": detail}``: a sentence that names the thing."""

    detail: str


Body: TypeAlias = SeedBody | ActivationBody | CloseBody | ErrorBody


# --- Orders ---------------------------------------------------------------------------------------


@frozen(kw_only=True)
class CreateSandbox:
    """Create our own sandbox, labelled and found again by ``key``."""

    number: int
    timeout_s: float | None
    key: str


@frozen(kw_only=True)
class ConnectSandbox:
    """Connect to the supplied sandbox. When it fails, close the provider's client as well."""

    number: int
    timeout_s: float | None


@frozen(kw_only=True)
class Install:
    """Check, reuse or install the harness runtime in the sandbox."""

    number: int
    timeout_s: float | None


@frozen(kw_only=True)
class TakeSlot:
    """Wait for a concurrency slot. Give it back as soon as `Session.holds_slot` is false."""

    number: int
    timeout_s: float | None


@frozen(kw_only=True)
class Stage:
    """Upload the activation's input, then the supervisor and the command with deadline ``run_timeout_s``."""

    number: int
    timeout_s: float | None
    run_timeout_s: float


@frozen(kw_only=True)
class Launch:
    """Run the supervisor in the sandbox and wait for the exec's end or the receipt, whichever is first.

    ``run_timeout_s`` is the supervisor's deadline; ``timeout_s`` adds the margin for its clean-up.
    """

    number: int
    timeout_s: float | None
    run_timeout_s: float


@frozen(kw_only=True)
class AwaitReceipt:
    """Wait for the receipt without disturbing the run; where no launch was claimed, plant the fence."""

    number: int
    timeout_s: float | None


@frozen(kw_only=True)
class StopHarness:
    """Plant the stop request (it fences a late launch as well) and wait for the receipt."""

    number: int
    timeout_s: float | None


@frozen(kw_only=True)
class Collect:
    """Copy the artifacts out of the sandbox, bounded, from the start."""

    number: int
    timeout_s: float | None


@frozen(kw_only=True)
class Parse:
    """Turn the collected artifacts into a response, observations and an outcome."""

    number: int
    timeout_s: float | None


@frozen(kw_only=True)
class ReleaseExec:
    """Let go of the provider's exec."""

    number: int
    timeout_s: float | None


@frozen(kw_only=True)
class RemoveFiles:
    """Remove the session's own files from the supplied sandbox."""

    number: int
    timeout_s: float | None


@frozen(kw_only=True)
class Disconnect:
    """Close the connection to the supplied sandbox and its provider's client."""

    number: int
    timeout_s: float | None


@frozen(kw_only=True)
class StopSandbox:
    """Have the provider stop our sandbox ``key``; that there is none by that key is success."""

    number: int
    timeout_s: float | None
    key: str


@frozen(kw_only=True)
class CancelPending:
    """Cancel the order ``pending`` and wait for its end (see the top of this page)."""

    number: int
    timeout_s: float | None
    pending: int


# --- What needs no answer of its own --------------------------------------------------------------


@frozen(kw_only=True)
class StartTimer:
    """Feed `WindowEnded`, `RetryDue` or `ExpiryReached` with ``timer=number`` after ``delay_s`` seconds.

    A session has one timer at most: a newer one replaces it, and none outlives the phase NEW.
    """

    number: int
    kind: Timer
    delay_s: float


@frozen(kw_only=True)
class Reply:
    """Answer the waiter. Each waiter is answered once at most, and never after its client is gone."""

    waiter: int
    status: int
    body: Body


Order: TypeAlias = (
    CreateSandbox
    | ConnectSandbox
    | Install
    | TakeSlot
    | Stage
    | Launch
    | AwaitReceipt
    | StopHarness
    | Collect
    | Parse
    | ReleaseExec
    | RemoveFiles
    | Disconnect
    | StopSandbox
    | CancelPending
)
Effect: TypeAlias = Order | StartTimer | Reply

ORDER_TYPES: tuple[type, ...] = Order.__args__
EFFECT_TYPES: tuple[type, ...] = (*ORDER_TYPES, StartTimer, Reply)
