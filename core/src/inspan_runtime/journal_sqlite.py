"""The journal of a folder: a log in front of SQLite.

Each event, with all that was kept before it, is one record that is added to the log with one write before
its effects run. Now and then the database takes over what stands in the log, in one transaction, and the log
is begun anew. What a killed server did not take over, the next one does when it opens the folder, before
anything else. Secrets never come into the log: they have a database of their own, and are there before their
event.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attrs import define

from inspan_core.errors import WireError
from inspan_core.events import Event
from inspan_core.journal import decode_event, event_text
from inspan_runtime.journal import JournalError, StoredSession, Ticket
from inspan_runtime.journal_batch import Batch
from inspan_runtime.journal_folder import (
    EVENTS_FILE,
    LOG_FILE,
    SECRETS_FILE,
    JournalInUse,
    check_whole,
    missing,
    take_folder,
)
from inspan_runtime.journal_log import LogFile, make_log, read_log
from inspan_runtime.journal_record import EVENT, Part, encode_parts, event_body
from inspan_runtime.journal_store import VERSION, EventStore, SecretStore, Sync
from inspan_runtime.journal_sync import GroupCommit, Written
from inspan_runtime.journal_takeover import records_to_take
from inspan_runtime.journal_waiting import Waiting

__all__ = ["EVENTS_FILE", "LOG_FILE", "SECRETS_FILE", "JournalError", "JournalInUse", "SqliteJournal"]

BATCH_RECORDS, BATCH_BYTES = 1024, 8 * 1024 * 1024
"""When the database takes over what stands in the log. More at a time costs less, and holds up longer."""

LOG_LIMIT_BYTES = 64 * 1024 * 1024
"""A log that the database cannot take over grows until here; then nothing more is written."""

log = logging.getLogger(__name__)


@define
class _Known:
    """What is known of a session: its number, that of its next event, and whether it has secrets."""

    id: int
    next_event: int = 1
    has_secrets: bool = False


class SqliteJournal:
    """Implements `inspan_runtime.journal.Journal` in a folder that one server at a time may use.

    A content waits in memory for the next event, and is written with it; a secret before it. So is the end of
    a session, which the next `scrub` writes at the latest.

    Args:
        folder: Made with mode 0700 if it does not exist.
        sync: ``"normal"``: survives the death of the server; ``"full"``: also of the machine.

    Raises:
        JournalError: Another server uses the folder, or its files are of another version or broken.
    """

    def __init__(self, folder: Path, *, sync: Sync = "normal") -> None:
        self.folder = folder
        try:
            self._lock = take_folder(folder)
        except OSError as error:
            raise JournalError(f"{folder} cannot be a journal's folder: {error.strerror}") from error
        try:
            self._open(sync)
        except (OSError, sqlite3.Error, JournalError) as error:
            os.close(self._lock)
            raise JournalError(f"the journal in {folder} cannot be used: {error}") from error
        self._waiting = Waiting()
        self._waiting_secrets: dict[tuple[int, str], bytes | None] = {}
        self._without_secrets: list[int] = []
        self._has_forgotten = False
        self._batch = Batch()
        self._due_at_records, self._due_at_bytes = BATCH_RECORDS, BATCH_BYTES
        self._group = GroupCommit(self._log, self._settled, self._undone) if sync == "full" else None

    def _open(self, sync: Sync) -> None:
        check_whole(self.folder)
        path, database = self.folder / LOG_FILE, self.folder / EVENTS_FILE
        self._events = EventStore(database, sync)
        try:
            self._secrets = SecretStore(self.folder / SECRETS_FILE, sync)
        except BaseException:
            self._events.close()
            raise
        try:
            if not path.exists():
                if self._events.version == VERSION:
                    raise missing(LOG_FILE)
                make_log(path)
            found = read_log(path)
            self._events.prepare()
            self._secrets.prepare()
            records = records_to_take(found, self._events.taken, path, database)
            if records:
                batch = Batch()
                for record in records:
                    batch.add(record.parts)
                self._events.take(batch, records[-1].number)
            owners = self._secrets.owners()
            self._known = {
                name: _Known(number, last + 1, number in owners)
                for number, name, last in self._events.sessions()
            }
            self._next_id = max(owners | {known.id for known in self._known.values()}, default=0) + 1
            # Only now, when all that it held is in the database.
            self._log = LogFile(path, last=self._events.taken, is_synced=sync == "full")
        except BaseException:
            self._events.close()
            self._secrets.close()
            raise

    def append(self, name: str, event: Event) -> Ticket | None:
        """Add an event to a session, with all contents that were kept before it."""
        known = self._known.get(name) or self._session(name)
        number, text = known.next_event, event_text(event).encode()
        written = self._write((EVENT, known.id, number, "", text), event_body(known.id, number, text))
        known.next_event = number + 1
        return written

    def keep(self, name: str, content: str, value: bytes | None, *, secret: bool = False) -> None:
        """Set a content of a session, or remove it with None, from its next event on."""
        known = self._known.get(name) or self._session(name)
        if secret:
            known.has_secrets = True
            self._waiting_secrets[known.id, content] = value
        else:
            self._waiting.keep(known.id, content, value)

    def forget(self, name: str) -> None:
        """Remove all that is kept of a session, at the latest with the next `scrub`."""
        known = self._known.pop(name, None)
        if known is None:
            return
        self._waiting.forget(known.id)
        self._has_forgotten = True
        if known.has_secrets:
            self._waiting_secrets = {
                key: value for key, value in self._waiting_secrets.items() if key[0] != known.id
            }
            self._without_secrets.append(known.id)

    def scrub(self) -> None:
        """Write what waits, remove what was forgotten, and overwrite what removed secrets left behind."""
        with self._usable():
            self._write_waiting()
            if self._has_forgotten:
                self._take_over()
            self._secrets.forget(self._without_secrets)
            self._without_secrets.clear()
            self._secrets.scrub()

    def load(self) -> Iterator[StoredSession]:
        """All sessions, in the order of their beginning.

        Raises:
            JournalError: A kept event cannot be read; names the session.
        """
        with self._usable():
            self._take_over()
            stored = self._load()
            # Only now, when all could be read. What has no event was kept for a session that never was.
            for name in [name for name, known in self._known.items() if known.next_event == 1]:
                self.forget(name)
            self._without_secrets += self._secrets.owners().difference(
                known.id for known in self._known.values()
            )
        self.scrub()
        yield from stored

    def close(self) -> None:
        """Write what waits, and release the files."""
        try:
            with self._usable():
                self._write_waiting()
                self._take_over()
                self._secrets.forget(self._without_secrets)
        finally:
            self._log.close()
            self._events.close()
            self._secrets.close()
            os.close(self._lock)

    # --- writing ---------------------------------------------------------------------------------

    def _session(self, name: str) -> _Known:
        known = self._known[name] = _Known(self._next_id)
        self._next_id += 1
        self._waiting.begin(known.id, name)
        return known

    def _write_waiting(self) -> None:
        if self._waiting or self._waiting_secrets:
            self._write(None, b"")

    def _write(self, event: Part | None, body: bytes) -> Written | None:
        """Write an event with what waits for it, or all that waits. What is not written goes on waiting."""
        log_file, group = self._log, self._group
        if self._batch.records >= self._due_at_records or log_file.end >= self._due_at_bytes:
            self._take_over_or_later()
        due = self._waiting.sessions() if event is None else self._waiting.due(event[1])
        parts = self._waiting.parts_of(due)
        if parts:
            body = encode_parts(parts) + body
        if event is not None:
            parts.append(event)
        start = log_file.end
        try:
            if self._waiting_secrets:
                self._put_secrets(None if event is None else event[1])
            log_file.append(body, acknowledges=group is None)
        except (OSError, sqlite3.Error) as error:
            raise self._unusable(error) from error
        if due:
            self._waiting.written(due)
        if group is not None:
            return group.add(start, parts)
        self._batch.add(parts)
        return None

    def _put_secrets(self, session: int | None) -> None:
        due = {key: value for key, value in self._waiting_secrets.items() if session in (None, key[0])}
        if due:
            self._secrets.put(due)
            for key in due:
                del self._waiting_secrets[key]

    def _settled(self, durable: list[Written]) -> None:
        for written in durable:
            self._batch.add(written.parts)

    def _undone(self, undone: list[Written]) -> None:
        numbers = {known.id: known for known in self._known.values()}
        for written in undone:
            self._waiting.undo(written.parts)
            for kind, session, *_ in written.parts:
                if kind == EVENT and session in numbers:
                    numbers[session].next_event -= 1

    def _take_over(self) -> None:
        """Have the database take over what stands in the log, and begin the log anew."""
        if self._group is not None:
            self._group.sync_now()
        if self._batch.records:
            self._events.take(self._batch, self._log.last)
            self._batch = Batch()
            self._log.clear()
            self._has_forgotten = bool(self._waiting)
            self._due_at_records, self._due_at_bytes = BATCH_RECORDS, BATCH_BYTES
            self._events.vacuum()

    def _take_over_or_later(self) -> None:
        try:
            with self._usable():
                self._take_over()
        except JournalError as error:
            if self._log.end > LOG_LIMIT_BYTES:
                raise
            log.warning("sessions are kept in the log until the database can take them over: %s", error)
            self._due_at_records = self._batch.records + BATCH_RECORDS
            self._due_at_bytes = self._log.end + BATCH_BYTES

    @contextmanager
    def _usable(self) -> Iterator[None]:
        try:
            yield
        except (OSError, sqlite3.Error) as error:
            raise self._unusable(error) from error

    def _unusable(self, error: Exception) -> JournalError:
        return JournalError(f"the journal in {self.folder} cannot be used: {error}")

    # --- reading ---------------------------------------------------------------------------------

    def _load(self) -> list[StoredSession]:
        events, contents, secrets = self._events.events(), self._events.contents(), self._secrets.secrets()
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
