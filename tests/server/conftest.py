"""What the server's tests share: a provider over plain folders, and a small agent server on a real socket."""

import json
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from attrs import define, field
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from inspan_core.errors import ExecTimeout, SandboxError, SandboxGone, UnsafePath
from inspan_core.sandbox import ExecResult
from inspan_server.serving import served


@pytest.fixture
def anyio_backend():
    return "asyncio"


@define(eq=False)
class FolderSandbox:
    """A sandbox that isolates nothing: real processes and files, and faults that a test asks for."""

    provider: "FolderProvider"
    key: str
    workdir: Path

    @property
    def descriptor(self):
        return {"sandbox_id": self.key, "workdir": str(self.workdir)}

    @property
    def sandbox_id(self):
        return self.key

    def _alive(self):
        if self.key not in self.provider.alive:
            raise SandboxGone(f"sandbox {self.key} is gone")

    async def exec(self, argv, *, timeout_s, env=None, cwd=None, stdin=b"", output_limit_bytes=1 << 20):
        self._alive()
        try:
            with anyio.fail_after(timeout_s):
                ended = await anyio.run_process(list(argv), input=stdin, check=False, cwd=cwd, env=env)
        except TimeoutError as error:
            raise ExecTimeout(f"{argv[0]}: ran longer than {timeout_s:g} s") from error
        tail = slice(-output_limit_bytes, None)
        return ExecResult(exit_code=ended.returncode, stdout=ended.stdout[tail], stderr=ended.stderr[tail])

    async def upload(self, path, data, *, mode=0o644, timeout_s=60.0):
        self._alive()
        if self.provider.upload_gate is not None:
            await self.provider.upload_gate.wait()
        target = Path(path)
        if target.is_symlink() or target.is_dir():
            raise UnsafePath(f"{path}: a link or a folder")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        target.chmod(mode)

    async def stop(self):
        await self.provider.stop(self.key)


@define(eq=False)
class FolderProvider:
    """Makes `FolderSandbox`es below a folder.

    Attributes:
        alive: Keys of the running sandboxes.
        made: Keys of all that were ever made.
        create_gate, upload_gate: Waited for in the middle of the operation, when set.
        failing_stops: How many of the next stops fail.
        failing_creates: How many of the next creations fail.
    """

    root: Path
    alive: set = field(factory=set)
    made: list = field(factory=list)
    create_gate: anyio.Event | None = None
    upload_gate: anyio.Event | None = None
    failing_stops: int = 0
    failing_creates: int = 0
    name: str = "folder"

    async def create(self, spec, *, key, timeout_s=60.0):
        self.made.append(key)
        self.alive.add(key)
        if self.create_gate is not None:
            await self.create_gate.wait()
        if self.failing_creates:
            self.failing_creates -= 1
            raise SandboxError("no room for a sandbox")
        workdir = Path(spec.workdir)
        workdir.mkdir(parents=True, exist_ok=True)
        return FolderSandbox(self, key, workdir)

    async def stop(self, key, *, timeout_s=30.0):
        if self.failing_stops:
            self.failing_stops -= 1
            raise SandboxError("the stop was not confirmed")
        self.alive.discard(key)


@pytest.fixture
def folders(tmp_path):
    return FolderProvider(tmp_path / "sandboxes")


@define(eq=False)
class TinyAgent:
    """The agent server's side of the contract, as far as a client can see it.

    Attributes:
        work: What the activation does, given the seed's sandbox access.
        status: Status of the next answers, by step (``seed``, ``activate``, ``close``): a list to take from.
        lose: How many answers of a step are cut off in the middle.
        seen: (step, body, cookie) of every request.
        resources_cookies: What close returns.
    """

    work: object = None
    status: dict = field(factory=dict)
    lose: dict = field(factory=dict)
    seen: list = field(factory=list)
    resources_cookies: dict | None = None
    raw_answer: bytes | None = None
    gate: anyio.Event | None = None
    reached: anyio.Event = field(factory=anyio.Event)
    _access: object = None

    async def seed(self, request):
        body = await request.json()
        self._access = body["sandbox_access"]
        headers = {"set-cookie": "session=seeded/=; Path=/"}
        return await self._answer(
            "seed", body, request, {"agent_session_id": body["agent_session_id"]}, headers
        )

    async def activate(self, request):
        body = await request.json()
        self.reached.set()
        if self.gate is not None:
            await self.gate.wait()
        if self.work is not None:
            await self.work(self._access)
        response = {"id": "resp_1", "object": "response", "status": "completed", "output": []}
        headers = {"set-cookie": "session=activated; Path=/"}
        return await self._answer("activate", body, request, response, headers)

    async def close(self, request):
        body = await request.json()
        observations = {"source": "tiny", "records": [], "gaps": []}
        closed = {
            "agent_session_id": body["agent_session_id"],
            "agent_observations": observations,
            "resources_cookies": self.resources_cookies,
        }
        return await self._answer("close", body, request, closed, {})

    async def _answer(self, step, body, request, answer, headers):
        self.seen.append((step, body, request.headers.get("cookie"), request.url.path))
        if self.lose.get(step, 0):
            self.lose[step] -= 1
            return CutOff()
        statuses = self.status.get(step)
        status = statuses.pop(0) if statuses else 200
        if status != 200:
            return JSONResponse({"detail": f"{step} says no"}, status)
        if step == "activate" and self.raw_answer is not None:
            return Response(self.raw_answer)
        return JSONResponse(answer, headers=headers)

    @property
    def steps(self):
        return [step for step, *_ in self.seen]

    def app(self):
        return Starlette(
            routes=[
                Route("/v1/agent_sessions", self.seed, methods=["POST"]),
                Route("/v1/agent_sessions/close", self.close, methods=["POST"]),
                Route("/ng-rollout/{key}/v1/responses", self.activate, methods=["POST"]),
                Route(
                    "/ng-rollout/{key}/training-token-capture/v1/responses", self.activate, methods=["POST"]
                ),
            ]
        )


class CutOff(Response):
    """An answer that breaks off: the server ends the application's call without a last body part."""

    async def __call__(self, scope, receive, send):
        headers = [(b"content-length", b"1000")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps({}).encode(), "more_body": True})


@pytest.fixture
def tiny_agent():
    return TinyAgent()


@pytest.fixture
def serve():
    """Serves applications for a block: ``async with serve(a, b) as (url_a, url_b)``."""

    @asynccontextmanager
    async def serve_all(*apps):
        if not apps:
            yield ()
            return
        async with served(apps[0], graceful_timeout_s=0.2) as url, serve_all(*apps[1:]) as urls:
            yield (url, *urls)

    return serve_all
