"""Sandboxes in memory whose calls a test can hold back, let fail, and count; and a harness for them."""

from __future__ import annotations

import json
import re
import shlex
import threading
from collections import Counter

import anyio

from inspan_core.errors import SandboxConnectError, SandboxGone
from inspan_core.findings import Outcome
from inspan_core.harness import HarnessSpec, ParsedActivation, SandboxCommand
from inspan_core.hookspecs import hookimpl
from inspan_core.observations import AgentObservationBundle
from inspan_core.sandbox import ExecResult, FileContent
from inspan_runtime.testing.fake_commands import PREFLIGHT, kind_of
from inspan_runtime.testing.faults import CallKind

BOUND_S = 20.0
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
        return ExecResult(exit_code=0, stdout=b"")

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
