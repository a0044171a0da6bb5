"""JSON in and out of the Resources and Environment Servers, with the contract's error bodies."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from inspan_core.codec import parse_json
from inspan_core.errors import WireError

MAX_BODY_BYTES = 64 * 1024 * 1024
CLIENT_GONE_STATUS = 499
"""Nobody reads it."""


class Refused(Exception):
    """A request that is answered with an error status and ``{"detail": ...}``."""

    def __init__(self, status: int, detail: Any) -> None:
        super().__init__(f"{status}: {detail}")
        self.status = status
        self.detail = detail


async def read_json(request: Request) -> Any:
    """The request's body.

    Raises:
        WireError: It is too long or not JSON.
        Refused: The client went away before it had sent everything.
    """
    received = bytearray()
    try:
        async for part in request.stream():
            received += part
            if len(received) > MAX_BODY_BYTES:
                break
    except ClientDisconnect as error:
        raise Refused(CLIENT_GONE_STATUS, "the client went away") from error
    return parse_json(bytes(received), MAX_BODY_BYTES)


def answer(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON answer."""
    return Response(json.dumps(body), status, dict(headers or {}), "application/json")


async def on_refused(request: Request, error: Exception) -> Response:
    """The answer to `Refused`."""
    assert isinstance(error, Refused)
    return answer({"detail": error.detail}, error.status)


async def on_wire_error(request: Request, error: Exception) -> Response:
    """The answer to a body that does not fit."""
    assert isinstance(error, WireError)
    return answer({"detail": error.problems}, 422)


async def on_http_error(request: Request, error: Exception) -> Response:
    """The answer to an unknown path or method."""
    status = getattr(error, "status_code", 500)
    return answer({"detail": getattr(error, "detail", "internal error")}, status)
