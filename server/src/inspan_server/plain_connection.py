"""One connection on asyncio: plain requests are answered here, and the first other one is handed over.

There is one task for a connection and none for a request, and one timer that is not set anew with each.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from time import time
from typing import Any, cast
from urllib.parse import unquote
from wsgiref.handlers import format_date_time

from attrs import define, field
from hypercorn.config import Config

from inspan_server.plain_exchange import CLIENT, TAKE_BODY, Exchange
from inspan_server.plain_http import Head, may_become_plain, read_head

READ_AHEAD_BYTES = 64 * 1024
"""More is left to the kernel until somebody takes it."""

LINGER_S = 1.0
"""How long the rest of a request is read after its answer: closed at once, the answer could not be read."""

GOODBYE_S = 0.2
"""How long a client by TLS has to say goodbye, too."""

log = logging.getLogger("inspan.http")
HandOver = Callable[[asyncio.Transport, bytes, bool], Awaitable[None]]


@define(eq=False)
class Serving:
    """What all connections of one server share.

    Attributes:
        hand_over: Serves a connection on: from bytes that have come, which may be all.
        answer_timeout_s: A client that has not taken an answer by then is given up.
        is_ending: No request is taken any more.
    """

    app: Any
    config: Config
    state: dict[str, Any]
    hand_over: HandOver
    answer_timeout_s: float
    is_ending: bool = False
    connections: set[PlainConnection] = field(factory=set, init=False)
    _second: int = field(default=0, init=False)
    _date: bytes = field(default=b"", init=False)

    def date(self) -> bytes:
        """The time of now, for a header."""
        now = int(time())
        if now != self._second:
            self._second, self._date = now, format_date_time(now).encode()
        return self._date

    def end(self) -> None:
        """Take no request any more."""
        self.is_ending = True
        for connection in list(self.connections):
            connection.end()


class PlainConnection(asyncio.Protocol):
    """One connection. What is not documented here is asyncio's, or `Wire`'s."""

    def __init__(self, serving: Serving) -> None:
        self.on_end: Callable[[], None] | None = None
        self._is_lost = self._is_over = self._has_unread_body = False
        # One that was still accepted while the server ends, ends too.
        self.is_at_end = self.is_last = serving.is_ending
        self.date = serving.date
        self._serving = serving
        self._loop = asyncio.get_running_loop()
        self._received = b""
        self._is_reading = True
        self._waiter: asyncio.Future[None] | None = None
        self._full: asyncio.Future[None] | None = None
        self._idle_since: float | None = self._loop.time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._tls = transport.get_extra_info("ssl_object")
        self._client = _address(transport.get_extra_info("peername"))
        self._server = _address(transport.get_extra_info("sockname"))
        self._serving.connections.add(self)
        self._timer = self._loop.call_later(self._serving.config.keep_alive_timeout, self._look)
        self.task = self._loop.create_task(self._run())
        self.task.add_done_callback(self._ended)  # Also if it is cancelled before it begins.

    def data_received(self, data: bytes) -> None:
        if self._is_over:
            return
        self._received += data
        self.wake()
        if len(self._received) > READ_AHEAD_BYTES and self._is_reading:
            self._is_reading = False
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        self.is_at_end = True
        self.wake()
        return not self._is_over and self._tls is None

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_at_end = self._is_lost = True
        self.wake()
        self.resume_writing()

    def pause_writing(self) -> None:
        self._full = self._loop.create_future()

    def resume_writing(self) -> None:
        if self._full is not None and not self._full.done():
            self._full.set_result(None)
        self._full = None

    def has_come(self, size: int) -> bool:
        return len(self._received) >= size

    def take(self, most: int) -> bytes:
        part, self._received = self._received[:most], self._received[most:]
        if not self._is_reading and len(self._received) <= READ_AHEAD_BYTES:
            self._is_reading = True
            self._transport.resume_reading()
        return part

    async def changed(self) -> None:
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        if self.is_at_end and self.on_end is not None:
            self.on_end()
            self.on_end = None

    async def write(self, data: bytes) -> None:
        self._transport.write(data)
        if self._full is not None:
            try:
                async with asyncio.timeout(self._serving.answer_timeout_s):
                    await asyncio.shield(self._full)
            except TimeoutError:
                self._transport.abort()

    def end(self) -> None:
        """Take no request any more; one under way is answered."""
        self.is_last = True
        if self._idle_since is not None:
            self.is_at_end = True
            self.wake()

    def _look(self) -> None:
        """Close what has been idle for too long, or look again when it may have been."""
        left_s = bound_s = self._serving.config.keep_alive_timeout
        if self._idle_since is not None:
            left_s = self._idle_since + bound_s - self._loop.time()
        if left_s <= 0:
            self.end()
        else:
            self._timer = self._loop.call_later(left_s, self._look)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._timer.cancel()
        self._transport.abort()
        self._serving.connections.discard(self)
        if not task.cancelled() and (failure := task.exception()) is not None:
            log.error("a connection failed", exc_info=failure)

    async def _run(self) -> None:
        is_plain = self._tls is None or self._tls.selected_alpn_protocol() != "h2"
        if is_plain:
            is_plain = await self._serve()
        self._timer.cancel()
        if is_plain:
            await self._close()
        else:
            received, self._received = self._received, b""
            await self._serving.hand_over(self._transport, received, self.is_at_end)

    async def _serve(self) -> bool:
        """Answer plain requests, to the end or to one that is not; whether it was the end."""
        limit_bytes = self._serving.config.h11_max_incomplete_size
        while await self._has_data():
            head = read_head(self._received, limit_bytes)
            if head is None:
                if self.is_at_end or not may_become_plain(self._received, limit_bytes):
                    return False
                await self.changed()
                continue
            self._idle_since = None
            self.take(head.size)
            if not await self._answer(head):
                break
            self._idle_since = self._loop.time()
        return True

    async def _has_data(self) -> bool:
        while not (self._received or self.is_at_end):
            await self.changed()
        return bool(self._received) and not self.is_last

    async def _answer(self, head: Head) -> bool:
        """Let the application answer; whether another request may follow."""
        self.is_last = self.is_last or head.is_last
        exchange, has_failed = Exchange(self, head), False
        try:
            await self._serving.app(self._scope(head, exchange), exchange.receive, exchange.send)
        except Exception:  # a fence: one request never takes the connection's others with it unanswered
            await self._serving.config.log.exception(
                "the application failed on %s %r", head.method, head.target
            )
            has_failed = True
        await exchange.end(has_failed=has_failed)
        if not exchange.is_answered:
            self._transport.abort()  # Half of an answer must not look like a whole one.
        self._has_unread_body = not exchange.is_read
        if self._received:
            await asyncio.sleep(0)  # Others have a turn between two of its requests; a loss is seen.
        return exchange.is_read and not self.is_last and not self._is_lost

    def _scope(self, head: Head, exchange: Exchange) -> dict[str, Any]:
        raw_path, _, query = head.target.partition(b"?")
        return {
            "type": "http",
            "http_version": "1.1",
            "asgi": {"spec_version": "2.1", "version": "3.0"},
            "method": head.method,
            "scheme": "http" if self._tls is None else "https",
            "path": unquote(raw_path.decode("ascii")),
            "raw_path": raw_path,
            "query_string": query,
            "root_path": self._serving.config.root_path,
            "headers": head.headers,
            "client": self._client,
            "server": self._server,
            "state": self._serving.state.copy(),
            "extensions": {TAKE_BODY: exchange.take_body, CLIENT: exchange},
        }

    async def _close(self) -> None:
        """End without losing what is on its way to the client, within a bound."""
        transport, self._is_over = self._transport, True
        if not self._is_reading:
            transport.resume_reading()
        is_unread = self._has_unread_body or bool(self._received)
        with suppress(TimeoutError, OSError):  # The client may have reset it meanwhile.
            if is_unread and not self.is_at_end:
                if transport.can_write_eof():
                    transport.write_eof()
                async with asyncio.timeout(LINGER_S):
                    while not self.is_at_end:
                        await self.changed()
        is_flushing = transport.get_write_buffer_size() > 0
        transport.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._serving.answer_timeout_s if is_flushing else GOODBYE_S):
                while not self._is_lost:
                    await self.changed()


def _address(given: Any) -> tuple[str, int] | None:
    return (given[0], given[1]) if isinstance(given, tuple) else None
