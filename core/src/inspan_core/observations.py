"""What an agent reports of its run: records with a `kind`, and explicit gaps. Unknown is None, never 0.

The shapes are those that a NeMo Gym reader accepts; it refuses unknown fields.
"""

from __future__ import annotations

from typing import Any, Literal

from attrs import field, frozen

InvocationStatus = Literal["completed", "failed", "incomplete", "unknown"]
ToolCallStatus = Literal["completed", "failed", "timeout", "cancelled", "incomplete", "unknown"]
TimingSource = Literal["executor", "artifact", "harness"]
CompactionOutcome = Literal["completed", "failed", "aborted", "unknown"]
SandboxRole = Literal["agent", "verifier", "environment"]
SandboxOutcome = Literal["completed", "failed", "timeout", "oom", "sandbox_error", "cancelled", "unknown"]


@frozen(kw_only=True)
class ModelCallRef:
    """Points at one model call: by `model_call_id`, or by `model_ref` and `response_id`."""

    model_call_id: str | None = None
    model_ref: str | None = None
    response_id: str | None = None


@frozen(kw_only=True)
class AgentInvocation:
    """One agent loop; sub-agents have a parent. Ids are unique and the parent graph has no cycle."""

    invocation_id: str
    kind: Literal["agent_invocation"] = "agent_invocation"
    parent_invocation_id: str | None = None
    spawned_by_tool_call_id: str | None = None
    status: InvocationStatus = "unknown"
    duration_ms: float | None = None
    error_type: str | None = None
    model_calls: tuple[ModelCallRef, ...] = ()
    conversation: tuple[dict[str, Any], ...] = ()


@frozen(kw_only=True)
class ToolCall:
    """One tool call. `started_at` and `completed_at` are Unix seconds, completed_at >= started_at."""

    invocation_id: str
    tool_call_id: str
    tool_name: str
    kind: Literal["tool_call"] = "tool_call"
    sandbox_id: str | None = None
    started_at: float | None = None
    completed_at: float | None = None
    duration_ms: float | None = None
    timing_source: TimingSource | None = None
    status: ToolCallStatus = "unknown"
    error_type: str | None = None


@frozen(kw_only=True)
class ContextCompaction:
    """The harness shortened its context."""

    invocation_id: str
    kind: Literal["context_compaction"] = "context_compaction"
    observed_at: float | None = None
    trigger: str | None = None
    tokens_before: int | None = None
    tokens_after: int | None = None
    outcome: CompactionOutcome = "unknown"
    summary: str | None = None
    first_kept_item_id: str | None = None
    before_model_call: ModelCallRef | None = None
    model_calls: tuple[ModelCallRef, ...] = ()
    after_model_call: ModelCallRef | None = None


@frozen(kw_only=True)
class SandboxObservation:
    """What became of a sandbox."""

    role: SandboxRole
    kind: Literal["sandbox"] = "sandbox"
    provider: str | None = None
    sandbox_id: str | None = None
    outcome: SandboxOutcome = "unknown"
    exit_code: int | None = None
    wall_time_s: float | None = None
    cpu_time_s: float | None = None
    peak_memory_mib: float | None = None
    resource_usage_source: str | None = None
    error_type: str | None = None


Record = AgentInvocation | ToolCall | ContextCompaction | SandboxObservation


@frozen(kw_only=True)
class ObservationGap:
    """Evidence that is missing, and why.

    Attributes:
        code: A stable word, for example ``"observation_capture_failed"``.
        invocation_id: The invocation that it concerns, or None.
        detail: One sentence.
    """

    code: str
    detail: str
    invocation_id: str | None = None


@frozen(kw_only=True)
class AgentObservationBundle:
    """All that one session reports. `source` is the harness's name."""

    source: str
    records: tuple[Record, ...] = field(default=())
    gaps: tuple[ObservationGap, ...] = field(default=())
