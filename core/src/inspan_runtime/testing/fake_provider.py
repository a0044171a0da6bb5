"""A sandbox provider in memory, verified by the same checks as the real ones, with faults on demand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import anyio

from inspan_core.errors import ConfigError, MountConflict, SandboxConnectError, SandboxGone
from inspan_core.sandbox import Descriptor, Sandbox, SandboxSpec
from inspan_runtime.testing.fake_calls import Caller
from inspan_runtime.testing.fake_machine import FakeMachine
from inspan_runtime.testing.fake_sandbox import KIND, FakeSandbox
from inspan_runtime.testing.fake_world import FakeWorld
from inspan_runtime.testing.faults import CallKind


class FakeProvider(Caller):
    """A client of the fake provider; implements `inspan_core.sandbox.SandboxProvider`.

    Args:
        world: Where its sandboxes are.
        generation: Whose client it is; that of the server that lives by default.
    """

    def __init__(self, world: FakeWorld, generation: int | None = None) -> None:
        super().__init__(world, world.generation if generation is None else generation)
        self._opened: list[FakeSandbox] = []
        if self.generation == world.generation:
            world.clients.add(self)

    capabilities: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """The kind."""
        return KIND

    def _connection(self, machine: FakeMachine) -> Sandbox:
        connection = FakeSandbox(self.world, machine, self.generation)
        self._opened.append(connection)
        return connection

    async def create(self, spec: SandboxSpec, *, key: str, timeout_s: float = 60.0) -> Sandbox:
        """Make the one sandbox of a key."""
        _check_spec(spec)
        made: list[FakeMachine] = []

        async def effect() -> FakeMachine:
            made.append(self.world.create(key, spec))
            return made[0]

        try:
            return self._connection(await self._call(CallKind.CREATE, key, effect))
        except anyio.get_cancelled_exc_class():
            if self.generation == self.world.generation:
                for machine in made:
                    machine.end()  # A create that is cancelled leaves nothing.
            raise

    async def connect(self, descriptor: Descriptor, *, timeout_s: float = 30.0) -> Sandbox:
        """Reach a sandbox."""
        if descriptor.get("provider") != KIND or not isinstance(descriptor.get("sandbox_id"), str):
            raise SandboxConnectError(f"{dict(descriptor)}: no descriptor of the fake provider")
        machine = self.world.machines.get(descriptor["sandbox_id"])
        if machine is None:
            raise SandboxGone(f"sandbox {descriptor['sandbox_id']} never was")

        async def effect() -> None:
            """There is nothing to do but to be there."""

        await self._call(CallKind.CONNECT, machine.sandbox_id, effect, machine=machine)
        return self._connection(machine)

    async def stop(self, key: str, *, timeout_s: float = 30.0) -> None:
        """End the sandbox of a key; none is success."""

        async def effect() -> None:
            for machine in self.world.alive(key):
                self.world.stop(machine)

        await self._call(CallKind.STOP, key, effect)

    async def list(self, labels: Mapping[str, str]) -> list[Descriptor]:
        """The sandboxes that were made here and carry all labels."""
        await self._travel(0.0)
        return [
            {"provider": KIND, "sandbox_id": machine.sandbox_id}
            for machine in self.world.machines.values()
            if machine.is_alive and machine.key is not None and labels.items() <= machine.spec.labels.items()
        ]

    async def aclose(self) -> None:
        """Drop this client and its connections."""

        async def effect() -> None:
            self.world.clients.discard(self)
            self.world.connections.difference_update(self._opened)

        await self._call(CallKind.CLOSE_CLIENT, "", effect)


def _check_spec(spec: SandboxSpec) -> None:
    if not spec.workdir.startswith("/"):
        raise ConfigError(f"workdir {spec.workdir!r}: expected an absolute path")
    if spec.ttl_s is not None and spec.ttl_s <= 0:
        raise ConfigError(f"ttl_s {spec.ttl_s}: expected seconds above 0")
    if any("127.0.0.1" not in url for url in spec.reach):
        raise ConfigError(f"reach {spec.reach}: expected URLs of the loopback")
    if not (spec.cpu is None and spec.memory_mib is None and spec.pids is None):
        raise ConfigError("cpu, memory_mib, pids: a fake sandbox cannot limit anything")
    if spec.mounts:
        raise MountConflict("a fake sandbox has no mounts")


def fake_factory(world: FakeWorld) -> Callable[[], Any]:
    """What a service takes as a provider factory: its clients are of the server that lives now."""
    generation = world.generation
    return lambda: FakeProvider(world, generation)
