"""`inspan serve`: one Agent Server until it is interrupted."""

from __future__ import annotations

import errno
import logging
import os
import signal
import socket
import sys
from pathlib import Path
from typing import NoReturn

import anyio
from anyio.abc import TaskStatus
from hypercorn.asyncio import serve as serve_app
from hypercorn.config import Config
from starlette.applications import Starlette

from inspan_core.plugins import load_plugins
from inspan_runtime.journal_sqlite import JournalError
from inspan_runtime.providers import builtin
from inspan_runtime.service import SHUTDOWN_STEPS
from inspan_server.agent.app import create_app
from inspan_server.agent.config import AgentConfig
from inspan_server.agent.config_reading import read_config

DONE, UNCLOSED, INFRASTRUCTURE = 0, 1, 3
BACKLOG = 1024
GRACEFUL_TIMEOUT_S = 5.0
"""For answers on their way once every session is closed."""


def serve(config_path: str, *, host: str | None = None, port: int | None = None) -> int:
    """Serve until SIGTERM or SIGINT; then close every session, and end.

    A second signal ends the process at once, with 1, whatever is still open.

    Args:
        config_path: The configuration, a YAML file.
        host: In place of the configuration's.
        port: Likewise.

    Returns:
        0 when every session was closed, 1 when some could not be, 3 when the address or the folder of the
        journal cannot be had.

    Raises:
        UsageError: The configuration does not fit, or names what is not installed.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    config = read_config(Path(config_path))
    plugins = load_plugins([builtin])
    try:
        app = create_app(config, plugins)
    except JournalError as error:
        print(f"inspan serve: state_dir: {error}", file=sys.stderr)
        return INFRASTRUCTURE
    address = (host or config.host, config.port if port is None else port)
    try:
        listener = listen(*address)
    except (OSError, OverflowError) as error:
        print(f"inspan serve: {_complaint(address, error)}", file=sys.stderr)
        return INFRASTRUCTURE
    with listener:
        return anyio.run(_run, app, config, listener)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket.

    Raises:
        OSError: The address is taken, not ours, or not an address.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=BACKLOG)


async def _run(app: Starlette, config: AgentConfig, listener: socket.socket) -> int:
    stop, unclosed, watching = anyio.Event(), list[str](), anyio.CancelScope()
    close_timeout_s = SHUTDOWN_STEPS * config.session_close_timeout_seconds
    async with anyio.create_task_group() as tasks:
        await tasks.start(_stop_on_signal, app, close_timeout_s, stop, unclosed, watching)
        spec = app.state.service.harness.spec
        print(f"inspan serve: {_url(listener)} runs {spec.name} {spec.version}", flush=True)
        hypercorn = Config()
        hypercorn.bind = [f"fd://{listener.detach()}"]  # Hypercorn closes the descriptor that it is given.
        hypercorn.graceful_timeout = GRACEFUL_TIMEOUT_S
        hypercorn.shutdown_timeout = close_timeout_s + GRACEFUL_TIMEOUT_S
        hypercorn.include_server_header = False
        hypercorn.accesslog = None
        hypercorn.errorlog = logging.getLogger("inspan.http")
        await serve_app(app, hypercorn, shutdown_trigger=stop.wait)  # type: ignore[arg-type]
        watching.cancel()
    if unclosed:
        print(f"inspan serve: not proven closed: {', '.join(sorted(unclosed))}", file=sys.stderr)
    return UNCLOSED if unclosed else DONE


async def _stop_on_signal(
    app: Starlette,
    close_timeout_s: float,
    stop: anyio.Event,
    unclosed: list[str],
    watching: anyio.CancelScope,
    *,
    task_status: TaskStatus[None],
) -> None:
    with watching, anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started()
        async with anyio.create_task_group() as tasks:
            closing = False
            async for _ in signals:
                if closing:
                    _give_up(app)
                closing = True
                tasks.start_soon(_close_sessions, app, close_timeout_s, stop, unclosed)


def _give_up(app: Starlette) -> NoReturn:
    """End at once: whatever is still open stays as it is, and owned sandboxes end by their time to live."""
    still_open = sorted(app.state.service.phases)
    print(
        f"inspan serve: ended without closing: {', '.join(still_open) or 'nothing'}",
        file=sys.stderr,
        flush=True,
    )
    os._exit(UNCLOSED)


async def _close_sessions(
    app: Starlette, close_timeout_s: float, stop: anyio.Event, unclosed: list[str]
) -> None:
    """Close all sessions while the server still answers: their clients learn how it ended."""
    app.state.routes.is_draining = True
    unclosed += await app.state.service.close_all(timeout_s=close_timeout_s)
    stop.set()


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _complaint(address: tuple[str, int], error: Exception) -> str:
    host, port = address
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is in use: stop what listens there, or choose another with --port"
    return f"cannot listen on {host}, port {port}: {error}"
