"""Artifacts to a response and observations: pure, and never raises on what a sandbox may hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inspan_core.findings import Outcome
from inspan_core.harness import ParsedActivation, ParseInput
from inspan_core.observations import (
    AgentInvocation,
    AgentObservationBundle,
    ContextCompaction,
    ModelCallRef,
    ObservationGap,
    ToolCall,
    ToolCallStatus,
)
from inspan_core.response_object import STATUSES, artifact_digest, input_items, response_object
from inspan_core.run_trace import artifact_gaps, sound_times
from inspan_pi.items import to_output
from inspan_pi.outcome import read_ending
from inspan_pi.trace import Compaction, Execution, Trace, read_trace
from inspan_pi.usage import total_usage, was_answered


def parse(run: ParseInput) -> ParsedActivation:
    """The plugin's whole parser."""
    trace = read_trace(run.artifacts)
    ending = read_ending(run, trace)
    output = to_output(trace)
    usage, usage_gaps = total_usage(trace.answers)
    identity = trace.session_id or artifact_digest(run)
    references, reference_gaps = _model_calls(run, trace)
    invocation = AgentInvocation(
        invocation_id=identity,
        status=STATUSES[ending.outcome],
        duration_ms=trace.duration_ms,
        error_type=ending.error_type,
        model_calls=references,
        conversation=(*input_items(run.request), *output.items),
    )
    tools = [_tool_call(execution, identity, run) for execution in trace.executions]
    compactions = [_compaction(each, identity) for each in trace.compactions]
    gaps = [*artifact_gaps(run), *trace.gaps, *output.gaps, *usage_gaps, *reference_gaps, *_run_gaps(run)]
    response = None
    if trace.answers:
        created_at = trace.first_at or 0.0
        response = response_object(
            run, ending, output=output.items, usage=usage, identity=identity, created_at=created_at
        )
    return ParsedActivation(
        outcome=ending.outcome,
        response=response,
        observations=AgentObservationBundle(
            source="pi", records=(invocation, *tools, *compactions), gaps=tuple(gaps)
        ),
        detail=ending.detail if ending.outcome in (Outcome.FAILED, Outcome.UNPROCESSABLE) else None,
    )


def _model_calls(run: ParseInput, trace: Trace) -> tuple[tuple[ModelCallRef, ...], list[ObservationGap]]:
    references, missing = [], 0
    for answer in trace.answers:
        response_id = answer.body.get("responseId")
        if isinstance(response_id, str) and response_id:
            references.append(ModelCallRef(model_ref=run.model_name, response_id=response_id))
        elif answer.body.get("stopReason") != "aborted" or was_answered(answer):
            # Pi also writes an empty, aborted answer for the call that a stop kept it from making.
            missing += 1
    if not missing:
        return tuple(references), []
    detail = f"{missing} model calls brought no response id"
    return tuple(references), [ObservationGap(code="model_call_reference_unavailable", detail=detail)]


def _tool_call(execution: Execution, identity: str, run: ParseInput) -> ToolCall:
    started_at, ended_at = sound_times(execution.started_at, execution.ended_at)
    duration_ms = execution.duration_ms
    if duration_ms is None and started_at is not None and ended_at is not None:
        duration_ms = (ended_at - started_at) * 1000.0
    status: ToolCallStatus = "completed"
    if execution.is_error is None:
        status = "cancelled" if run.timed_out or run.interrupted else "incomplete"
    elif execution.is_error:
        status = "failed"
    known = started_at is not None or duration_ms is not None
    return ToolCall(
        invocation_id=identity,
        tool_call_id=execution.call_id,
        tool_name=execution.name,
        sandbox_id=run.sandbox_id,
        started_at=started_at,
        completed_at=ended_at,
        duration_ms=duration_ms,
        timing_source="harness" if known else None,
        status=status,
        error_type="tool_error" if execution.is_error else None,
    )


def _compaction(compaction: Compaction, identity: str) -> ContextCompaction:
    result = compaction.result or {}
    before, after = result.get("tokensBefore"), result.get("estimatedTokensAfter")
    summary, kept = result.get("summary"), result.get("firstKeptEntryId")
    outcomes = {"completed": "completed", "failed": "failed", "aborted": "aborted"}
    return ContextCompaction(
        invocation_id=identity,
        observed_at=compaction.observed_at,
        trigger=compaction.reason,
        tokens_before=before if type(before) is int else None,
        tokens_after=after if type(after) is int else None,
        outcome=outcomes.get(compaction.outcome, "unknown"),  # type: ignore[arg-type]
        summary=summary if isinstance(summary, str) else None,
        first_kept_item_id=kept if isinstance(kept, str) else None,
    )


def _run_gaps(run: ParseInput) -> list[ObservationGap]:
    gaps = []
    prompt = _last_text(run.request)
    if prompt is not None and prompt != prompt.strip():
        detail = "Pi takes the blanks off both ends of the prompt"
        gaps.append(ObservationGap(code="prompt_whitespace_trimmed", detail=detail))
    return gaps


def _last_text(request: Mapping[str, Any]) -> str | None:
    items = input_items(request)
    content = items[-1].get("content") if items else None
    if isinstance(content, str):
        return content
    texts = [part.get("text") for part in content or () if isinstance(part, Mapping)]
    return "\n".join(text for text in texts if isinstance(text, str)) or None
