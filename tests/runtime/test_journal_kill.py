"""A server that is killed at any byte of what its journal writes: what it acknowledged is there, no more."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from contextlib import closing, contextmanager
from copy import deepcopy
from pathlib import Path

import pytest
from attrs import evolve
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inspan_core.events import ClientGone
from inspan_runtime import journal_sqlite
from inspan_runtime.journal import JournalError
from inspan_runtime.journal_folder import EVENTS_FILE, LOG_FILE, SECRETS_FILE
from inspan_runtime.journal_log import HEADER_BYTES, read_log
from inspan_runtime.journal_record import read_records
from inspan_runtime.journal_sqlite import SqliteJournal
from inspan_runtime.journal_takeover import records_to_take
from inspan_runtime.testing.memory_journal import MemoryJournal

NAMES = st.sampled_from(["a", "b", "ü-c"])
VALUES = st.one_of(st.none(), st.binary(max_size=30), st.just(b"x" * 5000))
STEPS = st.one_of(
    st.tuples(st.just("append"), NAMES),
    st.tuples(st.just("append"), NAMES),
    st.tuples(st.just("keep"), NAMES, st.sampled_from(["one", "two"]), VALUES),
    st.tuples(st.just("secret"), NAMES, st.just("grant"), VALUES),
    st.tuples(st.just("forget"), NAMES),
    st.tuples(st.just("scrub")),
    st.tuples(st.just("take over")),
)
QUICK = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])


class Model:
    """What a journal should hold: what is written, and what waits for the next record."""

    def __init__(self):
        self.written, self.waiting, self.events = {}, [], 0

    def step(self, journal, kind, *arguments):
        if kind == "append":
            self.events += 1
            event = ClientGone(at=float(self.events), waiter=self.events)
            journal.append(*arguments, event)
            self._write(*arguments)
            self._kept(*arguments)[0].append(event)
        elif kind in ("keep", "secret"):
            journal.keep(*arguments, secret=kind == "secret")
            self.waiting.append((kind, *arguments))
        elif kind == "forget":
            journal.forget(*arguments)
            self.waiting = [each for each in self.waiting if each[1:2] != arguments] + [(kind, *arguments)]
        elif kind == "scrub":
            journal.scrub()
            self._write()
        else:
            journal._take_over()

    def _kept(self, name):
        return self.written.setdefault(name, ([], {}, {}))

    def _write(self, owner=None):
        """What waits goes with a record of its session; removals and ends go with any."""
        waiting, self.waiting = self.waiting, []
        held = {name for kind, name, *content in waiting if kind == "keep" and content[1] is not None}
        for each in waiting:
            kind, name, *content = each
            if kind == "forget":
                self.written.pop(name, None)
            elif owner in (None, name) or (kind == "keep" and name not in held):
                place = self._kept(name)[1 if kind == "keep" else 2]
                place[content[0]] = content[1]
            else:
                self.waiting.append(each)

    @property
    def sessions(self):
        return {
            name: (tuple(events), *({k: v for k, v in kept.items() if v is not None} for kept in contents))
            for name, (events, *contents) in self.written.items()
            if events
        }


def restored(folder):
    with closing(SqliteJournal(folder)) as journal:
        return {each.name: (each.events, dict(each.contents), dict(each.secrets)) for each in journal.load()}


@contextmanager
def folders():
    with tempfile.TemporaryDirectory(prefix="inspan-test-journal-") as name:
        yield Path(name)


def copied(folder, to, **replaced):
    """A copy of a journal's folder as it stands, with some files as they were or will be."""
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(folder, to)
    for name, data in replaced.items():
        (to / {"log": LOG_FILE, "events_wal": f"{EVENTS_FILE}-wal"}[name]).write_bytes(data)
    return to


