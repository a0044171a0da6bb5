"""Heads of requests for Hypercorn's HTTP/1.1, refused before anybody acts on them.

h11 bounds a head only while it is not whole, takes any number of headers, and lets Transfer-Encoding win over
a Content-Length beside it, which is how requests are smuggled past a proxy that does otherwise.
"""

from __future__ import annotations

from typing import Any

import h11
from hypercorn import protocol
from hypercorn.protocol.h11 import H11Protocol

from inspan_server.plain_http import HEADERS_LIMIT

OVERHEAD_BYTES = len(b": \r\n")


class BoundedConnection(h11.Connection):
    """h11's, for a server, with heads bounded however they come."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(h11.SERVER, max_incomplete_event_size=limit_bytes)
        self._limit_bytes = limit_bytes

    def next_event(self) -> Any:
        """See h11.

        Raises:
            RemoteProtocolError: Also for a head that is over the bounds, or framed in two ways.
        """
        event = super().next_event()
        if isinstance(event, h11.Request):
            check_head(event, self._limit_bytes)
        return event


def check_head(request: h11.Request, limit_bytes: int) -> None:
    """Refuse a head.

    Raises:
        RemoteProtocolError: With the status to answer.
    """
    headers = list(request.headers)
    size = len(request.target) + sum(len(name) + len(value) + OVERHEAD_BYTES for name, value in headers)
    if size > limit_bytes or len(headers) > HEADERS_LIMIT:
        raise h11.RemoteProtocolError("the head of the request is too large", error_status_hint=431)
    names = {name for name, _ in headers}
    if {b"transfer-encoding", b"content-length"} <= names:
        raise h11.RemoteProtocolError("the body has two lengths", error_status_hint=400)


class BoundedProtocol(H11Protocol):
    """Hypercorn's HTTP/1.1, with such a connection."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.connection = BoundedConnection(self.config.h11_max_incomplete_size)


def bound_heads() -> None:
    """Let Hypercorn speak so from now on, in this process."""
    protocol.H11Protocol = BoundedProtocol  # type: ignore[attr-defined]
