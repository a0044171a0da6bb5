"""Request bodies in, JSON answers out, in the shapes of the contract."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

import anyio
from attrs import frozen
from starlette.requests import Request
from starlette.responses import Response

from inspan_core.codec import decode, parse_json
from inspan_core.errors import WireError
from inspan_core.json_text import problem
from inspan_server.plain_exchange import TAKE_BODY

BODY_LIMIT_BYTES = 32 * 1024 * 1024
"""Conversations of a million tokens are some 8 MiB."""

DRAIN_LIMIT_BYTES = 64 * 1024 * 1024
"""Read on and thrown away of a body that is too large: a client that still sends would not see the answer."""

STATUS_OF_FAULT = {"timeout": 408, "too_large": 413}
LIMITS_KEY = "inspan.body_limits"
"""Where an application's limits are found in a request's scope."""

T = TypeVar("T")
_JSON = (b"content-type", b"application/json")
_ENCODE = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


@frozen(kw_only=True)
class BodyLimits:
    """What a request's body may take.

    Attributes:
        size_bytes: Larger ones are answered 413.
        timeout_s: Slower ones are answered 408.
    """

    size_bytes: int = BODY_LIMIT_BYTES
    timeout_s: float = 60.0


DEFAULT_LIMITS = BodyLimits()


class JsonResponse(Response):
    """A JSON answer."""

    background = None

    def __init__(self, status: int, body: Mapping[str, Any]) -> None:
        # In place of starlette's own: it makes and looks through text headers for each answer.
        self.status_code = status
        self.body = _ENCODE(body).encode()
        self.raw_headers = [(b"content-length", b"%d" % len(self.body)), _JSON]


async def read_body(request: Request, kind: type[T], *, limit_bytes: int = BODY_LIMIT_BYTES) -> T:
    """The request's body as a wire value.

    Raises:
        WireError: It does not fit; `refusal` makes the answer.
        ClientDisconnect: The client went away before it had sent everything.
    """
    return decode(kind, await read_json_body(request, limit_bytes=limit_bytes))


async def read_json_body(request: Request, *, limit_bytes: int = BODY_LIMIT_BYTES) -> Any:
    """The request's body as JSON; None for an empty one, text for one of another type.

    Raises:
        WireError, ClientDisconnect: As for `read_body`.
    """
    data = await _read(request, limit_bytes)
    if not data:
        return None
    if not _is_json(request.headers.get("content-type")):
        # A browser may send a form or plain text from any page; JSON it may not.
        return data.decode("utf-8", "replace")
    return parse_json(data, limit_bytes)


def refusal(error: WireError) -> JsonResponse:
    """The answer to a body that does not fit."""
    kinds = {each["type"] for each in error.problems}
    status = next((status for kind, status in STATUS_OF_FAULT.items() if kind in kinds), 422)
    return JsonResponse(status, {"detail": error.problems})


async def _read(request: Request, limit_bytes: int) -> bytes:
    limits: BodyLimits = request.scope.get(LIMITS_KEY, DEFAULT_LIMITS)
    limit_bytes = min(limit_bytes, limits.size_bytes)
    take_body = request.scope.get("extensions", {}).get(TAKE_BODY)
    body: bytes | None = None if take_body is None else take_body()
    if body is None:
        body, size = await _receive(request, limit_bytes, limits.timeout_s)
    else:
        size = len(body)
    if size > limit_bytes:
        raise WireError([problem("too_large", (), f"is larger than {limit_bytes} bytes", None)])
    return body


async def _receive(request: Request, limit_bytes: int, timeout_s: float) -> tuple[bytes, int]:
    """The body as far as it is taken, and its size as far as it came."""
    received, size = bytearray(), 0
    with anyio.move_on_after(timeout_s) as clock:
        async for part in request.stream():
            size += len(part)
            if size <= limit_bytes:
                received += part
            elif size > limit_bytes + DRAIN_LIMIT_BYTES:
                break
    if clock.cancelled_caught:
        raise WireError([problem("timeout", (), f"did not come within {timeout_s:g} seconds", None)])
    return bytes(received), size


def _is_json(content_type: str | None) -> bool:
    if content_type is None:
        return True
    name = content_type.partition(";")[0].strip().lower()
    return name == "application/json" or (name.startswith("application/") and name.endswith("+json"))
