"""The Responses object that a parser answers with."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, cast

from inspan_core.ending import Ending
from inspan_core.findings import Outcome
from inspan_core.harness import ParseInput
from inspan_core.observations import InvocationStatus

STATUSES: Mapping[Outcome, InvocationStatus] = {
    Outcome.COMPLETED: "completed",
    Outcome.INCOMPLETE: "incomplete",
    Outcome.FAILED: "failed",
    Outcome.UNPROCESSABLE: "failed",
}


def response_object(
    run: ParseInput,
    ending: Ending,
    *,
    output: Sequence[Mapping[str, Any]],
    usage: Mapping[str, Any] | None,
    identity: str,
    created_at: float,
) -> dict[str, Any]:
    """The response: the run's output with its status, and the request's fields repeated.

    Args:
        identity: The harness's own id of the run; names the response.
        created_at: Unix seconds.
    """
    request = run.request
    metadata = dict(request.get("metadata") or {})
    if ending.stop_reason is not None:
        metadata["stop_reason"] = ending.stop_reason
    failed = STATUSES[ending.outcome] == "failed"
    message = str(cast(Mapping[str, Any], ending.detail or {}).get("message")) if failed else None
    return {
        "id": f"resp_{identity.replace('-', '')}",
        "object": "response",
        "created_at": created_at,
        "model": run.model_name,
        "status": STATUSES[ending.outcome],
        "output": list(output),
        "usage": usage,
        "instructions": request.get("instructions"),
        "metadata": metadata,
        "max_output_tokens": request.get("max_output_tokens"),
        "temperature": request.get("temperature"),
        "top_p": request.get("top_p"),
        "reasoning": request.get("reasoning"),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": list(request.get("tools") or ()),
        "incomplete_details": {"reason": ending.reason} if ending.reason else None,
        "error": {"code": ending.error_code, "message": message} if failed else None,
    }


def input_items(request: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The request's input as a list of items."""
    given = request.get("input")
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    return [
        dict(cast(Mapping[str, Any], item))
        for item in cast(Sequence[Any], given or ())
        if isinstance(item, Mapping)
    ]


def artifact_digest(run: ParseInput) -> str:
    """An identity for a run whose trace has none."""
    digest = hashlib.sha256()
    for name in sorted(run.artifacts.files):
        digest.update(run.artifacts.files[name])
    return digest.hexdigest()[:32]