@given(st.lists(STEPS, max_size=14), st.data())
@QUICK
def test_a_kill_within_a_record_leaves_what_was_acknowledged_before_it(steps, data):
    with folders() as root:
        model = Model()
        with closing(SqliteJournal(root / "state")) as journal:
            for step in steps:
                before, was = copied(root / "state", root / "before"), deepcopy(model.sessions)
                log_before = (before / LOG_FILE).read_bytes()
                model.step(journal, *step)
                log_after = (root / "state" / LOG_FILE).read_bytes()
                if step[0] != "append":
                    continue
                assert log_after[HEADER_BYTES:].startswith(log_before[HEADER_BYTES:])
                # As the file grows, and before the record is noted as acknowledged.
                grown = log_before + log_after[len(log_before) :]
                if not data.draw(st.booleans()):
                    continue
                cut = data.draw(st.integers(len(log_before), len(grown) - 1))
                assert restored(copied(before, root / "cut", log=grown[:cut])) == was
                assert restored(copied(before, root / "whole", log=grown)).keys() == model.sessions.keys()
        assert restored(root / "state") == after_close(model)


def after_close(model):
    model._write()
    return model.sessions


def test_each_byte_of_a_log_tells_which_records_are_whole(tmp_path):
    """And that those beyond it, once they were acknowledged, are missing."""
    journal, path = SqliteJournal(tmp_path / "state"), tmp_path / "state" / LOG_FILE
    for number in range(4):
        journal.keep("s", "one", b"v" * number)
        journal.append("s", ClientGone(at=1.0, waiter=number))
    data = path.read_bytes()
    journal.close()
    ends = [each.end for each in read_records(data, HEADER_BYTES)]
    assert len(ends) == 4 and ends[-1] == len(data)
    torn = tmp_path / "torn"
    for cut in range(HEADER_BYTES, len(data)):
        torn.write_bytes(data[:cut])
        found, whole = read_log(torn), sum(end <= cut for end in ends)
        assert [each.end for each in found.records] == ends[:whole]
        assert (found.broken is None) == (cut in (HEADER_BYTES, *ends))
        with pytest.raises(JournalError, match=f"lacks record {whole + 1} of the 4 that were acknowledged"):
            records_to_take(found, 0, torn, torn)
        unfinished = evolve(found, acknowledged=whole)
        assert records_to_take(unfinished, 0, torn, torn) == found.records
        for taken in range(whole + 1):
            assert len(records_to_take(unfinished, taken, torn, torn)) == whole - taken


@given(st.lists(STEPS, max_size=14), st.data())
@QUICK
def test_a_kill_while_the_database_takes_over_loses_nothing_and_does_nothing_twice(steps, data):
    with folders() as root:
        model = Model()
        with closing(SqliteJournal(root / "state")) as journal:
            for step in steps:
                model.step(journal, *step)
            before = copied(root / "state", root / "before")
            expected = deepcopy(model.sessions)
            journal._take_over()
            log = (before / LOG_FILE).read_bytes()
            wal = (root / "state" / f"{EVENTS_FILE}-wal").read_bytes()
            shortest = (before / f"{EVENTS_FILE}-wal").stat().st_size
            taken = copied(root / "state", root / "taken", log=log)
            assert restored(taken) == expected, "it was taken over, and the log not begun anew"
            for cut in data.draw(st.lists(st.integers(shortest, len(wal)), max_size=3)):
                torn = copied(before, root / "torn", events_wal=wal[:cut])
                assert restored(torn) == expected, "the transaction was cut off"
            assert restored(copied(root / "state", root / "after")) == expected
            cut = data.draw(st.integers(HEADER_BYTES, len(log)))
            assert restored(copied(root / "state", root / "cut", log=log[:cut])) == expected, (
                "while it shrank"
            )


@given(st.lists(STEPS, max_size=10))
@QUICK
def test_secrets_that_came_before_their_event_are_nobodys(steps):
    with folders() as root:
        model = Model()
        with closing(SqliteJournal(root / "state")) as journal:
            for step in steps:
                model.step(journal, *step)
            before, was = copied(root / "state", root / "before"), deepcopy(model.sessions)
            journal.keep("new", "grant", b"of nobody", secret=True)
            journal.append("new", ClientGone(at=0.0, waiter=1))
            for each in (SECRETS_FILE, f"{SECRETS_FILE}-wal"):
                shutil.copy(root / "state" / each, before / each)
        with closing(SqliteJournal(before)) as journal:
            assert {each.name for each in journal.load()} == was.keys()
            journal.append("other", ClientGone(at=0.0, waiter=1))
        assert restored(before)["other"] == ((ClientGone(at=0.0, waiter=1),), {}, {})
        assert b"of nobody" not in b"".join(path.read_bytes() for path in before.iterdir())


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
def test_batches_of_any_length_hold_the_same(tmp_path, monkeypatch, limit):
    monkeypatch.setattr(journal_sqlite, "BATCH_RECORDS", limit)
    model = Model()
    journal = SqliteJournal(tmp_path / "state")
    for number in range(40):
        name = f"s{number % 5}"
        model.step(journal, "keep", name, "one", b"%d" % number if number % 3 else None)
        model.step(journal, "append", name)
        if number % 11 == 0:
            model.step(journal, "forget", name)
        assert restored(copied(tmp_path / "state", tmp_path / "copy")) == model.sessions
    journal.close()
    assert restored(tmp_path / "state") == after_close(model)


