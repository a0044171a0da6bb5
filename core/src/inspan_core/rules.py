"""What the rows of the machine's tables are made of. The tables themselves are in `inspan_core.tables`."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from attrs import field, frozen

from inspan_core.draft import Draft
from inspan_core.events import Signal
from inspan_core.session import Phase, RunPhase, SandboxFact, Session

Handler: TypeAlias = Callable[[Draft, Any], None]


def _phases(phases: Iterable[Phase]) -> frozenset[Phase]:
    return frozenset(phases)


@frozen
class Rule:
    """The event is handled, and the session is in one of the phases ``to`` afterwards; empty: it stays."""

    handler: Handler
    to: frozenset[Phase] = field(kw_only=True, converter=_phases, default=frozenset())


@frozen
class Ignored:
    """The event may come here by its nature, and changes nothing."""

    reason: str


@frozen
class Refused:
    """The event changes nothing and is an error: a request is answered ``status``, others raise `NotAllowed`.

    ``reason`` is one sentence; ``{name}`` in it stands for the session's id.
    """

    status: int | None
    reason: str


Row: TypeAlias = Rule | Ignored | Refused


@frozen
class Check:
    """A finding that refuses a request in whatever phase, before the phase's row is looked at."""

    when: Callable[[Session, Any], bool]
    refusal: Refused


@frozen
class Learn:
    """What an answer teaches.

    Attributes:
        facts: The facts that it sets, by name.
        note: Sets what depends on the answer's own text, or None.
        fails: Whether the step counts as failed for the climb that follows.
    """

    facts: Mapping[str, object]
    note: Callable[[Draft, Any], None] | None = None
    fails: bool = False


_GONE: dict[str, object] = {"sandbox": SandboxFact.GONE, "files": False, "exec_held": False}


def learns(
    note: Callable[[Draft, Any], None] | None = None,
    *,
    fails: bool = False,
    gone: bool = False,
    **facts: object,
) -> Learn:
    """Make a row of LEARN: ``learns(sandbox=SandboxFact.LIVE)``; ``gone``: with the sandbox all in it is."""
    return Learn({**_GONE, **facts} if gone else facts, note, fails)


@frozen
class Rung:
    """One rung of a ladder: the first whose condition holds is taken.

    Attributes:
        when: Reads facts only.
        then: The run phase whose order goes out next, or the signal that ends the climb.
        says: The condition in words.
    """

    says: str
    when: Callable[[Draft], bool]
    then: RunPhase | Signal
