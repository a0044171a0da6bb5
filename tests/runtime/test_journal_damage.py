"""Journals that somebody damaged or cut off are refused, and left as they are; old ones are taken over."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
from contextlib import closing

import pytest

from inspan_core.events import ClientGone, CloseRequested
from inspan_core.findings import Cookie
from inspan_core.journal import encode_event
from inspan_runtime import journal_log
from inspan_runtime.journal_folder import EVENTS_FILE, LOG_FILE, SECRETS_FILE
from inspan_runtime.journal_log import HEADER_BYTES
from inspan_runtime.journal_record import read_records
from inspan_runtime.journal_sqlite import JournalError, SqliteJournal

CLOSE = CloseRequested(at=0.25, waiter=None, cookie=Cookie.SAME, same_episode=True)


@pytest.fixture
def killed(tmp_path):
    """The folder of a server that was killed with three records in its log, the first of them taken over."""
    SqliteJournal(tmp_path / "served").close()
    journal = SqliteJournal(tmp_path / "served")
    for number in range(4):
        journal.keep("s", "place", b"{}" * number)
        journal.append("s", ClientGone(at=1.0, waiter=number))
        if number == 0:
            journal._take_over()
    shutil.copytree(tmp_path / "served", tmp_path / "killed")
    journal.close()
    return tmp_path / "killed"


def ends(folder):
    return [each.end for each in read_records((folder / LOG_FILE).read_bytes(), HEADER_BYTES)]


def change(path, offset, data):
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def refused(folder, match, **options):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    for _ in range(2):
        with pytest.raises(JournalError, match=match):
            SqliteJournal(folder, **options)
    after = {path.name: path.read_bytes() for path in folder.iterdir()}
    # SQLite makes an index of its write-ahead log, and folds that into an unchanged database.
    assert after[LOG_FILE] == before[LOG_FILE]


def waiters(folder):
    with closing(SqliteJournal(folder)) as journal:
        return [event.waiter for each in journal.load() for event in each.events]


def test_what_was_killed_is_there(killed):
    assert len(ends(killed)) == 3
    assert waiters(killed) == [0, 1, 2, 3]
    assert ends(killed) == [], "the log was begun anew"
    assert waiters(killed) == [0, 1, 2, 3]


@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize("what", ["its head", "its length", "its number", "its event"])
def test_a_damaged_record_is_named_with_its_place(killed, is_last, what):
    _, second, last = ends(killed)
    start, end = (second, last) if is_last else (HEADER_BYTES, ends(killed)[0])
    offset = {"its head": start, "its length": start + 7, "its number": start + 12, "its event": end - 3}[
        what
    ]
    change(killed / LOG_FILE, offset, b"\xee")
    lacks = 4 if is_last else 2
    refused(
        killed, rf"sessions\.log lacks record {lacks} of the 4 that were acknowledged: .* at byte {start}:"
    )


@pytest.mark.parametrize("cut", [1, 40])
def test_a_log_that_was_cut_off_is_refused(killed, cut):
    os.truncate(killed / LOG_FILE, ends(killed)[-1] - cut)
    refused(killed, r"lacks record 4 of the 4 that were acknowledged: it is damaged or cut off at byte")


def test_a_log_that_was_cut_off_between_records_is_refused(killed):
    os.truncate(killed / LOG_FILE, ends(killed)[0])
    refused(killed, r"lacks record 3 of the 4 that were acknowledged: .* is cut off")


@pytest.mark.parametrize("is_removed", [True, False])
def test_a_database_that_lost_its_own_log_is_refused(killed, is_removed):
    wal = killed / f"{EVENTS_FILE}-wal"
    if is_removed:
        wal.unlink()
    else:
        os.truncate(wal, 20)
    refused(
        killed, r"sessions\.sqlite ends with record 0, and .*sessions\.log begins with record 2: what was"
    )


def test_a_log_without_its_head_is_refused(killed):
    os.truncate(killed / LOG_FILE, HEADER_BYTES - 1)
    refused(killed, r"sessions\.log is cut off: it has 127 bytes")


@pytest.mark.parametrize(
    ("offset", "data", "complaint"),
    [(0, b"no log at all", "is not the log of a journal"), (8, struct.pack("<I", 9), "is of version 9, and")],
)
def test_what_is_no_log_of_ours_is_refused(killed, offset, data, complaint):
    change(killed / LOG_FILE, offset, data)
    refused(killed, complaint)


def test_a_log_that_is_missing_is_not_made_anew(killed):
    log = (killed / LOG_FILE).read_bytes()
    (killed / LOG_FILE).unlink()
    for _ in range(2):
        with pytest.raises(JournalError, match=r"sessions\.log is missing or empty, but what belongs to it"):
            SqliteJournal(killed)
    (killed / LOG_FILE).write_bytes(log)
    assert waiters(killed) == [0, 1, 2, 3]


@pytest.mark.parametrize("is_emptied", [False, True])
def test_an_older_log_that_was_put_back_is_refused(killed, is_emptied):
    older = (killed / LOG_FILE).read_bytes()
    with closing(SqliteJournal(killed)) as journal:
        journal.append("s", ClientGone(at=1.0, waiter=4))
        journal._take_over()
        if not is_emptied:
            journal.append("s", ClientGone(at=1.0, waiter=5))
    newer = (killed / LOG_FILE).read_bytes()
    (killed / LOG_FILE).write_bytes(older)
    refused(killed, "the log is older than the database")
    (killed / LOG_FILE).write_bytes(newer)
    assert waiters(killed) == [0, 1, 2, 3, 4] + ([] if is_emptied else [5])


DIES_IN = """
import os, pathlib, signal, sys
from inspan_runtime.journal_sqlite import SqliteJournal
setattr(os, sys.argv[2], lambda *_: os.kill(os.getpid(), signal.SIGKILL))
SqliteJournal(pathlib.Path(sys.argv[1]))
"""


@pytest.mark.parametrize("call", ["ftruncate", "pwrite"])
def test_a_server_killed_while_it_begins_its_log_leaves_one_that_is_read(killed, call):
    # The last record is there, and not its number: it counts, as nobody was told that it does not.
    change(killed / LOG_FILE, 64, struct.pack("<Q", 3))
    died = subprocess.run([sys.executable, "-c", DIES_IN, str(killed), call], timeout=60)
    assert died.returncode == -signal.SIGKILL
    assert waiters(killed) == [0, 1, 2, 3]


def test_a_pipe_for_a_log_is_refused_at_once(killed):
    (killed / LOG_FILE).unlink()
    os.mkfifo(killed / LOG_FILE)
    with pytest.raises(JournalError, match=r"sessions\.log is not a file"):
        SqliteJournal(killed)


@pytest.mark.parametrize("sync", ["normal", "full"])
def test_a_machine_that_went_down_takes_only_what_was_not_synced(tmp_path, monkeypatch, caplog, sync):
    journal = SqliteJournal(tmp_path / "served", sync=sync)
    for number in range(3):
        journal.append("s", ClientGone(at=1.0, waiter=number))
        if number == 0:
            journal._take_over()
        if journal._group is not None:
            journal._group.sync_now()
    down = shutil.copytree(tmp_path / "served", tmp_path / "down")
    journal.close()
    os.truncate(down / LOG_FILE, ends(down)[-1] - 1)
    boot_id = tmp_path / "boot_id"
    boot_id.write_text("00000000-0000-0000-0000-000000000000\n")
    monkeypatch.setattr(journal_log, "BOOT_ID_FILE", boot_id)
    if sync == "full":
        refused(down, r"lacks record 3 of the 3 that were acknowledged")
    else:
        assert waiters(down) == [0, 1]
        assert "the machine went down, and took with it what was not synced" in caplog.text
        with closing(SqliteJournal(down)) as journal:
            journal.append("s", ClientGone(at=1.0, waiter=9))
        assert waiters(down) == [0, 1, 9]


VERSION_2 = """
CREATE TABLE sessions (id INTEGER PRIMARY KEY, name TEXT NOT NULL);
CREATE TABLE events (session INTEGER NOT NULL, number INTEGER NOT NULL, event TEXT NOT NULL,
    PRIMARY KEY (session, number)) WITHOUT ROWID;
