"""Run one command: fork, output kept as a tail, deadline, kill."""

from __future__ import annotations

import fcntl
import os
import select
import time

from inspan_runtime.providers.exec_agent.lean import TYPE_CHECKING, signal

CHUNK_BYTES = 256 * 1024
F_GETPIPE_SZ = 1032
# Whatever started the server may have had signals ignored, as a shell does for what it runs behind.
RESET_SIGNALS = tuple(number for number in range(1, 32) if number not in (signal.SIGKILL, signal.SIGSTOP))

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import NoReturn

    from inspan_runtime.providers.exec_agent.connections import Connection
    from inspan_runtime.providers.exec_agent.loop import Loop
    from inspan_runtime.providers.exec_agent.memory import MemoryWatch


class Tail:
    """The last `limit` bytes of a stream, in constant memory."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._slack = max(65536, limit // 2)
        self._kept = bytearray()
        self._seen = 0

    def add(self, data: bytes) -> None:
        self._seen += len(data)
        self._kept += data
        if len(self._kept) > self._limit + self._slack:
            del self._kept[: len(self._kept) - self._limit]

    def take(self) -> tuple[bytes, bool]:
        """Return (bytes, whether some were dropped)."""
        return bytes(self._kept[max(0, len(self._kept) - self._limit) :]), self._seen > self._limit


_null: list[int] = []


def null_fd() -> int:
    """Return what reads as an empty file: opened once, for later the name may be a FIFO of a command's."""
    if not _null:
        _null.append(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC))
    return _null[0]


