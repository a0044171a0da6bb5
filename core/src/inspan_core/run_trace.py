"""What parsers read alike of what a shim leaves: times, what was cut or dropped, calls without results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import define, field

from inspan_core.harness import Artifacts, ParseInput
from inspan_core.json_shapes import is_object
from inspan_core.observations import ObservationGap
from inspan_core.process_info import parse_runtime_info
from inspan_core.trace_lines import number, parse_line


@define(kw_only=True)
class RunTrace:
    """The part of a trace that every shim's ``events.jsonl`` and ``output.json`` tell.

    A plugin's own trace derives from it.

    Attributes:
        gaps: What could not be read.
        first_at: When the first event came, in Unix seconds by the sandbox's clock.
        last_at: When the last one came.
    """

    gaps: list[ObservationGap] = field(factory=list[ObservationGap])
    first_at: float | None = None
    last_at: float | None = None

    @property
    def duration_ms(self) -> float | None:
        """From the first event to the last."""
        if self.first_at is None or self.last_at is None or self.last_at < self.first_at:
            return None
        return (self.last_at - self.first_at) * 1000.0

    def gap(self, code: str, detail: str) -> None:
        """Note something that is lost."""
        self.gaps.append(ObservationGap(code=code, detail=detail))

    def begin(self, artifacts: Artifacts) -> None:
        """Note it when there are no events at all."""
        if "events.jsonl" not in artifacts.files:
            self.gap("trace_unavailable", "there is no events.jsonl")

    def note(self, record: Mapping[str, Any]) -> tuple[float | None, Mapping[str, Any] | None]:
        """Take the time of a line of ``events.jsonl``; its time and its event, as far as it has them."""
        at = number(record.get("at"))
        if at is not None:
            self.first_at = at if self.first_at is None else self.first_at
            self.last_at = at
        cut, event = record.get("cut"), record.get("event")
        if isinstance(cut, int):
            detail = f"an event was {cut} bytes longer than the limit and is kept only in part"
            self.gap("event_too_large", detail)
        return at, event if is_object(event) else None

    def note_overflow(self, artifacts: Artifacts) -> Mapping[str, Any] | None:
        """Take from ``output.json`` how many events were not kept; the last vital one among them, or None."""
        output = parse_line(artifacts.files.get("output.json", b""))
        if not is_object(output):
            return None
        events, last = output.get("events"), output.get("last_dropped")
        dropped = events.get("dropped") if is_object(events) else None
        if dropped:
            count = number(dropped)
            told = "an unknown number of" if count is None else f"{count:.0f}"
            self.gap("trace_truncated", f"events.jsonl was full: {told} events were not kept")
        record = parse_line(last.encode("utf-8", "replace")) if isinstance(last, str) else None
        return record if is_object(record) else None


@define
class OpenCalls:
    """Counts tool calls against their results."""

    _open: dict[str, int] = field(factory=dict[str, int])

    def called(self, call_id: str) -> None:
        """The model made a call."""
        self._open[call_id] = self._open.get(call_id, 0) + 1

    def answered(self, call_id: str) -> None:
        """A call got its result."""
        self._open[call_id] = self._open.get(call_id, 0) - 1

    def gaps(self) -> list[ObservationGap]:
        """One for each id whose calls and results do not match."""
        gaps: list[ObservationGap] = []
        for call_id, count in self._open.items():
            if count > 0:
                detail = f"tool call {call_id[:80]!r} has no result: the run ended first"
                gaps.append(ObservationGap(code="tool_result_missing", detail=detail))
            elif count < 0:
                detail = f"a result for {call_id[:80]!r} has no call in the trace"
                gaps.append(ObservationGap(code="tool_call_missing", detail=detail))
        return gaps


def sound_times(started_at: float | None, ended_at: float | None) -> tuple[float | None, float | None]:
    """Both times, or neither where the sandbox's clock was set back between them."""
    if started_at is not None and ended_at is not None and ended_at < started_at:
        return None, None
    return started_at, ended_at


def artifact_gaps(run: ParseInput) -> list[ObservationGap]:
    """What could not be collected, and ``runtime_info.json`` where it tells nothing."""
    gaps = [ObservationGap(code=each.code, detail=each.detail) for each in run.artifacts.problems]
    if parse_runtime_info(run.artifacts.files.get("runtime_info.json")) is None:
        detail = "runtime_info.json is missing or malformed"
        gaps.append(ObservationGap(code="runtime_info_unavailable", detail=detail))
    return gaps
