"""What records change in the database, taken together: what comes and goes in between never gets there."""

from __future__ import annotations

from collections.abc import Iterable

from attrs import define, field

from inspan_runtime.journal_record import BEGIN, EVENT, FORGET, KEEP, REMOVE, Part


@define
class Batch:
    """Records that the database does not hold yet.

    Attributes:
        records: How many.
        begun: Names of sessions that the database does not know, by number.
        events: (session, number, JSON).
        contents: By session and name; None: it is removed.
        forgotten: Numbers of sessions.
    """

    records: int = 0
    begun: dict[int, str] = field(factory=dict)
    events: list[tuple[int, int, str]] = field(factory=list)
    contents: dict[tuple[int, str], bytes | None] = field(factory=dict)
    forgotten: set[int] = field(factory=set)

    def add(self, parts: Iterable[Part]) -> None:
        """Take the parts of a record."""
        self.records += 1
        for kind, session, number, name, value in parts:
            if kind == EVENT:
                self.events.append((session, number, value.decode()))
            elif kind == KEEP:
                self.contents[session, name] = value
            elif kind == REMOVE:
                self.contents[session, name] = None
            elif kind == BEGIN:
                self.begun[session] = value.decode()
            else:
                assert kind == FORGET
                self.forgotten.add(session)

    def settle(self) -> None:
        """Drop what need not reach the database."""
        gone, begun = self.forgotten, self.begun
        if gone:
            self.events = [event for event in self.events if event[0] not in gone]
            self.contents = {key: value for key, value in self.contents.items() if key[0] not in gone}
            self.forgotten = {session for session in gone if session not in begun}
            self.begun = {session: name for session, name in begun.items() if session not in gone}