@given(st.lists(STEPS, max_size=20))
@QUICK
def test_the_journal_in_memory_keeps_the_same(steps):
    with folders() as root:
        memory, model = MemoryJournal(), Model()
        with closing(SqliteJournal(root / "state")) as journal:
            for step in steps:
                events = model.events
                model.step(journal, *step)
                if step[0] == "append":
                    memory.append(step[1], ClientGone(at=events + 1.0, waiter=events + 1))
                elif step[0] != "take over":
                    Model().step(memory, *step)
        with closing(SqliteJournal(root / "state")) as journal:
            assert list(journal.load()) == list(memory.load())


WRITER = """
import os, sys
from pathlib import Path
from inspan_core.events import ClientGone
from inspan_runtime import journal_sqlite
journal_sqlite.BATCH_RECORDS = 5
journal = journal_sqlite.SqliteJournal(Path(sys.argv[1]))
known = {each.name: len(each.events) for each in journal.load()}
while True:
    for name in ("a", "b", "c"):
        number = known[name] = known.get(name, 0) + 1
        journal.keep(name, "last", b"%d" % number)
        journal.keep(name, "grant", b"%d" % number, secret=True)
        journal.append(name, ClientGone(at=1.0, waiter=number))
        os.write(1, b"%s %d\\n" % (name.encode(), number))
"""


def test_processes_that_are_killed_one_after_the_other_lose_nothing(tmp_path):
    """Each is killed where it happens to be, after more and more records."""
    known = {}
    for lines in (1, 4, 5, 16, 31, 64):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE)
        told = [writer.stdout.readline() for _ in range(lines)]
        writer.kill()
        told += writer.stdout.read().splitlines(keepends=True)
        writer.stdout.close()
        writer.wait(20)
        known |= {name: int(number) for name, number in (line.decode().split() for line in told)}
        copy = shutil.copytree(tmp_path, tmp_path.parent / f"{tmp_path.name}-{lines}")
        for name, (events, contents, secrets) in restored(copy).items():
            # One more may be there: it was written, and nobody was told.
            assert len(events) - known.get(name, 0) in (0, 1)
            assert [event.waiter for event in events] == list(range(1, len(events) + 1))
            assert int(contents["last"]) == len(events)
            assert int(secrets["grant"]) - len(events) in (0, 1), "a secret comes before its event"


def test_what_is_kept_of_one_session_holds_up_no_other(tmp_path):
    """A content that does not fit on the disk, or a secret, waits for an event of its own session."""
    with closing(SqliteJournal(tmp_path)) as journal:
        for name in "ab":
            journal.append(name, ClientGone(at=1.0, waiter=1))
        journal.keep("a", "request", b"x" * 2_000_000)
        journal.keep("a", "grant", b"CANARY", secret=True)
        journal.append("b", ClientGone(at=2.0, waiter=2))
        assert (tmp_path / LOG_FILE).stat().st_size < 10_000
        assert not any(b"CANARY" in each.read_bytes() for each in tmp_path.iterdir())
        journal.forget("a")
        journal.append("b", ClientGone(at=3.0, waiter=3))
        journal.scrub()
        assert not any(b"CANARY" in each.read_bytes() for each in tmp_path.iterdir())


def test_who_writes_to_a_journal_that_is_closed_writes_into_no_others_file(tmp_path):
    journal = SqliteJournal(tmp_path / "state")
    journal.append("a", ClientGone(at=1.0, waiter=1))
    journal.close()
    with open(tmp_path / "others", "w+b") as file:  # It has the descriptor that the log had.
        with pytest.raises(JournalError):
            journal.append("a", ClientGone(at=2.0, waiter=2))
        assert file.read() == b""
