"""An Agent Server on a real socket, in a thread with an event loop of its own, asyncio's or trio's.

Its sandboxes are in memory. A test can hold their calls back, let them fail, and count what took effect.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import socket
import time
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import aiohttp
import anyio
import anyio.from_thread
import httpx
import pytest

from inspan_core.plugins import load_plugins
from inspan_server.agent.app import create_app
from inspan_server.agent.config_reading import parse_config
from inspan_server.agent.cookies import COOKIE_NAME, SessionCookies
from inspan_server.agent.state_files import admin_key
from inspan_server.cli.serve import http_config, listen
from inspan_server.serving import serve_until

SECRET = "the secret that signs the cookies of these tests"
BOUND_S = 20.0
ACTIVATE = "/ng-rollout/r1/v1/responses"
SEED, CLOSE = "/v1/agent_sessions", "/v1/agent_sessions/close"


def load_beside(name):
    """A module of this folder, which is no package."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


memory_world = load_beside("memory_world")


def seed_body(session="s1", rollout="r1", attempt=0, **changes):
    return {
        "agent_session_id": session,
        "episode_id": {"rollout_id": rollout, "attempt": attempt},
        "task_id": {"taskset": "t", "task_id": "x"},
        **changes,
    }


def close_body(session="s1", rollout="r1", attempt=0):
    return {"agent_session_id": session, "episode_id": {"rollout_id": rollout, "attempt": attempt}}


class Server:
    """A server that runs, seen from the test's thread."""

    def __init__(self, url, app, world, portal, admin_key):
        self.url, self.app, self.world, self._portal = url, app, world, portal
        self.admin_key = admin_key
        self.service = app.state.service
        self.port = urlsplit(url).port

    def phase(self, session="s1"):
        return self._portal.call(lambda: self.service.phases.get(session))

    def call(self, function, *arguments):
        return self._portal.call(function, *arguments)

    async def until(self, condition, what):
        """Poll with a deadline: what happens in the other thread has no event here."""
        with anyio.move_on_after(BOUND_S):
            while not condition():
                await anyio.sleep(0.005)
            return
        raise AssertionError(f"{what} did not happen: {dict(self.world.done)}, {self.service.phases}")

    async def until_phase(self, phase, session="s1"):
        await self.until(lambda: self.phase(session) == phase, f"{session} is {phase}")

    async def until_came(self, gate, count=1):
        await self.until(lambda: self.world.gates[gate].came >= count, f"{count} at {gate}")

    @asynccontextmanager
    async def aiohttp(self, **options):
        """As the Gym has it: one client, its cookies kept also for addresses."""
        options = {"cookie_jar": aiohttp.CookieJar(unsafe=True), **options}
        timeout = aiohttp.ClientTimeout(total=BOUND_S * 2)
        async with aiohttp.ClientSession(self.url, timeout=timeout, **options) as client:
            yield client

    def httpx(self, **options):
        return httpx.AsyncClient(base_url=self.url, timeout=BOUND_S * 2, **options)

    # --- bytes ---

    @contextmanager
    def wire(self):
        with socket.create_connection(("127.0.0.1", self.port), timeout=BOUND_S) as connection:
            yield connection


def raw_request(path, body=b"", *, method="POST", headers=(), length=None):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "Host: x", "Content-Type: application/json"]
    lines += [f"Content-Length: {len(data) if length is None else length}", *headers, "", ""]
    return "\r\n".join(lines).encode() + data


def read_answer(connection, *, has_body=True):
    """One answer from a socket: status, headers, body; None at its end."""
    received = b""
    while b"\r\n\r\n" not in received:
        part = connection.recv(65536)
        if not part:
            return None
        received += part
    head, _, body = received.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    headers = [tuple(line.split(": ", 1)) for line in lines[1:]]
    length = int(next((value for name, value in headers if name.lower() == "content-length"), 0)) * has_body
    while len(body) < length:
        body += connection.recv(65536)
    return SimpleNamespace(
        status=int(lines[0].split()[1]), headers=headers, body=body[:length], rest=body[length:]
    )


@contextmanager
def running(backend, tmp_path, *, idle_timeout_s=None, wrap=None, plugins=None, **changes):
    """Start a server: its configuration's changes are given by name."""
    world = memory_world.World()
    config = parse_config(
        {
            "harness": "memory",
            "model_server": {"base_url": "http://127.0.0.1:9", "name": "policy"},
            "sandbox_provider": "box",
            "sandbox_config": {"workdir": "/work"},
            "sandbox_providers": {"box": {"kind": "memory"}},
            "runtime_cache_dir": str(tmp_path / "cache"),
            "state_dir": str(tmp_path / "state"),
            "cookie_secret": SECRET,
            "session_close_timeout_seconds": 10,
            **changes,
        }
    )
    app = create_app(config, plugins or load_plugins([memory_world.MemoryHarness(world)], entry_points=False))
    if wrap is not None:
        wrap(app)
    listener = listen("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    hypercorn = http_config(config, listener)
    hypercorn.keep_alive_timeout = idle_timeout_s or hypercorn.keep_alive_timeout
    hypercorn.graceful_timeout, hypercorn.shutdown_timeout = 0.1, 60.0

    @asynccontextmanager
    async def served():
        stopping = anyio.Event()
        async with anyio.create_task_group() as tasks:
            bound_s = config.answer_timeout_seconds
            tasks.start_soon(partial(serve_until, app, hypercorn, stopping, answer_timeout_s=bound_s))
            try:
                yield
            finally:
                for gate in world.gates.values():
                    gate.open()
                await app.state.service.close_all(timeout_s=10)
                stopping.set()

    with anyio.from_thread.start_blocking_portal(backend) as portal:
        with portal.wrap_async_context_manager(served()):
            yield Server(url, app, world, portal, admin_key(config))


@pytest.fixture
def anyio_backend():
    """Of the clients; aiohttp has no other."""
    return "asyncio"


@pytest.fixture(params=["asyncio", pytest.param("trio", marks=pytest.mark.full)])
def backend(request):
    """Of the server; each kind of test has a quick case on trio too."""
    return request.param


@pytest.fixture
def start(tmp_path):
    """Start a server on a backend, with changes of its configuration."""
    return lambda backend, **changes: running(backend, tmp_path, **changes)


@pytest.fixture
def server(backend, start):
    with start(backend) as started:
        yield started


@pytest.fixture
def bodies():
    return SimpleNamespace(seed=seed_body, close=close_body)


@pytest.fixture
def raw():
    return SimpleNamespace(request=raw_request, answer=read_answer)


@pytest.fixture
def paths():
    return SimpleNamespace(seed=SEED, activate=ACTIVATE, close=CLOSE)


@pytest.fixture
def cookie_of():
    cookies = SessionCookies(SECRET.encode())
    return lambda session: f"{COOKIE_NAME}={cookies.value(session)}"


@pytest.fixture
def logged(caplog):
    """What was logged from DEBUG on, but for the clients' own."""
    caplog.set_level(logging.DEBUG)
    for client in ("httpx", "httpcore"):
        caplog.set_level(logging.ERROR, logger=client)
    return caplog


@pytest.fixture
def poll():
    """Poll in a plain test, with a deadline."""

    def until(condition, what):
        ends = time.monotonic() + BOUND_S
        while not condition():
            assert time.monotonic() < ends, f"{what} did not happen"
            time.sleep(0.005)

    return until
