"""An Agent Server that kills itself with SIGKILL right after (or before) a record of its journal.

Usage: dying_server.py CONFIG.yaml PORT RECORD before|half|after

RECORD is a number from 1 on, 0 for never, or a name: the first such record. ``call:N`` is the Nth call that
changes the journal's log, or has the database take it over; ``half`` writes the first half of what it writes.
With INSPAN_TEST_BATCH the database takes over after so many records.

With INSPAN_TEST_QUOTA its provider `local` refuses to have more sandboxes than that at a time, as clouds do.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path

from inspan_core.errors import SandboxCreateError
from inspan_runtime import journal_sqlite, journal_store
from inspan_runtime.providers.local import LocalProvider
from inspan_server.cli.serve import serve

limit, moment = sys.argv[3:5]
written = 0


def die_at_the_limit(append):
    def counted(self, name, event):
        global written
        written += 1
        number = written
        if limit in (str(number), type(event).__name__) and moment == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        ticket = append(self, name, event)
        if ticket is not None:
            return Awaited(ticket, number, event)
        note(number, event)
        return None

    return counted


class Awaited:
    """A record on its way to the disk."""

    def __init__(self, ticket, number, event):
        self.ticket, self.number, self.event = ticket, number, event

    async def durable(self):
        await self.ticket.durable()
        note(self.number, self.event)


def note(number, event):
    """The record is durable, and nothing has followed from it yet."""
    log = Path(sys.argv[1]).with_suffix(".records")
    with log.open("a") as file:
        file.write(type(event).__name__ + "\n")
    if limit in (str(number), type(event).__name__):
        os.kill(os.getpid(), signal.SIGKILL)


calls = 0


def die_at_the_call(function, *, halved=None):
    """Of the functions that change the log, counted together."""

    def counted(target, *arguments):
        global calls
        if isinstance(target, int) and not os.readlink(f"/proc/self/fd/{target}").endswith(".log"):
            return function(target, *arguments)
        calls += 1
        is_last = limit == f"call:{calls}"
        if is_last and moment == "half" and halved is not None:
            function(target, *halved(*arguments))
        if is_last and moment != "after":
            os.kill(os.getpid(), signal.SIGKILL)
        result = function(target, *arguments)
        if is_last:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    return counted


def refuse_beyond(quota, create):
    lock = asyncio.Lock()

    async def limited(self, spec, *, key, timeout_s=60.0):
        async with lock:
            if len(await self.list({})) >= quota:
                raise SandboxCreateError(f"the quota of {quota} sandboxes is used up")
            return await create(self, spec, key=key, timeout_s=timeout_s)

    return limited


if "INSPAN_TEST_QUOTA" in os.environ:
    LocalProvider.create = refuse_beyond(int(os.environ["INSPAN_TEST_QUOTA"]), LocalProvider.create)
journal_sqlite.SqliteJournal.append = die_at_the_limit(journal_sqlite.SqliteJournal.append)
if limit.startswith("call:"):
    os.pwrite = die_at_the_call(os.pwrite, halved=lambda data, offset: (data[: len(data) // 2], offset))
    os.ftruncate = die_at_the_call(os.ftruncate)
    os.fdatasync = die_at_the_call(os.fdatasync)
    journal_store.EventStore.take = die_at_the_call(journal_store.EventStore.take)
if "INSPAN_TEST_BATCH" in os.environ:
    journal_sqlite.BATCH_RECORDS = int(os.environ["INSPAN_TEST_BATCH"])
sys.exit(serve(sys.argv[1], port=int(sys.argv[2])))
