"""Serves an application on asyncio: Hypercorn's configuration and protocols, behind connections of our own.

Nearly all requests are plain and are answered by `PlainConnection`. Everything else, HTTP/2 and bodies in
chunks among them, is served by Hypercorn's own protocols from the first such request of a connection on.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import Any

import anyio
from hypercorn.asyncio.lifespan import Lifespan
from hypercorn.asyncio.worker_context import WorkerContext
from hypercorn.config import Config
from hypercorn.utils import wrap_app

from inspan_server.connections import Connection
from inspan_server.plain_connection import GOODBYE_S, PlainConnection, Serving

ACCEPTED_AT_ONCE = 16


async def serve(app: Any, config: Config, stopping: anyio.Event, *, answer_timeout_s: float) -> None:
    """Serve until it is stopped, then end in order: idle connections, answers under way, the application.

    Args:
        app: An ASGI application.
        config: See Hypercorn; what is about its workers and its access log is not looked at.
        stopping: Ends it once it is set.
        answer_timeout_s: A client that has not taken an answer by then is given up, in seconds.

    Raises:
        Exception: The application's own, at its start.
    """
    loop = asyncio.get_running_loop()
    state: dict[str, Any] = {}
    wrapped = wrap_app(app, config.wsgi_max_body_size, "asgi")
    lifespan = Lifespan(wrapped, config, loop, state)
    lifespan_task = loop.create_task(lifespan.handle_lifespan())
    await lifespan.wait_for_startup()
    if lifespan_task.done() and (failure := lifespan_task.exception()) is not None:
        raise failure
    context = WorkerContext(None)

    async def hand_over(transport: asyncio.Transport, received: bytes, is_all: bool) -> None:
        reader = asyncio.StreamReader(loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        protocol.connection_made(transport)
        transport.set_protocol(protocol)
        reader.feed_data(received)
        if is_all:
            reader.feed_eof()
        transport.resume_reading()
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        shared = (wrapped, loop, config, context, state)
        bounds = {"answer_timeout_s": answer_timeout_s, "goodbye_s": GOODBYE_S}
        await Connection(*shared, reader, writer, **bounds)

    serving = Serving(app, config, state, hand_over, answer_timeout_s)
    listeners = await _listen(serving)
    try:
        await stopping.wait()
    finally:
        for listener in listeners:
            listener.close()
        serving.end()
        await context.terminated.set()
        await _ended(serving, config.graceful_timeout)
        await lifespan.wait_for_shutdown()
        lifespan_task.cancel()
        with suppress(asyncio.CancelledError):
            await lifespan_task


async def _listen(serving: Serving) -> list[asyncio.Server]:
    loop, config = asyncio.get_running_loop(), serving.config
    sockets = config.create_sockets()
    kinds: list[tuple[list[Any], dict[str, Any]]] = [(sockets.insecure_sockets, {})]
    if config.ssl_enabled:
        tls = {"ssl": config.create_ssl_context(), "ssl_handshake_timeout": config.ssl_handshake_timeout}
        kinds.append((sockets.secure_sockets, tls))
    servers = []
    for kind, options in kinds:
        for each in kind:
            # asyncio accepts as many in one turn of the loop, and whoever is connected waits for that.
            make = partial(PlainConnection, serving)
            servers.append(await loop.create_server(make, sock=each, backlog=ACCEPTED_AT_ONCE, **options))
            each.listen(config.backlog)
    return servers


async def _ended(serving: Serving, bound_s: float) -> None:
    """Wait for answers under way; what is not over by then is cut off."""
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + bound_s
    while tasks := [connection.task for connection in serving.connections]:
        _, late = await asyncio.wait(tasks, timeout=max(ends_at - loop.time(), 0.0))
        for task in late:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
