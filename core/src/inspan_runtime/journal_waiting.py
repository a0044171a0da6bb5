"""What was kept of sessions and waits for the next record: contents by name, beginnings and ends."""

from __future__ import annotations

from collections.abc import Iterable

from inspan_runtime.journal_record import BEGIN, EVENT, FORGET, KEEP, REMOVE, Part

LIFE = ""
"""Where a session's beginning or end waits, among the names of its contents."""


class Waiting:
    """Parts of records by session: a later one of the same name takes an earlier one's place."""

    def __init__(self) -> None:
        self._parts: dict[int, dict[str, Part]] = {}

    def __bool__(self) -> bool:
        return bool(self._parts)

    def begin(self, session: int, name: str) -> None:
        """A session begins with its next record."""
        self._parts[session] = {LIFE: (BEGIN, session, 0, "", name.encode())}

    def keep(self, session: int, content: str, value: bytes | None) -> None:
        """A content is set, or removed."""
        part = (REMOVE, session, 0, content, b"") if value is None else (KEEP, session, 0, content, value)
        waiting = self._parts.get(session)
        if waiting is None:
            self._parts[session] = {content: part}
        else:
            waiting[content] = part

    def forget(self, session: int) -> None:
        """A session ends: nothing else of it matters any more."""
        parts = self._parts.pop(session, None)
        if parts is None or LIFE not in parts:
            # One that begins here never was.
            self._parts[session] = {LIFE: (FORGET, session, 0, "", b"")}

    def all(self) -> list[Part]:
        """All parts that wait."""
        return [part for parts in self._parts.values() for part in parts.values()]

    def clear(self) -> None:
        """They are written."""
        self._parts.clear()

    def undo(self, written: Iterable[Part]) -> None:
        """Parts that were written wait again, where nothing newer does; newest records first."""
        begun = set()
        for part in written:
            kind, session, _, name, _ = part
            if kind == BEGIN:
                begun.add(session)
            if kind != EVENT and not _is_over(self._parts.get(session, {})):
                self._parts.setdefault(session, {}).setdefault(name, part)
        for session in begun:
            if _is_over(self._parts.get(session, {})):
                del self._parts[session]


def _is_over(waiting: dict[str, Part]) -> bool:
    return LIFE in waiting and waiting[LIFE][0] == FORGET
