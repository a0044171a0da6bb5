"""One coroutine for each type of order: the only place where a session touches the world.

Every coroutine ends in exactly one answer. Errors become answers here; budgets and cancellation are the
driver's.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import anyio
from attrs import asdict, frozen

from inspan_core import answers
from inspan_core.answers import Answer
from inspan_core.effects import (
    AwaitReceipt,
    Collect,
    ConnectSandbox,
    CreateSandbox,
    Disconnect,
    Install,
    Launch,
    Order,
    Parse,
    ReleaseExec,
    RemoveFiles,
    Stage,
    StopHarness,
    StopSandbox,
    TakeSlot,
)
from inspan_core.errors import (
    EvidenceMissing,
    ExecTimeout,
    HarnessTerminationError,
    InspanError,
    MountConflict,
    ProviderUnavailable,
    ReachUnavailable,
    RequestRefused,
    SandboxConnectError,
    SandboxCreateError,
    SandboxError,
    SandboxGone,
    UnsupportedTarget,
    UsageError,
)
from inspan_core.findings import CollectResult
from inspan_core.receipts import CleanupReceipt
from inspan_core.sandbox import Sandbox
from inspan_core.session import Session
from inspan_runtime.pauses import FIRST_RETRY_S, LONGEST_RETRY_S, spread
from inspan_runtime.room import ExecHandle, Room, Spawn, Work
from inspan_runtime.supervisor_client import (
    NeverLaunched,
    await_receipt,
    read_processes,
    read_receipt,
    remove_session_directory,
    stop_and_confirm_cleanup,
    supervised_launch_command,
    supervision_timeouts,
    write_command,
)
from inspan_runtime.times import now

NOT_RETRYABLE = (
    UnsupportedTarget,
    RequestRefused,
    MountConflict,
    ReachUnavailable,
    SandboxConnectError,
    UsageError,
)
"""What the same request meets again: answered 422, so that nobody seeds a new sandbox for it."""

NOTHING_CREATED = (SandboxCreateError, ProviderUnavailable, *NOT_RETRYABLE)
"""By these a provider says that it created nothing, or that nothing of it is left."""

NEEDS_SANDBOX = (Install, Stage, Launch, AwaitReceipt, StopHarness, Collect, RemoveFiles)
"""Orders that a restarted server may meet before it has a connection again."""

RECONNECT_SHARE = 0.5
"""How much of an order's budget a restarted server may spend on reaching the sandbox again."""

RECEIPT_POLL_FIRST_S = 1.0
RECEIPT_POLL_LAST_S = 10.0
CREATE_MARGIN_S = 5.0
"""A provider gets a little less than the order's budget, so that its own error comes before ours."""


class Slots(Protocol):
    """Concurrency slots, shared by the sessions of a server."""

    async def take(self, holder: object) -> None:
        """Wait for a slot."""
        ...

    def give_back(self, holder: object) -> None:
        """Return a slot that was taken."""
        ...


class Unlimited:
    """A slot is always free."""

    async def take(self, holder: object) -> None:
        """Take one, at once."""

    def give_back(self, holder: object) -> None:
        """Give it back."""


@frozen(kw_only=True)
class Supervision:
    """How a harness is stopped: seconds of grace after SIGTERM, and of clean-up after that."""

    grace_s: float = 5.0
    cleanup_timeout_s: float = 15.0
    drain: str = "seed"


