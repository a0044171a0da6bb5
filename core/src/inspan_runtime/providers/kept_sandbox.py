"""A sandbox that a keeper holds: every operation is one connection to its agent."""

from __future__ import annotations

import math
import os
import posixpath
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import anyio

from inspan_core.errors import (
    ExecTimeout,
    SandboxError,
    SandboxGone,
    SandboxTransportError,
    TooLarge,
    UnsafePath,
    UsageError,
)
from inspan_core.sandbox import (
    DEFAULT_OUTPUT_LIMIT_BYTES,
    Descriptor,
    ExecResult,
    FileContent,
    ResourceUsage,
)
from inspan_runtime.providers import state_folder
from inspan_runtime.providers.agent_client import ANSWER_SLACK_S, Call, open_call
from inspan_runtime.providers.ways import Way, open_way

STOP_LIMIT_S = 20.0
LONGEST_TIMEOUT_S = 10 * 365 * 24 * 3600.0
READ_BYTES = 4 * 1024 * 1024
POLL_S = 0.002


class KeptSandbox:
    """Implements `inspan_core.sandbox.Sandbox`.

    Args:
        descriptor: As its provider made it.
        sweep: Removes what is left of a state folder whose keeper was killed.
    """

    def __init__(self, descriptor: Descriptor, sweep: Callable[[Path], None]) -> None:
        self._descriptor = dict(descriptor)
        self._sweep = sweep
        self._state = Path(descriptor["state"])

    @property
    def descriptor(self) -> Descriptor:
        return dict(self._descriptor)

    @property
    def sandbox_id(self) -> str:
        return str(self._descriptor["sandbox_id"])

    def __repr__(self) -> str:
        return f"<{self._descriptor['provider']} sandbox {self.sandbox_id}>"

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
        arguments = [_bytes("argument", one) for one in argv]
        if not arguments or not arguments[0]:
            raise UsageError("argv is empty: a program's name was expected")
        given = [_variable(name, value) for name, value in (env or {}).items()]
        timeout_s = _timeout(timeout_s)
        head = [b"exec", b"%r" % float(timeout_s), b"%d" % output_limit_bytes, b"%d" % len(stdin)]
        head += [_bytes("cwd", cwd or self._descriptor["workdir"]), b"%d" % len(arguments)]
        what = f"{argv[0]} in {self.sandbox_id}"
        async with self._call(what, timeout_s + ANSWER_SLACK_S) as call:
            await call.send([*head, *arguments, *given])
            await _send_body(call, stdin)
            reply = await call.fields()
            if reply[0] == b"timeout":
                raise ExecTimeout(f"{what} ran longer than {timeout_s:g} s and was killed")
            if reply[0] != b"ok":
                raise SandboxError(f"{what} could not be started: {_text(reply)}")
            code, out_bytes, err_bytes, out_cut, err_cut, killed = (int(one) for one in reply[1:7])
            if max(out_bytes, err_bytes) > output_limit_bytes:
                raise SandboxTransportError(f"{what}: the agent sent more than {output_limit_bytes} bytes")
            stdout = await call.exactly(out_bytes)
            stderr = await call.exactly(err_bytes)
        return ExecResult(
            exit_code=code,
            stdout=stdout,
            stderr=stderr,
            stdout_truncated=bool(out_cut),
            stderr_truncated=bool(err_cut),
            out_of_memory=bool(killed),
        )

    async def upload(self, path: str, data: bytes, *, mode: int = 0o644, timeout_s: float = 60.0) -> None:
        """See `inspan_core.sandbox.Sandbox.upload`."""
        async with self._call(f"upload to {path} in {self.sandbox_id}", timeout_s) as call:
            await call.send([b"upload", _path(path), b"%d" % mode, b"%d" % len(data)])
            await _send_body(call, data)
            _check_file(await call.fields(), path, self.sandbox_id)

    async def upload_file(
        self, path: str, source: str, *, mode: int = 0o644, timeout_s: float = 600.0
    ) -> None:
        """See `inspan_core.sandbox.Sandbox.upload_file`."""
        target = _path(path)
        async with await anyio.open_file(source, "rb") as file:
            left = os.fstat(file.wrapped.fileno()).st_size
            async with self._call(f"upload of {source} to {path} in {self.sandbox_id}", timeout_s) as call:
                await call.send([b"upload", target, b"%d" % mode, b"%d" % left])
                while left:
                    data = await file.read(min(READ_BYTES, left))
                    if not data:
                        raise SandboxError(f"{source} became shorter while it was uploaded")
                    left -= len(data)
                    await call.send_body(data)
                _check_file(await call.fields(), path, self.sandbox_id)

    async def download(
        self, path: str, *, limit_bytes: int, tail: bool = False, timeout_s: float = 60.0
    ) -> FileContent:
        """See `inspan_core.sandbox.Sandbox.download`."""
        request = [b"download", _path(path), b"%d" % limit_bytes, b"tail" if tail else b""]
        async with self._call(f"download of {path} from {self.sandbox_id}", timeout_s) as call:
            await call.send(request)
            reply = await call.fields()
            if reply[0] == b"too_large":
                raise TooLarge(f"{path} has {_text(reply)} bytes, the limit is {limit_bytes}")
            _check_file(reply, path, self.sandbox_id)
            data = await call.chunks(limit_bytes)
        return _content(data, int(reply[1]), limit_bytes)

    async def is_alive(self) -> bool:
        """See `inspan_core.sandbox.Sandbox.is_alive`."""
        if not await anyio.to_thread.run_sync(state_folder.is_held, self._state):
            return False
        try:
            await self.ping(timeout_s=ANSWER_SLACK_S)
        except SandboxGone:
            return False
        return True

    async def ping(self, *, timeout_s: float) -> None:
        """Get an answer of the agent.

        Raises:
            SandboxGone, SandboxTransportError: As for `exec`.
        """
        async with self._call(f"ping of {self.sandbox_id}", timeout_s) as call:
            await call.send([b"ping"])
            await call.fields()

    async def usage(self) -> ResourceUsage:
        """See `inspan_core.sandbox.MeteredSandbox.usage`."""
        what = f"usage of {self.sandbox_id}"
        async with self._call(what, ANSWER_SLACK_S) as call:
            await call.send([b"usage"])
            reply = await call.fields()
        try:
            kind, cpu_time_s, peak_kib = reply
            if kind != b"ok":
                raise ValueError
            return ResourceUsage(
                cpu_time_s=float(cpu_time_s), peak_memory_mib=int(peak_kib) / 1024, source="processes"
            )
        except ValueError as error:
            raise SandboxTransportError(f"{what}: the answer was not understood: {reply!r}") from error

    async def reach(self, url: str, *, holder: str, timeout_s: float = 30.0) -> Way | None:
        """See `inspan_core.sandbox.ReachingSandbox.reach`."""
        return await open_way(
            self._state,
            "control.sock",
            url,
            what=f"way into {self.sandbox_id}",
            holder=holder,
            timeout_s=timeout_s,
        )

    async def disconnect(self) -> None:
        """Drop the connection: none is held between operations."""

    async def stop(self) -> None:
        """See `inspan_core.sandbox.Sandbox.stop`."""
        await stop_kept(self._state, self.sandbox_id)
        await anyio.to_thread.run_sync(self._sweep, self._state)

    def _call(self, what: str, timeout_s: float) -> AbstractAsyncContextManager[Call]:
        return open_call(self._state, "agent.sock", what=what, timeout_s=timeout_s)


