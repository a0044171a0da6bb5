"""What the run's files say, as one ordered trace: pure, bounded, and never surprised.

Sources: ``events.jsonl`` as `sandbox_runner.py` writes it (Codex 0.171.0, ``exec --json``), and Codex's own
record of the thread below ``home/sessions``, which alone has the model's items word for word, each call's
usage, and tools with their times. The model's commands can write both, so nothing in them is taken for
granted. Recorded ones are in ``tests/transcripts``.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from attrs import define, field

from inspan_codex.settings import HOME
from inspan_core.harness import Artifacts
from inspan_core.run_trace import RunTrace
from inspan_core.trace_lines import number, read_records

THREADS = f"{HOME}/sessions/"
OUTPUTS = ("function_call_output", "custom_tool_call_output")
USAGE_KEYS = ("input_tokens", "cached_input_tokens", "output_tokens", "reasoning_output_tokens")


@define(kw_only=True)
class Item:
    """One item of the conversation that the model or a tool produced; `at` in Unix seconds."""

    body: Mapping[str, Any]
    at: float | None
    is_summary: bool = False

    @property
    def kind(self) -> str:
        return word(self.body.get("type"))

    @property
    def call_id(self) -> str:
        return word(self.body.get("call_id"))


@define(kw_only=True)
class Call:
    """One answer of the model.

    Attributes:
        sampled: What of the conversation it saw: its items share this number.
        usage: Its token counts, or None: the model server sent none, or the answer broke off.
        response_id: Known only with the usage.
    """

    sampled: Any
    items: list[Item] = field(factory=list)
    usage: Mapping[str, int] | None = None
    response_id: str | None = None
    has_ended: bool = False


@define(kw_only=True)
class Execution:
    """A tool call as Codex ran it, by its own clock in Unix seconds."""

    started_at: float | None
    ended_at: float | None
    status: str


@define(kw_only=True)
class Compaction:
    """Codex had the conversation summarised; `call` is the answer with the summary, where known."""

    observed_at: float | None
    summary: str | None
    call: Call | None


@define(kw_only=True)
class Trace(RunTrace):
    """Everything of a run that its files tell."""

    items: list[Item] = field(factory=list)
    calls: list[Call] = field(factory=list)
    executions: dict[str, Execution] = field(factory=dict)
    compactions: list[Compaction] = field(factory=list)
    repeated: list[str] = field(factory=list)
    thread_id: str | None = None
    ended: str | None = None
    failure: str | None = None

    @property
    def has_answer(self) -> bool:
        """Whether the model said anything."""
        return bool(self.calls)


def read_trace(artifacts: Artifacts) -> Trace:
    """Read all files; what cannot be read becomes gaps."""
    trace = Trace()
    trace.begin(artifacts)
    for record in read_records(artifacts, "events.jsonl", trace.gaps):
        _take_event(trace, record)
    last = trace.note_overflow(artifacts)
    if last is not None:
        _take_event(trace, last)
    name = _thread_name(trace, artifacts)
    if name is not None:
        reader = _ThreadReader(trace, is_new=not name.startswith(f"{THREADS}2000/"))
        for record in read_records(artifacts, name, trace.gaps):
            reader.take(record)
    return trace


def _take_event(trace: Trace, record: Mapping[str, Any]) -> None:
    _, event = trace.note(record)
    if event is None:
        return
    kind = event.get("type")
    if kind == "thread.started" and isinstance(event.get("thread_id"), str):
        trace.thread_id = event["thread_id"]
    elif kind in ("turn.completed", "turn.failed"):
        trace.ended = kind
        error = event.get("error")
        trace.failure = word(error.get("message")) if isinstance(error, Mapping) else None
    elif kind == "error" and word(event.get("message")).startswith("Reconnecting..."):
        trace.repeated.append(word(event.get("message")))


def _thread_name(trace: Trace, artifacts: Artifacts) -> str | None:
    """The record of the thread that stdout named; others are said to be left out."""
    names = sorted(name for name in artifacts.files if name.startswith(THREADS))
    own = [name for name in names if trace.thread_id is not None and trace.thread_id in name]
    chosen = (own or names)[-1:]
    if len(names) > len(chosen):
        detail = f"{len(names) - 1} more records of threads were collected and not read"
        trace.gap("thread_not_read", detail)
    if not chosen:
        trace.gap("thread_record_missing", "Codex left no record of its thread")
        return None
    return chosen[0]


@define
class _ThreadReader:
    """Reads the thread's record; what came before this run's turn is history, not its work."""

    trace: Trace
    is_new: bool
    _in_turn: bool = False

    def take(self, record: Mapping[str, Any]) -> None:
        payload = record.get("payload")
        if not isinstance(payload, Mapping):
            return
        kind = record.get("type")
        if kind == "session_meta" and self.trace.thread_id is None:
            self.trace.thread_id = payload["id"] if isinstance(payload.get("id"), str) else None
        if kind == "event_msg" and payload.get("type") == "task_started":
            self._in_turn = True
        if not (self.is_new or self._in_turn):
            return
        at = _seconds(record.get("timestamp"))
        if kind == "response_item":
            metadata = record.get("metadata")
            sampled = metadata.get("sampled_through_sequence") if isinstance(metadata, Mapping) else None
            self._item(Item(body=payload, at=at), sampled)
        elif kind == "token_usage_record":
            self._usage(payload)
        elif kind == "compacted":
            self._compacted(payload, at)
        elif kind == "event_msg" and payload.get("type") == "item_completed":
            self._executed(payload)

    def _item(self, item: Item, sampled: Any) -> None:
        if item.kind in OUTPUTS:
            self.trace.items.append(item)
        elif item.kind != "message" or item.body.get("role") == "assistant":
            self.trace.items.append(item)
            calls = self.trace.calls
            if not calls or calls[-1].has_ended or calls[-1].sampled != sampled:
                calls.append(Call(sampled=sampled))
            calls[-1].items.append(item)

    def _usage(self, payload: Mapping[str, Any]) -> None:
        calls = self.trace.calls
        if not calls or calls[-1].has_ended:
            # An answer without a word.
            calls.append(Call(sampled=None))
        call = calls[-1]
        call.has_ended = True
        call.response_id = payload["response_id"] if isinstance(payload.get("response_id"), str) else None
        call.usage = _counts(payload.get("usage"))

    def _compacted(self, payload: Mapping[str, Any], at: float | None) -> None:
        call = self.trace.calls[-1] if self.trace.calls else None
        for item in call.items if call is not None else ():
            item.is_summary = True
        summary = payload["message"] if isinstance(payload.get("message"), str) else None
        self.trace.compactions.append(Compaction(observed_at=at, summary=summary, call=call))

    def _executed(self, payload: Mapping[str, Any]) -> None:
        item = payload.get("item")
        if not isinstance(item, Mapping) or not isinstance(item.get("status"), str):
            return
        started_ms, ended_ms = number(payload.get("started_at_ms")), number(payload.get("completed_at_ms"))
        self.trace.executions[word(item.get("id"))] = Execution(
            started_at=None if started_ms is None else started_ms / 1000,
            ended_at=None if ended_ms is None else ended_ms / 1000,
            status=item["status"],
        )


def _counts(usage: Any) -> Mapping[str, int] | None:
    if not isinstance(usage, Mapping):
        return None
    counts = {key: usage.get(key) for key in USAGE_KEYS}
    if all(type(count) is int and count >= 0 for count in counts.values()):
        return counts  # type: ignore[return-value]
    return None


def _seconds(timestamp: Any) -> float | None:
    try:
        return datetime.fromisoformat(timestamp).timestamp()
    except (TypeError, ValueError, OverflowError, OSError):
        return None


def word(value: Any) -> str:
    """`value` if it is text."""
    return value if isinstance(value, str) else "unknown"
