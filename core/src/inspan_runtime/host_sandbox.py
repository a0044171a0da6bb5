"""The server's own host in the shape of a sandbox: commands and files of one private folder's calls.

It isolates nothing and no process keeps it: commands are children of the server, with an environment of their
own in which nothing of the server's appears. Each carries a mark, by which `stop` finds and ends what came
from it, also what made itself a session.
"""

from __future__ import annotations

import os
import posixpath
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import anyio
from attrs import define, field

from inspan_core.errors import ExecTimeout, SandboxError, SandboxGone, UsageError
from inspan_core.sandbox import DEFAULT_OUTPUT_LIMIT_BYTES, Descriptor, ExecResult, FileContent
from inspan_runtime import host_files
from inspan_runtime.providers import state_folder
from inspan_runtime.providers.environment import command_environment
from inspan_runtime.providers.exec_agent.commands import Tail
from inspan_runtime.providers.interpreter import own_interpreter
from inspan_runtime.providers.strays import MARKER, end_strays

CHUNK_BYTES = 256 * 1024
NOT_EXECUTABLE, NOT_FOUND = 126, 127
KILL_WAIT_S = 10.0


@define(eq=False)
class HostSandbox:
    """Implements `inspan_core.sandbox.Sandbox` on the host.

    Args:
        folder: The call's private folder, with ``home`` in it.
        lock_fd: Holds the folder's lock as long as this server lives.
        workdir: Where commands start.
        env: Added to the minimal environment of every command.
    """

    folder: Path
    lock_fd: int
    workdir: str
    env: Mapping[str, str] = field(factory=dict, repr=False)
    _environment: Mapping[bytes, bytes] = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self._environment = command_environment(
            home=str(self.folder / "home"), extra={**self.env, MARKER: self.sandbox_id}
        )

    @property
    def descriptor(self) -> Descriptor:
        """Says that nothing is isolated, so that runtimes go into the host's cache folder."""
        return {
            "provider": "host",
            "sandbox_id": self.sandbox_id,
            "workdir": self.workdir,
            "python": own_interpreter().path,
            "isolation": "none",
        }

    @property
    def sandbox_id(self) -> str:
        """The folder's name."""
        return self.folder.name

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
        """See `inspan_core.sandbox.Sandbox.exec`."""
        self._check_alive()
        given = {os.fsencode(name): os.fsencode(value) for name, value in (env or {}).items()}
        place = cwd or self.workdir
        try:
            running = _start(argv, {**self._environment, **given}, place, stdin)
        except (FileNotFoundError, PermissionError, NotADirectoryError) as error:
            missing = isinstance(error, FileNotFoundError) and error.filename != place
            message = f"inspan: cannot run the command: {error}\n".encode("utf-8", "replace")
            return ExecResult(exit_code=NOT_FOUND if missing else NOT_EXECUTABLE, stderr=message)
        except (OSError, ValueError) as error:
            raise SandboxError(f"{argv[:1]} could not be started on the host: {error}") from error
        try:
            with anyio.fail_after(timeout_s):
                return await running.ended(output_limit_bytes)
        except TimeoutError as error:
            raise ExecTimeout(
                f"{argv[0]} on the host ran longer than {timeout_s:g} s and was killed"
            ) from error
        finally:
            with anyio.CancelScope(shield=True):
                await running.killed()

    async def upload(self, path: str, data: bytes, *, mode: int = 0o644, timeout_s: float = 60.0) -> None:
        """See `inspan_core.sandbox.Sandbox.upload`."""
        self._check_alive()
        await anyio.to_thread.run_sync(host_files.write, path, data, mode)

    async def upload_file(
        self, path: str, source: str, *, mode: int = 0o644, timeout_s: float = 600.0
    ) -> None:
        """See `inspan_core.sandbox.Sandbox.upload_file`."""
        self._check_alive()
        await anyio.to_thread.run_sync(host_files.copy, path, source, mode)

    async def download(
        self, path: str, *, limit_bytes: int, tail: bool = False, timeout_s: float = 60.0
    ) -> FileContent:
        """See `inspan_core.sandbox.Sandbox.download`."""
        self._check_alive()
        return await anyio.to_thread.run_sync(host_files.read, path, limit_bytes, tail)

    async def is_alive(self) -> bool:
        """Whether the folder is there."""
        return self.folder.is_dir()

    async def disconnect(self) -> None:
        """Nothing is held beside the folder."""

    async def stop(self) -> None:
        """End what came from here and remove the folder."""
        await anyio.to_thread.run_sync(end_strays, self.folder)
        await anyio.to_thread.run_sync(state_folder.remove, self.folder)
        if self.folder.exists():
            raise SandboxError(f"the folder {self.folder} could not be removed")
        if self.lock_fd >= 0:
            os.close(self.lock_fd)
            self.lock_fd = -1

    def _check_alive(self) -> None:
        if not self.folder.is_dir():
            raise SandboxGone(f"the host call's folder {self.folder} is gone")


