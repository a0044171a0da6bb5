"""Everything outside a fuzzed server: sandboxes, what runs in them, time, faults, and who is connected.

It belongs to nobody's process, so it lives on when a server is killed, and it counts by itself what a server
did to it: the checks of a fuzz run read this page's log, never the server's own state.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import anyio
from attrs import define, frozen

from inspan_core.sandbox import SandboxSpec
from inspan_runtime.testing.clock import VirtualClock
from inspan_runtime.testing.fake_commands import Answerer
from inspan_runtime.testing.fake_machine import FakeMachine
from inspan_runtime.testing.fake_supervisor import FakeSupervisor, HarnessPlan, Program
from inspan_runtime.testing.faults import CallKind, Fault


@frozen
class Broken:
    """A rule that was broken: its name, and what happened."""

    rule: str
    detail: str


@define
class Call:
    """One call of a server into the world.

    Attributes:
        kind: What was called.
        about: On what.
        fault: What goes wrong with it, or None.
    """

    kind: CallKind
    about: str
    fault: Fault | None


def silent_program(_: object) -> Iterable[tuple[float, str, bytes]]:
    """A harness that writes nothing."""
    return ()


class FakeWorld:
    """See the top of this page.

    Args:
        faults: What will go wrong.
        plan: How every harness behaves.
        program: What every harness writes.
        latency_s: How long a call travels; 0: no time passes, only others may come first.
        answer: Answers a plugin's own commands.

    Attributes:
        clock: The time.
        generation: Which server lives: calls of an earlier one come from the dead and do nothing.
        machines: Every sandbox there ever was, by its id.
        clients: The provider clients that are open.
        connections: The connections that are open.
        calls: How many calls were made.
        hits: The calls that a fault struck.
        log: What happened: time and a line.
        broken: The rules that were broken.
        is_calm: Whether faults are over.
        has_closed_doors: Whether nobody need come any more.
    """

    def __init__(
        self,
        *,
        faults: Sequence[Fault] = (),
        plan: HarnessPlan | None = None,
        program: Program = silent_program,
        latency_s: float = 0.01,
        answer: Answerer | None = None,
    ) -> None:
        self.clock = VirtualClock()
        self.generation = 0
        self.machines: dict[str, FakeMachine] = {}
        self.clients: set[object] = set()
        self.connections: set[object] = set()
        self.calls = 0
        self.hits: list[Call] = []
        self.log: list[tuple[float, str]] = []
        self.broken: list[Broken] = []
        self.is_calm = False
        self.plan = plan if plan is not None else HarnessPlan()
        self.program, self.latency_s, self.answer = program, latency_s, answer
        self.launches: Counter[str] = Counter()
        self.stops: list[str] = []
        self._faults = {(fault.call, fault.nth): fault for fault in reversed(faults)}
        self._seen: Counter[CallKind] = Counter()
        self._numbers = itertools.count(1)
        self._called: anyio.Event | None = None
        self._at_calls: list[tuple[int, Callable[[], None]]] = []
        self.has_closed_doors = False

    def say(self, text: str) -> None:
        """Write a line of the log."""
        self.log.append((self.clock.now, text))

    def breaks(self, rule: str, detail: str) -> None:
        """Note that a rule was broken."""
        self.broken.append(Broken(rule, detail))
        self.say(f"!! {rule}: {detail}")

    def kill_server(self) -> None:
        """The server's process is gone: its connections break, what it started in sandboxes lives on."""
        self.generation += 1
        self.clients.clear()
        self.connections.clear()
        self.say("the server is killed")

    def forget_waiters(self) -> None:
        """Whoever waited for the world was of a server that is dead."""
        self._called = None
        self._at_calls.clear()
        for machine in self.machines.values():
            machine.forget_waiters()

    def begin(self, kind: CallKind, about: str) -> Call:
        """A server makes a call."""
        self.calls += 1
        fault = None if self.is_calm else self._faults.get((kind, self._seen[kind]))
        self._seen[kind] += 1
        self.say(f"{kind.value} {about}".rstrip() + (f"  <- {fault.effective.value}" if fault else ""))
        self._wake()
        call = Call(kind, about, fault)
        if fault is not None:
            self.hits.append(call)
        return call

    def _wake(self) -> None:
        if self._called is not None:
            self._called.set()
            self._called = None
        for at_call, then in list(self._at_calls):
            if self.calls >= at_call:
                self._at_calls.remove((at_call, then))
                then()

    def when_called(self, count: int, then: Callable[[], None]) -> None:
        """Have something done as soon as so many calls were made."""
        self._at_calls.append((count, then))
        self._wake()

    def close_doors(self) -> None:
        """Let whoever waits for a number of calls wait no more."""
        self.has_closed_doors = True
        self._wake()

    async def until_calls(self, count: int) -> None:
        """Wait until so many calls were made."""
        while self.calls < count and not self.has_closed_doors:
            if self._called is None:
                self._called = anyio.Event()
            await self._called.wait()

    def supply(self, sandbox_id: str, spec: SandboxSpec) -> FakeMachine:
        """Make a sandbox that is somebody else's."""
        machine = FakeMachine(sandbox_id=sandbox_id, key=None, spec=spec)
        self._add(machine)
        return machine

    def create(self, key: str, spec: SandboxSpec) -> FakeMachine:
        """Make the one sandbox of a key, or find it."""
        for machine in self.machines.values():
            if machine.key == key and machine.is_alive:
                return machine
        machine = FakeMachine(sandbox_id=f"fake-{next(self._numbers)}", key=key, spec=spec)
        self._add(machine)
        if spec.ttl_s is not None:
            self.clock.later(spec.ttl_s, machine.end)
        return machine

    def _add(self, machine: FakeMachine) -> None:
        machine.make_folder(machine.spec.workdir)
        self.machines[machine.sandbox_id] = machine

    def alive(self, key: str) -> list[FakeMachine]:
        """The sandboxes that live by a key."""
        return [each for each in self.machines.values() if each.key == key and each.is_alive]

    def stop(self, machine: FakeMachine) -> None:
        """A server has a sandbox stopped."""
        if machine.key is None:
            self.breaks("a borrowed sandbox was stopped", machine.sandbox_id)
        self.stops.append(machine.sandbox_id)
        machine.end()

    def launch(self, machine: FakeMachine, folder: str) -> FakeSupervisor:
        """A server starts a supervisor."""
        self.launches[folder] += 1
        if self.launches[folder] > 1:
            self.breaks("a run was launched twice", f"{self.launches[folder]} launches in {folder}")
        return FakeSupervisor(
            machine,
            folder,
            clock=self.clock,
            program=self.program,
            plan=self.plan,
            on_write=self._harness_wrote,
        )

    def _harness_wrote(self, supervisor: FakeSupervisor) -> None:
        receipt = supervisor.machine.files.get(supervisor.path("cleanup.json"))
        if receipt is not None and b'"cleanup_confirmed": true' in receipt.data:
            self.breaks("a harness wrote after its confirmed receipt", supervisor.folder)
