"""A container without the agent: every operation is one ``exec`` of the engine."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress

import anyio
from anyio.abc import Process

from inspan_core.errors import (
    ExecTimeout,
    SandboxConnectError,
    SandboxError,
    SandboxGone,
    SandboxTransportError,
    TooLarge,
    UnsafePath,
    UsageError,
)
from inspan_core.sandbox import DEFAULT_OUTPUT_LIMIT_BYTES, Descriptor, ExecResult, FileContent
from inspan_runtime.providers.docker import plain_scripts as scripts
from inspan_runtime.providers.docker.engine import Engine, explained
from inspan_runtime.providers.docker.exec_client import (
    READ_BYTES,
    Body,
    body_of,
    discard,
    follow,
    handle_of,
    read,
    read_more,
)
from inspan_runtime.providers.docker.marked import MarkedStream
from inspan_runtime.providers.kept_sandbox import _bytes, _content, _path, _timeout, _variable
from inspan_runtime.providers.ways import Way

START_SLACK_S = 30.0
KILL_LIMIT_S = 15.0
CONTROL_LIMIT_S = 30.0
MESSAGE_LIMIT_BYTES = 4096
END_LIMIT_S = 2.0
POLL_S = 0.05
RUNNING = "running"
HALTED = ("paused", "restarting")  # It goes on where it was, or by its owner's policy.


class PlainSandbox:
    """Implements `inspan_core.sandbox.Sandbox`.

    Args:
        engine: The engine.
        container: The container's id: another one with its name is not this one.
        descriptor: What `SandboxProvider.connect` takes.
        stop: Ends it and confirms it.
        reach: Opens a way to a URL of the host, as `inspan_core.sandbox.ReachingSandbox.reach`.
    """

    def __init__(
        self,
        engine: Engine,
        container: str,
        descriptor: Descriptor,
        stop: Callable[[], Awaitable[None]],
        reach: Callable[..., Awaitable[Way | None]],
    ) -> None:
        self._engine = engine
        self._container = container
        self._descriptor = dict(descriptor)
        self._stop = stop
        self._open_way = reach

    @property
    def descriptor(self) -> Descriptor:
        return dict(self._descriptor)

    @property
    def sandbox_id(self) -> str:
        return str(self._descriptor["sandbox_id"])

    def __repr__(self) -> str:
        return f"<docker sandbox {self.sandbox_id}, without agent>"

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
        given = [_variable(name, value) for name, value in (env or {}).items()]
        command = [_bytes("argument", one) for one in argv]
        if not command or not command[0]:
            raise UsageError("argv is empty: a program's name was expected")
        if b"=" in command[0] or command[0].startswith(b"-"):
            raise UsageError(f"{argv[0]!r} cannot be a program's name in a container without the agent")
        timeout_s = _timeout(timeout_s)
        folder = _bytes("cwd", cwd or self._descriptor.get("workdir") or "")
        values = scripts.run_values(command, given, folder, timeout_s)
        return await self._run(
            values, f"{argv[0]} in {self.sandbox_id}", timeout_s, body_of(stdin), output_limit_bytes
        )

    async def _run(
        self, values: list[bytes], what: str, timeout_s: float, body: Body | None, limit_bytes: int
    ) -> ExecResult:
        halves = scripts.new_mark()
        mark = "".join(halves).encode()
        out, err = MarkedStream(mark, limit_bytes), MarkedStream(mark, limit_bytes)
        interactive = ["--interactive"] if body is not None else []
        arguments = scripts.arguments(scripts.RUN, halves, values)
        if self._engine.is_podman:
            arguments = scripts.relayed(arguments)
        argv = self._engine.argv("exec", *interactive, self._container, *arguments)
        try:
            process = await anyio.open_process(
                argv,
                stdin=subprocess.DEVNULL if body is None else subprocess.PIPE,
                env=dict(self._engine.env),
            )
        except OSError as error:  # Without the agent a command's arguments are some of the engine's.
            raise SandboxError(f"{what} could not be started: {error.strerror}") from error
        handle = handle_of(process)
        try:
            try:
                with anyio.fail_after(timeout_s + START_SLACK_S):
                    await follow(process, body, out, err)
            except TimeoutError as error:
                await self._kill(process, out, err)
                raise SandboxTransportError(f"{what}: the engine did not answer in time") from error
            except BaseException:
                with anyio.CancelScope(shield=True):
                    await self._kill(process, out, err)
                raise
        finally:
            with anyio.CancelScope(shield=True):
                await discard(process, handle)
        if out.word is None or err.word is None:
            await self._raise_lost(what, out, err)
        return self._result(what, timeout_s, out, err)

    def _result(self, what: str, timeout_s: float, out: MarkedStream, err: MarkedStream) -> ExecResult:
        word = out.word or b""
        if word == scripts.TIMED_OUT:
            raise ExecTimeout(f"{what} ran longer than {timeout_s:g} s and was killed")
        if word == scripts.NO_SETSID:
            raise SandboxError(f"{what}: the container has no setsid, which commands need without the agent")
        code = word.removesuffix(scripts.OUT_OF_MEMORY)
        if not code.isdigit():
            raise SandboxTransportError(f"{what} ended in a way that was not understood")
        (stdout, out_cut), (stderr, err_cut) = out.take(), err.take()
        return ExecResult(
            exit_code=int(code),
            out_of_memory=code != word,
            stdout=stdout,
            stderr=stderr,
            stdout_truncated=out_cut,
            stderr_truncated=err_cut,
        )

    async def _raise_lost(self, what: str, out: MarkedStream, err: MarkedStream) -> None:
        """Say why the engine's exec ended without the script's word."""
        both = b" ".join(one.take()[0][-MESSAGE_LIMIT_BYTES:] for one in (err, out))
        said = both.decode("utf-8", "replace")
        found = explained(said, what=what)
        status = await self._status(is_ending=isinstance(found, SandboxGone))
        if status is None:
            raise SandboxGone(f"{what}: the sandbox no longer exists")
        if status != RUNNING:
            raise SandboxTransportError(f"{what}: the container is {status}, and runs nothing meanwhile")
        if '"sh": executable file not found' in said:
            raise SandboxError(f"{what}: the container has no sh, which is needed without the agent")
        if isinstance(found, SandboxConnectError | SandboxGone):
            raise SandboxTransportError(
                f"{what}: the connection broke ({said.strip() or 'nothing was said'})"
            )
        raise found

    async def _status(self, *, is_ending: bool = False) -> str | None:
        """Return what the engine calls the container's state; None where it has ended, or is not there.

        Args:
            is_ending: Whether the engine has said that it ended, which it may tell here a moment later.
        """
        deadline = time.monotonic() + (END_LIMIT_S if is_ending else 0.0)
        while True:
            try:
                status = await self._engine.asked(
                    "container",
                    "inspect",
                    "--format={{.State.Status}}",
                    self._container,
                    what=self.sandbox_id,
                    timeout_s=CONTROL_LIMIT_S,
                )
            except SandboxGone:
                return None
            if status not in (RUNNING, *HALTED):
                return None
            if status != RUNNING or time.monotonic() >= deadline:
                return status
            await anyio.sleep(POLL_S)

    async def _kill(self, process: Process, out: MarkedStream, err: MarkedStream) -> None:
        """Have the command killed inside, and see that it is dead; bounded."""
        with anyio.move_on_after(KILL_LIMIT_S, shield=True):
            while err.pid is None and await read_more(process, err):  # Not before it has begun.
                pass
            if err.pid is None or err.word is not None:
                return
            argv = ["exec", self._container, "sh", "-c", scripts.KILL, "sh", str(err.pid)]
            await self._engine.call(*argv, timeout_s=KILL_LIMIT_S)
            async with anyio.create_task_group() as group:
                group.start_soon(read, process.stdout, out)
                group.start_soon(read, process.stderr, err)

    async def _script(
        self,
        script: str,
        values: list[bytes],
        what: str,
        *,
        timeout_s: float,
        body: Body | None = None,
        limit_bytes: int = MESSAGE_LIMIT_BYTES,
    ) -> ExecResult:
        argv = [os.fsencode(one) for one in scripts.arguments(script, scripts.new_mark(), values)]
        folder = b"/"
        try:
            return await self._run(
                scripts.run_values(argv, [], folder, timeout_s), what, timeout_s, body, limit_bytes
            )
        except ExecTimeout as error:
            raise SandboxTransportError(f"{what}: no answer within {timeout_s:g} s") from error

    async def upload(self, path: str, data: bytes, *, mode: int = 0o644, timeout_s: float = 60.0) -> None:
        """See `inspan_core.sandbox.Sandbox.upload`."""
        await self._upload(path, body_of(data), len(data), mode, timeout_s)

    async def upload_file(
        self, path: str, source: str, *, mode: int = 0o644, timeout_s: float = 600.0
    ) -> None:
        """See `inspan_core.sandbox.Sandbox.upload_file`."""
        async with await anyio.open_file(source, "rb") as file:
            size = os.fstat(file.wrapped.fileno()).st_size

            async def chunks() -> AsyncGenerator[bytes, None]:
                left = size
                while left and (data := await file.read(min(READ_BYTES, left))):
                    left -= len(data)
                    yield data

            await self._upload(path, chunks if size else None, size, mode, timeout_s)

    async def _upload(self, path: str, body: Body | None, size: int, mode: int, timeout_s: float) -> None:
        what = f"upload to {path} in {self.sandbox_id}"
        part = scripts.part_name()
        values = [_path(path), b"%o" % mode, b"%d" % size, part]
        try:
            result = await self._script(scripts.UPLOAD, values, what, timeout_s=timeout_s, body=body)
        except BaseException:  # What was killed half way removes nothing.
            await self._discard(os.path.join(os.path.dirname(_path(path)), part))
            raise
        if result.exit_code == scripts.SHORT:
            raise SandboxTransportError(f"{what}: not all {size} bytes arrived")
        _check(result, path, self.sandbox_id)

    async def _discard(self, part: bytes) -> None:
        arguments = scripts.arguments(scripts.DISCARD, scripts.new_mark(), [part])
        with anyio.move_on_after(KILL_LIMIT_S, shield=True), suppress(SandboxError):
            await self._engine.call("exec", self._container, *arguments, timeout_s=KILL_LIMIT_S)

    async def download(
        self, path: str, *, limit_bytes: int, tail: bool = False, timeout_s: float = 60.0
    ) -> FileContent:
        """See `inspan_core.sandbox.Sandbox.download`."""
        what = f"download of {path} from {self.sandbox_id}"
        values = [_path(path), b"%d" % limit_bytes, b"tail" if tail else b""]
        result = await self._script(
            scripts.DOWNLOAD,
            values,
            what,
            timeout_s=timeout_s,
            limit_bytes=max(limit_bytes, MESSAGE_LIMIT_BYTES),
        )
        said = result.stderr.split(b"\n", 1)[0].strip()
        if result.exit_code == scripts.TOO_LARGE:
            raise TooLarge(f"{path} has {said.decode('ascii', 'replace')} bytes, the limit is {limit_bytes}")
        _check(result, path, self.sandbox_id)
        if not said.isdigit():
            raise SandboxTransportError(f"{what}: its size was not understood")
        return _content(result.stdout[:limit_bytes], int(said), limit_bytes)

    async def is_alive(self) -> bool:
        """See `inspan_core.sandbox.Sandbox.is_alive`: one that is paused is there."""
        try:
            return await self._status() is not None
        except SandboxError as error:
            raise SandboxTransportError(str(error)) from error

    async def reach(self, url: str, *, holder: str, timeout_s: float = 30.0) -> Way | None:
        """See `inspan_core.sandbox.ReachingSandbox.reach`."""
        what = f"way into {self.sandbox_id}"
        return await self._open_way(url=url, what=what, holder=holder, timeout_s=timeout_s)

    async def disconnect(self) -> None:
        """Drop the connection: none is held between operations."""

    async def stop(self) -> None:
        """See `inspan_core.sandbox.Sandbox.stop`."""
        await self._stop()


async def remove_container(engine: Engine, container: str, *, what: str) -> None:
    """Remove a container and confirm it; none is success.

    Raises:
        SandboxTransportError: It could not be confirmed.
    """
    called = await engine.call(*remove_arguments(engine, container), timeout_s=CONTROL_LIMIT_S)
    if called.exit_code == 0:
        return
    with anyio.move_on_after(CONTROL_LIMIT_S):
        while True:
            seen = await engine.call("container", "inspect", container, timeout_s=CONTROL_LIMIT_S)
            if seen.exit_code != 0 and isinstance(explained(seen.said, what=what), SandboxGone):
                return
            if "already in progress" not in called.said:
                break
            await anyio.sleep(0.01)
    raise SandboxTransportError(f"stop of {what}: {called.said}")


def remove_arguments(engine: Engine, container: str) -> list[str]:
    """Return the arguments that kill and remove a container at once."""
    return ["rm", "--force", *(["--time=0"] if engine.is_podman else []), "--volumes", container]


def _check(result: ExecResult, path: str, sandbox_id: str) -> None:
    said = " ".join(result.stderr.decode("utf-8", "replace").split())[-1000:]
    if result.exit_code == scripts.NOT_FOUND:
        raise FileNotFoundError(2, f"there is no such file in {sandbox_id}", path)
    if result.exit_code == scripts.UNSAFE:
        raise UnsafePath(f"{path} in {sandbox_id}: {said}")
    if result.exit_code != 0:
        raise SandboxError(f"{path} in {sandbox_id}: {said or f'exit {result.exit_code}'}")
