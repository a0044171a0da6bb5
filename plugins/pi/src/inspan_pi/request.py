"""A Responses request as Pi can take it: pure, and everything that Pi cannot take is refused by name."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import frozen

from inspan_core.errors import RequestRefused
from inspan_core.request_text import (
    SYSTEM_ROLES,
    effort_of,
    instructions_of,
    items_of,
    refuse_choices,
    sampling_of,
    text_of,
    token_limit,
)
from inspan_pi.declaration import PiOptions

EFFORT_LEVELS = {
    "none": "off",
    "minimal": "minimal",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "xhigh",
}
USER_ROLES = ("user",)
NAME = "pi"


@frozen(kw_only=True)
class PiRequest:
    """What Pi is asked.

    Attributes:
        prompt: The last user message; Pi takes it on standard input.
        history: The messages before it, in the shape of Pi's session file.
        system: Instructions and leading system messages, or None.
        max_output_tokens: Tokens per model call.
        thinking: Pi's thinking level.
        sampling: Fields that Pi merges into each model request.
    """

    prompt: str
    history: tuple[Mapping[str, Any], ...]
    system: str | None
    max_output_tokens: int
    thinking: str
    sampling: Mapping[str, float]


def read_request(request: Mapping[str, Any], options: PiOptions) -> PiRequest:
    """Map a checked Responses request.

    Raises:
        RequestRefused: Pi has no equivalent for what a field asks; names the field.
    """
    refuse_choices(request, NAME)
    system = instructions_of(request, NAME)
    prompt, history = _conversation(items_of(request), system)
    effort = effort_of(request, NAME, EFFORT_LEVELS)
    text = "\n\n".join(part for part in system if part)
    return PiRequest(
        prompt=prompt,
        history=history,
        system=text or None,
        max_output_tokens=token_limit(request) or options.max_output_tokens,
        thinking=options.thinking if effort is None else EFFORT_LEVELS[effort],
        sampling=sampling_of(request),
    )


def _conversation(
    items: Sequence[Mapping[str, Any]], system: list[str]
) -> tuple[str, tuple[Mapping[str, Any], ...]]:
    """Split the input into the prompt and what came before; leading system messages go to `system`."""
    history: list[dict[str, Any]] = []
    prompt: str | None = None
    names: dict[str, str] = {}
    for index, item in enumerate(items):
        role = item.get("role")
        if role in SYSTEM_ROLES:
            if history or prompt is not None:
                raise RequestRefused(
                    f"`input[{index}]`: pi takes {role} messages only before all others", field="input"
                )
            system.append(text_of(item.get("content"), index, NAME))
            continue
        if prompt is not None:
            history.append(_user(prompt))
            prompt = None
        if role in USER_ROLES:
            prompt = text_of(item.get("content"), index, NAME)
        else:
            _past(item, index, history, names)
    if not prompt or not prompt.strip():
        raise RequestRefused("the last item of `input` must be a user message with text", field="input")
    return prompt, tuple(history)


def _past(item: Mapping[str, Any], index: int, history: list[dict[str, Any]], names: dict[str, str]) -> None:
    """Append one item that the model or a tool produced earlier."""
    kind = item.get("type", "message")
    if kind == "message" and item.get("role") == "assistant":
        _assistant(history)["content"].append(
            {"type": "text", "text": text_of(item.get("content"), index, NAME)}
        )
    elif kind == "reasoning":
        parts = item.get("content") or item.get("summary") or ()
        block = {
            "type": "thinking",
            "thinking": text_of(parts, index, NAME),
            "thinkingSignature": "reasoning_content",
        }
        _assistant(history)["content"].append(block)
    elif kind == "function_call":
        call_id, name = item.get("call_id"), item.get("name")
        try:
            arguments = json.loads(item.get("arguments") or "{}")
        except (TypeError, ValueError):
            arguments = None
        if not isinstance(call_id, str) or not isinstance(name, str) or not isinstance(arguments, dict):
            raise RequestRefused(
                f"`input[{index}]`: a function_call needs `call_id`, `name` and `arguments` of a JSON object",
                field="input",
            )
        names[call_id] = name
        turn = _assistant(history)
        turn["content"].append({"type": "toolCall", "id": call_id, "name": name, "arguments": arguments})
        turn["stopReason"] = "toolUse"
    elif kind == "function_call_output":
        call_id = item.get("call_id")
        if not isinstance(call_id, str) or call_id not in names:
            raise RequestRefused(
                f"`input[{index}]`: no function_call before it has its `call_id`", field="input"
            )
        history.append(
            {
                "role": "toolResult",
                "toolCallId": call_id,
                "toolName": names[call_id],
                "content": [{"type": "text", "text": text_of(item.get("output"), index, NAME)}],
                "isError": False,
            }
        )
    else:
        raise RequestRefused(
            f"`input[{index}]`: pi cannot take an item of type {kind!r} and role {item.get('role')!r}",
            field="input",
        )


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": text}]}


def _assistant(history: list[dict[str, Any]]) -> dict[str, Any]:
    """The assistant turn at the end of `history`, opened if there is none."""
    if not history or history[-1]["role"] != "assistant":
        history.append({"role": "assistant", "content": [], "stopReason": "stop"})
    return history[-1]
