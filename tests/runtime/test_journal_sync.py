"""`journal_sync: full`: effects wait for the disk, sessions wait together, and nothing is half written."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import threading
from contextlib import closing, contextmanager, suppress

import anyio
import pytest

from inspan_core.events import ClientGone
from inspan_runtime import journal_sqlite
from inspan_runtime.journal import JournalError
from inspan_runtime.journal_folder import EVENTS_FILE, LOG_FILE
from inspan_runtime.journal_log import HEADER_BYTES, read_log
from inspan_runtime.journal_sqlite import SqliteJournal

pytestmark = pytest.mark.anyio


def gone(number):
    return ClientGone(at=1.0, waiter=number)


class Disk:
    """A disk that is as slow as wanted: each sync waits until it is let through; some fail."""

    def __init__(self, monkeypatch):
        self.syncs, self.gate, self.error = 0, threading.Event(), None
        real = os.fdatasync

        def fdatasync(descriptor):
            self.syncs += 1
            assert self.gate.wait(20)
            if self.error is not None:
                raise OSError(self.error, os.strerror(self.error))
            real(descriptor)

        monkeypatch.setattr(os, "fdatasync", fdatasync)


@pytest.fixture
def disk(monkeypatch):
    found = Disk(monkeypatch)
    yield found
    found.gate.set()


def stored(folder):
    with closing(SqliteJournal(folder)) as journal:
        return {each.name: [event.waiter for event in each.events] for each in journal.load()}


async def test_sessions_that_write_while_the_disk_is_waited_for_share_the_next_wait(tmp_path, disk):
    journal, over = SqliteJournal(tmp_path, sync="full"), []

    async def live(name):
        for number in range(3):
            ticket = journal.append(name, gone(number))
            await ticket.durable()
            over.append((name, number))
            # The second of a session is written when its first is durable: nobody is ahead of the disk.
            assert read_log(tmp_path / LOG_FILE).acknowledged >= len(over)

    with anyio.fail_after(20):
        async with anyio.create_task_group() as sessions:
            for each in range(20):
                sessions.start_soon(live, f"s{each}")
            while not disk.syncs:
                await anyio.sleep(0.001)
            assert (over, disk.syncs) == ([], 1)
            disk.gate.set()
    assert len(over) == 60
    # The first wait may have begun with one record; each later one has what came meanwhile.
    assert disk.syncs <= 10
    journal.close()
    assert stored(tmp_path) == {f"s{each}": [0, 1, 2] for each in range(20)}


async def test_what_the_disk_does_not_take_never_happened_and_can_be_written_again(tmp_path, disk):
    journal = SqliteJournal(tmp_path, sync="full")
    disk.gate.set()
    for name in ("a", "gone"):
        journal.keep(name, "place", b"{}")
        await journal.append(name, gone(0)).durable()
    size = (tmp_path / LOG_FILE).stat().st_size
    disk.error = errno.EIO
    journal.keep("a", "one", b"1")
    journal.forget("gone")
    first = journal.append("a", gone(1))
    second = journal.append("b", gone(1))
    for ticket in (first, second, first):
        with pytest.raises(JournalError, match="cannot be synced: Input/output error"):
            await ticket.durable()
    assert (tmp_path / LOG_FILE).stat().st_size == size
    journal.keep("a", "one", b"2")
    disk.error = None
    shutil.copytree(tmp_path, killed := tmp_path.parent / f"{tmp_path.name}-killed")
    assert stored(killed) == {"a": [0], "gone": [0]}
    await journal.append("b", gone(2)).durable()
    await journal.append("a", gone(3)).durable()
    journal.close()
    with closing(SqliteJournal(tmp_path)) as again:
        found = {each.name: (each.events, dict(each.contents)) for each in again.load()}
    assert found == {
        "a": ((gone(0), gone(3)), {"place": b"{}", "one": b"2"}),
        "b": ((gone(2),), {}),
    }


async def test_a_session_that_never_was_and_ended_leaves_nothing(tmp_path, disk):
    journal = SqliteJournal(tmp_path, sync="full")
    disk.gate.set()
    disk.error = errno.EIO
    journal.keep("s", "place", b"{}")
    ticket = journal.append("s", gone(0))
    with pytest.raises(JournalError):
        await ticket.durable()
    journal.forget("s")
    disk.error = None
    journal.close()
    assert stored(tmp_path) == {}


async def test_who_stops_waiting_holds_up_nobody_else(tmp_path, disk):
    journal = SqliteJournal(tmp_path, sync="full")
    with anyio.fail_after(20):
        async with anyio.create_task_group() as first:
            first.start_soon(journal.append("a", gone(0)).durable)
            await anyio.wait_all_tasks_blocked()
            second = journal.append("b", gone(0))
            first.cancel_scope.cancel()
            disk.gate.set()
        await second.durable()
    journal.close()
    assert stored(tmp_path) == {"a": [0], "b": [0]}


async def test_the_database_takes_over_what_the_disk_has(tmp_path, disk, monkeypatch):
    monkeypatch.setattr(journal_sqlite, "BATCH_RECORDS", 3)
    journal = SqliteJournal(tmp_path, sync="full")
    disk.gate.set()
    tickets = [journal.append(f"s{number % 4}", gone(number)) for number in range(4)]
    with anyio.fail_after(20):
        for ticket in tickets:
            await ticket.durable()
        for number in range(4, 40):
            await journal.append(f"s{number % 4}", gone(number)).durable()
    assert len(read_log(tmp_path / LOG_FILE).records) <= 4
    shutil.copytree(tmp_path, killed := tmp_path.parent / f"{tmp_path.name}-killed")
    journal.close()
    assert stored(killed) == stored(tmp_path) == {f"s{each}": list(range(each, 40, 4)) for each in range(4)}


# --- a full disk ------------------------------------------------------------------------------------


@contextmanager
def limited(size_bytes):
    """No file of this process grows beyond this: the kernel writes what fits, and then says no."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("room", [0, 1, 30, 200])
