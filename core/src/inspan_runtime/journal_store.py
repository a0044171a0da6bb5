"""The journal's databases: SQLite, write-ahead logged: one file for events and contents, one for secrets.

The first takes over what stands in the log, a batch at a time, and with it the number of the batch's last
record: so what is in both counts once.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from inspan_runtime.journal import JournalError
from inspan_runtime.journal_batch import Batch

VERSION = 3
TAKEN_OVER_VERSION = 2
"""Of the inspan that had no log: it is raised where it is found."""

# Rows of a session lie together, and sessions in the order of their beginning: an event touches one page.
CONTENTS_SCHEMA = """
CREATE TABLE IF NOT EXISTS contents (
    session INTEGER NOT NULL, name TEXT NOT NULL, value BLOB NOT NULL,
    PRIMARY KEY (session, name)) WITHOUT ROWID;
"""
EVENTS_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS sessions (id INTEGER PRIMARY KEY, name TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS events (
    session INTEGER NOT NULL, number INTEGER NOT NULL, event TEXT NOT NULL,
    PRIMARY KEY (session, number)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS log (taken INTEGER NOT NULL);
INSERT INTO log (taken) SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM log);
{CONTENTS_SCHEMA}"""
BEGIN_SESSION = "INSERT INTO sessions (id, name) VALUES (?, ?)"
APPEND = "INSERT INTO events (session, number, event) VALUES (?, ?, ?)"
KEEP = "INSERT OR REPLACE INTO contents (session, name, value) VALUES (?, ?, ?)"
REMOVE = "DELETE FROM contents WHERE session = ? AND name = ?"
FORGET_CONTENTS = "DELETE FROM contents WHERE session = ?"
FORGET = (
    "DELETE FROM events WHERE session = ?",
    FORGET_CONTENTS,
    "DELETE FROM sessions WHERE id = ?",
)

WAL_PAGES = 4000
"""After so many pages the write-ahead log is written into the database, which waits for the disk: 16 MiB."""

VACUUM_EVERY, VACUUM_FROM_PAGES, VACUUM_PAGES = 64, 1024, 512
"""When so many sessions were forgotten, and from so many free pages on, some of them are given back to the
file system: files shrink, and nobody waits for it long."""

Sync = Literal["normal", "full"]


class EventStore:
    """Sessions, their events and their contents. Nothing but its version is looked at until it is prepared.

    Args:
        path: Made if it does not exist.
        sync: ``"full"``: a batch is on the disk when it is taken.

    Attributes:
        version: Of what was there; 0: nothing that was finished.

    Raises:
        JournalError: It is of another version.
        OSError: It cannot be made.
        sqlite3.Error: By any call, too.
    """

    def __init__(self, path: Path, sync: Sync) -> None:
        self._sync = sync
        self._database, self.version = _open(path)
        self._forgotten = 0

    def prepare(self) -> None:
        """Make it a database of this version."""
        _prepare(self._database, EVENTS_SCHEMA, self._sync)

    @property
    def taken(self) -> int:
        """Number of the last record that was taken over."""
        (taken,) = self._database.execute("SELECT taken FROM log").fetchone()
        return int(taken)

    def take(self, batch: Batch, last: int) -> None:
        """Take a batch over, all or nothing.

        Args:
            last: Number of its last record.
        """
        batch.settle()
        database, begun = self._database, batch.begun
        kept = [(*key, value) for key, value in batch.contents.items() if value is not None]
        # A session that begins here has no older contents.
        removed = [key for key, value in batch.contents.items() if value is None and key[0] not in begun]
        forgotten = [(session,) for session in batch.forgotten]
        with _transaction(database):
            database.executemany(BEGIN_SESSION, begun.items())
            database.executemany(APPEND, batch.events)
            database.executemany(KEEP, kept)
            database.executemany(REMOVE, removed)
            for statement in FORGET if forgotten else ():
                database.executemany(statement, forgotten)
            database.execute("UPDATE log SET taken = ?", (last,))
        self._forgotten += len(forgotten)

    def vacuum(self) -> None:
        """Give some free pages back, now and then."""
        if self._forgotten >= VACUUM_EVERY:
            self._forgotten = 0
            _vacuum(self._database)

    def sessions(self) -> list[tuple[int, str, int]]:
        """Number, name and last event's number (0: none) of each session, in the order of their beginning."""
        return self._database.execute(
            "SELECT id, name, COALESCE((SELECT MAX(number) FROM events WHERE session = id), 0) "
            "FROM sessions ORDER BY id"
        ).fetchall()

    def events(self) -> dict[int, list[str]]:
        """The events of each session, in order."""
        found: dict[int, list[str]] = {}
        for session, text in self._database.execute(
            "SELECT session, event FROM events ORDER BY session, number"
        ):
            found.setdefault(session, []).append(text)
        return found

    def contents(self) -> Mapping[int, dict[str, bytes]]:
        """The contents of each session."""
        return _contents(self._database)

    def close(self) -> None:
        """Release the file."""
        self._database.close()


