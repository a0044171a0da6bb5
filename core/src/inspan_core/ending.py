"""How a harness's run ended, for parsers: the verdict, and what a model server's error is worth."""

from __future__ import annotations

import re
from typing import Any

from attrs import frozen

from inspan_core.errors import WireError
from inspan_core.findings import Outcome
from inspan_core.json_text import parse_json

BODY_LIMIT_BYTES = 64 * 1024
# The words of OpenAI, vLLM, llama.cpp and others.
_OVERFLOW = re.compile(
    r"context_length_exceeded|maximum context length|context (length|window|size)|prompt is too long"
    r"|too many tokens|input is too long|exceeds the (model's )?(maximum )?context",
    re.IGNORECASE,
)
# What may pass by itself: time-outs, conflicts, too early, too many requests; and every 5xx.
_RETRYABLE = frozenset({408, 409, 425, 429})


@frozen(kw_only=True)
class Ending:
    """The verdict on a run.

    Attributes:
        outcome: How the run ended.
        detail: For FAILED and UNPROCESSABLE: the object for ``detail``.
        reason: ``incomplete_details.reason``, or None.
        stop_reason: ``metadata.stop_reason``, or None.
        error_type: A stable word for the invocation's record, or None.
        error_code: The ``code`` of the response's error.
    """

    outcome: Outcome
    detail: Any = None
    reason: str | None = None
    stop_reason: str | None = None
    error_type: str | None = None
    error_code: str = "server_error"


def failed(sentence: str, error_type: str) -> Ending:
    """A run that failed and may be tried again."""
    return Ending(outcome=Outcome.FAILED, detail={"message": sentence}, error_type=error_type)


def context_overflow(detail: Any, *, has_work: bool) -> Ending:
    """The conversation did not fit the model's context: partial work may be graded, nothing may not."""
    if has_work:
        return Ending(
            outcome=Outcome.INCOMPLETE,
            stop_reason="context_length",
            error_type="context_length",
            detail=detail,
        )
    return Ending(outcome=Outcome.UNPROCESSABLE, detail=detail, error_type="context_length")


def model_error(status: int, body: str, *, has_work: bool) -> Ending:
    """The model server answered the run's last call with an error.

    Args:
        status: The HTTP status.
        body: The body as text, as far as the harness kept it.
        has_work: Whether the model was answered before, so that there is something to grade.
    """
    detail = {"message": f"the model server answered {status}", "model_status": status}
    detail["model_body"] = _body(body)
    is_overflow = status == 413 or (400 <= status < 500 and _OVERFLOW.search(body) is not None)
    if is_overflow and status != 429:
        return context_overflow(detail, has_work=has_work)
    error_type = f"model_status_{status}"
    if 400 <= status < 500 and status not in _RETRYABLE:
        return Ending(outcome=Outcome.UNPROCESSABLE, detail=detail, error_type=error_type)
    code = "rate_limit_exceeded" if status == 429 else "server_error"
    return Ending(outcome=Outcome.FAILED, detail=detail, error_type=error_type, error_code=code)


def _body(text: str) -> Any:
    """The body: parsed where it is JSON, else as it is, bounded."""
    try:
        return parse_json(text.encode("utf-8", "replace"), BODY_LIMIT_BYTES)
    except WireError:
        return text[:BODY_LIMIT_BYTES]
