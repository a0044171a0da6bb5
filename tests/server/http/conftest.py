"""An Agent Server on a real socket, in a thread with an event loop of its own, asyncio's or trio's.

Its sandboxes are in memory. A test can hold their calls back, let them fail, and count what took effect.
"""

from __future__ import annotations

import json
import logging
import re
import shlex
import socket
import threading
import time
from collections import Counter
from contextlib import asynccontextmanager, contextmanager
from types import SimpleNamespace
from urllib.parse import urlsplit

import aiohttp
import anyio
import anyio.from_thread
import httpx
import pytest

from inspan_core.errors import SandboxConnectError, SandboxGone
from inspan_core.findings import Outcome
from inspan_core.harness import HarnessSpec, ParsedActivation, SandboxCommand
from inspan_core.hookspecs import hookimpl
from inspan_core.observations import AgentObservationBundle
from inspan_core.plugins import load_plugins
from inspan_core.sandbox import ExecResult, FileContent
from inspan_runtime.testing.fake_commands import PREFLIGHT, PROBE, kind_of
from inspan_runtime.testing.faults import CallKind
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
LOOK = re.compile(rb"d=(.*) wait=(\d+) request=(\w+)\n")


class Gate:
    """Holds calls back while it is shut, and counts who came."""

    def __init__(self):
        self._open = threading.Event()
        self._open.set()
        self.came = 0

    def shut(self):
        self._open.clear()

    def open(self):
        self._open.set()

    @property
    def is_open(self):
        return self._open.is_set()

    async def passed(self):
        self.came += 1
        with anyio.fail_after(BOUND_S):
            while not self._open.is_set():  # It is opened in another thread.
                await anyio.sleep(0.002)


class World:
    """All sandboxes, what holds them up, and what took effect."""

    def __init__(self):
        self.gates = {name: Gate() for name in ("create", "run", "stop")}
        self.done = Counter()
        self.fails = {}
        self.alive = {}
        self.environments = []

    async def arrive(self, what):
        await self.gates[what].passed()
        if what in self.fails:
            raise self.fails[what]


class MemorySandbox:
    """Answers the runtime's own commands; files are bytes by path."""

    def __init__(self, world, key):
        self._world, self.key = world, key
        self.sandbox_id = key
        self.descriptor = {"provider": "memory", "sandbox_id": key}
        self.files = {}
        self.is_launched = self.is_stopping = False

    async def exec(self, argv, *, timeout_s, env=None, cwd=None, stdin=b"", output_limit_bytes=0):
        self._world.environments.append(dict(env or {}))
        match kind_of(argv, stdin):
            case CallKind.LAUNCH:
                return await self._launch(argv[-1])
            case CallKind.LOOK:
                return await self._look(stdin)
            case CallKind.REMOVE:
                folder = argv[-2]
                self.files = {p: data for p, data in self.files.items() if not p.startswith(folder)}
                return ExecResult(exit_code=0)
        script = argv[-1]
        if argv[0] == "env":
            return ExecResult(exit_code=0, stdout=b"PATH=/usr/bin:/bin\0HOME=/root\0")
        if '"places": [' in script:
            return ExecResult(exit_code=0, stdout=json.dumps(PREFLIGHT).encode())
        return ExecResult(exit_code=0, stdout=PROBE if "uname -m" in script else b"")

    async def _launch(self, folder):
        self.is_launched = True
        self._world.done["launch"] += 1
        gate = self._world.gates["run"]
        gate.came += 1
        while not (gate.is_open or self.is_stopping):
            await anyio.sleep(0.002)
        code = 0 if gate.is_open else -15
        receipt = {"cleanup_confirmed": True, "return_code": code, "error": None, "timed_out": False}
        if "receipt" not in self._world.fails:
            self.files[f"{folder}/cleanup.json"] = json.dumps(receipt).encode()
        return ExecResult(exit_code=0)

    async def _look(self, stdin):
        found = LOOK.match(stdin)
        (folder,) = shlex.split(found[1].decode())
        self.is_stopping = self.is_stopping or found[3] == b"stop" or found[3] == b"fence"
        word = "waiting"
        with anyio.move_on_after(min(int(found[2]), 2)):
            while True:
                if f"{folder}/cleanup.json" in self.files:
                    word = "receipt"
                elif self.is_stopping and not self.is_launched:
                    word = "never"
                if word != "waiting":
                    break
                await anyio.sleep(0.002)
        return ExecResult(exit_code=0, stdout=word.encode() + b"\n")

    async def upload(self, path, data, *, mode=0o644, timeout_s=60.0):
        self.files[path] = data

    async def download(self, path, *, limit_bytes, tail=False, timeout_s=60.0):
        if path not in self.files:
            raise FileNotFoundError(path)
        return FileContent(data=self.files[path], size_bytes=len(self.files[path]))

    async def is_alive(self):
        return self.key in self._world.alive

    async def disconnect(self):
        """Nothing is connected."""

    async def stop(self):
        await self._world.arrive("stop")
        if self._world.alive.pop(self.key, None) is not None:
            self._world.done["stop"] += 1


