"""What one session holds in the world: its sandbox, its exec, its receipt. The machine knows facts only."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Protocol

import anyio
from attrs import define

from inspan_core.errors import InspanError
from inspan_core.findings import CollectResult, Outcome
from inspan_core.harness import SandboxCommand
from inspan_core.receipts import CleanupReceipt, ProcessesReport
from inspan_core.sandbox import ExecResult, Sandbox

Spawn = Callable[[Callable[[], Coroutine[Any, Any, None]]], None]
"""Starts a coroutine function in a task that outlives whoever asked."""


class Keep(Protocol):
    """Keeps a content of the session durably by its name, or removes it with None."""

    def __call__(self, name: str, pack: Callable[[], bytes] | None, *, secret: bool = False) -> None:
        """Keep what `pack` returns, which is called at once or, where nothing is kept, never.

        Args:
            secret: Puts it apart from everything that is no secret.
        """
        ...


def keep_nothing(name: str, pack: Callable[[], bytes] | None, *, secret: bool = False) -> None:
    """The session ends with the process."""


LAUNCH_OUTPUT_LIMIT_BYTES = 16 * 1024


class ExecHandle:
    """The provider exec that runs the supervisor, in a task of its own until it is released.

    Letting go of it may kill the supervisor (some providers kill the exec's whole process group), so it is
    kept while anything about the run's end is unknown.

    Attributes:
        ended: Set when the exec is over.
        result: How it ended, or None.
        error: What broke it, or None.
    """

    def __init__(self, sandbox: Sandbox, argv: list[str], *, timeout_s: float) -> None:
        self._sandbox = sandbox
        self._argv = argv
        self._timeout_s = timeout_s
        self._scope = anyio.CancelScope()
        self.ended = anyio.Event()
        self.result: ExecResult | None = None
        self.error: Exception | None = None

    async def run(self) -> None:
        """Run the exec to its end or its release; raises nothing."""
        try:
            with self._scope:
                self.result = await self._sandbox.exec(
                    self._argv, timeout_s=self._timeout_s, output_limit_bytes=LAUNCH_OUTPUT_LIMIT_BYTES
                )
        except Exception as error:  # the fence: a provider's failure becomes the exec's end
            self.error = error
        finally:
            self.ended.set()

    async def release(self) -> None:
        """Let go of the exec and wait for its end."""
        self._scope.cancel()
        await self.ended.wait()

    @property
    def complaint(self) -> str:
        """What the launch printed: empty unless the supervisor could not be started."""
        if self.result is None:
            return ""
        text = (self.result.stderr or self.result.stdout).decode("utf-8", "replace").strip()
        return text[-2000:]


@define(kw_only=True)
class Room:
    """The world side of one session.

    Attributes:
        session_dir: Absolute folder inside the sandbox for the session's own files.
        workdir: Absolute folder of the task inside.
        sandbox: The connected sandbox, or None.
        command: What staging decided to run, or None.
        exec: The supervisor's exec, or None.
        receipt: The receipt as it was read, or None.
        processes: What the supervisor reported of processes, or None.
        keep: Keeps what must outlive the server.
        reconnected: Called when a restarted server has reached the sandbox again.
    """

    session_dir: str
    workdir: str
    sandbox: Sandbox | None = None
    command: SandboxCommand | None = None
    exec: ExecHandle | None = None
    receipt: CleanupReceipt | None = None
    processes: ProcessesReport | None = None
    keep: Keep = keep_nothing
    reconnected: Callable[[], None] = lambda: None

    @property
    def connected(self) -> Sandbox:
        """The sandbox.

        Raises:
            InspanError: There is none, which the machine's order of steps excludes.
        """
        if self.sandbox is None:
            raise InspanError(f"session folder {self.session_dir!r} has no connected sandbox")
        return self.sandbox


class Work(Protocol):
    """What differs between embeddings: where the sandbox comes from, and the harness's own steps.

    Each may raise; `inspan_runtime.perform` turns errors into answers.
    """

    async def create(self, room: Room, key: str, *, timeout_s: float) -> Sandbox:
        """Create our own sandbox under `key`."""
        ...

    async def connect(self, room: Room, *, timeout_s: float) -> Sandbox:
        """Connect to the supplied sandbox."""
        ...

    async def stop_sandbox(self, room: Room, key: str, *, timeout_s: float) -> None:
        """Have our own sandbox stopped; none by that key is success."""
        ...

    async def reconnect(self, room: Room) -> Sandbox:
        """Reach the session's sandbox again after the server was restarted."""
        ...

    async def disconnect(self, room: Room) -> None:
        """Drop the connection to the supplied sandbox, and the provider's client."""
        ...

    async def install(self, room: Room) -> None:
        """Make the harness runtime ready."""
        ...

    async def stage(self, room: Room, *, run_timeout_s: float) -> SandboxCommand:
        """Upload the activation's input and say what to run."""
        ...

    async def collect(self, room: Room) -> tuple[CollectResult, str | None]:
        """Copy the artifacts; the result and what was wrong with it."""
        ...

    async def parse(self, room: Room) -> tuple[Outcome, str | None]:
        """Parse the artifacts; the outcome and, for an error, its text."""
        ...
