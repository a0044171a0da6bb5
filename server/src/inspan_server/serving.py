"""Serves an application on an own port of the loopback interface, for as long as a block of code runs."""

from __future__ import annotations

import logging
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

import anyio
from hypercorn.config import Config

from inspan_server import listening
from inspan_server.bounded_heads import bound_heads

LOOPBACK = "127.0.0.1"
BACKLOG = 512
ANSWER_TIMEOUT_S = 60.0


@asynccontextmanager
async def served(
    app: Any, *, port: int = 0, graceful_timeout_s: float = 5.0, shutdown_timeout_s: float = 600.0
) -> AsyncIterator[str]:
    """Serve an ASGI application on loopback; open connections are given up after the block.

    Args:
        app: The application.
        port: 0: any free port.
        graceful_timeout_s: How long running requests may go on once the block has ended, in seconds.
        shutdown_timeout_s: How long the application's own shutdown may take after that, in seconds.

    Yields:
        The base URL, for example ``"http://127.0.0.1:40123"``; connections are accepted from then on.

    Raises:
        OSError: The port is taken.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    with listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((LOOPBACK, port))
        # Connections wait in the backlog from here on, so nobody has to poll for readiness.
        listener.listen(BACKLOG)
        bound_port = listener.getsockname()[1]
        stopping = anyio.Event()
        config = _config(listener, graceful_timeout_s, shutdown_timeout_s)
        failure: Exception | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve_until, app, config, stopping)
            try:
                yield f"http://{LOOPBACK}:{bound_port}"
            except Exception as error:
                # Raised below, so that it does not come wrapped in an exception group.
                failure = error
            finally:
                stopping.set()
    if failure is not None:
        raise failure


def _config(listener: socket.socket, graceful_timeout_s: float, shutdown_timeout_s: float) -> Config:
    config = Config()
    # Hypercorn closes the descriptor that it is given.
    config.bind = [f"fd://{listener.detach()}"]
    config.backlog = BACKLOG
    config.graceful_timeout = graceful_timeout_s
    config.shutdown_timeout = shutdown_timeout_s
    config.accesslog = None
    config.errorlog = logging.getLogger("inspan.http")
    return config


async def serve_until(
    app: Any, config: Config, stopping: anyio.Event, *, answer_timeout_s: float = ANSWER_TIMEOUT_S
) -> None:
    """Serve on the event loop that runs, asyncio's or trio's.

    Args:
        app: The application.
        config: See Hypercorn.
        stopping: Ends it once it is set; being cancelled does not skip the application's own shutdown.
        answer_timeout_s: A client that has not taken an answer by then is given up, in seconds; on asyncio.
    """
    bound_heads()
    with anyio.CancelScope(shield=True):
        if _in_trio():
            worker: Any = import_module("hypercorn.trio")
            await worker.serve(app, config, shutdown_trigger=stopping.wait)
        else:
            await listening.serve(app, config, stopping, answer_timeout_s=answer_timeout_s)


def _in_trio() -> bool:
    # Whoever runs on it has imported it; nobody else needs to have it.
    trio: Any = sys.modules.get("trio")
    return trio is not None and bool(trio.lowlevel.in_trio_run())
