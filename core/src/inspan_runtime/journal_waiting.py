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
        self._small: set[int] = set()  # Sessions of which only removals wait.

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
            if value is None:
                self._small.add(session)
        else:
            waiting[content] = part
            if value is not None:
                self._small.discard(session)

    def forget(self, session: int) -> None:
        """A session ends: nothing else of it matters any more."""
        parts = self._parts.pop(session, None)
        self._small.discard(session)
        if parts is None or LIFE not in parts:
            # One that begins here never was.
            self._parts[session] = {LIFE: (FORGET, session, 0, "", b"")}
            self._small.add(session)

    def due(self, session: int) -> list[int]:
        """The sessions whose parts go with a record of one: its own, and removals.

        What is kept of others waits for theirs, so that one which does not fit holds up nobody else.
        """
        due = list(self._small)
        if session in self._parts and session not in self._small:
            due.append(session)
        return due

    def sessions(self) -> list[int]:
        """All sessions of which something waits."""
        return list(self._parts)

    def parts_of(self, sessions: Iterable[int]) -> list[Part]:
        """All parts that wait of some sessions."""
        return [part for session in sessions for part in self._parts[session].values()]

    def written(self, sessions: Iterable[int]) -> None:
        """All parts of some sessions are written."""
        for session in sessions:
            del self._parts[session]
            self._small.discard(session)

    def undo(self, written: Iterable[Part]) -> None:
        """Parts that were written wait again, where nothing newer does; newest records first."""
        begun = set()
        for part in written:
            kind, session, _, name, _ = part
            if kind == BEGIN:
                begun.add(session)
            if kind != EVENT and not _is_over(self._parts.get(session, {})):
                self._wait_again(session, name, part)
        for session in begun:
            if _is_over(self._parts.get(session, {})):
                self.written([session])

    def _wait_again(self, session: int, name: str, part: Part) -> None:
        waiting, is_small = self._parts.setdefault(session, {}), part[0] in (REMOVE, FORGET)
        if is_small and not waiting:
            self._small.add(session)
        if name not in waiting:
            waiting[name] = part
            if not is_small:
                self._small.discard(session)


def _is_over(waiting: dict[str, Part]) -> bool:
    return LIFE in waiting and waiting[LIFE][0] == FORGET
