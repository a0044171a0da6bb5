"""Artifacts to a response and observations: pure, and never raises on what a sandbox may hold."""

from __future__ import annotations

import re

from inspan_codex.items import to_output
from inspan_codex.outcome import read_ending
from inspan_codex.trace import OUTPUTS, Compaction, Item, Trace, read_trace, word
from inspan_codex.usage import total_usage
from inspan_core.findings import Outcome
from inspan_core.harness import ParsedActivation, ParseInput
from inspan_core.observations import (
    AgentInvocation,
    AgentObservationBundle,
    ContextCompaction,
    ModelCallRef,
    ObservationGap,
    TimingSource,
    ToolCall,
    ToolCallStatus,
)
from inspan_core.response_object import STATUSES, artifact_digest, input_items, response_object
from inspan_core.run_trace import artifact_gaps, sound_times

# How Codex 0.171.0 tells the model what became of a call.
_EXITED = re.compile(r"^Process exited with code (-?\d+)$", re.MULTILINE)
_RUNNING = re.compile(r"^Process running with session ID", re.MULTILINE)
_REFUSED = ("failed to parse function arguments", "unsupported call")
HEAD_CHARS = 400
_SERVER_LOST = b"rmcp::transport::worker: worker quit with fatal"


def parse(run: ParseInput) -> ParsedActivation:
    """The plugin's whole parser."""
    trace = read_trace(run.artifacts)
    ending = read_ending(run, trace)
    output = to_output(trace)
    usage, usage_gaps = total_usage(trace)
    identity = trace.thread_id or artifact_digest(run)
    references = [_reference(run, call.response_id) for call in trace.calls if call.response_id is not None]
    invocation = AgentInvocation(
        invocation_id=identity,
        status=STATUSES[ending.outcome],
        duration_ms=trace.duration_ms,
        error_type=ending.error_type,
        model_calls=tuple(references),
        conversation=(*input_items(run.request), *output.items),
    )
    compactions = [_compaction(each, identity, run) for each in trace.compactions]
    gaps = [
        *artifact_gaps(run),
        *trace.gaps,
        *output.gaps,
        *usage_gaps,
        *_run_gaps(run, len(trace.calls) - len(references)),
    ]
    response = None
    if trace.has_answer:
        created_at = trace.first_at or 0.0
        response = response_object(
            run, ending, output=output.items, usage=usage, identity=identity, created_at=created_at
        )
    return ParsedActivation(
        outcome=ending.outcome,
        response=response,
        observations=AgentObservationBundle(
            source="codex",
            records=(invocation, *_tool_calls(trace, identity, run), *compactions),
            gaps=tuple(gaps),
        ),
        detail=ending.detail if ending.outcome in (Outcome.FAILED, Outcome.UNPROCESSABLE) else None,
    )


def _reference(run: ParseInput, response_id: str) -> ModelCallRef:
    return ModelCallRef(model_ref=run.model_name, response_id=response_id)


def _run_gaps(run: ParseInput, unknown_calls: int) -> list[ObservationGap]:
    gaps = []
    if _SERVER_LOST in run.artifacts.files.get("stderr.log", b""):
        detail = "the connection to an MCP server could not be made or was lost; see stderr.log"
        gaps.append(ObservationGap(code="tool_server_disconnected", detail=detail))
    if unknown_calls:
        detail = f"{unknown_calls} model calls have no response id: Codex notes it only with the usage"
        gaps.append(ObservationGap(code="model_call_reference_unavailable", detail=detail))
    return gaps


def _tool_calls(trace: Trace, identity: str, run: ParseInput) -> list[ToolCall]:
    outputs: dict[str, list[Item]] = {}
    for item in trace.items:
        if item.kind in OUTPUTS:
            outputs.setdefault(item.call_id, []).append(item)
    made = []
    for item in trace.items:
        if item.kind in ("function_call", "custom_tool_call"):
            found = outputs.get(item.call_id)
            made.append(_tool_call(trace, item, found.pop(0) if found else None, identity, run))
    return made


def _tool_call(trace: Trace, item: Item, output: Item | None, identity: str, run: ParseInput) -> ToolCall:
    """One record: by Codex's own note of the execution, else by the times of the record's lines."""
    execution = trace.executions.get(item.call_id)
    started_at = item.at if execution is None else execution.started_at
    ended_at = output.at if execution is None and output is not None else None
    ended_at = ended_at if execution is None else execution.ended_at
    started_at, ended_at = sound_times(started_at, ended_at)
    duration_ms = None
    if started_at is not None and ended_at is not None:
        duration_ms = round((ended_at - started_at) * 1000.0, 3)
    source: TimingSource = "artifact" if execution is None else "harness"
    status = _status(None if execution is None else execution.status, output, run)
    if status == "completed" and execution is None and isinstance(item.body.get("namespace"), str):
        # Codex notes the execution of each call of an MCP server: this one it did not make.
        status = "failed"
    return ToolCall(
        invocation_id=identity,
        tool_call_id=item.call_id,
        tool_name=word(item.body.get("name")),
        sandbox_id=run.sandbox_id,
        started_at=started_at,
        completed_at=ended_at,
        duration_ms=duration_ms,
        timing_source=None if started_at is None else source,
        status=status,
        error_type="tool_error" if status == "failed" else None,
    )


def _status(executed: str | None, output: Item | None, run: ParseInput) -> ToolCallStatus:
    if executed in ("completed", "failed"):
        return "completed" if executed == "completed" else "failed"
    if output is None:
        return "cancelled" if run.timed_out or run.interrupted else "incomplete"
    text = output.body.get("output")
    head = text[:HEAD_CHARS] if isinstance(text, str) else ""
    exited = _EXITED.search(head)
    if head.startswith(_REFUSED) or (exited is not None and int(exited[1]) != 0):
        return "failed"
    # The model got a session to poll, and the run ended before the command.
    return "incomplete" if _RUNNING.search(head) else "completed"


def _compaction(compaction: Compaction, identity: str, run: ParseInput) -> ContextCompaction:
    call = compaction.call
    response_id = None if call is None else call.response_id
    return ContextCompaction(
        invocation_id=identity,
        observed_at=compaction.observed_at,
        trigger="token_limit",
        outcome="completed",
        summary=compaction.summary,
        model_calls=() if response_id is None else (_reference(run, response_id),),
    )
