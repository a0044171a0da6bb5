"""What a reader of observations refuses beyond wrong types: rules over several fields and records."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from inspan_core.faults import Fault, Faults, fault
from inspan_core.observations import (
    AgentInvocation,
    AgentObservationBundle,
    ContextCompaction,
    ModelCallRef,
    SandboxObservation,
    ToolCall,
)


def _check_reference(reference: ModelCallRef, data: Any) -> None:
    by_response = reference.model_ref is not None and reference.response_id is not None
    if reference.model_call_id is None and not by_response:
        raise fault("value_error", "needs model_call_id, or model_ref and response_id", data)


def _check_tool_call(call: ToolCall, data: Any) -> None:
    _check_not_negative(call, data, "duration_ms")
    if call.started_at is not None and call.completed_at is not None and call.completed_at < call.started_at:
        raise fault("value_error", "must not be before started_at", call.completed_at, "completed_at")


def _check_invocation(invocation: AgentInvocation, data: Any) -> None:
    _check_not_negative(invocation, data, "duration_ms")


def _check_compaction(compaction: ContextCompaction, data: Any) -> None:
    _check_not_negative(compaction, data, "tokens_before", "tokens_after")


def _check_sandbox(sandbox: SandboxObservation, data: Any) -> None:
    _check_not_negative(sandbox, data, "wall_time_s", "cpu_time_s", "peak_memory_mib")


def _check_not_negative(record: object, data: Any, *names: str) -> None:
    faults: list[Fault] = []
    for name in names:
        number = getattr(record, name)
        if number is not None and number < 0:
            faults.append(("greater_than_equal", (name,), "must be 0 or more", number))
    if faults:
        raise Faults(faults)


def _check_bundle(bundle: AgentObservationBundle, data: Any) -> None:
    parents: dict[str, str | None] = {}
    for index, record in enumerate(bundle.records):
        if not isinstance(record, AgentInvocation):
            continue
        if record.invocation_id in parents:
            message = "must differ from every other invocation_id"
            raise fault("value_error", message, record.invocation_id, "records", index, "invocation_id")
        parents[record.invocation_id] = record.parent_invocation_id
    for invocation_id in parents:
        if _is_its_own_ancestor(invocation_id, parents):
            message = f"must not make {invocation_id!r} its own ancestor"
            raise fault("value_error", message, invocation_id, "records")


def _is_its_own_ancestor(invocation_id: str, parents: Mapping[str, str | None]) -> bool:
    seen: set[str] = set()
    parent = parents[invocation_id]
    while parent is not None and parent not in seen:
        if parent == invocation_id:
            return True
        seen.add(parent)
        parent = parents.get(parent)
    return False


OBSERVATION_CHECKS: Mapping[type, Callable[[Any, Any], None]] = {
    ModelCallRef: _check_reference,
    ToolCall: _check_tool_call,
    AgentInvocation: _check_invocation,
    ContextCompaction: _check_compaction,
    SandboxObservation: _check_sandbox,
    AgentObservationBundle: _check_bundle,
}