class MemoryProvider:
    """One client of the world."""

    name = "memory"
    capabilities = frozenset()

    def __init__(self, world):
        self._world = world

    async def create(self, spec, *, key, timeout_s=60.0):
        await self._world.arrive("create")
        if key not in self._world.alive:
            self._world.done["create"] += 1
            self._world.alive[key] = MemorySandbox(self._world, key)
        return self._world.alive[key]

    async def connect(self, descriptor, *, timeout_s=30.0):
        if not isinstance(descriptor.get("sandbox_id"), str):
            raise SandboxConnectError(f"{sorted(descriptor)}: expected a sandbox_id")
        if descriptor["sandbox_id"] not in self._world.alive:
            raise SandboxGone(descriptor["sandbox_id"])
        return self._world.alive[descriptor["sandbox_id"]]

    async def stop(self, key, *, timeout_s=30.0):
        if key in self._world.alive:
            await self._world.alive[key].stop()

    async def list(self, labels):
        return [each.descriptor for each in self._world.alive.values()]

    async def aclose(self):
        """Nothing is open."""


class MemoryHarness:
    """Answers with its input; what the input says decides how it ends."""

    def __init__(self, world):
        self._world = world

    @hookimpl
    def inspan_harness(self):
        return HarnessSpec(
            name="memory",
            version="1",
            model_api="responses",
            level=2,
            request_fields={
                "input": "applied",
                "metadata": "ignored",
                "tools": "ignored",
                "tool_choice": "ignored",
                "parallel_tool_calls": "ignored",
            },
        )

    @hookimpl
    async def inspan_install(self, context):
        return {"python": "/usr/bin/python3"}

    @hookimpl
    async def inspan_stage(self, context):
        self._world.done["stage"] += 1
        await context.upload_text("output.json", json.dumps(context.request["input"]))
        return SandboxCommand(argv=["/bin/true"], python="/usr/bin/python3")

    @hookimpl
    async def inspan_collect(self, context):
        self._world.done["collect"] += 1
        if "collect" in self._world.fails:
            raise self._world.fails["collect"]
        await context.download("output.json", limit_bytes=1 << 20)

    @hookimpl
    def inspan_parse(self, run):
        said = json.loads(run.artifacts.files.get("output.json", b"null"))
        outcome = {"fail": Outcome.FAILED, "refuse": Outcome.UNPROCESSABLE}.get(
            said if isinstance(said, str) else "", Outcome.COMPLETED
        )
        if run.interrupted or said is None:
            outcome = Outcome.FAILED
        message = {
            "type": "message", "id": "m", "role": "assistant", "status": "completed",
            "content": [{"type": "output_text", "text": json.dumps(said), "annotations": []}],
        }  # fmt: skip
        response = {
            "id": "resp_0", "created_at": 0, "model": "policy", "object": "response", "output": [message],
            "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "status": "completed",
        }  # fmt: skip
        is_good = outcome is Outcome.COMPLETED
        return ParsedActivation(
            outcome=outcome,
            response=response if is_good else None,
            observations=AgentObservationBundle(source="memory"),
            detail=None if is_good else "the harness was told to fail",
        )

    @hookimpl
    def inspan_sandbox_providers(self):
        return {"memory": lambda options: MemoryProvider(self._world)}


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
    world = World()
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
    app = create_app(config, plugins or load_plugins([MemoryHarness(world)], entry_points=False))
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
            tasks.start_soon(serve_until, app, hypercorn, stopping)
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
