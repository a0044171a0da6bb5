"""One plain request and its answer, as an application sees them (ASGI)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from attrs import define, field

from inspan_server.plain_http import Head, answer_head, has_body

TAKE_BODY = "inspan.take_body"
"""The extension by which an application gets a body that has come, without the clock that a wait needs."""

CLIENT = "inspan.client"
"""The extension by which an application learns by a call, and not from `receive`, that its client has left.

It is an `inspan_runtime.waiting.Client`.
"""

DISCONNECTED = {"type": "http.disconnect"}
_CHUNKED = (b"transfer-encoding", b"chunked")
_CLOSE = (b"connection", b"close")
_LENGTH = b"content-length"


class Wire(Protocol):
    """What one exchange needs of its connection."""

    is_at_end: bool
    """Nothing more comes."""

    is_last: bool
    """No request is taken after this one."""

    on_end: Callable[[], None] | None
    """Called once, when it is known that nothing more comes."""

    def take(self, most: int) -> bytes:
        """Bytes that have come, no more than so many."""
        ...

    async def changed(self) -> None:
        """Wait for more, for the end, or for a `wake`."""
        ...

    def wake(self) -> None:
        """End such a wait."""
        ...

    def has_come(self, size: int) -> bool:
        """Whether so many bytes are there to take."""
        ...

    async def write(self, data: bytes) -> None:
        """Send, and wait while the client has too much before it."""
        ...

    def date(self) -> bytes:
        """The time of now, for a header."""
        ...


@define(eq=False)
class Exchange:
    """One request and its answer.

    Attributes:
        is_read: Whether the application took the whole body.
        is_begun: Whether anything of the answer was sent.
        is_answered: Whether all of it was.
    """

    _wire: Wire
    _head: Head
    is_read: bool = field(default=False, init=False)
    is_begun: bool = field(default=False, init=False)
    is_answered: bool = field(default=False, init=False)
    _to_read: int = field(init=False)
    _start: Mapping[str, Any] | None = field(default=None, init=False)
    _to_send: int | None = field(default=None, init=False)
    """Of the body; None: it is sent in chunks."""

    @_to_read.default
    def _whole_body(self) -> int:
        return self._head.body_bytes

    def take_body(self) -> bytes | None:
        """The whole body if it has come and nothing was received of it; nobody has to wait for that."""
        if self.is_read or self._to_read != self._head.body_bytes or not self._wire.has_come(self._to_read):
            return None
        body, self._to_read, self.is_read = self._wire.take(self._to_read), 0, True
        return body

    def watch(self, gone: Callable[[], None]) -> None:
        """See `inspan_runtime.waiting.Client`; for a request whose body was read."""
        if self._wire.is_at_end:
            gone()
        else:
            self._wire.on_end = gone

    def unwatch(self) -> None:
        """Watch no more."""
        self._wire.on_end = None

    async def receive(self) -> dict[str, Any]:
        """See the ASGI specification."""
        wire = self._wire
        if not self.is_read:
            part = b""
            while self._to_read and not (part := wire.take(self._to_read)):
                if wire.is_at_end:
                    return DISCONNECTED
                await wire.changed()
            self._to_read -= len(part)
            self.is_read = not self._to_read
            return {"type": "http.request", "body": part, "more_body": not self.is_read}
        while not (wire.is_at_end or self.is_answered):
            await wire.changed()
        return DISCONNECTED

    async def send(self, message: Mapping[str, Any]) -> None:
        """See the ASGI specification.

        Raises:
            ValueError: The message may not come now, or does not fit to what was sent.
        """
        if message["type"] == "http.response.start" and self._start is None:
            self._start = message
        elif message["type"] == "http.response.body" and self._start is not None and not self.is_answered:
            await self._send_body(self._start, message.get("body", b""), message.get("more_body", False))
        else:
            raise ValueError(f"{message['type']} may not be sent now")

    async def end(self, *, has_failed: bool) -> None:
        """Answer if the application did not, and pass over what it left of the body.

        An answer that was begun and left off stays so.
        """
        if not self.is_begun and self._start is not None and not has_failed:
            await self._send_body(self._start, b"", has_more=True)
        elif not self.is_begun:
            self._wire.is_last = True
            self._start = None
            await self.send({"type": "http.response.start", "status": 500})
            await self.send({"type": "http.response.body"})
        if self._wire.has_come(self._to_read):
            self._wire.take(self._to_read)
            self.is_read = True

    async def _send_body(self, start: Mapping[str, Any], body: bytes, has_more: bool) -> None:
        head = b"" if self.is_begun else self._begin(start, len(body), has_more)
        if not has_body(start["status"]):
            body = b""
        elif self._to_send is None:
            body = (b"%x\r\n%b\r\n" % (len(body), body) if body else b"") + (
                b"" if has_more else b"0\r\n\r\n"
            )
        else:
            self._to_send -= len(body)
            if self._to_send < 0 or (self._to_send and not has_more):
                raise ValueError("the answer's body is not as long as its content-length says")
        self.is_begun = True
        self.is_answered = not has_more
        await self._wire.write(head + body)
        if self.is_answered:
            self._wire.wake()

    def _begin(self, start: Mapping[str, Any], size: int, has_more: bool) -> bytes:
        headers = list(start.get("headers", ()))
        declared = next((int(value) for name, value in headers if name.lower() == _LENGTH), None)
        if declared is None and has_body(start["status"]):
            headers.append(_CHUNKED if has_more else (_LENGTH, b"%d" % size))
        self._to_send = declared if declared is not None or has_more else size
        headers.append((b"date", self._wire.date()))
        if not self._wire.has_come(self._to_read):
            self._wire.is_last = True  # What comes of the body would be taken for a request.
        if self._wire.is_last:
            headers.append(_CLOSE)
        return answer_head(start["status"], headers)
