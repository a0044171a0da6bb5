"""`inspan serve`: one Agent Server until it is interrupted."""

from __future__ import annotations

import errno
import logging
import os
import signal
import socket
import ssl
import sys
import threading
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import NoReturn

import anyio
from anyio.abc import TaskStatus
from attrs import define, field
from hypercorn.config import Config
from starlette.applications import Starlette

from inspan_core.errors import UsageError
from inspan_core.plugins import load_plugins
from inspan_runtime.journal_sqlite import JournalError
from inspan_runtime.providers import builtin
from inspan_runtime.service import SHUTDOWN_STEPS
from inspan_server.agent.app import create_app
from inspan_server.agent.config import AgentConfig
from inspan_server.agent.config_reading import read_config
from inspan_server.agent.guard import is_loopback
from inspan_server.agent.logs import LogFormat, set_up_logging
from inspan_server.agent.state_files import tell_address
from inspan_server.collector import tune_collector
from inspan_server.serving import serve_until

DONE, UNCLOSED, INFRASTRUCTURE = 0, 1, 3
BACKLOG = 1024
GRACEFUL_TIMEOUT_S = 5.0
"""For answers on their way once every session is closed."""

IDLE_TIMEOUT_S = 30.0
"""A connection without a whole request for so long is closed: slow headers hold nothing."""

NAMES_TOLD = 20
log = logging.getLogger("inspan.serve")


def serve(
    config_path: str, *, host: str | None = None, port: int | None = None, log_format: LogFormat = "text"
) -> int:
    """Serve until a signal.

    SIGTERM with a journal hands over: no new seeds, runs under way get `drain_timeout_seconds` to end, and
    sessions stay open for the next server. SIGINT, and SIGTERM without a journal, close every session. A
    second signal ends the process at once, with 1.

    Args:
        config_path: The configuration, a YAML file.
        host: In place of the configuration's.
        port: Likewise.
        log_format: ``"text"`` or ``"json"``: one object a line.

    Returns:
        0 when every session was closed or handed over, 1 when some could not be closed, 3 when the address or
        the journal cannot be had.

    Raises:
        UsageError: The configuration does not fit, or names what is not installed.
    """
    config = read_config(Path(config_path))
    set_up_logging(log_format, secrets=_secrets(config))
    plugins = load_plugins([builtin])
    address = (host or config.host, config.port if port is None else port)
    check_exposure(config, address[0])
    check_tls(config)
    try:
        app = create_app(config, plugins)
    except JournalError as error:
        print(f"inspan serve: state_dir: {error}", file=sys.stderr)
        return INFRASTRUCTURE
    try:
        listener = listen(*address)
    except (OSError, OverflowError, ValueError) as error:  # a name that is none
        print(f"inspan serve: {_complaint(address, error)}", file=sys.stderr)
        return INFRASTRUCTURE
    if config.state_dir is None:
        log.warning("state_dir is null: there is no journal, and sessions end with this process")
    else:
        try:
            tell_address(Path(config.state_dir), _url(listener, config))
        except OSError as error:
            print(f"inspan serve: state_dir: {error.filename}: {error.strerror}", file=sys.stderr)
            return INFRASTRUCTURE
    tune_collector()
    if threading.current_thread() is threading.main_thread():
        # Until signals are received, one ends the process at once: the event loop's own handler may lose it.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    with listener:
        return anyio.run(_run, app, config, listener)


def _secrets(config: AgentConfig) -> list[str]:
    given = [config.bearer_token, config.cookie_secret, config.model_server.api_key]
    if config.tls is not None:
        given.append(config.tls.keyfile_password)
    return [secret for secret in given if secret]


def check_exposure(config: AgentConfig, host: str) -> None:
    """Refuse to serve strangers by accident.

    Raises:
        UsageError: The address is not loopback's, and neither a token is set nor its absence allowed.
    """
    if is_loopback(host) or config.bearer_token is not None or config.allow_unauthenticated:
        return
    raise UsageError(
        f"host {host} is reached from other machines, and anybody there could run programs in sandboxes "
        "here: set bearer_token, or allow_unauthenticated: true"
    )


def check_tls(config: AgentConfig) -> None:
    """Refuse a certificate that cannot be used.

    Raises:
        UsageError: Says why.
    """
    tls = config.tls
    if tls is None:
        return
    try:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(tls.certfile, tls.keyfile, tls.keyfile_password or "")
        if tls.ca_certs is not None:
            context.load_verify_locations(tls.ca_certs)
    except OSError as error:  # ssl.SSLError is one
        files = ", ".join(filter(None, (tls.certfile, tls.keyfile, tls.ca_certs)))
        raise UsageError(f"tls: {files}: cannot be used as certificate and key: {error}") from error


