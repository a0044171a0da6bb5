"""One model call while it is being answered: its body, its refusal, and its record, written exactly once."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping
from typing import Any

from attrs import define, field
from starlette.requests import Request

from inspan_server.model.capture import CallOutcome, Capture, ModelCall
from inspan_server.model.chat import openai_error

# Prompts of a million tokens with images stay far below this.
MAX_REQUEST_BYTES = 64 * 1024 * 1024


class Refusal(Exception):
    """A call that is answered with an error.

    Attributes:
        status: The HTTP status.
        body: The error body, of OpenAI's shape unless a script says otherwise.
    """

    def __init__(
        self, status: int, message: str, *, type_: str = "invalid_request_error", param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body: Any = openai_error(message, type_=type_, param=param)


@define(kw_only=True)
class CallInProgress:
    """The record of a call as it grows.

    Attributes:
        started_at: Unix seconds.
        started: Monotonic seconds.
        request: What is recorded as the request.
        raw: The body as it came.
    """

    capture: Capture
    rollout_key: str
    route: str
    token_capture: bool
    started_at: float
    started: float
    request: Any = None
    raw: bytes = field(default=b"", repr=False)
    attempt: int = 1
    streamed: bool = False
    cookie_returned: bool | None = None
    finished: bool = False

    def finish(self, *, status: int | None, response: Any, outcome: CallOutcome) -> None:
        """Write the record; only the first call counts."""
        if self.finished:
            return
        self.finished = True
        answer = response if isinstance(response, dict) else {}
        response_id = answer.get("id")
        self.capture.record(
            ModelCall(
                model_call_id=f"call-{secrets.token_hex(12)}",
                rollout_key=self.rollout_key,
                token_capture=self.token_capture,
                route=self.route,
                request=self.request,
                response=response,
                response_id=response_id if isinstance(response_id, str) else None,
                status=status,
                started_at=self.started_at,
                duration_ms=round((time.monotonic() - self.started) * 1000, 3),
                usage=answer.get("usage"),
                attempt=self.attempt,
                streamed=self.streamed,
                cookie_returned=self.cookie_returned,
                outcome=outcome,
            )
        )


async def read_body(request: Request) -> bytes:
    """Read a bounded body.

    Raises:
        Refusal: It is too long.
        ClientDisconnect: The client went before its body was complete.
    """
    received = bytearray()
    async for part in request.stream():
        received += part
        if len(received) > MAX_REQUEST_BYTES:
            raise Refusal(413, f"request body: larger than {MAX_REQUEST_BYTES} bytes")
    return bytes(received)


def parse_chat_request(raw: bytes) -> dict[str, Any]:
    """A Chat Completions request, checked as far as an answer depends on it.

    Raises:
        Refusal: It is not JSON or does not fit; the message names the field.
    """
    body = _parse_object(raw)
    if not isinstance(body.get("messages"), list) or not body["messages"]:
        raise _unfit(body, "messages", "a list of messages that is not empty")
    return body


def parse_responses_request(raw: bytes) -> dict[str, Any]:
    """A Responses request, likewise.

    Raises:
        Refusal: It is not JSON or does not fit; the message names the field.
    """
    body = _parse_object(raw)
    content = body.get("input")
    if not isinstance(content, str | list) or not content:
        raise _unfit(body, "input", "text or a list of items that is not empty")
    if not isinstance(body.get("tools") or [], list):
        raise _unfit(body, "tools", "a list of tools")
    return body


def _parse_object(raw: bytes) -> dict[str, Any]:
    try:
        body = json.loads(raw, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"request body: expected JSON: {error}") from error
    if not isinstance(body, dict):
        raise Refusal(400, f"request body: expected an object, got {type(body).__name__}")
    if not isinstance(body.get("model"), str):
        raise _unfit(body, "model", "the name of a model")
    if not isinstance(body.get("stream", False), bool | None):
        raise _unfit(body, "stream", "true or false")
    return body


def _unfit(body: Mapping[str, Any], name: str, expected: str) -> Refusal:
    got = json.dumps(body[name])[:60] if name in body else "nothing"
    return Refusal(400, f"{name}: expected {expected}, got {got}", param=name)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
