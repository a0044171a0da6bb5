"""The journal in SQLite, write-ahead logged: one file for events and contents, one for secrets.

A commit is handed to the operating system before the effects run, so the death of the server loses nothing.
``sync="full"`` also waits for the disk at each commit, for those who fear the death of the machine.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Literal

from attrs import define

from inspan_core.errors import WireError
from inspan_core.events import Event
from inspan_core.journal import decode_event, encode_event
from inspan_runtime.journal import JournalError, StoredSession

__all__ = ["EVENTS_FILE", "SECRETS_FILE", "JournalError", "SqliteJournal"]

VERSION = 2
EVENTS_FILE = "sessions.sqlite"
SECRETS_FILE = "secrets.sqlite"
LOCK_FILE = "lock"

# Rows of a session lie together, and sessions in the order of their beginning: an event touches one page.
EVENTS_SCHEMA = """
CREATE TABLE IF NOT EXISTS sessions (id INTEGER PRIMARY KEY, name TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS events (
    session INTEGER NOT NULL, number INTEGER NOT NULL, event TEXT NOT NULL,
    PRIMARY KEY (session, number)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS contents (
    session INTEGER NOT NULL, name TEXT NOT NULL, value BLOB NOT NULL,
    PRIMARY KEY (session, name)) WITHOUT ROWID;
"""
SECRETS_SCHEMA = """
CREATE TABLE IF NOT EXISTS contents (
    session INTEGER NOT NULL, name TEXT NOT NULL, value BLOB NOT NULL,
    PRIMARY KEY (session, name)) WITHOUT ROWID;
"""
BEGIN_SESSION = "INSERT INTO sessions (id, name) VALUES (?, ?)"
APPEND = "INSERT INTO events (session, number, event) VALUES (?, ?, ?)"
KEEP = "INSERT OR REPLACE INTO contents (session, name, value) VALUES (?, ?, ?)"
REMOVE = "DELETE FROM contents WHERE session = ? AND name IN ("
"""Goes on with a place for each name."""

WAL_PAGES = 4000
"""After so many pages the log is written into the database, which waits for the disk: 16 MiB."""

VACUUM_EVERY, VACUUM_FROM_PAGES, VACUUM_PAGES = 64, 1024, 512
"""At every so manieth session that is forgotten, and from so many free pages on, some of them are given back
to the file system: files shrink, and nobody waits for it long."""

Sync = Literal["normal", "full"]


@define
class _Known:
    """What is known of a session that has events: its number, and that of its next event."""

    id: int
    next_event: int = 1


class JournalInUse(JournalError):
    """Another server uses the folder."""


class SqliteJournal:
    """Implements `inspan_runtime.journal.Journal` in a folder that one server at a time may use.

    A content waits in memory for the event that makes it count, and is committed with it; a secret before it.

    Args:
        folder: Made with mode 0700 if it does not exist.
        sync: ``"normal"``: survives the death of the server; ``"full"``: also of the machine.

    Raises:
        JournalError: Another server uses the folder, or its files are of another version or broken.
    """

    def __init__(self, folder: Path, *, sync: Sync = "normal") -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            _check_folder(folder)
            self._lock = _lock(folder / LOCK_FILE)
        except OSError as error:
            raise JournalError(f"{folder} cannot be a journal's folder: {error.strerror}") from error
        try:
            _check_whole(folder)
            self._events = _open(folder / EVENTS_FILE, EVENTS_SCHEMA, sync)
            self._secrets = _open(folder / SECRETS_FILE, SECRETS_SCHEMA, sync)
            # Secrets that are removed must not stay readable in free pages.
            self._secrets.execute("PRAGMA secure_delete = ON")
            self._known = {
                name: _Known(id=number, next_event=last + 1)
                for number, name, last in self._events.execute(
                    "SELECT id, name, COALESCE((SELECT MAX(number) FROM events WHERE session = id), 0) "
                    "FROM sessions"
                )
            }
        except (OSError, sqlite3.Error, JournalError) as error:
            os.close(self._lock)
            raise JournalError(f"the journal in {folder} cannot be used: {error}") from error
        self._next_id = max((known.id for known in self._known.values()), default=0) + 1
        self._waiting: list[tuple[str, tuple[object, ...]]] = []
        self._waiting_secrets: list[tuple[str, tuple[object, ...]]] = []
        self._forgotten = 0
        # A server that was killed may have removed some, and not overwritten them.
        self._has_remains = True

    def append(self, name: str, event: Event) -> None:
        """Add an event to a session, with all contents that were kept before it."""
        known = self._session(name)
        text = _ENCODE(encode_event(event))
        with self._written():
            self._write_waiting((APPEND, (known.id, known.next_event, text)))
        known.next_event += 1

    def keep(self, name: str, content: str, value: bytes | None, *, secret: bool = False) -> None:
        """Set a content of a session, or remove it with None, from its next event on."""
        number = self._session(name).id
        waiting = self._waiting_secrets if secret else self._waiting
        if value is not None:
            waiting.append((KEEP, (number, content, value)))
        elif waiting and waiting[-1][0].startswith(REMOVE) and waiting[-1][1][0] == number:
            # A close removes all that was kept of its run: in one statement.
            statement, values = waiting[-1]
            waiting[-1] = (f"{statement[:-1]}, ?)", (*values, content))
        else:
            waiting.append((f"{REMOVE}?)", (number, content)))

    def forget(self, name: str) -> None:
        """Remove all that is kept of a session."""
        known = self._known.get(name)
        if known is None:
            return
        with self._written():
            self._write_waiting(
                ("DELETE FROM events WHERE session = ?", (known.id,)),
                ("DELETE FROM contents WHERE session = ?", (known.id,)),
                ("DELETE FROM sessions WHERE id = ?", (known.id,)),
            )
            removed = self._secrets.execute("DELETE FROM contents WHERE session = ?", (known.id,))
            self._has_remains = self._has_remains or removed.rowcount > 0
            del self._known[name]
            self._forgotten += 1
            if self._forgotten % VACUUM_EVERY == 0:
                self._vacuum()

    def scrub(self) -> None:
        """Overwrite what removed secrets left in the write-ahead log, whose pages SQLite keeps for reuse."""
        if self._has_remains:
            with self._written():
                (is_busy, *_) = self._secrets.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            self._has_remains = bool(is_busy)

    def _session(self, name: str) -> _Known:
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = _Known(id=self._next_id)
            self._next_id += 1
            self._waiting.append((BEGIN_SESSION, (known.id, name)))
        return known

    def _write_waiting(self, *statements: tuple[str, tuple[object, ...]]) -> None:
        """Commit what waits, and the statements, all or nothing. What is not written goes on waiting."""
        if self._waiting_secrets:
            _commit(self._secrets, self._waiting_secrets)
            self._waiting_secrets = []
        _commit(self._events, [*self._waiting, *statements])
        self._waiting = []

    def _vacuum(self) -> None:
        for database in (self._events, self._secrets):
            (free_pages,) = database.execute("PRAGMA freelist_count").fetchone()
            if free_pages > VACUUM_FROM_PAGES:
                database.execute(f"PRAGMA incremental_vacuum({VACUUM_PAGES})").fetchall()

    def load(self) -> Iterator[StoredSession]:
        """All sessions, in the order of their beginning.

        Raises:
            JournalError: A kept event cannot be read; names the session.
        """
        with self._written():
            stored = self._load()
            # Only now, when all could be read. What has no event was kept for a session that never was.
            for name in [name for name, known in self._known.items() if known.next_event == 1]:
                self.forget(name)
            kept = {number for (number,) in self._secrets.execute("SELECT DISTINCT session FROM contents")}
            for number in kept.difference(known.id for known in self._known.values()):
                self._secrets.execute("DELETE FROM contents WHERE session = ?", (number,))
        self.scrub()
        yield from stored

    def _load(self) -> list[StoredSession]:
        events: dict[int, list[str]] = {}
        for number, text in self._events.execute(
            "SELECT session, event FROM events ORDER BY session, number"
        ):
            events.setdefault(number, []).append(text)
        contents, secrets = _contents(self._events), _contents(self._secrets)
        return [
            StoredSession(
                name=name,
                events=self._decoded(name, events[known.id]),
                contents=contents.get(known.id, {}),
                secrets=secrets.get(known.id, {}),
            )
            for name, known in self._known.items()
            if known.id in events
        ]

    def _decoded(self, name: str, texts: list[str]) -> tuple[Event, ...]:
        try:
            return tuple(decode_event(json.loads(text)) for text in texts)
        except (WireError, ValueError) as error:
            raise JournalError(
                f"the journal in {self.folder} has an event of session {name!r} that this inspan "
                f"cannot read: {error}"
            ) from error

    @contextmanager
    def _written(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise JournalError(f"the journal in {self.folder} cannot be used: {error}") from error

    def close(self) -> None:
        """Write what waits, and release the files."""
        try:
            with self._written():
                self._write_waiting()
        finally:
            self._events.close()
            self._secrets.close()
            os.close(self._lock)


_ENCODE = json.JSONEncoder(separators=(",", ":")).encode


def _commit(database: sqlite3.Connection, statements: list[tuple[str, tuple[object, ...]]]) -> None:
    if len(statements) == 1:
        database.execute(*statements[0])
    elif statements:
        with database:
            database.execute("BEGIN")
            for statement, values in statements:
                database.execute(statement, values)


def _open(path: Path, schema: str, sync: Sync) -> sqlite3.Connection:
    # Made by us first, so that it is never readable by others, not even for a moment.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600))
    database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        # One server at a time has the folder: so each commit is spared the file locks and the shared index.
        database.execute("PRAGMA locking_mode = EXCLUSIVE")
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if version not in (0, VERSION):
            raise JournalError(
                f"{path} is of version {version}, and this inspan reads version {VERSION}: end its sessions "
                "with the inspan that wrote it, or move the folder away"
            )
        database.execute("PRAGMA auto_vacuum = INCREMENTAL")
        database.execute("PRAGMA journal_mode = WAL")
        database.execute(f"PRAGMA synchronous = {sync.upper()}")
        database.execute(f"PRAGMA wal_autocheckpoint = {WAL_PAGES}")
        database.executescript(schema)
        database.execute(f"PRAGMA user_version = {VERSION}")
    except BaseException:
        database.close()
        raise
    return database


def _contents(database: sqlite3.Connection) -> dict[int, dict[str, bytes]]:
    found: dict[int, dict[str, bytes]] = {}
    for number, name, value in database.execute("SELECT session, name, value FROM contents"):
        found.setdefault(number, {})[name] = bytes(value)
    return found


def _check_folder(folder: Path) -> None:
    mode = stat.S_IMODE(folder.stat().st_mode)
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise JournalError(
            f"{folder} has mode {mode:04o}: others may put files of theirs in place of the journal's; "
            "it must be writable by its owner only"
        )


def _check_whole(folder: Path) -> None:
    """Refuse a journal that has lost a file, before SQLite makes an empty one in its place."""
    for name, other in ((EVENTS_FILE, SECRETS_FILE), (SECRETS_FILE, EVENTS_FILE)):
        if not _size(folder / name) and (_size(folder / f"{name}-wal") or _holds_sessions(folder / other)):
            raise JournalError(
                f"{name} is missing or empty, but what belongs to it is there: put it back, or move the "
                "folder away"
            )


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _holds_sessions(path: Path) -> bool:
    if not _size(path):
        return False
    with closing(sqlite3.connect(path)) as database:
        if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'contents'").fetchone():
            return False
        return database.execute("SELECT 1 FROM contents LIMIT 1").fetchone() is not None


def _lock(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise JournalInUse(f"{path.parent} is in use by another server") from error
    return descriptor
