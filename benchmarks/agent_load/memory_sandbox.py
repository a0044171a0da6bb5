"""A sandbox that is nothing but a dictionary, and a harness that does nothing: what is left is the server."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from inspan_core.errors import SandboxGone
from inspan_core.findings import Outcome
from inspan_core.harness import (
    ActivationContext,
    CollectContext,
    HarnessContext,
    HarnessSpec,
    ParsedActivation,
    ParseInput,
    SandboxCommand,
)
from inspan_core.hookspecs import hookimpl
from inspan_core.observations import AgentObservationBundle
from inspan_core.sandbox import Descriptor, ExecResult, FileContent, Sandbox, SandboxSpec
from inspan_runtime.testing.fake_commands import kind_of
from inspan_runtime.testing.faults import CallKind

RECEIPT = b'{"cleanup_confirmed": true, "return_code": 0, "error": null, "timed_out": false}'
RESPONSE = {
    "id": "resp_0", "created_at": 0, "model": "policy", "object": "response", "output": [],
    "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "status": "completed",
}  # fmt: skip
ENVIRONMENT = b"PATH=/usr/bin:/bin\0"
FACTS: dict[bool, bytes] = {}
ALIVE: dict[str, MemorySandbox] = {}


def facts_of_host(argv: tuple[str, ...]) -> bytes:
    """What a look at the sandbox prints: it is run once, on the host, and is the same for all sandboxes."""
    kind = "shells" in argv[-1]  # There is a longer look and a shorter one.
    if kind not in FACTS:
        FACTS[kind] = subprocess.run(argv, capture_output=True, timeout=30).stdout
    return FACTS[kind]


class MemorySandbox:
    """Answers the runtime's own commands at once; files are bytes by path."""

    __slots__ = ("files", "key")

    def __init__(self, key: str) -> None:
        self.key = key
        self.files: dict[str, bytes] = {}

    @property
    def descriptor(self) -> Descriptor:
        return {"provider": "memory", "sandbox_id": self.key}

    @property
    def sandbox_id(self) -> str:
        return self.key

    async def exec(
        self, argv: Sequence[str], *, timeout_s: float, env: Mapping[str, str] | None = None,
        cwd: str | None = None, stdin: bytes = b"", output_limit_bytes: int = 0,
    ) -> ExecResult:  # fmt: skip
        match kind_of(argv, stdin):
            case CallKind.LAUNCH:
                self.files[f"{argv[-1]}/cleanup.json"] = RECEIPT
                return ExecResult(exit_code=0)
            case CallKind.LOOK:
                return ExecResult(exit_code=0, stdout=b"receipt\n")
            case CallKind.REMOVE:
                self.files.clear()
        return ExecResult(exit_code=0, stdout=ENVIRONMENT if argv[0] == "env" else facts_of_host(tuple(argv)))

    async def upload(self, path: str, data: bytes, *, mode: int = 0o644, timeout_s: float = 60.0) -> None:
        self.files[path] = data

    async def download(
        self, path: str, *, limit_bytes: int, tail: bool = False, timeout_s: float = 60.0
    ) -> FileContent:
        data = self.files.get(path)
        if data is None:
            raise FileNotFoundError(path)
        return FileContent(data=data, size_bytes=len(data))

    async def is_alive(self) -> bool:
        return self.key in ALIVE

    async def disconnect(self) -> None:
        """Nothing is connected."""

    async def stop(self) -> None:
        ALIVE.pop(self.key, None)


class MemoryProvider:
    """One client of it; a server that was started again finds every sandbox still there."""

    __slots__ = ("_connects_to_any",)
    name = "memory"

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._connects_to_any = bool(options.get("connects_to_any"))

    async def create(self, spec: SandboxSpec, *, key: str, timeout_s: float = 60.0) -> Sandbox:
        return ALIVE.setdefault(key, MemorySandbox(key))

    async def connect(self, descriptor: Descriptor, *, timeout_s: float = 30.0) -> Sandbox:
        key = descriptor["sandbox_id"]
        if self._connects_to_any:
            return ALIVE.setdefault(key, MemorySandbox(key))
        if key not in ALIVE:
            raise SandboxGone(key)
        return ALIVE[key]

    async def stop(self, key: str, *, timeout_s: float = 30.0) -> None:
        ALIVE.pop(key, None)

    async def list(self, labels: Mapping[str, str]) -> list[Descriptor]:
        return [sandbox.descriptor for sandbox in ALIVE.values()]

    async def aclose(self) -> None:
        """Nothing is open."""


class NothingHarness:
    """Installs nothing, runs nothing, finds nothing."""

    @hookimpl
    def inspan_harness(self) -> HarnessSpec:
        return HarnessSpec(
            name="nothing", version="1", model_api="responses", level=2,
            request_fields={"input": "applied", "metadata": "ignored"},
        )  # fmt: skip

    @hookimpl
    async def inspan_install(self, context: HarnessContext) -> Mapping[str, Any]:
        return {"python": "/usr/bin/python3"}

    @hookimpl
    async def inspan_stage(self, context: ActivationContext) -> SandboxCommand:
        return SandboxCommand(argv=["/bin/true"], python="/usr/bin/python3")

    @hookimpl
    async def inspan_collect(self, context: CollectContext) -> None:
        """There is nothing to copy."""

    @hookimpl
    def inspan_parse(self, run: ParseInput) -> ParsedActivation:
        return ParsedActivation(
            outcome=Outcome.COMPLETED,
            response=RESPONSE,
            observations=AgentObservationBundle(source="nothing"),
        )

    @hookimpl
    def inspan_sandbox_providers(self) -> Mapping[str, Any]:
        return {"memory": MemoryProvider}