async def stop_kept(state: Path, sandbox_id: str) -> None:
    """Have the keeper end a sandbox, and see that it is gone.

    Raises:
        SandboxTransportError: It could not be confirmed.
    """
    try:
        async with open_call(
            state, "control.sock", what=f"stop of {sandbox_id}", timeout_s=STOP_LIMIT_S
        ) as call:
            await call.send([b"stop"])
            if await call.fields() == [b"ok"]:
                await call.end()
    except (SandboxGone, SandboxTransportError):
        pass  # The lock tells whether the keeper lives; a connection cannot.
    with anyio.move_on_after(STOP_LIMIT_S):
        while await anyio.to_thread.run_sync(state_folder.is_held, state):  # noqa: ASYNC110  # another process ends it
            await anyio.sleep(POLL_S)
        return
    raise SandboxTransportError(f"stop of {sandbox_id}: its keeper still lives after {STOP_LIMIT_S:g} s")


async def _send_body(call: Call, data: bytes) -> None:
    try:
        if data:
            await call.send_body(data)
    except anyio.BrokenResourceError:
        pass  # Perhaps it answered before it had read all: then the answer says why.


def _timeout(timeout_s: float) -> float:
    if math.isnan(timeout_s):
        raise UsageError(f"timeout_s is {timeout_s!r}: a number of seconds was expected")
    return max(0.0, min(timeout_s, LONGEST_TIMEOUT_S))


def _bytes(what: str, value: str) -> bytes:
    if "\0" in value:
        raise UsageError(f"{what} {value!r} contains a NUL character")
    try:
        return os.fsencode(value)
    except UnicodeEncodeError as error:
        raise UsageError(f"{what} {value!r} cannot be encoded: {error.reason}") from error


def _variable(name: str, value: str) -> bytes:
    if not name or "=" in name:
        raise UsageError(f"{name!r} is not a name of an environment variable")
    return _bytes("variable", name) + b"=" + _bytes(f"variable {name}", value)


def _path(path: str) -> bytes:
    if not posixpath.isabs(path) or "\0" in path:
        raise UnsafePath(f"{path!r} is not an absolute path")
    try:
        return os.fsencode(path)
    except UnicodeEncodeError as error:
        raise UnsafePath(f"{path!r} cannot be encoded: {error.reason}") from error


def _content(data: bytes, size_bytes: int, limit_bytes: int) -> FileContent:
    """Return what was read of a file that said its size before: it may have grown, the kernel's say 0."""
    grew_to_limit = size_bytes < len(data) == limit_bytes
    size_bytes = max(size_bytes, len(data))
    return FileContent(data=data, size_bytes=size_bytes, truncated=grew_to_limit or size_bytes > limit_bytes)


def _text(reply: list[bytes]) -> str:
    return b" ".join(reply[1:]).decode("utf-8", "replace")[:1000]


def _check_file(reply: list[bytes], path: str, sandbox_id: str) -> None:
    kind = reply[0]
    if kind == b"not_found":
        raise FileNotFoundError(2, f"there is no such file in {sandbox_id}", path)
    if kind == b"unsafe":
        raise UnsafePath(f"{path} in {sandbox_id}: {_text(reply)}")
    if kind != b"ok":
        raise SandboxError(f"{path} in {sandbox_id}: {_text(reply)}")
