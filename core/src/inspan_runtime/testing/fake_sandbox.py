"""A sandbox in memory, as one who is connected to it sees it: deadlines, cancellation, errors.

Commands are in `fake_commands`, what it holds in `FakeMachine`, what runs in it in `FakeSupervisor`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TypeVar

import anyio

from inspan_core.errors import ExecTimeout, SandboxGone, TooLarge, UnsafePath, UsageError
from inspan_core.sandbox import DEFAULT_OUTPUT_LIMIT_BYTES, Descriptor, ExecResult, FileContent
from inspan_runtime.testing.fake_calls import Caller
from inspan_runtime.testing.fake_commands import LookCommand, kind_of, retire, run_plain
from inspan_runtime.testing.fake_machine import FakeMachine
from inspan_runtime.testing.fake_supervisor import FakeSupervisor
from inspan_runtime.testing.fake_world import FakeWorld
from inspan_runtime.testing.faults import CallKind

T = TypeVar("T")
KIND = "fake"


class FakeSandbox(Caller):
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
        if not argv or not argv[0] or any("\0" in one for one in argv):
            raise UsageError(f"{list(argv)!r} cannot be a command")
        if any(not name or "=" in name for name in env or {}):
            raise UsageError(f"{sorted(env or {})!r} cannot be variables' names")
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
        # Not with a task beside it: anyio cancels the scopes of a group in no certain order.
        result = await work()
        if not self.machine.is_alive:
            raise SandboxGone(f"sandbox {self.sandbox_id} ended")
        return result

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
        await self.upload(path, _host_file(source), mode=mode, timeout_s=timeout_s)

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


def _host_file(path: str) -> bytes:
    # Inline: the loop of a fake has no threads.
    return Path(path).read_bytes()
