"""What the run's files say, as one ordered trace: pure, bounded, and never surprised.

Sources: ``events.jsonl`` as `sandbox_runner.py` writes it (Pi 1.6.0, ``--mode json``), and Pi's own
``session.jsonl`` (format version 3), which holds the last messages of a run that was stopped. The model's
commands can write both files, so nothing in them is taken for granted. Recorded streams are in
``tests/transcripts``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import define, field

from inspan_core.harness import Artifacts
from inspan_core.observations import ObservationGap
from inspan_core.run_trace import RunTrace
from inspan_core.trace_lines import number, read_records
from inspan_pi.settings import HISTORY_PREFIX


@define(kw_only=True)
class Message:
    """One message of the model or of a tool.

    Attributes:
        role: ``"assistant"`` or ``"toolResult"``.
        body: Pi's message object.
        raw_arguments: Content index to a tool call's arguments as the model wrote them.
        discarded: A failed attempt that Pi took out of its context and repeated.
    """

    role: str
    body: Mapping[str, Any]
    raw_arguments: Mapping[str, Any] = field(factory=dict)
    discarded: bool = False

    @property
    def identity(self) -> tuple[Any, ...]:
        """Equal for the same message in both files."""
        keys = ("timestamp", "toolCallId", "responseId", "stopReason")
        return (self.role, *(repr(self.body.get(key)) for key in keys))

    @property
    def stamp(self) -> float:
        """Milliseconds, 0 when unknown."""
        return number(self.body.get("timestamp")) or 0.0

    @property
    def content(self) -> list[Mapping[str, Any]]:
        """Its content blocks."""
        blocks = self.body.get("content")
        return [b for b in blocks if isinstance(b, Mapping)] if isinstance(blocks, list) else []


@define(kw_only=True)
class Execution:
    """One tool call as it ran, by the shim's clock in Unix seconds."""

    call_id: str
    name: str
    started_at: float | None = None
    ended_at: float | None = None
    is_error: bool | None = None
    duration_ms: float | None = None


@define(kw_only=True)
class Compaction:
    """Pi shortened its context."""

    reason: str | None
    observed_at: float | None
    result: Mapping[str, Any] | None = None
    outcome: str = "unknown"


@define(kw_only=True)
class Trace(RunTrace):
    """Everything of a run that its files tell."""

    messages: list[Message] = field(factory=list)
    executions: list[Execution] = field(factory=list)
    compactions: list[Compaction] = field(factory=list)
    session_id: str | None = None
    has_ended: bool = False

    @property
    def answers(self) -> list[Message]:
        """The model's messages, failed attempts included."""
        return [message for message in self.messages if message.role == "assistant"]


def read_trace(artifacts: Artifacts) -> Trace:
    """Read both files; what cannot be read becomes gaps."""
    trace = Trace()
    trace.begin(artifacts)
    for record in read_records(artifacts, "events.jsonl", trace.gaps):
        _take_record(trace, record)
    last = trace.note_overflow(artifacts)
    if last is not None:
        _take_record(trace, last)
    _mark_discarded(trace)
    _add_session(trace, artifacts)
    return trace


def _take_record(trace: Trace, record: Mapping[str, Any]) -> None:
    at, event = trace.note(record)
    if event is None:
        return
    kind = event.get("type")
    if kind == "session" and isinstance(event.get("id"), str):
        trace.session_id = event["id"]
    elif kind == "message_end":
        _take_message(trace, event.get("message"), record.get("raw_arguments"))
    elif kind == "tool_execution_start":
        execution = Execution(call_id=_word(event.get("toolCallId")), name=_word(event.get("toolName")))
        execution.started_at = at
        trace.executions.append(execution)
    elif kind == "tool_execution_end":
        _end_execution(trace, event, at)
    elif kind == "auto_retry_start":
        failed = next((m for m in reversed(trace.messages) if m.role == "assistant"), None)
        if failed is not None and failed.body.get("stopReason") == "error":
            failed.discarded = True
    elif kind == "agent_settled" or (kind == "agent_end" and event.get("willRetry") is not True):
        trace.has_ended = True
    elif kind == "agent_start":
        trace.has_ended = False
    elif kind == "compaction_start":
        trace.compactions.append(Compaction(reason=_optional(event.get("reason")), observed_at=at))
    elif kind == "compaction_end":
        _end_compaction(trace, event, at)


def _take_message(trace: Trace, body: Any, raw: Any) -> None:
    if isinstance(body, Mapping) and body.get("role") in ("assistant", "toolResult"):
        arguments = raw if isinstance(raw, Mapping) else {}
        trace.messages.append(Message(role=body["role"], body=body, raw_arguments=arguments))


def _end_execution(trace: Trace, event: Mapping[str, Any], at: float | None) -> None:
    call_id = _word(event.get("toolCallId"))
    open_ones = [e for e in trace.executions if e.call_id == call_id and e.is_error is None]
    if not open_ones:
        trace.executions.append(Execution(call_id=call_id, name=_word(event.get("toolName"))))
        open_ones = trace.executions[-1:]
    execution = open_ones[0]
    execution.ended_at = at
    execution.is_error = event.get("isError") is True
    duration_ms = number(event.get("durationMs"))
    if duration_ms is not None and duration_ms >= 0:
        execution.duration_ms = duration_ms


def _end_compaction(trace: Trace, event: Mapping[str, Any], at: float | None) -> None:
    if not trace.compactions or trace.compactions[-1].outcome != "unknown":
        trace.compactions.append(Compaction(reason=_optional(event.get("reason")), observed_at=at))
    compaction = trace.compactions[-1]
    result = event.get("result")
    compaction.result = result if isinstance(result, Mapping) else None
    aborted = event.get("aborted") is True
    compaction.outcome = "completed" if compaction.result else "aborted" if aborted else "failed"


def _mark_discarded(trace: Trace) -> None:
    """The last answer stands, whatever Pi meant to do after it."""
    if trace.answers:
        trace.answers[-1].discarded = False


def _add_session(trace: Trace, artifacts: Artifacts) -> None:
    """Put in what only the session file has: Pi writes it also while it is being stopped."""
    known = {message.identity for message in trace.messages}
    ignored: list[ObservationGap] = []
    for entry in read_records(artifacts, "session.jsonl", ignored):
        if entry.get("type") != "message" or str(entry.get("id")).startswith(HISTORY_PREFIX):
            continue
        body = entry.get("message")
        if not isinstance(body, Mapping) or body.get("role") not in ("assistant", "toolResult"):
            continue
        message = Message(role=body["role"], body=body)
        if message.identity in known:
            continue
        after = (i for i, other in enumerate(trace.messages) if other.stamp > message.stamp)
        trace.messages.insert(next(after, len(trace.messages)), message)


def _word(value: Any) -> str:
    return value if isinstance(value, str) else "unknown"


def _optional(value: Any) -> str | None:
    return value if isinstance(value, str) else None
