"""Token counts of all model calls together; what is not known of one is not known of the sum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from inspan_core.observations import ObservationGap


def total_usage(usages: Sequence[Any]) -> tuple[dict[str, Any] | None, list[ObservationGap]]:
    """The sum of Chat Completions usages as a Responses usage.

    Returns:
        ``{"input_tokens": 10, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 13}``, or None with a gap when a
        call did not tell. Cached tokens are part of the input tokens, as the model counts them.
    """
    if not usages:
        return None, []
    given, written = _sum(usages, "prompt_tokens"), _sum(usages, "completion_tokens")
    if given is None or written is None:
        detail = "a model call did not tell its token counts, so their sum is unknown"
        return None, [ObservationGap(code="usage_unavailable", detail=detail)]
    cached = _sum(usages, "prompt_tokens_details", "cached_tokens")
    reasoning = _sum(usages, "completion_tokens_details", "reasoning_tokens")
    gaps = []
    if cached is None or reasoning is None:
        # A reader of responses takes no null here, so the gap alone says that the 0 is not a count.
        detail = "a model call did not tell cached or reasoning tokens; the details say 0 for them"
        gaps.append(ObservationGap(code="usage_details_unavailable", detail=detail))
    usage = {
        "input_tokens": given,
        "input_tokens_details": {"cached_tokens": cached or 0},
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": reasoning or 0},
        "total_tokens": given + written,
    }
    return usage, gaps


def _sum(usages: Sequence[Any], *path: str) -> int | None:
    total = 0
    for usage in usages:
        for name in path:
            usage = usage.get(name) if isinstance(usage, dict) else None
        if type(usage) is not int or usage < 0:
            return None
        total += usage
    return total