CREATE TABLE contents (session INTEGER NOT NULL, name TEXT NOT NULL, value BLOB NOT NULL,
    PRIMARY KEY (session, name)) WITHOUT ROWID;
PRAGMA user_version = 2;
"""


@pytest.mark.parametrize("stage", ["whole", "log made", "one database raised"])
def test_what_version_2_wrote_is_taken_over(tmp_path, stage):
    for name in (EVENTS_FILE, SECRETS_FILE):
        with closing(sqlite3.connect(tmp_path / name)) as database, database:
            database.executescript(VERSION_2)
            if name == EVENTS_FILE:
                database.execute("INSERT INTO sessions VALUES (7, 's')")
                database.execute("INSERT INTO events VALUES (7, 1, ?)", (json.dumps(encode_event(CLOSE)),))
                database.execute("INSERT INTO contents VALUES (7, 'place', ?)", (b"{}",))
            else:
                database.execute("INSERT INTO contents VALUES (7, 'seed', ?)", (b"grant",))
    if stage != "whole":
        journal_log.make_log(tmp_path / LOG_FILE)
    if stage == "one database raised":
        with closing(sqlite3.connect(tmp_path / EVENTS_FILE)) as database, database:
            database.executescript("CREATE TABLE log (taken INTEGER); INSERT INTO log VALUES (0);")
            database.execute("PRAGMA user_version = 3")
    for length in (1, 2):
        with closing(SqliteJournal(tmp_path)) as journal:
            (stored,) = journal.load()
            assert (stored.name, stored.contents, stored.secrets) == (
                "s",
                {"place": b"{}"},
                {"seed": b"grant"},
            )
            assert stored.events == (CLOSE,) * length
            journal.append("s", CLOSE)


@pytest.mark.parametrize("name", [EVENTS_FILE, SECRETS_FILE])
def test_a_database_of_another_version_is_refused_before_the_other_is_touched(killed, name):
    database = sqlite3.connect(killed / name)
    with closing(database), database:
        database.execute("PRAGMA user_version = 4")
    refused(killed, f"{name} is of version 4, and this inspan reads version 3")


def test_files_are_readable_by_their_owner_only(tmp_path):
    folder = tmp_path / "state"
    with closing(SqliteJournal(folder)) as journal:
        journal.append("s", CLOSE)
        assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    assert folder.stat().st_mode & 0o777 == 0o700