def listen(host: str, port: int) -> socket.socket:
    """A listening socket.

    Raises:
        OSError: The address is taken, not ours, or not an address.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=BACKLOG)


async def _run(app: Starlette, config: AgentConfig, listener: socket.socket) -> int:
    ending = _Ending(app=app, config=config)
    async with anyio.create_task_group() as tasks:
        await tasks.start(_stop_on_signal, ending)
        spec = app.state.service.harness.spec
        print(f"inspan serve: {_url(listener, config)} runs {spec.name} {spec.version}", flush=True)
        hypercorn = http_config(config, listener)
        hypercorn.shutdown_timeout = ending.close_timeout_s + GRACEFUL_TIMEOUT_S
        await serve_until(app, hypercorn, ending.stop, answer_timeout_s=config.answer_timeout_seconds)
        ending.watching.cancel()
    if ending.unclosed:
        print(f"inspan serve: not proven closed: {', '.join(sorted(ending.unclosed))}", file=sys.stderr)
    return UNCLOSED if ending.unclosed else DONE


def http_config(config: AgentConfig, listener: socket.socket) -> Config:
    """What Hypercorn is told; it closes the listener's descriptor."""
    hypercorn = Config()
    hypercorn.bind = [f"fd://{listener.detach()}"]
    hypercorn.backlog = BACKLOG
    hypercorn.graceful_timeout = GRACEFUL_TIMEOUT_S
    hypercorn.keep_alive_timeout = IDLE_TIMEOUT_S
    hypercorn.h11_max_incomplete_size = config.header_limit_bytes
    hypercorn.h2_max_header_list_size = config.header_limit_bytes
    hypercorn.include_server_header = False
    hypercorn.accesslog = None
    hypercorn.errorlog = logging.getLogger("inspan.http")
    if config.tls is not None:
        hypercorn.certfile, hypercorn.keyfile = config.tls.certfile, config.tls.keyfile
        hypercorn.keyfile_password = config.tls.keyfile_password
        if config.tls.ca_certs is not None:
            hypercorn.ca_certs = config.tls.ca_certs
            hypercorn.verify_mode = ssl.CERT_REQUIRED
    return hypercorn


@define(eq=False)
class _Ending:
    """How a server ends."""

    app: Starlette
    config: AgentConfig
    stop: anyio.Event = field(factory=anyio.Event)
    watching: anyio.CancelScope = field(factory=anyio.CancelScope)
    unclosed: list[str] = field(factory=list)

    @property
    def close_timeout_s(self) -> float:
        return SHUTDOWN_STEPS * self.config.session_close_timeout_seconds

    async def close(self) -> None:
        """Close all sessions while the server still answers: their clients learn how it ended."""
        self.unclosed += await self.app.state.service.close_all(timeout_s=self.close_timeout_s)
        self.stop.set()

    async def hand_over(self) -> None:
        """Let runs end for a while; what is left then is the next server's, and host calls are nobody's."""
        service, bound_s = self.app.state.service, self.config.drain_timeout_seconds
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(service.runs_ended, timeout_s=bound_s))
            if service.host is not None:
                await service.host.runs_ended(timeout_s=bound_s)
                self.unclosed += await service.host.close_all(timeout_s=self.close_timeout_s)
        self.app.state.at_shutdown = self._leave
        self.stop.set()

    def _leave(self) -> NoReturn:
        """End without cancelling anything: a command whose call is cancelled is killed in its sandbox."""
        phases: Mapping[str, str] = self.app.state.service.phases
        left = [name for name, phase in phases.items() if phase not in ("CLOSED", "FENCED")]
        running = sum(phase == "ACTIVE" for phase in phases.values())
        self.app.state.service.close_journal()
        told = f"{len(left)} sessions, {running} of them running: {', '.join(left[:NAMES_TOLD])}"
        print(f"inspan serve: handed over {told if left else 'nothing'}", flush=True)
        os._exit(DONE)


async def _stop_on_signal(ending: _Ending, *, task_status: TaskStatus[None]) -> None:
    with ending.watching, anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started()
        async with anyio.create_task_group() as tasks:
            is_ending = False
            async for number in signals:
                if is_ending:
                    _give_up(ending.app)
                is_ending = ending.app.state.routes.is_draining = True
                hands_over = number == signal.SIGTERM and ending.config.state_dir is not None
                tasks.start_soon(ending.hand_over if hands_over else ending.close)


def _give_up(app: Starlette) -> NoReturn:
    """End at once: whatever is still open stays as it is, and owned sandboxes end by their time to live."""
    still_open = sorted(app.state.service.phases)
    print(
        f"inspan serve: ended without closing: {', '.join(still_open) or 'nothing'}",
        file=sys.stderr,
        flush=True,
    )
    os._exit(UNCLOSED)


def _url(listener: socket.socket, config: AgentConfig) -> str:
    host, port = listener.getsockname()[:2]
    scheme = "http" if config.tls is None else "https"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _complaint(address: tuple[str, int], error: Exception) -> str:
    host, port = address
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is in use: stop what listens there, or choose another with --port"
    return f"cannot listen on {host}, port {port}: {error}"
