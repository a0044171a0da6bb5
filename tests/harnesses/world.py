"""One gateway and one Agent Server for each harness, and a session's way through them over HTTP."""

from __future__ import annotations

import json
import os
import secrets
import tempfile
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import httpx
from attrs import define, evolve, field

import inspan_codex
import inspan_hermes
import inspan_pi
from inspan_core.hookspecs import hookimpl
from inspan_core.plugins import load_plugins
from inspan_core.sandbox import SandboxSpec
from inspan_runtime.install_cache import default_cache_dir
from inspan_runtime.install_shared import SharedRuntimes, create_with_runtimes
from inspan_runtime.providers.bubblewrap import BubblewrapProvider
from inspan_server.agent.app import create_app
from inspan_server.agent.config_reading import parse_config
from inspan_server.model.capture import Capture
from inspan_server.model.gateway import create_gateway
from inspan_server.model.script import Script, parse_script
from inspan_server.serving import served

from .seen import Seen

PLUGINS = {"pi": inspan_pi, "codex": inspan_codex, "hermes": inspan_hermes}
OPTIONS = {
    "pi": {"max_retries": 2, "retry_base_delay_ms": 200},
    "codex": {"max_retries": 2},
    "hermes": {"max_retries": 2},
}
OTHER_OPTIONS = {
    "pi": {"max_output_tokens": 777},
    "codex": {"system_prompt": "replace"},
    "hermes": {"max_output_tokens": 777},
}
"""What differs in a second Agent Server of each harness, beside the model's name."""
WORKDIR, SESSIONS = "/app", "/tmp/inspan-s"
WITNESS = Path(__file__).with_name("witness.py").read_bytes()
WITNESS_PATH = "/tmp/look"
LIMIT_S = 120.0


class Bubblewrap:
    @hookimpl
    def inspan_sandbox_providers(self):
        return {"bubblewrap": BubblewrapProvider}


@define(eq=False, kw_only=True)
class World:
    """The servers, and what the gateway wrote down.

    Attributes:
        scripts: Replies by rollout; read at each call.
        keys: The model's key of each rollout.
        sessions: By rollout, for the gateway's look into the sandbox that calls.
    """

    provider: BubblewrapProvider
    shared: SharedRuntimes
    capture: Capture = field(factory=Capture)
    scripts: dict = field(factory=dict)
    keys: dict = field(factory=dict)
    sessions: dict = field(factory=dict)
    gateway_url: str = ""
    agents: dict = field(factory=dict)

    @asynccontextmanager
    async def session(self, harness, replies, model="org/policy"):
        """A sandbox of its own with a session in it, and a script for its model."""
        rollout = f"{secrets.token_hex(6)}-{harness}"
        self.scripts |= parse_script({rollout: replies}).rollouts
        spec = SandboxSpec(workdir=WORKDIR, ttl_s=900.0, reach=(self.gateway_url,))
        sandbox = await create_with_runtimes(self.provider, spec, self.shared, key=rollout, timeout_s=60.0)
        url, service = self.agents[harness, model]
        try:
            await sandbox.upload(WITNESS_PATH, WITNESS, mode=0o755)
            async with httpx.AsyncClient(base_url=url, timeout=LIMIT_S) as client:
                session = Session(
                    world=self,
                    model=model,
                    rollout=rollout,
                    sandbox=sandbox,
                    client=client,
                    service=service,
                )
                self.sessions[rollout] = session
                yield session
        finally:
            self.sessions.pop(rollout, None)
            with anyio.CancelScope(shield=True):
                await sandbox.stop()

    def key_of(self, rollout):
        """Each rollout has a key of its own, so that a call with another's is refused."""
        return self.keys.setdefault(rollout, f"sk-{secrets.token_hex(16)}")

    async def look_at_caller(self, rollout):
        session = self.sessions.get(rollout)
        if session is not None:
            session.looks.append(await session.look())