class SecretStore:
    """Secrets of sessions; what is removed is overwritten. Like `EventStore`, it has to be prepared."""

    def __init__(self, path: Path, sync: Sync) -> None:
        self._sync = sync
        self._database, _ = _open(path)
        # A server that was killed may have removed some, and not overwritten them.
        self._has_remains = True

    def prepare(self) -> None:
        """Make it a database of this version."""
        _prepare(self._database, CONTENTS_SCHEMA, self._sync)
        # Secrets that are removed must not stay readable in free pages.
        self._database.execute("PRAGMA secure_delete = ON")

    def put(self, values: Mapping[tuple[int, str], bytes | None]) -> None:
        """Set secrets by session and name, or remove those that are None; all or nothing."""
        with _transaction(self._database):
            self._database.executemany(
                KEEP, [(*key, value) for key, value in values.items() if value is not None]
            )
            removed = [key for key, value in values.items() if value is None]
            self._database.executemany(REMOVE, removed)
        self._has_remains = self._has_remains or bool(removed)

    def forget(self, sessions: Iterable[int]) -> None:
        """Remove all secrets of some sessions."""
        gone = [(session,) for session in sessions]
        if gone:
            with _transaction(self._database):
                self._database.executemany(FORGET_CONTENTS, gone)
            self._has_remains = True
            _vacuum(self._database)

    def scrub(self) -> None:
        """Overwrite what removed secrets left in the write-ahead log, whose pages SQLite keeps for reuse."""
        if self._has_remains:
            (is_busy, *_) = self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            self._has_remains = bool(is_busy)

    def owners(self) -> set[int]:
        """Sessions that have some."""
        return {session for (session,) in self._database.execute("SELECT DISTINCT session FROM contents")}

    def secrets(self) -> Mapping[int, dict[str, bytes]]:
        """The secrets of each session."""
        return _contents(self._database)

    def close(self) -> None:
        """Release the file."""
        self._database.close()


@contextmanager
def _transaction(database: sqlite3.Connection) -> Iterator[None]:
    with database:
        database.execute("BEGIN")
        yield


def _vacuum(database: sqlite3.Connection) -> None:
    (free_pages,) = database.execute("PRAGMA freelist_count").fetchone()
    if free_pages > VACUUM_FROM_PAGES:
        database.execute(f"PRAGMA incremental_vacuum({VACUUM_PAGES})").fetchall()


def _open(path: Path) -> tuple[sqlite3.Connection, int]:
    # Made by us first, so that it is never readable by others, not even for a moment.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600))
    database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        # One server at a time has the folder: so each commit is spared the file locks and the shared index.
        database.execute("PRAGMA locking_mode = EXCLUSIVE")
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if version not in (0, TAKEN_OVER_VERSION, VERSION):
            raise JournalError(
                f"{path} is of version {version}, and this inspan reads version {VERSION}: end its sessions "
                "with the inspan that wrote it, or move the folder away"
            )
    except BaseException:
        database.close()
        raise
    return database, version


def _prepare(database: sqlite3.Connection, schema: str, sync: Sync) -> None:
    database.execute("PRAGMA auto_vacuum = INCREMENTAL")
    database.execute("PRAGMA journal_mode = WAL")
    database.execute(f"PRAGMA synchronous = {sync.upper()}")
    database.execute(f"PRAGMA wal_autocheckpoint = {WAL_PAGES}")
    # All or nothing: a version without its tables could be read by nobody.
    database.executescript(f"BEGIN; {schema} PRAGMA user_version = {VERSION}; COMMIT;")


def _contents(database: sqlite3.Connection) -> dict[int, dict[str, bytes]]:
    found: dict[int, dict[str, bytes]] = {}
    for number, name, value in database.execute("SELECT session, name, value FROM contents"):
        found.setdefault(number, {})[name] = bytes(value)
    return found
