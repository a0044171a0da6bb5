"""How a run ended, from evidence: Codex says it on standard output, and its exit code agrees (0 or 1).

The words of ``turn.failed`` are those of 0.171.0. Only a 400 brings the model server's body; other statuses
bring its message, a 5xx not even its number.
"""

from __future__ import annotations

import re

from inspan_codex.trace import Trace
from inspan_core.ending import Ending, context_overflow, failed, model_error
from inspan_core.findings import Outcome
from inspan_core.function_tools import missing_tools
from inspan_core.harness import ParseInput

_INCOMPLETE = re.compile(r"Incomplete response returned, reason: (max_output_tokens|content_filter)")
_OVERFLOW = "Codex ran out of room in the model's context window"
_STATUS = re.compile(r"^unexpected status (\d{3})\b[^:]*: (.*?)(?:, url: [^\n]*)?$", re.DOTALL)
_GAVE_UP = re.compile(r"^exceeded retry limit, last status: (\d{3})")
_CONNECTION = re.compile(r"^(stream disconnected before completion|Connection failed)")
_NO_SERVER = re.compile(r"required MCP servers failed to initialize: [^:\n]{1,300}")
_BUSY = "currently experiencing high demand"


def read_ending(run: ParseInput, trace: Trace) -> Ending:
    """Judge a run by its trace and its receipt."""
    if run.interrupted:
        return failed("the run was cut off by close", "interrupted")
    absent = missing_tools(run.artifacts, run.request)
    if absent is not None:
        return failed(absent, "tools_unavailable")
    if run.timed_out:
        if trace.has_answer:
            return Ending(outcome=Outcome.INCOMPLETE, stop_reason="time_limit", error_type="time_limit")
        return failed("the run's time ended before the model answered", "time_limit")
    if trace.ended == "turn.failed":
        return _failure(trace.failure or "", has_work=trace.has_answer)
    missing = _NO_SERVER.search(run.artifacts.files.get("stderr.log", b"").decode("utf-8", "replace"))
    if trace.ended is None and not trace.has_answer and missing is not None:
        return failed(f"Codex did not start: {missing[0]}", "tool_server_unavailable")
    if trace.ended != "turn.completed":
        what = "in the middle of its work" if trace.has_answer else "before any model call was answered"
        return failed(f"Codex ended {what} (exit code {run.return_code})", "harness_died")
    if not trace.has_answer:
        return failed("the run ended without any model answer in its record", "no_model_answer")
    return Ending(outcome=Outcome.COMPLETED)


def _failure(message: str, *, has_work: bool) -> Ending:
    incomplete = _INCOMPLETE.search(message)
    if incomplete is not None:
        return Ending(outcome=Outcome.INCOMPLETE, reason=incomplete[1])
    if message.startswith(_OVERFLOW):
        detail = {"message": message, "model_status": None, "model_body": None}
        return context_overflow(detail, has_work=has_work)
    status = _STATUS.match(message)
    if status is not None:
        return model_error(int(status[1]), status[2], has_work=has_work)
    gave_up = _GAVE_UP.match(message)
    if gave_up is not None:
        return model_error(int(gave_up[1]), "", has_work=has_work)
    if _CONNECTION.match(message):
        return failed(message, "model_connection_error")
    if _BUSY in message:
        return failed(message, "model_server_error")
    if message.startswith("{"):
        return model_error(400, message, has_work=has_work)
    return failed(message or "the turn failed without a reason", "turn_failed")
