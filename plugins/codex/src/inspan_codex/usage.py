"""Token counts over all model calls. What is not known is None, and a gap says why: never 0.

Codex 0.171.0 writes a ``token_usage_record`` only for an answer that came with its usage; its own total on
standard output counts the others as 0. Its ``input_tokens`` include cached ones, as in Responses.
"""

from __future__ import annotations

from typing import Any

from inspan_codex.trace import USAGE_KEYS, Trace
from inspan_core.observations import ObservationGap

BROKEN_OFF = "stream disconnected before completion"


def total_usage(trace: Trace) -> tuple[dict[str, Any] | None, list[ObservationGap]]:
    """The sum in the shape of a Responses usage, or None with a gap.

    Calls that the server refused cost nothing and are left out; an answer that broke off was produced, and
    its cost is unknown.
    """
    counts = [call.usage for call in trace.calls if call.usage is not None]
    if not trace.calls:
        return None, [_gap("no model call was answered")]
    broken = sum(BROKEN_OFF in message for message in (*trace.repeated, trace.failure or ""))
    missing = len(trace.calls) - len(counts)
    if missing or broken:
        spent = sum(count["input_tokens"] + count["output_tokens"] for count in counts)
        answers = f"{missing} of {len(trace.calls)} answers came without a token count"
        return None, [_gap(f"{answers} and {broken} broke off; the others sum to {spent} tokens")]
    total = {key: sum(count[key] for count in counts) for key in USAGE_KEYS}
    return {
        "input_tokens": total["input_tokens"],
        "input_tokens_details": {"cached_tokens": total["cached_input_tokens"]},
        "output_tokens": total["output_tokens"],
        "output_tokens_details": {"reasoning_tokens": total["reasoning_output_tokens"]},
        "total_tokens": total["input_tokens"] + total["output_tokens"],
    }, []


def _gap(detail: str) -> ObservationGap:
    return ObservationGap(code="usage_unavailable", detail=detail)
