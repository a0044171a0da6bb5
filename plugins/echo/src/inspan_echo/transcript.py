"""What the runner left behind, as a response and observations.

Source: ``events.jsonl`` and ``output.json`` as `sandbox_runner.py` beside this file writes them. Both lie
where the model's commands can write too, so nothing in them is taken for granted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from attrs import define, field

from inspan_core.errors import WireError
from inspan_core.findings import Outcome
from inspan_core.harness import ParsedActivation, ParseInput
from inspan_core.json_text import parse_json
from inspan_core.observations import (
    AgentInvocation,
    AgentObservationBundle,
    InvocationStatus,
    ModelCallRef,
    ObservationGap,
    ToolCall,
    ToolCallStatus,
)
from inspan_core.trace_lines import last_lines
from inspan_echo.ending import Ending, read_ending
from inspan_echo.usage import total_usage

ROOT = "root"
LINE_LIMIT_BYTES = 4 * 1024 * 1024
CLOCK_LIMIT_S = 1e11
"""No clock shows the year 5138: of such times no difference is worth anything."""

_STATUSES: Mapping[Any, ToolCallStatus] = {"completed": "completed", "failed": "failed", "timeout": "timeout"}
_INVOCATION: Mapping[Outcome, InvocationStatus] = {
    Outcome.COMPLETED: "completed",
    Outcome.INCOMPLETE: "incomplete",
    Outcome.FAILED: "failed",
    Outcome.UNPROCESSABLE: "failed",
}


def parse_run(run: ParseInput) -> ParsedActivation:
    """The whole parser: pure."""
    trace = _Trace(run)
    trace.read()
    ending = read_ending(run, has_answer=bool(trace.model_calls or trace.echoes))
    usage, usage_gaps = total_usage(trace.usages)
    status = {Outcome.COMPLETED: "completed", Outcome.INCOMPLETE: "incomplete"}.get(ending.outcome, "failed")
    invocation = AgentInvocation(
        invocation_id=ROOT,
        status=_INVOCATION[ending.outcome],
        error_type=ending.error_type,
        model_calls=tuple(trace.model_calls),
        conversation=(*_input_items(run.request), *trace.items),
    )
    problems = [ObservationGap(code=each.code, detail=each.detail) for each in run.artifacts.problems]
    return ParsedActivation(
        outcome=ending.outcome,
        response=_response(run, trace, ending, status, usage) if trace.items else None,
        observations=AgentObservationBundle(
            source="echo",
            records=(invocation, *trace.tool_calls()),
            gaps=(*problems, *trace.gaps(), *ending.gaps, *usage_gaps),
        ),
        detail=ending.detail,
    )


@define
class _Trace:
    """What the events say, in the order of a response's output items."""

    run: ParseInput
    items: list[dict[str, Any]] = field(factory=list)
    model_calls: list[ModelCallRef] = field(factory=list)
    usages: list[Any] = field(factory=list)
    lost: list[ObservationGap] = field(factory=list)
    echoes: int = 0
    first_at: float = 0.0
    _calls: dict[str, dict[str, Any]] = field(factory=dict)
    _unreadable: int = 0

    def read(self) -> None:
        for line in last_lines(self.run.artifacts, "events.jsonl", self.lost):
            self._read_line(line)

    def _read_line(self, line: bytes) -> None:
        try:
            event = parse_json(line, LINE_LIMIT_BYTES, lone_surrogates="replace")
            at = event["at"]
            if type(at) is not float or not 0 <= at < CLOCK_LIMIT_S:
                raise TypeError
            self.first_at = self.first_at or at
            self._take(event, at)
        except (WireError, LookupError, TypeError, AttributeError):
            self._unreadable += 1

    def _take(self, event: dict[str, Any], at: float) -> None:
        match event["event"]:
            case "echoed":
                self.echoes += 1
                self.items.append(self._message(str(event["text"])))
            case "model_answered":
                self._take_answer(event)
            case "tool_started":
                self._calls[event["call_id"]]["started_at"] = at
            case "tool_ended":
                output, call_id = str(event["output"]), event["call_id"]
                call = self._calls[call_id]
                call.update(completed_at=at, status=_STATUSES.get(event["status"], "unknown"))
                self.items.append({"type": "function_call_output", "call_id": call_id, "output": output})

    def _take_answer(self, event: dict[str, Any]) -> None:
        message, response_id = event["message"], str(event["response_id"])
        self.model_calls.append(ModelCallRef(model_ref=self.run.model_name, response_id=response_id))
        self.usages.append(event["usage"])
        if message.get("reasoning_content"):
            summary = {"type": "summary_text", "text": str(message["reasoning_content"])}
            self.items.append({"type": "reasoning", "id": self._id("rs"), "summary": [summary]})
        if message.get("content"):
            self.items.append(self._message(str(message["content"])))
        for call in message.get("tool_calls") or []:
            function, call_id = call["function"], str(call["id"])
            name, given = str(function["name"]), function["arguments"]
            arguments = given if isinstance(given, str) else json.dumps(given)
            self._calls[call_id] = {"tool_name": name}
            item = {"type": "function_call", "id": self._id("fc"), "call_id": call_id, "name": name}
            self.items.append({**item, "arguments": arguments, "status": "completed"})

    def _message(self, text: str) -> dict[str, Any]:
        content = {"type": "output_text", "text": text, "annotations": []}
        head = {"type": "message", "id": self._id("msg"), "role": "assistant", "status": "completed"}
        return {**head, "content": [content]}

    def _id(self, prefix: str) -> str:
        return f"{prefix}_{len(self.items)}"

    def tool_calls(self) -> list[ToolCall]:
        return [self._tool_call(call_id, **call) for call_id, call in self._calls.items()]

    def _tool_call(
        self,
        call_id: str,
        *,
        tool_name: str,
        started_at: float | None = None,
        completed_at: float | None = None,
        status: ToolCallStatus = "incomplete",
    ) -> ToolCall:
        duration_ms = None
        if started_at is not None and completed_at is not None:
            if completed_at < started_at:  # The clock was set back, so both are worth nothing.
                started_at = completed_at = None
            else:
                duration_ms = (completed_at - started_at) * 1000.0
        return ToolCall(
            invocation_id=ROOT,
            tool_call_id=call_id,
            tool_name=tool_name,
            sandbox_id=self.run.sandbox_id,
            started_at=started_at,
            completed_at=completed_at,
            duration_ms=duration_ms,
            timing_source="harness",
            status=status,
        )

    def gaps(self) -> list[ObservationGap]:
        if not self._unreadable:
            return self.lost
        detail = f"{self._unreadable} lines of events.jsonl could not be read"
        return [*self.lost, ObservationGap(code="event_unreadable", detail=detail, invocation_id=ROOT)]


def _input_items(request: Mapping[str, Any]) -> list[dict[str, Any]]:
    given = request["input"]
    return [{"role": "user", "content": given}] if isinstance(given, str) else list(given)


def _response(
    run: ParseInput, trace: _Trace, ending: Ending, status: str, usage: dict[str, Any] | None
) -> dict[str, Any]:
    metadata = dict(run.request.get("metadata") or {})
    if ending.stop_reason is not None:
        metadata["stop_reason"] = ending.stop_reason
    first = trace.model_calls[0].response_id if trace.model_calls else "echo"
    failed = status == "failed"
    return {
        "id": f"resp_{first}",
        "object": "response",
        "created_at": trace.first_at,
        "model": run.model_name,
        "status": status,
        "output": trace.items,
        "usage": usage,
        "instructions": run.request.get("instructions"),
        "metadata": metadata,
        "parallel_tool_calls": False,
        "tool_choice": "auto",
        "tools": [],
        "incomplete_details": {"reason": ending.reason} if ending.reason else None,
        "error": {"code": "server_error", "message": str(ending.detail)} if failed else None,
    }
