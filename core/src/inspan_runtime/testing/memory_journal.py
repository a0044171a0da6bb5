"""A journal in memory, written inline: what a server that is killed leaves for the next one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from attrs import define, field

from inspan_core.events import Event
from inspan_core.journal import decode_event, encode_event
from inspan_runtime.journal import StoredSession

OnRecord = Callable[[str, str, Any], None]
"""Told of each record once it is kept: the session's id, ``"event"``, ``"content"`` or ``"forgotten"``, and
the event, or the content's name with its value, or None."""


@define
class _Kept:
    events: list[dict[str, Any]] = field(factory=list)
    contents: dict[str, bytes] = field(factory=dict)
    secrets: dict[str, bytes] = field(factory=dict)


class MemoryJournal:
    """Implements `inspan_runtime.journal.Journal`; events are kept as the JSON that a file would hold.

    Args:
        on_record: Told of each record.

    Attributes:
        records: How many records were ever made, by this journal and those before it.
    """

    def __init__(self, on_record: OnRecord | None = None) -> None:
        self.records = 0
        self._on_record = on_record
        self._sessions: dict[str, _Kept] = {}
        self._cut_off = False

    def successor(self) -> MemoryJournal:
        """What the next server opens. The server that had this one was killed: it writes no more."""
        after = MemoryJournal(self._on_record)
        after._sessions, after.records = self._sessions, self.records
        self._sessions, self._cut_off = {}, True
        return after

    def append(self, name: str, event: Event) -> None:
        """Add an event to a session."""
        if not self._cut_off:
            self._sessions.setdefault(name, _Kept()).events.append(encode_event(event))
            self._recorded(name, "event", event)

    def keep(self, name: str, content: str, value: bytes | None, *, secret: bool = False) -> None:
        """Set a content of a session, or remove it with None."""
        if self._cut_off:
            return
        kept = self._sessions.setdefault(name, _Kept())
        table = kept.secrets if secret else kept.contents
        if value is None:
            table.pop(content, None)
        else:
            table[content] = value
        self._recorded(name, "content", (content, value))

    def scrub(self) -> None:
        """Nothing is left in memory."""

    def forget(self, name: str) -> None:
        """Remove all that is kept of a session."""
        if not self._cut_off and self._sessions.pop(name, None) is not None:
            self._recorded(name, "forgotten", None)

    def load(self) -> Iterator[StoredSession]:
        """All sessions, in the order of their first events."""
        for name, kept in list(self._sessions.items()):
            if self._cut_off:
                return
            if not kept.events:
                # A content without an event was kept for a session that never was.
                del self._sessions[name]
                continue
            yield StoredSession(
                name=name,
                events=tuple(decode_event(event) for event in kept.events),
                contents=dict(kept.contents),
                secrets=dict(kept.secrets),
            )

    def close(self) -> None:
        """Nothing is open."""

    @property
    def names(self) -> tuple[str, ...]:
        """The sessions of which anything is kept."""
        return tuple(self._sessions)

    def _recorded(self, name: str, kind: str, what: Any) -> None:
        self.records += 1
        if self._on_record is not None:
            self._on_record(name, kind, what)
