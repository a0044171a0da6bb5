"""Artifacts to a response and observations: pure, and never raises on what a sandbox may hold."""

from __future__ import annotations

from collections.abc import Iterable

from inspan_core.findings import Outcome
from inspan_core.harness import ParsedActivation, ParseInput
from inspan_core.observations import (
    AgentInvocation,
    AgentObservationBundle,
    CompactionOutcome,
    ContextCompaction,
    ModelCallRef,
    ObservationGap,
    ToolCall,
    ToolCallStatus,
)
from inspan_core.response_object import STATUSES, artifact_digest, input_items, response_object
from inspan_core.run_trace import artifact_gaps, sound_times
from inspan_core.trace_lines import parse_line
from inspan_hermes.items import MadeCall, to_output
from inspan_hermes.outcome import read_ending
from inspan_hermes.trace import Call, Compaction, Trace, read_trace, text
from inspan_hermes.usage import total_usage

OUTCOMES: dict[str, CompactionOutcome] = {
    "completed": "completed",
    "failed": "failed",
    "aborted": "aborted",
}
# What the terminal of hermes-agent 0.19.0 says of a command that ran out of time, or was interrupted.
TIMED_OUT_CODE, INTERRUPTED_CODE = 124, 130


def parse(run: ParseInput) -> ParsedActivation:
    """The plugin's whole parser."""
    trace = read_trace(run.artifacts)
    ending = read_ending(run, trace)
    output = to_output(trace)
    usage, usage_gaps = total_usage(trace.calls)
    identity = trace.session_id or artifact_digest(run)
    invocation = AgentInvocation(
        invocation_id=identity,
        status=STATUSES[ending.outcome],
        duration_ms=trace.duration_ms,
        error_type=ending.error_type,
        model_calls=_references(run, trace.calls),
        conversation=(*input_items(run.request), *output.conversation),
    )
    gaps = artifact_gaps(run)
    gaps += [*trace.gaps, *output.gaps, *usage_gaps, *_run_gaps(trace)]
    response = None
    if trace.has_answer:
        response = response_object(
            run,
            ending,
            output=output.items,
            usage=usage,
            identity=identity.replace("_", ""),
            created_at=trace.first_at or 0.0,
        )
    return ParsedActivation(
        outcome=ending.outcome,
        response=response,
        observations=AgentObservationBundle(
            source="hermes",
            records=(
                invocation,
                *(_tool_call(made, identity, run) for made in output.tools),
                *(_compaction(each, identity, run) for each in trace.compactions),
            ),
            gaps=tuple(gaps),
        ),
        detail=ending.detail if ending.outcome in (Outcome.FAILED, Outcome.UNPROCESSABLE) else None,
    )


def _references(run: ParseInput, calls: Iterable[Call]) -> tuple[ModelCallRef, ...]:
    named = [call.response_id for call in calls if call.response_id is not None]
    return tuple(ModelCallRef(model_ref=run.model_name, response_id=name) for name in named)


def _run_gaps(trace: Trace) -> list[ObservationGap]:
    gaps = [ObservationGap(code="tool_server_disconnected", detail=error[:1000]) for error in trace.skipped]
    failures = [call.failure for call in trace.calls[:-1] if call.failure is not None]
    if failures:
        kinds = ", ".join(str(failure.status or failure.kind) for failure in failures)[:400]
        detail = f"{len(failures)} model calls failed and were repeated or done without: {kinds}"
        gaps.append(ObservationGap(code="model_call_failed", detail=detail))
    unnamed = sum(call.was_answered and call.response_id is None for call in trace.calls)
    if unnamed:
        detail = f"{unnamed} answers of the model server have no id"
        gaps.append(ObservationGap(code="model_call_reference_unavailable", detail=detail))
    return gaps


def _tool_call(made: MadeCall, identity: str, run: ParseInput) -> ToolCall:
    execution = made.execution
    started_at, ended_at = None, None
    if execution is not None:
        started_at, ended_at = sound_times(execution.started_at, execution.ended_at)
    duration_ms = None
    if started_at is not None and ended_at is not None:
        duration_ms = round((ended_at - started_at) * 1000.0, 3)
    status = _status(made, run)
    return ToolCall(
        invocation_id=identity,
        tool_call_id=made.call_id,
        tool_name=made.name,
        sandbox_id=run.sandbox_id,
        started_at=started_at,
        completed_at=ended_at,
        duration_ms=duration_ms,
        timing_source=None if started_at is None else "harness",
        status=status,
        error_type="tool_error" if status == "failed" else None,
    )


def _status(made: MadeCall, run: ParseInput) -> ToolCallStatus:
    """By the result's own words: Hermes' tools answer with a JSON object."""
    was_stopped = run.timed_out or run.interrupted
    if made.output is None:
        return "cancelled" if was_stopped else "incomplete"
    result = parse_line(made.output.encode("utf-8", "replace"))
    if not isinstance(result, dict):
        # Not run at all: a tool that there is not, arguments that are none.
        return "failed" if made.execution is None else "completed"
    code = result.get("exit_code")
    if code == INTERRUPTED_CODE and was_stopped:
        return "cancelled"
    if code == TIMED_OUT_CODE and "timed out" in text(result.get("output")) + text(result.get("error")):
        return "timeout"
    has_failed = result.get("error") not in (None, "", False) or result.get("success") is False
    return "failed" if has_failed or (type(code) is int and code != 0) else "completed"


def _compaction(compaction: Compaction, identity: str, run: ParseInput) -> ContextCompaction:
    answers = [call for call in compaction.calls if call.was_answered]
    summary = text(answers[-1].message.get("content")) if answers else None
    before, after = (
        None if call is None else next(iter(_references(run, [call])), None)
        for call in (compaction.before, compaction.after)
    )
    return ContextCompaction(
        invocation_id=identity,
        observed_at=compaction.at,
        trigger="context_length",
        tokens_before=compaction.tokens,
        outcome=OUTCOMES.get(compaction.outcome, "unknown"),
        summary=summary or None,
        before_model_call=before,
        model_calls=_references(run, answers),
        after_model_call=after,
    )