class Performer:
    """Carries out the orders of one session.

    Args:
        work: The embedding's own steps.
        room: What the session holds in the world.
        spawn: Starts a task that outlives the order: the supervisor's exec.
        slots: Where concurrency slots come from.
        supervision: Grace and clean-up budgets.
    """

    __slots__ = ("_holds_slot", "_reconnecting", "_slots", "_spawn", "_supervision", "_work", "room")

    def __init__(
        self,
        work: Work,
        room: Room,
        *,
        spawn: Spawn,
        slots: Slots | None = None,
        supervision: Supervision | None = None,
    ) -> None:
        self._work = work
        self.room = room
        self._spawn = spawn
        self._slots = slots if slots is not None else Unlimited()
        self._supervision = supervision if supervision is not None else Supervision()
        self._holds_slot = False
        self._reconnecting: anyio.Lock | None = None

    async def perform(self, order: Order) -> Answer:
        """Carry out the order; errors become the answers that the machine knows."""
        number = order.number
        try:
            if self.room.sandbox is None and isinstance(order, NEEDS_SANDBOX):
                if self._reconnecting is None:
                    self._reconnecting = anyio.Lock()
                # An order that takes the place of another waits for the end of its reconnecting.
                async with self._reconnecting:
                    if self.room.sandbox is None:
                        self.room.sandbox = await self._reconnected(order)
                        self.room.reconnected()
            return await PERFORM[type(order)](self, order)
        except SandboxGone:
            if isinstance(order, ConnectSandbox | CreateSandbox):
                return _unavailable(order, "the sandbox no longer exists", retryable=True)
            return answers.SandboxGone(at=now(), order=number)
        except Exception as error:  # the fence of effects: a failed order is an answer
            return _failure(order, error)

    async def _reconnected(self, order: Order) -> Sandbox:
        """The sandbox after a restart. What a run has become does not depend on one failed connection."""
        budget_s = order.timeout_s if order.timeout_s is not None else 3600.0
        until, pause_s = now() + budget_s * RECONNECT_SHARE, FIRST_RETRY_S
        while True:
            try:
                return await self._work.reconnect(self.room)
            except SandboxGone:
                raise
            except SandboxError:
                if now() + pause_s > until:
                    raise
            await anyio.sleep(spread(pause_s, self.room.session_dir))
            pause_s = min(pause_s * 2, LONGEST_RETRY_S)

    def cancelled(self, order: Order) -> Answer:
        """The answer of an order that close cut off."""
        return _failure(order, InspanError("it was cut off by close"))

    def settled(self, session: Session) -> None:
        """Give the slot back as soon as the session does not need it."""
        if self._holds_slot and not session.holds_slot:
            self._holds_slot = False
            self._slots.give_back(self)

    async def _create(self, order: CreateSandbox) -> Answer:
        budget = order.timeout_s if order.timeout_s is not None else 3600.0
        self.room.sandbox = await self._work.create(
            self.room, order.key, timeout_s=max(budget - CREATE_MARGIN_S, budget / 2)
        )
        return answers.SandboxReady(at=now(), order=order.number)

    async def _connect(self, order: ConnectSandbox) -> Answer:
        self.room.sandbox = await self._work.connect(self.room, timeout_s=order.timeout_s or 3600.0)
        return answers.SandboxReady(at=now(), order=order.number)

    async def _install(self, order: Install) -> Answer:
        await self._work.install(self.room)
        return answers.Installed(at=now(), order=order.number)

    async def _take_slot(self, order: TakeSlot) -> Answer:
        await self._slots.take(self)
        self._holds_slot = True
        return answers.SlotGranted(at=now(), order=order.number)

    async def _stage(self, order: Stage) -> Answer:
        room, supervision = self.room, self._supervision
        command = await self._work.stage(room, run_timeout_s=order.run_timeout_s)
        await write_command(
            room.connected,
            room.session_dir,
            command,
            cwd=room.workdir,
            timeout_s=order.run_timeout_s,
            grace_s=supervision.grace_s,
            cleanup_timeout_s=supervision.cleanup_timeout_s,
            drain=supervision.drain,
        )
        room.command = command
        return answers.Staged(at=now(), order=order.number)

    async def _launch(self, order: Launch) -> Answer:
        room, supervision = self.room, self._supervision
        if room.command is None:
            raise InspanError("a launch was ordered before anything was staged")
        timeouts = supervision_timeouts(
            order.run_timeout_s, grace_s=supervision.grace_s, cleanup_s=supervision.cleanup_timeout_s
        )
        handle = room.exec = ExecHandle(
            room.connected,
            supervised_launch_command(room.command.python, room.session_dir),
            timeout_s=timeouts.exec_s,
        )
        self._spawn(handle.run)
        receipt = await self._exec_or_receipt(handle)
        if receipt is not None:
            return self._evidence(order, receipt)
        at = now()
        if handle.error is None or isinstance(handle.error, ExecTimeout):
            exit_code = None if handle.result is None else handle.result.exit_code
            return answers.ExecReturned(at=at, order=order.number, exit_code=exit_code)
        if isinstance(handle.error, SandboxGone):
            raise handle.error
        return answers.ExecLost(at=at, order=order.number, detail=describe(handle.error))

    async def _exec_or_receipt(self, handle: ExecHandle) -> CleanupReceipt | None:
        # A child may hold the exec's output open on some providers: then the receipt says that it is over.
        pause_s = RECEIPT_POLL_FIRST_S
        while True:
            with anyio.move_on_after(spread(pause_s, self.room.session_dir)):
                await handle.ended.wait()
                return None
            pause_s = min(pause_s * 1.5, RECEIPT_POLL_LAST_S)
            try:
                receipt = await read_receipt(self.room.connected, self.room.session_dir)
            except (SandboxError, EvidenceMissing):
                continue  # a failed look is not a failed run
            if receipt is not None:
                return receipt

    async def _await_receipt(self, order: AwaitReceipt) -> Answer:
        room = self.room
        budget = order.timeout_s if order.timeout_s is not None else 3600.0
        over = room.exec is not None and room.exec.ended.is_set() and room.exec.error is None
        found = await await_receipt(
            room.connected, room.session_dir, timeout_s=budget * 0.9, launch_over=over
        )
        return self._evidence(order, found)

    async def _stop_harness(self, order: StopHarness) -> Answer:
        budget = order.timeout_s if order.timeout_s is not None else 3600.0
        room = self.room
        try:
            found = await stop_and_confirm_cleanup(room.connected, room.session_dir, timeout_s=budget * 0.9)
        except HarnessTerminationError as error:
            room.receipt = error.receipt
            raise
        return self._evidence(order, found)

    def _evidence(self, order: Order, found: CleanupReceipt | NeverLaunched) -> Answer:
        at, number = now(), order.number
        if isinstance(found, NeverLaunched):
            return answers.NeverLaunched(at=at, order=number)
        self.room.receipt = found
        self.room.keep("receipt", lambda: json.dumps(asdict(found)).encode())
        if not found.cleanup_confirmed:
            return answers.TerminationRefuted(at=at, order=number, error=found.error)
        return answers.TerminationConfirmed(
            at=at,
            order=number,
            return_code=found.return_code,
            timed_out=found.timed_out,
            error=found.error,
        )

    async def _collect(self, order: Collect) -> Answer:
        room = self.room
        room.processes = await read_processes(room.connected, room.session_dir)
        if (report := room.processes) is not None:
            room.keep("processes", lambda: json.dumps(report.to_json()).encode())
        result, detail = await self._work.collect(room)
        return answers.Collected(at=now(), order=order.number, result=result, detail=detail)

    async def _parse(self, order: Parse) -> Answer:
        outcome, detail = await self._work.parse(self.room)
        return answers.Parsed(at=now(), order=order.number, outcome=outcome, detail=detail)

    async def _release_exec(self, order: ReleaseExec) -> Answer:
        if self.room.exec is not None:
            await self.room.exec.release()
        return answers.ExecReleased(at=now(), order=order.number)

    async def _remove_files(self, order: RemoveFiles) -> Answer:
        room = self.room
        # An exec that returned cannot launch any more; one that was lost may still come.
        surely_over = room.exec is None or room.exec.result is not None
        await remove_session_directory(room.connected, room.session_dir, keep_fence=not surely_over)
        return answers.FilesRemoved(at=now(), order=order.number)

    async def _disconnect(self, order: Disconnect) -> Answer:
        await self._work.disconnect(self.room)
        self.room.sandbox = None
        return answers.Disconnected(at=now(), order=order.number)

    async def _stop_sandbox(self, order: StopSandbox) -> Answer:
        budget = order.timeout_s if order.timeout_s is not None else 3600.0
        await self._work.stop_sandbox(self.room, order.key, timeout_s=budget * 0.9)
        self.room.sandbox = None
        return answers.SandboxStopped(at=now(), order=order.number)


