"""How a run ended, from evidence: Pi exits 0 in JSON mode whatever happened (measured on 1.6.0).

The last answer decides. Its ``stopReason`` is stop, length, toolUse, error or aborted; an error's
``errorMessage`` is ``"401: {...body...}"`` when the model server answered with a status, else a sentence.
"""

from __future__ import annotations

import re

from inspan_core.ending import Ending, failed, model_error
from inspan_core.findings import Outcome
from inspan_core.function_tools import missing_tools
from inspan_core.harness import ParseInput
from inspan_pi.trace import Trace
from inspan_pi.usage import was_answered

_STATUS = re.compile(r"^(\d{3}):? ?(.*)$", re.DOTALL)


def read_ending(run: ParseInput, trace: Trace) -> Ending:
    """Judge a run by its trace and its receipt."""
    has_answer = any(was_answered(answer) for answer in trace.answers)
    if run.interrupted:
        return failed("the run was cut off by close", "interrupted")
    missing = missing_tools(run.artifacts, run.request)
    if missing is not None:
        return failed(missing, "tools_unavailable")
    if run.timed_out:
        if has_answer:
            return Ending(outcome=Outcome.INCOMPLETE, stop_reason="time_limit", error_type="time_limit")
        return failed("the run's time ended before the model answered", "time_limit")
    if not trace.answers:
        return failed(
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
        return failed(f"Pi was stopped in the middle of its work: {message}", "aborted")
    return failed(f"Pi died in the middle of its work (exit code {run.return_code})", "harness_died")


def _model_error(message: str, *, has_work: bool) -> Ending:
    if message.endswith("finish_reason: content_filter"):
        return Ending(outcome=Outcome.INCOMPLETE, reason="content_filter")
    match = _STATUS.match(message)
    if match is None:
        # No status: refused, reset, or a stream that ended without its end.
        return failed(message or "the model call failed", "model_connection_error")
    return model_error(int(match[1]), match[2], has_work=has_work)
