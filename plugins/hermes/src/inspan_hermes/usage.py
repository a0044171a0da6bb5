"""Token counts over all model calls. What is not known is None, and a gap says why: never 0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from inspan_core.observations import ObservationGap
from inspan_hermes.trace import Call


def total_usage(calls: Sequence[Call]) -> tuple[dict[str, Any] | None, list[ObservationGap]]:
    """The sum in the shape of a Responses usage, or None with a gap.

    Calls that the server refused cost nothing and are left out; an answer that broke off was produced, and
    its cost is unknown.
    """
    answered = [call for call in calls if call.was_answered]
    if not answered:
        return None, [_gap("no model call was answered")]
    counts = [known for call in answered if (known := _counts(call)) is not None]
    if len(counts) < len(answered):
        spent = sum(count["input"] + count["output"] for count in counts)
        answers = f"{len(answered) - len(counts)} of {len(answered)} answers came without a token count"
        return None, [_gap(f"{answers}; the others sum to {spent} tokens")]
    total = {key: sum(count[key] for count in counts) for key in counts[0]}
    return {
        "input_tokens": total["input"],
        "input_tokens_details": {"cached_tokens": total["cached"]},
        "output_tokens": total["output"],
        "output_tokens_details": {"reasoning_tokens": total["reasoning"]},
        "total_tokens": total["input"] + total["output"],
    }, []


def _counts(call: Call) -> dict[str, int] | None:
    """Chat Completions counts cached tokens in, as Responses does; details that are not told are none."""
    usage = call.answer.get("usage") if call.answer is not None else None
    if not isinstance(usage, Mapping):
        return None
    details = {
        "cached": _detail(usage.get("prompt_tokens_details"), "cached_tokens"),
        "reasoning": _detail(usage.get("completion_tokens_details"), "reasoning_tokens"),
    }
    counts = {"input": usage.get("prompt_tokens"), "output": usage.get("completion_tokens"), **details}
    if all(type(count) is int and count >= 0 for count in counts.values()):
        return counts
    return None


def _detail(details: Any, name: str) -> Any:
    given = details.get(name) if isinstance(details, Mapping) else None
    return 0 if given is None else given


def _gap(detail: str) -> ObservationGap:
    return ObservationGap(code="usage_unavailable", detail=detail)
