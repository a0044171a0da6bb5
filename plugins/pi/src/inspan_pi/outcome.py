"""How a run ended, from evidence: Pi exits 0 in JSON mode whatever happened (measured on 1.6.0).

The last answer decides. Its ``stopReason`` is stop, length, toolUse, error or aborted; an error's
``errorMessage`` is ``"401: {...body...}"`` when the model server answered with a status, else a sentence.
"""

from __future__ import annotations

import re
from typing import Any

from attrs import frozen

from inspan_core.errors import WireError
from inspan_core.findings import Outcome
from inspan_core.harness import ParseInput
from inspan_core.json_text import parse_json
from inspan_pi.trace import Trace
from inspan_pi.usage import was_answered

BODY_LIMIT_BYTES = 64 * 1024
_STATUS = re.compile(r"^(\d{3}):? ?(.*)$", re.DOTALL)
_OVERFLOW = re.compile(
    r"context_length_exceeded|maximum context length|context (length|window|size)|prompt is too long"
    r"|too many tokens|input is too long|exceeds the (model's )?(maximum )?context",
    re.IGNORECASE,
)
# What may pass by itself: time-outs, conflicts, too early, too many requests; and every 5xx.
_RETRYABLE = frozenset({408, 409, 425, 429})


@frozen(kw_only=True)
class Ending:
    """The verdict.

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


def read_ending(run: ParseInput, trace: Trace) -> Ending:
    """Judge a run by its trace and its receipt."""
    has_answer = any(was_answered(answer) for answer in trace.answers)
    if run.interrupted:
        return _failed("the run was cut off by close", "interrupted")
    if run.timed_out:
        if has_answer:
            return Ending(outcome=Outcome.INCOMPLETE, stop_reason="time_limit", error_type="time_limit")
        return _failed("the run's time ended before the model answered", "time_limit")
    if not trace.answers:
        return _failed(
            f"the run ended without any model call (exit code {run.return_code})", "no_model_answer"
        )
    last = trace.answers[-1].body
    stop, message = last.get("stopReason"), str(last.get("errorMessage") or "")
    if stop == "length":
        return Ending(outcome=Outcome.INCOMPLETE, reason="max_output_tokens")
    if stop == "error":
        earlier = any(was_answered(answer) and answer.content for answer in trace.answers[:-1])
        return _model_error(message, has_work=earlier)
    if stop == "stop" and trace.has_ended:
        return Ending(outcome=Outcome.COMPLETED)
    if stop == "aborted":
        return _failed(f"Pi was stopped in the middle of its work: {message}", "aborted")
    return _failed(f"Pi died in the middle of its work (exit code {run.return_code})", "harness_died")


def _model_error(message: str, *, has_work: bool) -> Ending:
    if message.endswith("finish_reason: content_filter"):
        return Ending(outcome=Outcome.INCOMPLETE, reason="content_filter")
    match = _STATUS.match(message)
    status = int(match[1]) if match else None
    if match is None or status is None:
        # No status: refused, reset, or a stream that ended without its end.
        return _failed(message or "the model call failed", "model_connection_error")
    detail = {"message": f"the model server answered {status}", "model_status": status}
    detail["model_body"] = _body(match[2])
    is_overflow = status == 413 or (400 <= status < 500 and _OVERFLOW.search(match[2]) is not None)
    if is_overflow and status != 429:
        if has_work:
            return Ending(
                outcome=Outcome.INCOMPLETE,
                stop_reason="context_length",
                error_type="context_length",
                detail=detail,
            )
        return Ending(outcome=Outcome.UNPROCESSABLE, detail=detail, error_type="context_length")
    error_type = f"model_status_{status}"
    if 400 <= status < 500 and status not in _RETRYABLE:
        return Ending(outcome=Outcome.UNPROCESSABLE, detail=detail, error_type=error_type)
    code = "rate_limit_exceeded" if status == 429 else "server_error"
    return Ending(outcome=Outcome.FAILED, detail=detail, error_type=error_type, error_code=code)


def _failed(sentence: str, error_type: str) -> Ending:
    return Ending(outcome=Outcome.FAILED, detail={"message": sentence}, error_type=error_type)


def _body(text: str) -> Any:
    """The model server's body: parsed where it is JSON, else as it is, bounded."""
    try:
        return parse_json(text.encode("utf-8", "replace"), BODY_LIMIT_BYTES)
    except WireError:
        return text[:BODY_LIMIT_BYTES]