async def test_a_record_that_does_not_fit_is_not_half_there(tmp_path, room):
    journal = SqliteJournal(tmp_path)
    journal.append("s", gone(0))
    log = (tmp_path / LOG_FILE).read_bytes()
    journal.keep("s", "large", b"x" * 400)
    with limited(len(log) + room):
        for _ in range(2):
            with pytest.raises(JournalError, match=r"cannot be used: .*File too large"):
                journal.append("s", gone(1))
        assert (tmp_path / LOG_FILE).read_bytes() == log
    shutil.copytree(tmp_path, killed := tmp_path.parent / f"{tmp_path.name}-killed")
    assert stored(killed) == {"s": [0]}
    journal.append("s", gone(2))
    journal.close()
    with closing(SqliteJournal(tmp_path)) as again:
        (found,) = again.load()
    assert (found.events, found.contents) == ((gone(0), gone(2)), {"large": b"x" * 400})


async def test_a_database_that_takes_nothing_holds_up_nobody_while_the_log_has_room(
    tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(journal_sqlite, "BATCH_RECORDS", 4)
    monkeypatch.setattr(journal_sqlite, "LOG_LIMIT_BYTES", 4000)
    journal = SqliteJournal(tmp_path)
    database, written = journal._events._database, 0
    database.execute("PRAGMA max_page_count = 1")
    with suppress(JournalError):
        for number in range(200):
            journal.keep(f"s{number}", "place", b"p" * 100)
            journal.append(f"s{number}", gone(number))
            written += 1
    assert 8 < written < 100, "the log has a limit"
    assert "until the database can take them over" in caplog.text
    shutil.copytree(tmp_path, killed := tmp_path.parent / f"{tmp_path.name}-killed")
    assert stored(killed) == {f"s{number}": [number] for number in range(written)}
    database.execute(f"PRAGMA max_page_count = {1 << 30}")
    journal.append("last", gone(0))
    assert (tmp_path / LOG_FILE).stat().st_size < 4000, "it was begun anew"
    journal.close()
    assert len(stored(tmp_path)) == written + 1


# --- batches ----------------------------------------------------------------------------------------


async def test_what_comes_and_goes_within_a_batch_never_reaches_the_database(tmp_path):
    journal = SqliteJournal(tmp_path)
    for number in range(50):
        journal.keep("stays", "artifacts", b"large-content" * 100)
        journal.append("stays", gone(number))
        journal.keep("stays", "artifacts", None)
        journal.keep(f"short{number}", "place", b"short-content")
        journal.append(f"short{number}", gone(number))
        journal.forget(f"short{number}")
    journal.scrub()
    assert (tmp_path / LOG_FILE).stat().st_size == HEADER_BYTES
    databases = b"".join(
        path.read_bytes() for path in tmp_path.iterdir() if path.name.startswith(EVENTS_FILE)
    )
    assert b"ClientGone" in databases
    assert b"large-content" not in databases and b"short" not in databases
    journal.close()
    assert stored(tmp_path) == {"stays": list(range(50))}
