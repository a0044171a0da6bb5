"""Responses requests that no harness can serve as they are asked, each with the field to name: for tests."""

from __future__ import annotations

from typing import Any

BAD_REQUESTS: tuple[tuple[dict[str, Any], str], ...] = (
    ({"input": "x", "tools": [{"type": "function", "name": "f"}]}, "tools"),
    ({"input": "x", "tool_choice": "none"}, "tool_choice"),
    ({"input": "x", "parallel_tool_calls": False}, "parallel_tool_calls"),
    ({"input": "x", "truncation": "auto"}, "truncation"),
    ({"input": "x", "stop": ["a"]}, "stop"),
    ({"input": "x", "instructions": ["y"]}, "instructions"),
    ({"input": "  "}, "input"),
    ({"input": []}, "input"),
    ({"input": 7}, "input"),
    ({"input": ["x"]}, "input"),
    ({"input": [{"role": "assistant", "content": "x"}]}, "input"),
    ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, "input"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "u"}]}]}, "input"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "input"),
    ({"input": [{"type": "function_call", "name": "f"}]}, "input"),
)
"""Without a grant to call functions by."""

HARMLESS: dict[str, Any] = {
    "input": "x",
    "tools": [],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "model": "m",
    "metadata": {"agent_timeout_sec": 5},
    "max_output_tokens": None,
    "reasoning": None,
    "stream": False,
}
"""Fields whose values say what happens anyway."""
