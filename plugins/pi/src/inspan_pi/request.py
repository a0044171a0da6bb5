"""A Responses request as Pi can take it: pure, and everything that Pi cannot take is refused by name."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import frozen

from inspan_core.errors import RequestRefused
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
SYSTEM_ROLES = ("system", "developer")


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
    _only_defaults(request)
    system: list[str] = []
    instructions = request.get("instructions")
    if instructions is not None:
        if not isinstance(instructions, str):
            raise RequestRefused("`instructions` must be a string for pi", field="instructions")
        system.append(instructions)
    prompt, history = _conversation(request.get("input"), system)
    limit = request.get("max_output_tokens")
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
        raise RequestRefused(
            f"`max_output_tokens` is {limit!r}, expected a whole number >= 1", field="max_output_tokens"
        )
    text = "\n\n".join(part for part in system if part)
    return PiRequest(
        prompt=prompt,
        history=history,
        system=text or None,
        max_output_tokens=limit or options.max_output_tokens,
        thinking=_thinking(request.get("reasoning"), options),
        sampling=_sampling(request),
    )


def _only_defaults(request: Mapping[str, Any]) -> None:
    """Fields that Pi serves in one way only."""
    if request.get("tool_choice") not in (None, "auto"):
        raise RequestRefused(
            f"pi lets the model choose: `tool_choice` must be 'auto', not {request['tool_choice']!r}",
            field="tool_choice",
        )
    if request.get("parallel_tool_calls") not in (None, True):
        raise RequestRefused(
            "pi cannot forbid several tool calls in one answer: `parallel_tool_calls` must be true",
            field="parallel_tool_calls",
        )


def _thinking(reasoning: Any, options: PiOptions) -> str:
    if reasoning is None:
        return options.thinking
    if not isinstance(reasoning, Mapping):
        raise RequestRefused("`reasoning` must be an object", field="reasoning")
    for name, value in reasoning.items():
        if name != "effort" and value is not None:
            raise RequestRefused(f"pi has no equivalent of `reasoning.{name}`", field="reasoning")
    effort = reasoning.get("effort")
    if effort is None:
        return options.thinking
    if effort not in EFFORT_LEVELS:
        raise RequestRefused(
            f"`reasoning.effort` is {effort!r}, expected one of {', '.join(EFFORT_LEVELS)}", field="reasoning"
        )
    return EFFORT_LEVELS[effort]


def _sampling(request: Mapping[str, Any]) -> dict[str, float]:
    sampling: dict[str, float] = {}
    for name in ("temperature", "top_p"):
        value = request.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise RequestRefused(f"`{name}` is {value!r}, expected a number", field=name)
        sampling[name] = value
    return sampling


def _conversation(content: Any, system: list[str]) -> tuple[str, tuple[Mapping[str, Any], ...]]:
    """Split the input into the prompt and what came before; leading system messages go to `system`."""
    if isinstance(content, str):
        items: Sequence[Any] = [{"role": "user", "content": content}]
    elif isinstance(content, Sequence):
        items = content
    else:
        raise RequestRefused("`input` must be a string or a list of items", field="input")
    history: list[dict[str, Any]] = []
    prompt: str | None = None
    names: dict[str, str] = {}
    for index, item in enumerate(items):
        if not isinstance(item, Mapping):
            raise RequestRefused(f"`input[{index}]` is not an object", field="input")
        role = item.get("role")
        if role in SYSTEM_ROLES:
            if history or prompt is not None:
                raise RequestRefused(
                    f"`input[{index}]`: pi takes {role} messages only before all others", field="input"
                )
            system.append(_text(item.get("content"), index))
            continue
        if prompt is not None:
            history.append(_user(prompt))
            prompt = None
        if role in USER_ROLES:
            prompt = _text(item.get("content"), index)
        else:
            _past(item, index, history, names)
    if not prompt or not prompt.strip():
        raise RequestRefused("the last item of `input` must be a user message with text", field="input")
    return prompt, tuple(history)


def _past(item: Mapping[str, Any], index: int, history: list[dict[str, Any]], names: dict[str, str]) -> None:
    """Append one item that the model or a tool produced earlier."""
    kind = item.get("type", "message")
    if kind == "message" and item.get("role") == "assistant":
        _assistant(history)["content"].append({"type": "text", "text": _text(item.get("content"), index)})
    elif kind == "reasoning":
        parts = item.get("content") or item.get("summary") or ()
        block = {
            "type": "thinking",
            "thinking": _text(parts, index),
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
                "content": [{"type": "text", "text": _text(item.get("output"), index)}],
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


def _text(content: Any, index: int) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise RequestRefused(f"`input[{index}].content` must be text", field="input")
    texts = []
    for part in content:
        if not isinstance(part, Mapping) or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise RequestRefused(f"`input[{index}]`: pi takes only text, not {kind!r}", field="input")
        texts.append(part["text"])
    return "\n".join(texts)
