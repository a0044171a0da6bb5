"""Where a service keeps its sessions so that it finds them again after it was killed.

Three kinds of things are kept of a session: its events, in order; *contents* by name that the machine never
sees (which sandbox, what was installed, the response); and *secrets*, apart from both. Everything is kept
before the effects that depend on it run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from attrs import field, frozen

from inspan_core.errors import InspanError
from inspan_core.events import Event


class JournalError(InspanError):
    """The journal cannot be used now: says which and why. What was to be written is not written."""


@frozen(kw_only=True)
class StoredSession:
    """What is kept of one session.

    Attributes:
        name: The session's id.
        events: In the order in which they became known.
        contents: By name.
        secrets: By name; their text is not shown.
    """

    name: str
    events: tuple[Event, ...]
    contents: Mapping[str, bytes]
    secrets: Mapping[str, bytes] = field(factory=dict, repr=False)


class Ticket(Protocol):
    """A record that is written, and not durable yet."""

    async def durable(self) -> None:
        """Wait until it is. Cancelled: it may become durable or not.

        Raises:
            JournalError: It is not, and never will be: as if `Journal.append` had raised.
        """
        ...


class Journal(Protocol):
    """Keeps sessions durably. Each call has taken effect when it returns, and none when it raises.

    Raises:
        JournalError: By any call: a full disk, a broken file. A later one may succeed.
    """

    def append(self, name: str, event: Event) -> Ticket | None:
        """Add an event to a session, which it makes if it is the first.

        Returns:
            None: it is durable. Else what follows from the event waits for the ticket, and the session's next
            event too.
        """
        ...

    def keep(self, name: str, content: str, value: bytes | None, *, secret: bool = False) -> None:
        """Set a content of a session, or remove it with None."""
        ...

    def forget(self, name: str) -> None:
        """Remove all that is kept of a session."""
        ...

    def scrub(self) -> None:
        """Overwrite what removed secrets left behind; it waits for the disk, so not after each one."""
        ...

    def load(self) -> Iterable[StoredSession]:
        """All sessions, in the order of their first events."""
        ...

    def close(self) -> None:
        """Release the files."""
        ...