@define(eq=False, kw_only=True)
class Session:
    """One session, driven over HTTP; `seen` tells what came of it."""

    world: World
    model: str
    rollout: str
    sandbox: object
    client: httpx.AsyncClient
    service: object
    looks: list = field(factory=list)
    answer: httpx.Response | None = None
    closed: httpx.Response | None = None
    evidence: object = None
    before: dict = field(factory=dict)
    after: dict = field(factory=dict)
    notes: dict = field(factory=dict)

    @property
    def ids(self):
        return {"agent_session_id": f"s-{self.rollout}", "episode_id": self.episode}

    @property
    def episode(self):
        return {"rollout_id": self.rollout, "attempt": 0}

    async def seed(self):
        connection = {"kind": "direct", "provider_config_ref": "box"}
        connection["descriptor"] = dict(self.sandbox.descriptor)
        body = {
            **self.ids,
            "task_id": {"taskset": "faults", "task_id": "one"},
            "sandbox_access": {"connection": connection, "workdir": WORKDIR},
        }
        seeded = await self.client.post("/v1/agent_sessions", json=body)
        assert seeded.status_code == 200, seeded.text
        self.before = await self.look()

    async def activate(self, request):
        path = f"/ng-rollout/{self.rollout}/v1/responses"
        self.answer = await self.client.post(path, json=request)
        self.keep_evidence()

    async def close(self):
        self.closed = await self.client.post("/v1/agent_sessions/close", json=self.ids)
        self.keep_evidence()

    def keep_evidence(self):
        """The receipt and the process report, while the server has them."""
        now = self.service.evidence(f"s-{self.rollout}")
        before = self.evidence
        if now is not None and before is not None:
            receipt, processes = now.receipt or before.receipt, now.processes or before.processes
            now = evolve(now, receipt=receipt, processes=processes)
        self.evidence = now or before

    async def look(self):
        """What the sandbox shows of itself now."""
        port = urlsplit(self.world.gateway_url).port
        found = await self.sandbox.exec(["python3", WITNESS_PATH, str(port), SESSIONS], timeout_s=30.0)
        assert found.exit_code == 0, found.stderr.decode()
        return json.loads(found.stdout)

    async def shell(self, command):
        """Output of a command in the sandbox, in the task's folder."""
        done = await self.sandbox.exec(["sh", "-c", command], timeout_s=30.0, cwd=WORKDIR)
        return done.stdout.decode()

    async def until(self, line):
        """Wait until a process whose command line has `line` is there; it, and what else there is."""
        with anyio.fail_after(LIMIT_S):
            while True:
                look = await self.look()
                if any(line in each["line"] for each in look["processes"]):
                    return look
                await anyio.sleep(0.1)

    async def seen(self):
        """What three witnesses tell, once the gateway has noticed the end of each call."""
        capture = self.world.capture
        with anyio.fail_after(30):
            while len(capture.calls(self.rollout)) < len(self.looks):
                await anyio.sleep(0.02)
        return Seen(
            status=self.answer.status_code,
            answer=self.answer.json(),
            close_status=self.closed.status_code,
            closed=self.closed.json(),
            receipt=self.evidence.receipt,
            processes=self.evidence.processes,
            gradable=self.evidence.gradable,
            sandbox_id=self.sandbox.sandbox_id,
            model=self.model,
            calls=tuple(sorted(capture.calls(self.rollout), key=lambda call: call.started_at)),
            strays=capture.stray_calls + capture.unauthorized_calls,
            looks=tuple(self.looks),
            before=self.before,
            after=self.after,
            notes=self.notes,
        )


@define
class WitnessedGateway:
    """The gateway, which looks into the sandbox of whoever calls, while the call is open."""

    app: object
    world: World

    async def __call__(self, scope, receive, send):
        if scope["type"] == "http" and scope["method"] == "POST":
            await self.world.look_at_caller(scope["path"].split("/")[2])
        await self.app(scope, receive, send)


@asynccontextmanager
async def open_world():
    """All servers, each on a port of its own."""
    async with AsyncExitStack() as stack:
        # Short: the names of sockets below it have little room.
        root = stack.enter_context(tempfile.TemporaryDirectory(prefix="harnesses-"))
        block = {"kind": "bubblewrap", "runtime_dir": f"{root}/run"}
        provider = BubblewrapProvider({"runtime_dir": f"{root}/run"})
        stack.push_async_callback(provider.aclose)
        cache = default_cache_dir(os.environ)
        world = World(provider=provider, shared=SharedRuntimes(cache))
        gateway = create_gateway(Script(world.scripts), world.capture, keys=world.key_of)
        served_gateway = served(WitnessedGateway(gateway, world), graceful_timeout_s=0.2)
        world.gateway_url = await stack.enter_async_context(served_gateway)
        plugins = load_plugins([Bubblewrap(), *PLUGINS.values()], entry_points=False)
        for name in PLUGINS:
            for model, more in (("org/policy", {}), ("org/other", OTHER_OPTIONS[name])):
                config = {
                    "harness": name,
                    "model_server": {"base_url": world.gateway_url, "name": model},
                    "sandbox_providers": {"box": block},
                    "session_dir_root": SESSIONS,
                    "runtime_cache_dir": str(cache),
                    "harness_options": {**OPTIONS[name], **more},
                }
                app = create_app(parse_config(config), plugins, model_key=world.key_of)
                url = await stack.enter_async_context(served(app, graceful_timeout_s=0.5))
                world.agents[name, model] = (url, app.state.service)
        yield world
