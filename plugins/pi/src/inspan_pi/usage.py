"""Token counts over all model calls. What is not known is None, and a gap says why: never 0.

Pi 1.6.0 writes a usage with every answer, of zeros when the model server sent none; only a usage that came
from the server has the key ``reasoning``. Its ``input`` leaves cached tokens out; Responses counts them in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from inspan_core.observations import ObservationGap
from inspan_pi.trace import Message

_KEYS = ("input", "output", "cacheRead", "cacheWrite")


def total_usage(answers: Sequence[Message]) -> tuple[dict[str, Any] | None, list[ObservationGap]]:
    """The sum in the shape of a Responses usage, or None with a gap.

    Calls that the server refused cost nothing and are left out; an answer that broke off was produced, and
    its cost is unknown.
    """
    answered = [answer for answer in answers if was_answered(answer)]
    counts = [known for answer in answered if (known := _counts(answer)) is not None]
    if not answered:
        return None, [ObservationGap(code="usage_unavailable", detail="no model call was answered")]
    if len(counts) < len(answered):
        spent = sum(sum(count[key] for key in _KEYS) for count in counts)
        detail = (
            f"{len(answered) - len(counts)} of {len(answered)} answers came without a token count; "
            f"the others sum to {spent} tokens"
        )
        return None, [ObservationGap(code="usage_unavailable", detail=detail)]
    total = {key: sum(count[key] for count in counts) for key in (*_KEYS, "reasoning")}
    input_tokens = total["input"] + total["cacheRead"] + total["cacheWrite"]
    return {
        "input_tokens": input_tokens,
        "input_tokens_details": {"cached_tokens": total["cacheRead"]},
        "output_tokens": total["output"],
        "output_tokens_details": {"reasoning_tokens": total["reasoning"]},
        "total_tokens": input_tokens + total["output"],
    }, []


def was_answered(answer: Message) -> bool:
    """Whether the model server began to answer this call."""
    return bool(answer.body.get("responseId")) or bool(answer.content) or _counts(answer) is not None


def _counts(answer: Message) -> dict[str, int] | None:
    usage = answer.body.get("usage")
    if not isinstance(usage, Mapping):
        return None
    counts = {}
    for key in (*_KEYS, "reasoning"):
        value = usage.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            return None
        counts[key] = value
    return counts
