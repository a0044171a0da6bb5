"""A sandbox provider in memory, verified by the same checks as the real ones, with faults on demand.

Every call is an interleaving point before its effect and after it. What a call does is in `FakeMachine` and
`FakeSupervisor`; here is how a client sees it: connections, deadlines, cancellation, errors.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, NoReturn, TypeVar

import anyio
import anyio.lowlevel

from inspan_core.errors import (
    ConfigError,
    ExecTimeout,
    MountConflict,
    SandboxConnectError,
    SandboxCreateError,
    SandboxGone,
    SandboxTransportError,
    TooLarge,
    UnsafePath,
)
from inspan_core.sandbox import (
    DEFAULT_OUTPUT_LIMIT_BYTES,
    Descriptor,
    ExecResult,
    FileContent,
    Sandbox,
    SandboxSpec,
)
from inspan_runtime.testing.fake_commands import LookCommand, kind_of, retire, run_plain
from inspan_runtime.testing.fake_machine import FakeMachine
from inspan_runtime.testing.fake_supervisor import FakeSupervisor
from inspan_runtime.testing.fake_world import FakeWorld
from inspan_runtime.testing.faults import CallKind, FaultKind

T = TypeVar("T")
KIND = "fake"


class _Caller:
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
        late: Callable[[], object] | None = None,
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
            await self._hang()
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
            await self._hang()
        await self._travel(0.0)
        return result

    async def _travel(self, seconds: float) -> None:
        if seconds:
            await anyio.sleep(seconds)
        else:
            await anyio.lowlevel.checkpoint()
        self._alive()

    async def _hang(self) -> NoReturn:
        await anyio.sleep_forever()
        raise AssertionError  # it never wakes

    def _fail(self, about: str) -> NoReturn:
        raise SandboxTransportError(f"the connection broke: {about}")


class FakeSandbox(_Caller):
    """A connection to a fake sandbox; implements `inspan_core.sandbox.Sandbox`."""

    def __init__(self, world: FakeWorld, machine: FakeMachine, generation: int) -> None:
        super().__init__(world, generation)
        self.machine = machine
        world.connections.add(self)

    @property
    def descriptor(self) -> Descriptor:
        """Enough to connect again."""
        return {"provider": KIND, "sandbox_id": self.machine.sandbox_id}

    @property
    def sandbox_id(self) -> str:
        """The provider's name for it."""
        return self.machine.sandbox_id

    async def exec(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: bytes = b"",
        output_limit_bytes: int = DEFAULT_OUTPUT_LIMIT_BYTES,
    ) -> ExecResult:
        """Run one of the commands that a fake sandbox understands."""
        match kind_of(argv, stdin):
            case CallKind.LAUNCH:
                return await self._launch(argv[-1], timeout_s)
            case CallKind.LOOK:
                return await self._look(stdin, timeout_s)
            case CallKind.REMOVE:
                return await self._remove(argv[-2], keep_fence=argv[-1] == "keep")
        return await self._plain(argv, stdin, timeout_s)

    async def _plain(self, argv: Sequence[str], stdin: bytes, timeout_s: float) -> ExecResult:
        async def effect() -> ExecResult:
            with anyio.move_on_after(timeout_s):
                return await self._while_it_lives(
                    lambda: run_plain(self.machine, argv, stdin, self.world.answer)
                )
            raise ExecTimeout(f"{argv[0]} ran longer than {timeout_s:g} s")

        return await self._call(CallKind.EXEC, argv[0], effect, machine=self.machine)

    async def _while_it_lives(self, work: Callable[[], Awaitable[T]]) -> T:
        results: list[T] = []
        async with anyio.create_task_group() as group:

            async def watch() -> None:
                while self.machine.is_alive:
                    await self.machine.changed()
                group.cancel_scope.cancel()

            group.start_soon(watch)
            results.append(await work())
            group.cancel_scope.cancel()
        if not results:
            raise SandboxGone(f"sandbox {self.sandbox_id} ended")
        return results[0]

    async def _launch(self, folder: str, timeout_s: float) -> ExecResult:
        started: list[FakeSupervisor] = []

        async def effect() -> FakeSupervisor:
            started.append(self.world.launch(self.machine, folder))
            return started[0]

        def late() -> None:
            if self.machine.is_alive:
                self.world.launch(self.machine, folder)

        try:
            supervisor = await self._call(CallKind.LAUNCH, folder, effect, machine=self.machine, late=late)
            with anyio.move_on_after(timeout_s):
                while supervisor.lives:
                    await self.machine.changed()
                return self._ended(supervisor)
            self._kill(supervisor)
            raise ExecTimeout(f"the supervisor ran longer than {timeout_s:g} s")
        except anyio.get_cancelled_exc_class():
            # A provider kills the process group of an exec that is cancelled; a killed server cancels none.
            if self.generation == self.world.generation:
                for each in started:
                    self._kill(each)
            raise

    def _ended(self, supervisor: FakeSupervisor) -> ExecResult:
        if not self.machine.is_alive:
            raise SandboxGone(f"sandbox {self.sandbox_id} ended")
        code = 137 if supervisor.exit_code is None else supervisor.exit_code
        return ExecResult(exit_code=code, stderr=supervisor.complaint.encode())

    def _kill(self, supervisor: FakeSupervisor) -> None:
        if supervisor.lives and supervisor.harness_lives:
            self.world.breaks(
                "an exec was let go of while its harness ran",
                f"{supervisor.folder}: its supervisor is killed, and no receipt will ever come",
            )
        supervisor.kill()

    async def _look(self, stdin: bytes, timeout_s: float) -> ExecResult:
        command = LookCommand(self.machine, stdin)

        async def effect() -> str | None:
            return await command.plant()

        word = await self._call(
            CallKind.LOOK, f"for the receipt ({command.request})", effect, machine=self.machine
        )
        if word is None:
            word = await self._while_it_lives(command.wait)
        self._alive()
        return ExecResult(exit_code=0, stdout=word.encode() + b"\n")

    async def _remove(self, folder: str, *, keep_fence: bool) -> ExecResult:
        async def effect() -> ExecResult:
            await retire(self.machine, folder, keep_fence=keep_fence)
            return ExecResult(exit_code=0)

        def half() -> None:
            self.machine.write(f"{folder}.retired", b"")

        return await self._call(CallKind.REMOVE, folder, effect, machine=self.machine, half=half)

    async def upload(self, path: str, data: bytes, *, mode: int = 0o644, timeout_s: float = 60.0) -> None:
        """Write a file at once."""
        parents = {str(parent) for parent in PurePosixPath(path).parents}
        if not path.startswith("/") or path in self.machine.folders or parents & self.machine.files.keys():
            raise UnsafePath(f"{path}: not an absolute path of a file")

        def write() -> None:
            if self.machine.is_alive:
                self.world_wrote(path)
                self.machine.write(path, data, mode)

        async def effect() -> None:
            write()

        def half() -> None:
            self.machine.write(f"{path}.part", data[: len(data) // 2])

        await self._call(CallKind.UPLOAD, path, effect, machine=self.machine, late=write, half=half)

    def world_wrote(self, path: str) -> None:
        """Check that nothing of a run is written once it is over."""
        folder = str(PurePosixPath(path).parent)
        if self.machine.exists(f"{folder}/cleanup.json"):
            self.world.breaks("a run's file was uploaded after its receipt", path)

    async def upload_file(
        self, path: str, source: str, *, mode: int = 0o644, timeout_s: float = 600.0
    ) -> None:
        """Like `upload`, from a file of the host."""
        with open(source, "rb") as file:
            data = file.read()
        await self.upload(path, data, mode=mode, timeout_s=timeout_s)

    async def download(
        self, path: str, *, limit_bytes: int, tail: bool = False, timeout_s: float = 60.0
    ) -> FileContent:
        """Read a file at once."""
        if not path.startswith("/"):
            raise UnsafePath(f"{path}: not an absolute path")

        async def effect() -> FileContent:
            file = self.machine.files.get(path)
            if file is None:
                if path in self.machine.folders:
                    raise UnsafePath(f"{path}: a folder")
                raise FileNotFoundError(path)
            size = len(file.data)
            if size > limit_bytes and not tail:
                raise TooLarge(f"{path}: {size} bytes, the limit is {limit_bytes}")
            data = file.data[max(0, size - limit_bytes) :]
            return FileContent(data=data, size_bytes=size, truncated=size > limit_bytes)

        return await self._call(CallKind.DOWNLOAD, path, effect, machine=self.machine)

    async def is_alive(self) -> bool:
        """Whether the sandbox exists."""
        await self._travel(0.0)
        return self.machine.is_alive

    async def disconnect(self) -> None:
        """Drop the connection."""

        async def effect() -> None:
            self.world.connections.discard(self)

        await self._call(CallKind.DISCONNECT, self.sandbox_id, effect)

    async def stop(self) -> None:
        """End the sandbox."""

        async def effect() -> None:
            self.world.stop(self.machine)
            self.world.connections.discard(self)

        await self._call(CallKind.STOP, self.sandbox_id, effect)


class FakeProvider(_Caller):
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
    if spec.mounts:
        raise MountConflict("a fake sandbox has no mounts")


def fake_factory(world: FakeWorld) -> Callable[[], Any]:
    """What a service takes as a provider factory: its clients are of the server that lives now."""
    generation = world.generation
    return lambda: FakeProvider(world, generation)
