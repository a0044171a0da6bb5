"""One client's connection: it reads a request, feeds its body to a job and sends the job's reply."""

from __future__ import annotations

import select

from inspan_runtime.providers.exec_agent.commands import Exec
from inspan_runtime.providers.exec_agent.files import Download, Upload
from inspan_runtime.providers.exec_agent.frames import decode, encode
from inspan_runtime.providers.exec_agent.lean import TYPE_CHECKING, socket

CHUNK_BYTES = 256 * 1024

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from inspan_runtime.providers.exec_agent.loop import Loop
    from inspan_runtime.providers.exec_agent.memory import MemoryWatch


class Ping:
    """Whether anybody is there."""

    body_bytes = 0

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def feed(self, data: bytes) -> None:
        """A ping has no body."""

    def finish(self) -> None:
        self._connection.reply([b"ok"])

    def lost(self, *, is_cancelled: bool) -> None:
        self._connection.close()


class Usage(Ping):
    """What commands that have ended took: whatever ends in the sandbox is collected by this process."""

    def finish(self) -> None:
        try:
            import resource  # Here: few ask, and a small Python may lack it.
        except ImportError:
            self._connection.reply([b"os", b"this Python has no module resource"])
            return
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        figures = (b"%.6f" % (used.ru_utime + used.ru_stime), b"%d" % used.ru_maxrss)
        self._connection.reply([b"ok", *figures])


class Connection:
    """One client, one operation."""

    def __init__(
        self, loop: Loop, sock: socket.socket, base_env: Mapping[bytes, bytes], memory: MemoryWatch
    ) -> None:
        self._loop = loop
        self._memory = memory
        self._sock = sock
        self._base_env = base_env
        self._fd = sock.fileno()
        self._head = bytearray()
        self._job: Exec | Upload | Download | Ping | None = None
        self._left = 0
        self._out = memoryview(b"")
        self._then: Callable[[], None] | None = None
        self._reads = True
        self._gone = self._closed = False
        sock.setblocking(False)
        loop.watch(self._fd, self._mask(), self._on_event)

    def _mask(self) -> int:
        return (
            select.EPOLLRDHUP | (select.EPOLLIN if self._reads else 0) | (select.EPOLLOUT if self._out else 0)
        )

    def _update(self) -> None:
        if not (self._closed or self._gone):
            self._loop.change(self._fd, self._mask())

    def pause(self, paused: bool) -> None:
        """Stop or go on reading the request's body."""
        self._reads = not paused and self._left > 0
        self._update()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._sock.detach()
            self._loop.close(self._fd)

    def send(self, data: bytes, then: Callable[[], None]) -> None:
        """Queue bytes, and call `then` when they are gone."""
        self._out, self._then = memoryview(data), then
        if self._gone:
            self.close()
        self._update()

    def reply(self, fields: list[bytes], *bodies: bytes) -> None:
        self.send(b"".join((encode(fields), *bodies)), self.close)

    def _hung_up(self, *, is_cancelled: bool) -> None:
        self._gone = True
        self._loop.mute(self._fd)
        if self._job is None:
            self.close()
        else:
            self._job.lost(is_cancelled=is_cancelled)

    def _on_event(self, events: int) -> None:
        if events & select.EPOLLOUT and self._out:
            self._flush()
        if self._closed or self._gone:
            return
        if events & select.EPOLLIN and self._reads:
            self._read()
        elif events & (select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR):
            # Both directions are shut when the client is gone, one when it still waits.
            self._hung_up(is_cancelled=not events & (select.EPOLLHUP | select.EPOLLERR))

    def _flush(self) -> None:
        try:
            self._out = self._out[self._sock.send(self._out) :]
        except BlockingIOError:
            return
        except OSError:
            self._hung_up(is_cancelled=False)
            return
        if not self._out:
            then, self._then = self._then, None
            if then is not None:
                then()
        self._update()

    def _read(self) -> None:
        try:
            data = self._sock.recv(CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:  # A request that never came whole is not carried out.
            self._hung_up(is_cancelled=True)
            return
        if self._job is None:
            self._head += data
            try:
                frame = decode(self._head)
                if frame is None:
                    return
                self._start(frame[0])
            except (ValueError, IndexError, OSError) as error:
                self._reads = False
                self.reply([b"os", str(error).encode("utf-8", "replace")])
                return
            data = bytes(self._head[frame[1] :])
            self._head = bytearray()
        self._body(data[: self._left])

    def _start(self, fields: list[bytes]) -> None:
        kind = fields[0]
        if kind == b"exec":
            self._job = Exec(self._loop, self, fields, self._base_env, self._memory)
        elif kind == b"upload":
            self._job = Upload(self, fields)
        elif kind == b"download":
            self._job = Download(self, fields)
        elif kind == b"ping":
            self._job = Ping(self)
        elif kind == b"usage":
            self._job = Usage(self)
        else:
            raise ValueError(f"unknown operation {kind!r}")
        self._left = self._job.body_bytes

    def _body(self, data: bytes) -> None:
        if self._job is None:
            return
        self._left -= len(data)
        if data:
            self._job.feed(data)
        if self._left == 0:
            self._reads = False
            self._job.finish()
            self._update()
