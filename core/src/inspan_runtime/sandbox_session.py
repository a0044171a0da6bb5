"""`SandboxSession`: one supervised run of a harness in a sandbox, for adapters of any server.

The same machine and driver as the Agent Server's, with the embedding's own staging and collection::

    session = SandboxSession(sandbox=sandbox, session_dir="/tmp/my-sessions/1", workdir="/app",
                             owns_sandbox=False, harness="my-harness")
    artifacts = await session.execute(stage_activation=stage, collect=collect, timeout=600, close_timeout=30)
    await session.close(timeout=30)
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Generic, NoReturn, TypeVar

import anyio
import attrs

from inspan_core.errors import (
    ArtifactError,
    EvidenceMissing,
    HarnessError,
    HarnessTerminationError,
    SandboxError,
    UsageError,
)
from inspan_core.events import ActivateRequested, CloseRequested, SeedRequested
from inspan_core.findings import CollectResult, Cookie, Outcome, Path
from inspan_core.harness import SandboxCommand
from inspan_core.receipts import CleanupReceipt, ProcessesReport
from inspan_core.sandbox import Sandbox
from inspan_core.session import Evidence, Session, Settings
from inspan_core.wire import SeedRequest
from inspan_runtime.driver import SessionDriver
from inspan_runtime.perform import Performer, Supervision
from inspan_runtime.room import Room

T = TypeVar("T")

DEFAULT_CLOSE_TIMEOUT_S = 30.0


@dataclass
class AgentSessionState:
    """What an adapter keeps of one agent session; subclass it.

    Attributes:
        request: The seed that opened the session.
    """

    request: SeedRequest


class SandboxSession(Generic[T]):
    """Launches, supervises, stops and cleans up one harness process in a sandbox.

    Args:
        sandbox: Connected; the session disconnects it, or stops it when it is owned.
        session_dir: Absolute folder inside for the session's own files, apart from `workdir`.
        workdir: Absolute folder of the task inside; the harness runs there.
        owns_sandbox: Whether close stops the sandbox (else it only disconnects).
        harness: A name for messages.
        supervision: Grace and clean-up budgets of the supervisor.

    Attributes:
        artifacts: What `collect` returned, also when `execute` raised; None before.
        capture_error: What `collect` raised, or None. It never replaces the run's own error.
    """

    def __init__(
        self,
        *,
        sandbox: Sandbox,
        session_dir: str,
        workdir: str,
        owns_sandbox: bool,
        harness: str,
        supervision: Supervision | None = None,
    ) -> None:
        self.sandbox = sandbox
        self.session_dir = session_dir
        self.workdir = workdir
        self.owns_sandbox = owns_sandbox
        self.harness = harness
        self.artifacts: T | None = None
        self.capture_error: Exception | None = None
        self._work = _CallableWork[T](self)
        self._room = Room(session_dir=session_dir, workdir=workdir)
        self._groups: list[anyio.abc.TaskGroup] = []
        self._driver = SessionDriver(
            Session(name=harness),
            Performer(self._work, self._room, spawn=self._spawn, supervision=supervision),
            spawn=self._spawn,
            timers=False,
        )
        self._opened = False

    @property
    def receipt(self) -> CleanupReceipt | None:
        """The termination receipt, or None while it is unknown."""
        return self._room.receipt

    @property
    def processes(self) -> ProcessesReport | None:
        """What the supervisor killed, preserved and left unfinished, or None."""
        return self._room.processes

    async def execute(
        self,
        *,
        stage_activation: Callable[[], Awaitable[SandboxCommand]],
        collect: Callable[[], Awaitable[T]],
        timeout: float,
        close_timeout: float,
    ) -> T:
        """Run the one activation: stage, launch, confirm termination, collect, release the exec.

        Cancelling this call closes the session as `close` does, in bounded steps; then the cancellation
        goes on.
        A non-zero exit of the harness is no error: its output can be useful.

        Args:
            stage_activation: Uploads the input and says what to run.
            collect: Copies the artifacts; called once, after the harness was proven stopped.
            timeout: Seconds that the harness may run.
            close_timeout: Seconds for each single step of stopping, collecting and releasing.

        Returns:
            What `collect` returned.

        Raises:
            HarnessTerminationError: The receipt is negative: nothing may be graded, nothing was collected.
            EvidenceMissing: Whether the harness stopped is unknown; `close` may still learn it.
            HarnessError: The harness was never launched, or the session was closed meanwhile.
            UsageError: The session has had its activation.
            Exception: Whatever `stage_activation` or, when the run itself was well, `collect` raised.
        """
        if self._work.stage_hook is not None:
            raise UsageError(f"the session of {self.harness} has had its one activation")
        self._work.stage_hook, self._work.collect_hook = stage_activation, collect
        async with self._tasks(close_timeout):
            try:
                await self._open()
                reply = await self._driver.ask(
                    lambda waiter, at: ActivateRequested(
                        at=at,
                        waiter=waiter,
                        body_digest="execute",
                        cookie=Cookie.SAME,
                        path=Path.MATCHES,
                        run_timeout_s=timeout,
                    )
                )
            except anyio.get_cancelled_exc_class():
                self._driver.deliver(self._close_request(None, anyio.current_time()))
                raise
        if reply.status == 200:
            return self.artifacts  # type: ignore[return-value]  # collected: the machine answers 200 only then
        detail = getattr(reply.body, "detail", "the run failed")
        if self._driver.session.answer is None:  # cut off by a close, or come after one
            raise HarnessError(f"{self.harness}: {detail}")
        self._raise_execution(detail)

    async def close(self, *, timeout: float = DEFAULT_CLOSE_TIMEOUT_S) -> None:
        """Stop the harness if it runs, collect once, release all. Joins what is in progress; repeatable.

        Args:
            timeout: Seconds for each single step.

        Raises:
            EvidenceMissing: The harness is not proven stopped; call again later.
            SandboxError: A step of the release failed; call again.
        """
        async with self._tasks(timeout):
            await self._open()
            reply = await self._driver.ask(self._close_request)
        if reply.status == 200:
            return
        detail = f"closing the session of {self.harness}: {getattr(reply.body, 'detail', 'failed')}"
        run = self._driver.session.run
        if run.launched and run.evidence is Evidence.NONE:
            raise EvidenceMissing(detail)
        raise SandboxError(detail)

    def _close_request(self, waiter: int | None, at: float) -> CloseRequested:
        return CloseRequested(at=at, waiter=waiter, cookie=Cookie.SAME, same_episode=True)

    async def _open(self) -> None:
        if self._opened:
            return
        self._opened = True
        await self._driver.ask(
            lambda waiter, at: SeedRequested(
                at=at, waiter=waiter, body_digest="session", owned=self.owns_sandbox, cookie=Cookie.ABSENT
            )
        )

    @asynccontextmanager
    async def _tasks(self, close_step_timeout_s: float) -> AsyncIterator[None]:
        settings = Settings(close_step_timeout_s=close_step_timeout_s)
        self._driver.session = attrs.evolve(self._driver.session, settings=settings)
        group = anyio.create_task_group()
        try:
            async with group:
                self._groups.append(group)
                yield
        finally:
            # Only now: orders that follow others start while the group waits for its tasks.
            self._groups.remove(group)

    def _spawn(self, task: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def shielded() -> None:
            # Orders end by their own budgets; the caller's cancellation must not cut a release short.
            with anyio.CancelScope(shield=True):
                await task()

        self._groups[-1].start_soon(shielded)

    def _raise_execution(self, detail: str) -> NoReturn:
        run = self._driver.session.run
        message = f"{self.harness}: {detail}"
        if run.evidence is Evidence.NEGATIVE:
            raise HarnessTerminationError(message)
        if run.launched and run.evidence is Evidence.NONE:
            raise EvidenceMissing(message)
        for error in (self._work.stage_error, self.capture_error):
            if error is not None:
                raise error
        complaint = "" if self._room.exec is None else self._room.exec.complaint
        raise HarnessError(f"{message} {complaint}".rstrip())


class _CallableWork(Generic[T]):
    """The steps of a `SandboxSession`: its sandbox is given, its hooks are two callables."""

    def __init__(self, session: SandboxSession[T]) -> None:
        self._session = session
        self.stage_hook: Callable[[], Awaitable[SandboxCommand]] | None = None
        self.collect_hook: Callable[[], Awaitable[T]] | None = None
        self.stage_error: Exception | None = None

    async def create(self, room: Room, key: str, *, timeout_s: float) -> Sandbox:
        return self._session.sandbox

    async def connect(self, room: Room, *, timeout_s: float) -> Sandbox:
        return self._session.sandbox

    async def reconnect(self, room: Room) -> Sandbox:
        return self._session.sandbox

    async def stop_sandbox(self, room: Room, key: str, *, timeout_s: float) -> None:
        await self._session.sandbox.stop()

    async def disconnect(self, room: Room) -> None:
        await self._session.sandbox.disconnect()

    async def install(self, room: Room) -> None:
        """The adapter installed the runtime before it made the session."""

    async def stage(self, room: Room, *, run_timeout_s: float) -> SandboxCommand:
        if self.stage_hook is None:
            raise UsageError("nothing to stage: execute was not called")
        try:
            return await self.stage_hook()
        except Exception as error:
            self.stage_error = error
            raise

    async def collect(self, room: Room) -> tuple[CollectResult, str | None]:
        if self.collect_hook is None:
            raise UsageError("nothing to collect: execute was not called")
        try:
            self._session.artifacts = await self.collect_hook()
        except Exception as error:
            self._session.capture_error = error
            if isinstance(error, ArtifactError | SandboxError | OSError):
                return CollectResult.FAILED, str(error)
            return CollectResult.ERROR, str(error)
        return CollectResult.OK, None

    async def parse(self, room: Room) -> tuple[Outcome, str | None]:
        timed_out = room.receipt is not None and room.receipt.timed_out
        return (Outcome.INCOMPLETE if timed_out else Outcome.COMPLETED), None
