"""How a server's call reaches a fake world: it travels, suffers its fault, has its effect, and travels back.

Every call is an interleaving point before its effect and after it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NoReturn, TypeVar

import anyio
import anyio.lowlevel

from inspan_core.errors import SandboxCreateError, SandboxGone, SandboxTransportError
from inspan_runtime.testing.fake_machine import FakeMachine
from inspan_runtime.testing.fake_world import FakeWorld
from inspan_runtime.testing.faults import CallKind, FaultKind

T = TypeVar("T")


class Caller:
    """Whoever calls into the world on behalf of one server."""

    def __init__(self, world: FakeWorld, generation: int) -> None:
        self.world = world
        self.generation = generation

    def _alive(self) -> None:
        """Called before each effect: what a killed server still does reaches nobody."""
        if self.generation != self.world.generation:
            raise SandboxTransportError("this server was killed")

    async def _call(
        self,
        kind: CallKind,
        about: str,
        effect: Callable[[], Awaitable[T]],
        *,
        machine: FakeMachine | None = None,
        late: Callable[[], None] | None = None,
        half: Callable[[], object] | None = None,
    ) -> T:
        """Travel, suffer the planned fault, have the effect.

        Args:
            late: The effect, for when nobody waits for it any more.
            half: A part of the effect.
        """
        self._alive()
        fault = self.world.begin(kind, about).fault
        await self._travel(self.world.latency_s)
        kind_of_fault, delay_s = (None, 0.0) if fault is None else (fault.effective, fault.delay_s)
        if kind_of_fault is FaultKind.GONE and machine is not None:
            machine.end()
        if kind_of_fault is FaultKind.HANG:
            await self._hang(machine)
        if kind_of_fault in (FaultKind.SLOW, FaultKind.ERROR_BEFORE):
            await self._travel(delay_s)
        if kind_of_fault is FaultKind.ERROR_BEFORE:
            self._fail(about)
        if kind_of_fault is FaultKind.REFUSED:
            raise SandboxCreateError(f"no room for {about}")
        if machine is not None and not machine.is_alive:
            raise SandboxGone(f"sandbox {machine.sandbox_id} no longer exists")
        if kind_of_fault is FaultKind.ERROR_THEN_EFFECT and late is not None:
            self.world.clock.later(delay_s, late)
            self._fail(about)
        if kind_of_fault is FaultKind.PARTIAL and half is not None:
            half()
            self._fail(about)
        result = await effect()
        if kind_of_fault is FaultKind.ERROR_AFTER:
            await self._travel(delay_s)
            self._fail(about)
        if kind_of_fault is FaultKind.LOST_ANSWER:
            await self._hang(machine)
        await self._travel(0.0)
        return result

    async def _travel(self, seconds: float) -> None:
        if seconds:
            await anyio.sleep(seconds)
        else:
            await anyio.lowlevel.checkpoint()
        self._alive()

    async def _hang(self, machine: FakeMachine | None) -> NoReturn:
        """Until it is cancelled, or the sandbox ends."""
        if machine is None:
            await anyio.sleep_forever()
        else:
            while machine.is_alive:
                await machine.changed()
        raise SandboxGone("the sandbox ended while the call hung")

    def _fail(self, about: str) -> NoReturn:
        raise SandboxTransportError(f"the connection broke: {about}")