class Exec:
    """A command, from its fork to its reply."""

    def __init__(
        self,
        loop: Loop,
        connection: Connection,
        fields: list[bytes],
        base_env: Mapping[bytes, bytes],
        memory: MemoryWatch,
    ) -> None:
        self._loop = loop
        self._memory = memory
        self._kills_before = memory.kills()
        self._connection = connection
        self.body_bytes = int(fields[3])
        argc = int(fields[5])
        env = dict(base_env)
        for one in fields[6 + argc :]:
            name, _, value = one.partition(b"=")
            env[name] = value
        deadline = time.monotonic() + float(fields[1])
        self._timed_out = self._ended = False
        self._gone = False
        self._answer: tuple[list[bytes], bytes, bytes] | None = None
        self._tails = [Tail(int(fields[2])), Tail(int(fields[2]))]
        self._unwritten = bytearray()
        self._body_ended = self.body_bytes == 0
        self._stdin: int | None = None
        self._spawn(fields[6 : 6 + argc], env, fields[4])
        self._deadline = loop.call_at(deadline, self._time_out)

    def _spawn(self, argv: list[bytes], env: dict[bytes, bytes], cwd: bytes) -> None:
        nothing = null_fd()
        ends: list[int] = []
        try:
            for _ in range(2 if self._body_ended else 3):
                ends += os.pipe()
            self._pid = os.fork()
        except OSError:
            for fd in ends:
                os.close(fd)
            raise
        theirs = (ends[4] if ends[4:] else nothing, ends[1], ends[3])
        if self._pid == 0:
            self._memory.offer_self()
            become(argv, env, cwd, theirs)
        for fd in (*ends[4:5], ends[1], ends[3]):
            os.close(fd)
        self._loop.children[self._pid] = self._on_exit
        self._outputs: list[int | None] = [ends[0], ends[2]]
        for index, fd in enumerate((ends[0], ends[2])):
            os.set_blocking(fd, False)
            self._loop.watch(fd, select.EPOLLIN, self._reader(index))
        if ends[4:]:
            self._stdin = ends[5]
            os.set_blocking(self._stdin, False)
            self._loop.watch(self._stdin, 0, self._write)

    def _reader(self, index: int) -> Callable[[int], int]:
        return lambda _events: self._read(index)

    def _read(self, index: int) -> int:
        fd = self._outputs[index]
        if fd is None:
            return 0
        try:
            data = os.read(fd, CHUNK_BYTES)
        except BlockingIOError:
            return 0
        except OSError:
            data = b""
        if not data:
            self._outputs[index] = None
            self._loop.close(fd)
        elif not self._ended:  # Later output of a child is drained, so that it does not die of SIGPIPE.
            self._tails[index].add(data)
        return len(data)

    def feed(self, data: bytes) -> None:
        if self._stdin is not None:
            self._unwritten += data
            self._loop.change(self._stdin, select.EPOLLOUT)
            self._connection.pause(len(self._unwritten) > CHUNK_BYTES)

    def finish(self) -> None:
        self._body_ended = True
        if self._stdin is not None:
            self._loop.change(self._stdin, select.EPOLLOUT)
        if self._answer is not None:
            self._connection.reply(*self._answer)

    def _write(self, events: int) -> None:
        if self._stdin is None:
            return
        if events & select.EPOLLERR:  # Nobody reads any more, which would be reported without end.
            self._close_stdin()
            return
        try:
            written = os.write(self._stdin, self._unwritten[:CHUNK_BYTES]) if self._unwritten else 0
        except BlockingIOError:
            return
        except OSError:  # The command does not read: the rest is dropped.
            self._close_stdin()
            return
        del self._unwritten[:written]
        if not self._unwritten:
            if self._body_ended:
                self._close_stdin()
                return
            self._loop.change(self._stdin, 0)
        self._connection.pause(len(self._unwritten) > CHUNK_BYTES)

    def _close_stdin(self) -> None:
        if self._stdin is not None:
            self._loop.close(self._stdin)
        self._stdin = None
        self._unwritten = bytearray()
        self._connection.pause(False)

    def _time_out(self) -> None:
        self._timed_out = True
        self._kill()

    def _kill(self) -> None:
        self._loop.cancel(self._deadline)
        try:
            os.killpg(self._pid, signal.SIGKILL)
        except ProcessLookupError:  # It has not called setsid yet.
            os.kill(self._pid, signal.SIGKILL)

    def lost(self, *, is_cancelled: bool) -> None:
        self._gone = True
        if self._ended:
            self._connection.close()
        elif is_cancelled:
            self._kill()

    def _on_exit(self, status: int) -> None:
        self._loop.cancel(self._deadline)
        if self._stdin is not None:
            self._close_stdin()
        for index, fd in enumerate(self._outputs):
            # What the command itself wrote is in the pipe by now, and no more than the pipe holds.
            left = fcntl.fcntl(fd, F_GETPIPE_SZ) if fd is not None else 0
            while left > 0 and self._outputs[index] is not None:
                got = self._read(index)
                left = left - got if got else 0
        self._ended = True
        self._answer = ([b"timeout"], b"", b"") if self._timed_out else self._result(status)
        if self._body_ended or self._gone:
            self._connection.reply(*self._answer)

    def _result(self, status: int) -> tuple[list[bytes], bytes, bytes]:
        code = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        (out, out_cut), (err, err_cut) = self._tails[0].take(), self._tails[1].take()
        killed = self._memory.kills() > self._kills_before
        numbers = (code, len(out), len(err), int(out_cut), int(err_cut), int(killed))
        return [b"ok", *(b"%d" % one for one in numbers)], out, err


def become(argv: list[bytes], env: dict[bytes, bytes], cwd: bytes, stdio: tuple[int, int, int]) -> NoReturn:
    """In the forked child: turn into the command. Never returns."""
    code = 126
    try:
        os.setsid()
        for number, fd in enumerate(stdio):
            os.dup2(fd, number)
        for one in RESET_SIGNALS:
            signal.signal(one, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.chdir(cwd)
        program = argv[0]
        folders = [b""] if b"/" in program else env.get(b"PATH", b"/usr/bin:/bin").split(b":")
        error: OSError = FileNotFoundError(2, "no such program", os.fsdecode(program))
        for folder in folders:
            try:
                os.execve(os.path.join(folder, program), argv, env)
            except OSError as failed:
                if not isinstance(failed, (FileNotFoundError, NotADirectoryError)):
                    error = failed
        if isinstance(error, FileNotFoundError):
            code = 127
        raise error
    except BaseException as failed:
        try:
            os.write(2, f"inspan: cannot run the command: {failed}\n".encode("utf-8", "replace"))
        finally:
            os._exit(code)
