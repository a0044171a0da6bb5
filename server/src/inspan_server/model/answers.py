"""HTTP answers of the gateway, which can also break the connection on purpose.

A server that ends an application's call without the last body part aborts the connection: the client sees
a body that stops short, as when a model server dies.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
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


class StreamAnswer(Response):
    """Chunks as server-sent events, ended by ``data: [DONE]``.

    Args:
        drop_after_chunks: Break the connection after that many chunks; None: do not.
        done: Told once how it ended, before the last byte goes out: an answer that a client has is
            one that was recorded.
    """

    def __init__(
        self,
        chunks: Iterable[Mapping[str, Any]],
        *,
        drop_after_chunks: int | None,
        headers: Mapping[str, str],
        done: Callable[[CallOutcome], None],
    ) -> None:
        super().__init__(None, 200, {**headers, "cache-control": "no-cache"}, "text/event-stream")
        if "content-length" in self.headers:
            del self.headers["content-length"]
        self._chunks = chunks
        self._drop_after_chunks = drop_after_chunks
        self._done = done

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        outcome: CallOutcome = "client_gone"
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            for sent, chunk in enumerate(self._chunks):
                if sent == self._drop_after_chunks:
                    break
                event = b"data: " + json_bytes(chunk) + b"\n\n"
                await send({"type": "http.response.body", "body": event, "more_body": True})
            outcome = "answered" if self._drop_after_chunks is None else "dropped"
        finally:
            self._done(outcome)
        if self._drop_after_chunks is None:
            await send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": False})
