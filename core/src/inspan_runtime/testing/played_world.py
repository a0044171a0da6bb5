"""A world for tests of a driver: every order is answered well at once, unless the test says otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio

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
    Reply,
    Stage,
    StopHarness,
    StopSandbox,
    TakeSlot,
)
from inspan_core.events import ActivateRequested, CloseRequested, SeedRequested
from inspan_core.findings import CollectResult, Cookie, Outcome, Path
from inspan_core.session import Phase, Session
from inspan_runtime.driver import SessionDriver


def now(kind: Callable[..., Answer], **more: object) -> Callable[[Order], Answer]:
    """What makes the answer of a kind to an order, at the time of being asked."""
    return lambda order: kind(at=anyio.current_time(), order=order.number, **more)


CONFIRMED = now(answers.TerminationConfirmed, return_code=0, timed_out=False, error=None)
GOOD: dict[type, Callable[[Order], Answer]] = {
    CreateSandbox: now(answers.SandboxReady),
    ConnectSandbox: now(answers.SandboxReady),
    Install: now(answers.Installed),
    TakeSlot: now(answers.SlotGranted),
    Stage: now(answers.Staged),
    Launch: now(answers.ExecReturned, exit_code=0),
    AwaitReceipt: CONFIRMED,
    StopHarness: CONFIRMED,
    Collect: now(answers.Collected, result=CollectResult.OK, detail=None),
    Parse: now(answers.Parsed, outcome=Outcome.COMPLETED, detail=None),
    ReleaseExec: now(answers.ExecReleased),
    RemoveFiles: now(answers.FilesRemoved),
    Disconnect: now(answers.Disconnected),
    StopSandbox: now(answers.SandboxStopped),
}


class World:
    """Answers every order well at once; one whose type is held waits for `let_go`.

    Args:
        hold: Types of orders.

    Attributes:
        orders: The names of their types, in the order in which they came.
        cut_off: The same of those that were cut off.
        settled_phases: The session's phase after each transition.
        replace: What answers orders of a type in place of the good answer.
    """

    def __init__(self, *hold: type) -> None:
        self._gates = {kind: anyio.Event() for kind in hold}
        self.orders: list[str] = []
        self.cut_off: list[str] = []
        self.settled_phases: list[Phase] = []
        self.replace: dict[type, Callable[[Order], Answer]] = {}

    async def perform(self, order: Order) -> Answer:
        """See `inspan_runtime.driver_needs.Performs`, as for the others."""
        kind = type(order)
        self.orders.append(kind.__name__)
        if kind in self._gates:
            await self._gates[kind].wait()
        return self.replace.get(kind, GOOD[kind])(order)

    def cancelled(self, order: Order) -> Answer:
        """An installation's failure: what close cuts off."""
        self.cut_off.append(type(order).__name__)
        return answers.InstallFailed(
            at=anyio.current_time(), order=order.number, detail="cut off", retryable=True
        )

    def settled(self, session: Session) -> None:
        """Nothing is held for a session."""
        self.settled_phases.append(session.phase)

    def let_go(self, kind: type) -> None:
        """Answer the orders of a type that were held, and those to come."""
        self._gates[kind].set()


async def seed(driver: SessionDriver, *, owned: bool = False, digest: str = "s", **more: Any) -> Reply:
    """Ask for a seed, and wait; `more` goes to `SessionDriver.ask`, as for the others."""
    return await driver.ask(
        lambda waiter, at: SeedRequested(
            at=at, waiter=waiter, body_digest=digest, owned=owned, cookie=Cookie.ABSENT
        ),
        **more,
    )


async def activate(driver: SessionDriver, *, digest: str = "a", **more: Any) -> Reply:
    """Ask for an activation of five seconds, and wait."""
    return await driver.ask(
        lambda waiter, at: ActivateRequested(
            at=at,
            waiter=waiter,
            body_digest=digest,
            cookie=Cookie.SAME,
            path=Path.MATCHES,
            run_timeout_s=5.0,
        ),
        **more,
    )


async def close(driver: SessionDriver) -> Reply:
    """Ask for a close, and wait."""
    return await driver.ask(
        lambda waiter, at: CloseRequested(at=at, waiter=waiter, cookie=Cookie.SAME, same_episode=True)
    )


async def until(condition: Callable[[], object]) -> None:
    """Wait, ten seconds at most, until something holds.

    Raises:
        TimeoutError: It did not.
    """
    with anyio.fail_after(10):
        while not condition():
            await anyio.lowlevel.checkpoint()
