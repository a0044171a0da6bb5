"""Connections of Hypercorn on asyncio, which end when their clients end them.

Hypercorn 0.18 keeps a connection that its client has closed, and its descriptor, until the idle time has
passed: some tens of clients a second that make a connection for each request would use up all descriptors.
And it lets one that begins to speak HTTP/2 without TLS, and then asks for nothing, stay forever.
"""

from __future__ import annotations

from hypercorn.asyncio.tcp_server import TCPServer
from hypercorn.events import Event
from hypercorn.protocol.h2 import H2Protocol


class Connection(TCPServer):
    """One connection; nothing waits for its idle time once nothing more can come."""

    _is_over = False

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
