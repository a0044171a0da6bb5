"""The journal in SQLite, write-ahead logged: one file for events and contents, one for secrets.

A commit is handed to the operating system before the effects run, so the death of the server loses nothing.
``durability="power"`` also waits for the disk at each commit, for those who fear the death of the machine.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from inspan_core.errors import WireError
from inspan_core.events import Event
from inspan_core.journal import decode_event, encode_event
from inspan_runtime.journal import JournalError, StoredSession

__all__ = ["EVENTS_FILE", "SECRETS_FILE", "JournalError", "SqliteJournal"]

VERSION = 1
EVENTS_FILE = "sessions.sqlite"
SECRETS_FILE = "secrets.sqlite"
LOCK_FILE = "lock"

EVENTS_SCHEMA = """
CREATE TABLE IF NOT EXISTS events (
    number INTEGER PRIMARY KEY, session TEXT NOT NULL, event TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS events_by_session ON events (session);
CREATE TABLE IF NOT EXISTS contents (
    session TEXT NOT NULL, name TEXT NOT NULL, value BLOB NOT NULL,
    PRIMARY KEY (session, name)) WITHOUT ROWID;
"""
SECRETS_SCHEMA = """
CREATE TABLE IF NOT EXISTS contents (
    session TEXT NOT NULL, name TEXT NOT NULL, value BLOB NOT NULL,
    PRIMARY KEY (session, name)) WITHOUT ROWID;
"""
KEEP = "INSERT OR REPLACE INTO contents (session, name, value) VALUES (?, ?, ?)"
REMOVE = "DELETE FROM contents WHERE session = ? AND name = ?"


class SqliteJournal:
    """Implements `inspan_runtime.journal.Journal` in a folder that one server at a time may use.

    Args:
        folder: Made with mode 0700 if it does not exist.
        durability: ``"process"``: survives the death of the server; ``"power"``: also of the machine.

    Raises:
        JournalError: Another server uses the folder, or its files are of another version or broken.
    """

    def __init__(self, folder: Path, *, durability: Literal["process", "power"] = "process") -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = _lock(folder / LOCK_FILE)
        except OSError as error:
            raise JournalError(f"{folder} cannot be a journal's folder: {error.strerror}") from error
        try:
            self._events = _open(folder / EVENTS_FILE, EVENTS_SCHEMA, durability)
            self._secrets = _open(folder / SECRETS_FILE, SECRETS_SCHEMA, durability)
        except (OSError, sqlite3.Error, JournalError) as error:
            os.close(self._lock)
            raise JournalError(f"the journal in {folder} cannot be used: {error}") from error

    def append(self, name: str, event: Event) -> None:
        """Add an event to a session."""
        text = json.dumps(encode_event(event), separators=(",", ":"))
        with self._written():
            self._events.execute("INSERT INTO events (session, event) VALUES (?, ?)", (name, text))

    def keep(self, name: str, content: str, value: bytes | None, *, secret: bool = False) -> None:
        """Set a content of a session, or remove it with None."""
        table = self._secrets if secret else self._events
        with self._written():
            if value is None:
                table.execute(REMOVE, (name, content))
            else:
                table.execute(KEEP, (name, content, value))

    def forget(self, name: str) -> None:
        """Remove all that is kept of a session."""
        with self._written():
            with self._events:
                self._events.execute("BEGIN")
                self._events.execute("DELETE FROM events WHERE session = ?", (name,))
                self._events.execute("DELETE FROM contents WHERE session = ?", (name,))
            self._secrets.execute("DELETE FROM contents WHERE session = ?", (name,))

    def load(self) -> Iterator[StoredSession]:
        """All sessions, in the order of their first events.

        Raises:
            JournalError: A kept event cannot be read; names the session.
        """
        with self._written():
            yield from self._load()

    def _load(self) -> Iterator[StoredSession]:
        # A content without an event was kept for a session that never was.
        for table in (self._events, self._secrets):
            names = {name for (name,) in table.execute("SELECT DISTINCT session FROM contents")}
            alive = {name for (name,) in self._events.execute("SELECT DISTINCT session FROM events")}
            for name in names - alive:
                table.execute("DELETE FROM contents WHERE session = ?", (name,))
        order = "SELECT session FROM events GROUP BY session ORDER BY MIN(number)"
        for (name,) in self._events.execute(order).fetchall():
            rows = self._events.execute(
                "SELECT event FROM events WHERE session = ? ORDER BY number", (name,)
            ).fetchall()
            try:
                events = tuple(decode_event(json.loads(text)) for (text,) in rows)
            except (WireError, ValueError) as error:
                raise JournalError(
                    f"the journal in {self.folder} has an event of session {name!r} that this inspan "
                    f"cannot read: {error}"
                ) from error
            yield StoredSession(
                name=name,
                events=events,
                contents=_contents(self._events, name),
                secrets=_contents(self._secrets, name),
            )

    @contextmanager
    def _written(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise JournalError(f"the journal in {self.folder} cannot be used: {error}") from error

    def close(self) -> None:
        """Release the files."""
        self._events.close()
        self._secrets.close()
        os.close(self._lock)


def _open(path: Path, schema: str, durability: str) -> sqlite3.Connection:
    # Made by us first, so that it is never readable by others, not even for a moment.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600))
    database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute(f"PRAGMA synchronous = {'FULL' if durability == 'power' else 'NORMAL'}")
    # Secrets that are removed must not stay readable in free pages.
    database.execute("PRAGMA secure_delete = ON")
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if version not in (0, VERSION):
        database.close()
        raise JournalError(f"{path} is of version {version}; this inspan reads version {VERSION}")
    database.executescript(schema)
    database.execute(f"PRAGMA user_version = {VERSION}")
    return database


def _contents(database: sqlite3.Connection, name: str) -> dict[str, bytes]:
    rows = database.execute("SELECT name, value FROM contents WHERE session = ?", (name,))
    return {content: bytes(value) for content, value in rows}


def _lock(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise JournalError(f"{path.parent} is in use by another server") from error
    return descriptor
