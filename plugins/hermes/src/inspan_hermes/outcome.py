"""How a run ended, from evidence: the last model call, Hermes' own result, and the shim's error."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from inspan_core.ending import Ending, context_overflow, failed, model_error
from inspan_core.findings import Outcome
from inspan_core.function_tools import missing_tools
from inspan_core.harness import ParseInput
from inspan_hermes.trace import Call, Trace, text

# Hermes gives up before the model server has refused anything (compaction did not help).
_NO_ROOM = re.compile(r"context|compress", re.IGNORECASE)


def read_ending(run: ParseInput, trace: Trace) -> Ending:
    """Judge a run by its trace and its receipt."""
    if run.interrupted:
        return failed("the run was cut off by close", "interrupted")
    if trace.violations:
        return _violated(trace.violations[0])
    if run.timed_out:
        if trace.has_answer:
            return Ending(outcome=Outcome.INCOMPLETE, stop_reason="time_limit", error_type="time_limit")
        return failed("the run's time ended before the model answered", "time_limit")
    error = trace.output.get("error") if trace.output is not None else None
    if isinstance(error, Mapping):
        message = f"{text(error.get('type'))}: {text(error.get('message'))[:4000]}"
        return failed(f"Hermes did not run: {message}", text(error.get("type")) or "harness_error")
    absent = missing_tools(run.artifacts, run.request)
    if absent is not None:
        return failed(absent, "tools_unavailable")
    if "ready.json" not in run.artifacts.files and trace.output is not None:
        return failed("the shim did not confirm that the settings were in force", "settings_not_in_force")
    if trace.output is None:
        what = "in the middle of its work" if trace.has_answer else "before any model call was answered"
        return failed(f"Hermes ended {what} (exit code {run.return_code})", "harness_died")
    return _result(trace)


def _violated(violation: Mapping[str, Any]) -> Ending:
    field, asked = text(violation.get("field")), violation.get("asked")
    message = (
        f"Hermes would have asked the model with `{field}` {violation.get('sent')!r}, asked was {asked!r}"
    )
    detail = {"message": message, "field": field}
    return Ending(outcome=Outcome.UNPROCESSABLE, detail=detail, error_type="settings_not_applied")


def _result(trace: Trace) -> Ending:
    """A run that Hermes itself ended."""
    result, calls = trace.result, trace.conversation
    last = calls[-1] if calls else None
    has_work = trace.has_answer
    if last is not None and last.failure is not None:
        return _failure(last, has_work=has_work)
    if result.get("compression_exhausted") is True:
        message = text(result.get("error")) or "the conversation does not fit the model's context"
        return context_overflow({"message": message}, has_work=has_work)
    if last is None or not has_work:
        return failed("the run ended without any model answer", "no_model_answer")
    if not last.is_whole:
        return failed("the model's answer broke off, again and again", "model_stream_broken")
    if text(result.get("turn_exit_reason")).startswith("max_iterations_reached"):
        return Ending(outcome=Outcome.INCOMPLETE, stop_reason="max_turns", error_type="max_turns")
    if last.finish_reason == "length":
        return Ending(outcome=Outcome.INCOMPLETE, reason="max_output_tokens")
    if last.finish_reason == "content_filter":
        return Ending(outcome=Outcome.INCOMPLETE, reason="content_filter")
    if result.get("completed") is True and result.get("failed") is not True:
        return Ending(outcome=Outcome.COMPLETED)
    why = text(result.get("error")) or text(result.get("turn_exit_reason")) or "no reason given"
    if _NO_ROOM.search(why) and result.get("failed") is True:
        return context_overflow({"message": why}, has_work=has_work)
    return failed(f"Hermes gave up: {why[:4000]}", "harness_gave_up")


def _failure(call: Call, *, has_work: bool) -> Ending:
    failure = call.failure
    assert failure is not None
    if failure.status is not None:
        return model_error(failure.status, failure.body or failure.message, has_work=has_work)
    what = "the model's answer broke off" if call.was_answered else "the model server did not answer"
    kind = "model_stream_broken" if call.was_answered else "model_connection_error"
    return failed(f"{what}: {failure.kind}: {failure.message[:4000]}", kind)
