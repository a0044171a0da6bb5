"""What the run's files say, as one ordered trace: pure, bounded, and never surprised.

Source: ``events.jsonl`` as `inspan_hermes.model_calls` and `inspan_hermes.agent_run` write it inside the
sandbox (hermes-agent 0.19.0). The model's commands can write it too, so nothing in it is taken for granted.
Recorded ones are in ``tests/transcripts``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import define, field

from inspan_core.harness import Artifacts
from inspan_core.run_trace import RunTrace
from inspan_core.trace_lines import parse_line, read_records

CONVERSATION = ("turn", "limit")


@define(kw_only=True)
class Failure:
    """A model call that came to nothing: by status, or None where no answer came."""

    status: int | None
    body: str
    kind: str
    message: str


@define(kw_only=True)
class Call:
    """One model call.

    Attributes:
        purpose: ``turn`` and ``limit`` belong to the conversation, others to Hermes' own business.
        messages: What of the conversation this request showed for the first time.
        answer: The answer's event, or None.
        failure: What went wrong, or None; a broken stream has an answer too.
    """

    number: int
    purpose: str
    messages: list[Mapping[str, Any]] = field(factory=list)
    answer: Mapping[str, Any] | None = None
    failure: Failure | None = None

    @property
    def is_conversation(self) -> bool:
        return self.purpose in CONVERSATION

    @property
    def message(self) -> Mapping[str, Any]:
        """What the model said, as far as it came."""
        message = self.answer.get("message") if self.answer is not None else None
        return message if isinstance(message, Mapping) else {}

    @property
    def tool_calls(self) -> list[Mapping[str, Any]]:
        calls = self.message.get("tool_calls")
        return [call for call in calls if isinstance(call, Mapping)] if isinstance(calls, list) else []

    @property
    def has_content(self) -> bool:
        """Whether the model said anything."""
        return bool(
            text(self.message.get("content")) or text(self.message.get("reasoning")) or self.tool_calls
        )

    @property
    def was_answered(self) -> bool:
        """Whether the model server began to answer."""
        return self.answer is not None and (self.has_content or self.response_id is not None or self.is_whole)

    @property
    def is_whole(self) -> bool:
        return self.answer is not None and self.answer.get("whole") is True

    @property
    def response_id(self) -> str | None:
        given = self.answer.get("response_id") if self.answer is not None else None
        return given if isinstance(given, str) else None

    @property
    def finish_reason(self) -> str | None:
        given = self.answer.get("finish_reason") if self.answer is not None else None
        return given if isinstance(given, str) else None


@define(kw_only=True)
class Execution:
    """A tool as Hermes ran it, by its own clock in Unix seconds."""

    started_at: float | None = None
    ended_at: float | None = None
    result: str | None = None


@define(kw_only=True)
class Compaction:
    """Hermes had the conversation shortened; `calls` are the model calls that it made for that."""

    at: float | None
    tokens: int | None
    calls: list[Call] = field(factory=list)
    outcome: str = "unknown"
    before: Call | None = None
    after: Call | None = None


@define(kw_only=True)
class Trace(RunTrace):
    """Everything of a run that its files tell."""

    calls: list[Call] = field(factory=list)
    executions: dict[str, list[Execution]] = field(factory=dict)
    compactions: list[Compaction] = field(factory=list)
    skipped: list[str] = field(factory=list)
    violations: list[Mapping[str, Any]] = field(factory=list)
    last_messages: list[Mapping[str, Any]] = field(factory=list)
    session_id: str | None = None
    output: Mapping[str, Any] | None = None

    @property
    def conversation(self) -> list[Call]:
        """The calls of the agent's loop."""
        return [call for call in self.calls if call.is_conversation]

    @property
    def has_answer(self) -> bool:
        """Whether the model said anything in the conversation."""
        return any(call.has_content for call in self.conversation)

    @property
    def result(self) -> Mapping[str, Any]:
        """What Hermes said of its end."""
        given = self.output.get("result") if self.output is not None else None
        return given if isinstance(given, Mapping) else {}


def read_trace(artifacts: Artifacts) -> Trace:
    """Read all files; what cannot be read becomes gaps."""
    trace = Trace()
    trace.begin(artifacts)
    reader = _Reader(trace)
    for record in read_records(artifacts, "events.jsonl", trace.gaps):
        reader.take(record)
    trace.note_overflow(artifacts)
    output = parse_line(artifacts.files.get("output.json", b""))
    trace.output = output if isinstance(output, Mapping) else None
    return trace


@define
class _Reader:
    trace: Trace
    _calls: dict[int, Call] = field(factory=dict)
    _compaction: Compaction | None = None

    def take(self, record: Mapping[str, Any]) -> None:
        """One line of the file."""
        trace = self.trace
        at, event = trace.note(record)
        if event is None:
            return
        kind = text(event.get("type"))
        if kind.startswith("model."):
            self._model(kind, event)
        elif kind.startswith("tool."):
            self._tool(kind, event, at)
        elif kind.startswith("compaction."):
            self._compact(kind, event, at)
        elif kind == "ready":
            trace.session_id = text(event.get("session_id")) or None
        elif kind == "tool_server.skipped":
            trace.skipped.append(text(event.get("error")))
        elif kind == "settings.violated":
            trace.violations.append(event)
        elif kind == "ended":
            trace.last_messages = _messages(event)

    def _model(self, kind: str, event: Mapping[str, Any]) -> None:
        given = event.get("call")
        index = given if type(given) is int else -1
        call = self._calls.get(index)
        if kind == "model.request" or call is None:
            call = Call(number=index, purpose=text(event.get("purpose")), messages=_messages(event))
            self._calls[index] = call
            self.trace.calls.append(call)
            if self._compaction is not None and not call.is_conversation:
                self._compaction.calls.append(call)
            elif call.is_conversation:
                for compaction in self.trace.compactions:
                    compaction.after = compaction.after or call
        if kind == "model.answer":
            call.answer = event
        elif kind == "model.error":
            status = event.get("status")
            call.failure = Failure(
                status=status if type(status) is int else None,
                body=text(event.get("body")),
                kind=text(event.get("error")),
                message=text(event.get("message")),
            )

    def _tool(self, kind: str, event: Mapping[str, Any], at: float | None) -> None:
        runs = self.trace.executions.setdefault(text(event.get("id")), [])
        if kind == "tool.started":
            runs.append(Execution(started_at=at))
        elif kind == "tool.completed":
            if not runs or runs[-1].result is not None:
                runs.append(Execution())
            result = event.get("result")
            runs[-1].ended_at = at
            runs[-1].result = result if isinstance(result, str) else str(result)

    def _compact(self, kind: str, event: Mapping[str, Any], at: float | None) -> None:
        if kind == "compaction.started":
            tokens = event.get("tokens")
            spoken = [call for call in self.trace.conversation if call.was_answered]
            self._compaction = Compaction(
                at=at,
                tokens=tokens if type(tokens) is int and tokens >= 0 else None,
                before=spoken[-1] if spoken else None,
            )
            self.trace.compactions.append(self._compaction)
        elif self._compaction is not None:
            self._compaction.outcome = text(event.get("outcome"))
            self._compaction = None


def _messages(event: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    given = event.get("messages")
    return [message for message in given if isinstance(message, Mapping)] if isinstance(given, list) else []


def text(value: Any) -> str:
    """`value` if it is text, else nothing."""
    return value if isinstance(value, str) else ""