@define(eq=False)
class _Running:
    """A command under way: its process and the reading ends of its output."""

    process: subprocess.Popen[bytes]
    outputs: tuple[int, int]
    handle: int

    async def ended(self, limit_bytes: int) -> ExecResult:
        """Wait for the command's own process; a child that holds its output open is not waited for."""
        tails = (Tail(limit_bytes), Tail(limit_bytes))
        async with anyio.create_task_group() as tasks:
            for fd, tail in zip(self.outputs, tails, strict=True):
                tasks.start_soon(_pump, fd, tail)
            await anyio.wait_readable(self.handle)
            tasks.cancel_scope.cancel()
        for fd, tail in zip(self.outputs, tails, strict=True):
            _drain(fd, tail)
        code = self.process.wait()
        (out, out_cut), (err, err_cut) = tails[0].take(), tails[1].take()
        return ExecResult(
            exit_code=128 - code if code < 0 else code,
            stdout=out,
            stderr=err,
            stdout_truncated=out_cut,
            stderr_truncated=err_cut,
        )

    async def killed(self) -> None:
        """See that it is over, by force where it is not, and let go of everything."""
        try:
            if self.process.returncode is None:
                # Not reaped yet, so the number is still its own.
                os.killpg(self.process.pid, signal.SIGKILL)
                with anyio.move_on_after(KILL_WAIT_S):
                    await anyio.wait_readable(self.handle)
                    self.process.wait()
        finally:
            for fd in (*self.outputs, self.handle):
                os.close(fd)


def _start(argv: Sequence[str], env: Mapping[bytes, bytes], cwd: str, stdin: bytes) -> _Running:
    if not argv or not argv[0]:
        raise UsageError("argv is empty: a program's name was expected")
    if not posixpath.isabs(cwd):
        raise UsageError(f"cwd {cwd!r} is not an absolute folder")
    feed = os.memfd_create("stdin", os.MFD_CLOEXEC)
    out, err = os.pipe(), os.pipe()
    try:
        with open(os.dup(feed), "wb") as file:
            file.write(stdin)
        os.lseek(feed, 0, os.SEEK_SET)
        process = subprocess.Popen(
            [os.fsencode(one) for one in argv],
            stdin=feed,
            stdout=out[1],
            stderr=err[1],
            cwd=cwd,
            env=dict(env),
            start_new_session=True,
        )
    except BaseException:
        os.close(out[0])
        os.close(err[0])
        raise
    finally:
        for fd in (feed, out[1], err[1]):
            os.close(fd)
    for fd in (out[0], err[0]):
        os.set_blocking(fd, False)
    return _Running(process, (out[0], err[0]), os.pidfd_open(process.pid))


async def _pump(fd: int, tail: Tail) -> None:
    while True:
        await anyio.wait_readable(fd)
        try:
            data = os.read(fd, CHUNK_BYTES)
        except BlockingIOError:
            continue
        if not data:
            return
        tail.add(data)


def _drain(fd: int, tail: Tail) -> None:
    """Take what the command had written when it ended: no more than a pipe holds."""
    left = CHUNK_BYTES * 4
    while left > 0:
        try:
            data = os.read(fd, min(left, CHUNK_BYTES))
        except BlockingIOError:
            return
        if not data:
            return
        left -= len(data)
        tail.add(data)