PERFORM: dict[type, Callable[[Performer, Any], Awaitable[Answer]]] = {
    CreateSandbox: Performer._create,
    ConnectSandbox: Performer._connect,
    Install: Performer._install,
    TakeSlot: Performer._take_slot,
    Stage: Performer._stage,
    Launch: Performer._launch,
    AwaitReceipt: Performer._await_receipt,
    StopHarness: Performer._stop_harness,
    Collect: Performer._collect,
    Parse: Performer._parse,
    ReleaseExec: Performer._release_exec,
    RemoveFiles: Performer._remove_files,
    Disconnect: Performer._disconnect,
    StopSandbox: Performer._stop_sandbox,
}
"""`CancelPending` is the driver's own: it knows the orders in flight."""


def describe(error: BaseException) -> str:
    """The error in one bounded line."""
    text = str(error).strip() or type(error).__name__
    return text[:2000]


def _unavailable(order: Order, detail: str, *, retryable: bool) -> Answer:
    return answers.SandboxUnavailable(at=now(), order=order.number, detail=detail, retryable=retryable)


def _failure(order: Order, error: Exception) -> Answer:
    at, number, detail = now(), order.number, describe(error)
    retryable = not isinstance(error, NOT_RETRYABLE)
    match order:
        case CreateSandbox() if not isinstance(error, NOTHING_CREATED):
            # Whether a sandbox came to be is unknown: the machine has it stopped by its key.
            return answers.StepFailed(at=at, order=number, detail=detail)
        case CreateSandbox() | ConnectSandbox():
            return _unavailable(order, detail, retryable=retryable)
        case Install():
            return answers.InstallFailed(at=at, order=number, detail=detail, retryable=retryable)
        case Stage():
            return answers.StageFailed(at=at, order=number, detail=detail, retryable=retryable)
        case Launch():
            return answers.ExecLost(at=at, order=number, detail=detail)
        case AwaitReceipt() | StopHarness() if isinstance(error, HarnessTerminationError):
            return answers.TerminationRefuted(at=at, order=number, error=detail)
        case AwaitReceipt() | StopHarness() if isinstance(error, EvidenceMissing | SandboxError):
            return answers.EvidenceMissing(at=at, order=number, detail=detail)
        case Collect():
            return answers.Collected(at=at, order=number, result=CollectResult.FAILED, detail=detail)
        case _:
            return answers.StepFailed(at=at, order=number, detail=detail)
