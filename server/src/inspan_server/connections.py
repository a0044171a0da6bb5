"""Connections of Hypercorn on asyncio, which end when their clients end them, and are held by nobody.

Hypercorn 0.18 keeps a connection that its client has closed, and its descriptor, until the idle time has
passed: some tens of clients a second that make a connection for each request would use up all descriptors.
It lets one that begins to speak HTTP/2 without TLS, and then asks for nothing, stay forever. It waits forever
for a client that does not read, and half a minute for one that does not say goodbye by TLS.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from hypercorn.asyncio.tcp_server import TCPServer
from hypercorn.events import Event, RawData
from hypercorn.protocol.h2 import H2Protocol


class Connection(TCPServer):
    """One connection; nothing waits for its idle time once nothing more can come."""

    _is_over = False

    def __init__(self, *arguments: Any, answer_timeout_s: float, goodbye_s: float) -> None:
        super().__init__(*arguments)
        self._answer_timeout_s, self._goodbye_s = answer_timeout_s, goodbye_s
        self.app = self._bounded(self.app)

    def _bounded(self, app: Any) -> Any:
        """The application, for a client of HTTP/2 that opens no window for the answer."""

        async def bounded(scope: Any, receive: Any, send: Any, *more: Any) -> None:
            async def send_in_time(message: Mapping[str, Any]) -> None:
                try:
                    async with asyncio.timeout(self._answer_timeout_s):
                        await send(message)
                except TimeoutError:
                    self.writer.transport.abort()

            await app(scope, receive, send_in_time, *more)

        return bounded

    async def protocol_send(self, event: Event) -> None:
        """Send; a client that has not taken enough of it in time is given up."""
        try:
            async with asyncio.timeout(self._answer_timeout_s if isinstance(event, RawData) else None):
                await super().protocol_send(event)
        except TimeoutError:
            self.writer.transport.abort()

    async def _read_data(self) -> None:
        handle, idle = self.protocol.handle, self.idle_task

        async def watched(event: Event) -> None:
            await handle(event)
            spoken = self.protocol.protocol
            if isinstance(spoken, H2Protocol) and not spoken.streams and idle._handle is None:
                await idle.restart(self._task_group, self._idle_timeout)

        self.protocol.handle = watched  # type: ignore[method-assign]
        await super()._read_data()
        self._is_over = True
        await self.idle_task.stop()

    async def _idle_timeout(self) -> None:
        # An answer that ends after its client did would begin to idle.
        if not self._is_over:
            await super()._idle_timeout()

    async def _close(self) -> None:
        is_flushing = self.writer.transport.get_write_buffer_size() > 0
        try:
            async with asyncio.timeout(self._answer_timeout_s if is_flushing else self._goodbye_s):
                await super()._close()
        except OSError:
            pass  # TimeoutError is one, too.
        finally:
            self.writer.transport.abort()
