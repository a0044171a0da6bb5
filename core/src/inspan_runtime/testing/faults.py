"""What can go wrong with a call into a fake sandbox, and the plan of what will."""

from __future__ import annotations

from enum import Enum

from attrs import frozen


class CallKind(Enum):
    """The calls that a server makes of sandboxes and providers, as an observer tells them apart."""

    CREATE = "create"
    CONNECT = "connect"
    UPLOAD = "upload"
    DOWNLOAD = "download"
    EXEC = "exec"
    LAUNCH = "launch"
    LOOK = "look"
    REMOVE = "remove"
    DISCONNECT = "disconnect"
    STOP = "stop"
    CLOSE_CLIENT = "close client"


class FaultKind(Enum):
    """How a call goes wrong."""

    ERROR_BEFORE = "error before anything happened"
    ERROR_AFTER = "error after it took effect"
    ERROR_THEN_EFFECT = "error, and the effect later"
    PARTIAL = "half of it, then an error"
    SLOW = "slow"
    HANG = "hangs before anything happened"
    LOST_ANSWER = "takes effect, and never answers"
    REFUSED = "the provider says that it made none"
    GONE = "the sandbox is gone"


_ANY = frozenset({FaultKind.ERROR_BEFORE, FaultKind.SLOW, FaultKind.HANG})
_AFTER = frozenset({FaultKind.ERROR_AFTER, FaultKind.LOST_ANSWER})
_INSIDE = _ANY | _AFTER | {FaultKind.GONE}

POSSIBLE: dict[CallKind, frozenset[FaultKind]] = {
    # A create that says that it failed has left nothing: that is the provider's contract.
    CallKind.CREATE: _ANY | _AFTER | {FaultKind.REFUSED},
    CallKind.CONNECT: _ANY | {FaultKind.GONE},
    # Not an effect that comes later: nothing could keep a file from appearing after its folder was removed.
    CallKind.UPLOAD: _INSIDE | {FaultKind.PARTIAL},
    CallKind.DOWNLOAD: _INSIDE,
    CallKind.EXEC: _INSIDE,
    CallKind.LAUNCH: _INSIDE | {FaultKind.ERROR_THEN_EFFECT},
    CallKind.LOOK: _INSIDE,
    CallKind.REMOVE: _INSIDE | {FaultKind.PARTIAL},
    CallKind.DISCONNECT: _ANY,
    CallKind.STOP: _ANY | _AFTER,
    CallKind.CLOSE_CLIENT: _ANY,
}
"""The faults that a call of each kind may have without the provider breaking its contract."""


@frozen(kw_only=True)
class Fault:
    """One fault of a plan.

    Attributes:
        call: Which kind of call goes wrong.
        nth: Which one of them, from 0.
        kind: How. One that is not possible for the call is taken for `FaultKind.ERROR_BEFORE`.
        delay_s: Seconds until the effect (slow), or until the error or the late effect.
    """

    call: CallKind
    nth: int
    kind: FaultKind
    delay_s: float = 0.0

    def __str__(self) -> str:
        pause = f" ({self.delay_s:g} s)" if self.delay_s else ""
        return f"{self.call.value} #{self.nth + 1}: {self.effective.value}{pause}"

    @property
    def effective(self) -> FaultKind:
        """The fault as it will be."""
        return self.kind if self.kind in POSSIBLE[self.call] else FaultKind.ERROR_BEFORE
