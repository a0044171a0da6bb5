"""What clients are owed, written down from the wire contract alone and not from the machine's tables."""

from enum import Enum

from inspan_core.effects import ActivationBody, CloseBody, ErrorBody, Reply, SeedBody
from inspan_core.events import TerminationConfirmed, TerminationRefuted
from inspan_core.session import Phase
from inspan_core.testing.world import Fault, Truth, World


class Due(Enum):
    """What becomes of a request at once."""

    OK = "answered 200"
    WAIT = "waits"
    REPLAY = "answered as before"
    REFUSED = "answered 409"


_GONE = (Due.REFUSED, Due.REFUSED)

# phase: (same seed, same activation, close). Another body, and any bad finding, is REFUSED everywhere.
ORACLE: dict[Phase, tuple[Due, Due, Due]] = {
    Phase.NEW: (Due.WAIT, Due.REFUSED, Due.OK),
    Phase.SEEDING: (Due.WAIT, Due.REFUSED, Due.WAIT),
    Phase.UNWINDING: (Due.WAIT, Due.REFUSED, Due.WAIT),
    Phase.READY: (Due.OK, Due.WAIT, Due.WAIT),
    Phase.ACTIVE: (Due.OK, Due.WAIT, Due.WAIT),
    Phase.FINISHED: (Due.OK, Due.REPLAY, Due.WAIT),
    Phase.SETUP_FAILED: (*_GONE, Due.WAIT),
    Phase.CLOSING: (*_GONE, Due.WAIT),
    Phase.CLOSE_FAILED: (*_GONE, Due.WAIT),
    Phase.CLOSED: (*_GONE, Due.REPLAY),
    Phase.FENCED: (*_GONE, Due.REPLAY),
}


def owed_activation(world: World) -> Fault | None:
    """Say what the activation is owed when the run has ended: None for 200, or the fault that it deserves.

    A refuted or unknown end outweighs everything; then the run's own first failure; then a launch that never
    was; and only then what went wrong with the artifacts.
    """
    if world.evidence is TerminationRefuted:
        return Fault(status=503, words="could not be proven stopped")
    if world.launches and world.evidence is None:
        return Fault(status=503, words="unknown")
    if world.execution is not None:
        return world.execution
    if world.evidence is not TerminationConfirmed:
        return Fault(status=503, words="never launched")
    if world.collected is not True or world.parsed is not True:
        return world.capture or Fault(status=503, words="artifacts")
    return None


def owed_seed(world: World) -> Fault:
    """Say what a seed is owed when its set-up failed; without a failure of its own, a restart cut it off."""
    return world.setup or Fault(status=503, words="restart")


def is_released(world: World) -> bool:
    """Whether nothing of ours lives: a supplied sandbox is left clean, or is gone; our own is stopped."""
    if world.owned:
        return world.sandbox is Truth.NONE
    return world.sandbox is Truth.GONE or (world.sandbox is Truth.NONE and not world.files)


def replies_fault(reply: Reply, fault: Fault) -> bool:
    """Whether the reply is the error that the fault deserves, and names it."""
    body = reply.body
    return reply.status == fault.status and isinstance(body, ErrorBody) and fault.words in body.detail


def is_success(reply: Reply, kind: type[SeedBody] | type[ActivationBody] | type[CloseBody]) -> bool:
    """Whether the reply is a 200 of its kind."""
    return reply.status == 200 and isinstance(reply.body, kind)
