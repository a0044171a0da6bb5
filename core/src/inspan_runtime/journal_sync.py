"""Waiting for the disk in groups: sessions that write while one wait is under way share the next.

The wait runs in a thread, so nobody else is held up. Where it fails, nobody knows what the disk has: all that
was written since the last that succeeded is taken back, as if it had never been written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable

import anyio
import anyio.lowlevel
import anyio.to_thread
from attrs import define, field

from inspan_runtime.journal import JournalError
from inspan_runtime.journal_log import LogFile
from inspan_runtime.journal_record import Part


@define(eq=False)
class Written:
    """A record that is written, and implements `inspan_runtime.journal.Ticket`.

    Attributes:
        number: The record's.
        start: Where it begins in the log.
        parts: What it says.
        is_over: Whether it is durable, or never will be.
        error: Why it never will be, or None.
    """

    number: int
    start: int
    parts: list[Part]
    _wait: Callable[[Written], Awaitable[None]] = field(repr=False)
    is_over: bool = False
    error: OSError | None = None

    async def durable(self) -> None:
        """Wait until it is durable.

        Raises:
            JournalError: It never will be.
        """
        await self._wait(self)


class GroupCommit:
    """Makes written records durable.

    Args:
        log: Where they are written.
        settled: Told of records that are durable, in order.
        undone: Told of records that were taken back, the newest first.
    """

    def __init__(
        self,
        log: LogFile,
        settled: Callable[[list[Written]], None],
        undone: Callable[[list[Written]], None],
    ) -> None:
        self._log = log
        self._settled = settled
        self._undone = undone
        self._queue: deque[Written] = deque()
        self._running: anyio.Event | None = None
        self._one_at_a_time: anyio.CapacityLimiter | None = None

    def add(self, start: int, parts: list[Part]) -> Written:
        """Note the log's last record."""
        written = Written(self._log.last, start, parts, self._until_over)
        self._queue.append(written)
        return written

    def sync_now(self) -> None:
        """Make all of them durable while everybody waits.

        Raises:
            OSError: They are taken back.
        """
        if self._queue:
            try:
                self._log.sync()
                self._settle(list(self._queue))
            except OSError as error:
                self._take_back(error)
                raise

    async def _until_over(self, written: Written) -> None:
        while not written.is_over:
            if self._running is not None:
                await self._running.wait()
            else:
                await self._sync_in_thread()
        if written.error is not None:
            raise JournalError(
                f"{self._log.path} cannot be synced: {written.error.strerror}"
            ) from written.error

    async def _sync_in_thread(self) -> None:
        running = self._running = anyio.Event()
        if self._one_at_a_time is None:
            self._one_at_a_time = anyio.CapacityLimiter(1)
        try:
            # Others that are about to write share this one.
            await anyio.lowlevel.checkpoint()
            group = list(self._queue)
            await anyio.to_thread.run_sync(self._log.sync, limiter=self._one_at_a_time)
            self._settle(group)
        except OSError as error:
            self._take_back(error)
        finally:
            self._running = None
            running.set()

    def _settle(self, group: Iterable[Written]) -> None:
        # Some of them may have been taken back, or settled, while this was waited for.
        durable = [written for written in group if not written.is_over]
        if durable:
            self._log.acknowledge(durable[-1].number)
            for written in durable:
                written.is_over = True
                self._queue.popleft()
            self._settled(durable)

    def _take_back(self, error: OSError) -> None:
        if not self._queue:
            return
        first, undone = self._queue[0], list(reversed(self._queue))
        self._queue.clear()
        self._log.cut_back(first.start, first.number - 1)
        for written in undone:
            written.is_over, written.error = True, error
        self._undone(undone)
