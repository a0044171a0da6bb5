"""HTTP answers of the gateway, which can also break the connection on purpose.

A server that ends an application's call without the last body part aborts the connection: the client sees
a body that stops short, as when a model server dies.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from inspan_server.model.capture import CallOutcome


def json_bytes(value: Any) -> bytes:
    """JSON in ASCII: lone surrogates survive as escapes."""
    return json.dumps(value).encode("ascii")


class JsonAnswer(Response):
    """A plain JSON answer; with `drop` the connection breaks in the middle of the body."""

    def __init__(
        self, status: int, body: Any, *, drop: bool = False, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(json_bytes(body), status, dict(headers or {}), "application/json")
        self._drop = drop

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._drop:
            await super().__call__(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        half = bytes(self.body)[: len(self.body) // 2]
        await send({"type": "http.response.body", "body": half, "more_body": True})


def chat_events(chunks: Iterable[Mapping[str, Any]]) -> Iterator[bytes]:
    """A Chat Completions stream as server-sent events."""
    for chunk in chunks:
        yield b"data: " + json_bytes(chunk) + b"\n\n"
    yield b"data: [DONE]\n\n"


def responses_events(events: Iterable[Mapping[str, Any]]) -> Iterator[bytes]:
    """Events of a Responses stream as server-sent events: each is named, and the last one is the end."""
    for event in events:
        yield b"event: " + event["type"].encode("ascii") + b"\ndata: " + json_bytes(event) + b"\n\n"


class StreamAnswer(Response):
    """Server-sent events.

    Args:
        events: Each as bytes, the one that ends the stream included.
        drop_after: Break the connection after that many events; None: do not.
        done: Told once how it ended, before the last event goes out: an answer that a client has is
            one that was recorded.
    """

    def __init__(
        self,
        events: Iterable[bytes],
        *,
        drop_after: int | None,
        headers: Mapping[str, str],
        done: Callable[[CallOutcome], None],
    ) -> None:
        super().__init__(None, 200, {**headers, "cache-control": "no-cache"}, "text/event-stream")
        if "content-length" in self.headers:
            del self.headers["content-length"]
        self._events = events
        self._drop_after = drop_after
        self._done = done

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        outcome: CallOutcome = "client_gone"
        held = b""
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            for sent, event in enumerate(self._events):
                if self._drop_after is not None:
                    if sent == self._drop_after:
                        break
                    await send({"type": "http.response.body", "body": event, "more_body": True})
                    continue
                if held:
                    await send({"type": "http.response.body", "body": held, "more_body": True})
                held = event
            outcome = "answered" if self._drop_after is None else "dropped"
        finally:
            self._done(outcome)
        if self._drop_after is None:
            await send({"type": "http.response.body", "body": held, "more_body": False})
