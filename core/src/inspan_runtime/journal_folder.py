"""The folder of a journal: who may use it, and whether all that belongs together is there."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import stat
from contextlib import closing
from pathlib import Path
from typing import Final

from inspan_runtime.journal import JournalError
from inspan_runtime.journal_log import HEADER_BYTES

EVENTS_FILE: Final = "sessions.sqlite"
SECRETS_FILE: Final = "secrets.sqlite"
LOG_FILE: Final = "sessions.log"
LOCK_FILE: Final = "lock"


class JournalInUse(JournalError):
    """Another server uses the folder."""


def take_folder(folder: Path) -> int:
    """Make the folder if it does not exist, and lock it.

    Returns:
        The lock: closing it gives the folder back.

    Raises:
        JournalError: Another server uses it, or others may write to it.
        OSError: It cannot be had.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    mode = stat.S_IMODE(folder.stat().st_mode)
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise JournalError(
            f"{folder} has mode {mode:04o}: others may put files of theirs in place of the journal's; "
            "it must be writable by its owner only"
        )
    descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise JournalInUse(f"{folder} is in use by another server") from error
    return descriptor


def check_whole(folder: Path) -> None:
    """Refuse a journal that has lost a database, before SQLite makes an empty one in its place.

    Raises:
        JournalError: Names what is missing.
    """
    logged = _size(folder / LOG_FILE) > HEADER_BYTES
    for name, other in ((EVENTS_FILE, SECRETS_FILE), (SECRETS_FILE, EVENTS_FILE)):
        if not _size(folder / name) and (
            logged or _size(folder / f"{name}-wal") or _holds_contents(folder / other)
        ):
            raise missing(name)


def missing(name: str) -> JournalError:
    """What is said of a file that is not there, although it must be."""
    return JournalError(
        f"{name} is missing or empty, but what belongs to it is there: put it back, or move the folder away"
    )


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _holds_contents(path: Path) -> bool:
    """Whether a database that nobody uses holds a content of any session."""
    if not _size(path):
        return False
    with closing(sqlite3.connect(path)) as database:
        if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'contents'").fetchone():
            return False
        return database.execute("SELECT 1 FROM contents LIMIT 1").fetchone() is not None
