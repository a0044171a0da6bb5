"""A Responses request as Hermes can take it: pure; what Hermes cannot take is refused by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import define, field, frozen

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
from inspan_hermes.declaration import HermesOptions

NAME = "hermes"
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")


@frozen(kw_only=True)
class HermesRequest:
    """What Hermes is asked.

    Attributes:
        prompt: The last user message.
        history: The messages before it, as Chat Completions has them.
        system: Instructions and leading system messages, or None; Hermes puts them after its own prompt.
        max_output_tokens: Tokens per model call, or None.
        effort: The reasoning effort, or None.
        sampling: Fields of each model request.
    """

    prompt: str
    history: tuple[Mapping[str, Any], ...]
    system: str | None
    max_output_tokens: int | None
    effort: str | None
    sampling: Mapping[str, float]


def read_request(request: Mapping[str, Any], options: HermesOptions) -> HermesRequest:
    """Map a checked Responses request.

    Raises:
        RequestRefused: Hermes has no equivalent for what a field asks; names the field.
    """
    refuse_choices(request, NAME)
    system = instructions_of(request, NAME)
    prompt, history = _conversation(items_of(request), system)
    return HermesRequest(
        prompt=prompt,
        history=history,
        system="\n\n".join(part for part in system if part) or None,
        max_output_tokens=token_limit(request) or options.max_output_tokens or None,
        effort=effort_of(request, NAME, EFFORTS),
        sampling=sampling_of(request),
    )


def _conversation(
    items: Sequence[Mapping[str, Any]], system: list[str]
) -> tuple[str, tuple[Mapping[str, Any], ...]]:
    """Split the input into the prompt and what came before; leading system messages go to `system`."""
    past = _Past()
    for index, item in enumerate(items):
        role = item.get("role")
        if role in SYSTEM_ROLES:
            if past.messages:
                raise RequestRefused(
                    f"`input[{index}]`: hermes takes {role} messages only before all others", field="input"
                )
            system.append(text_of(item.get("content"), index, NAME))
        else:
            past.take(item, index)
    last = past.messages.pop() if past.messages else {}
    prompt = last.get("content")
    if last.get("role") != "user" or not isinstance(prompt, str) or not prompt.strip():
        raise RequestRefused("the last item of `input` must be a user message with text", field="input")
    return prompt, tuple(past.messages)


@define
class _Past:
    """Earlier items as messages; the items of one turn of the model become one message."""

    messages: list[dict[str, Any]] = field(factory=list)
    names: dict[str, str] = field(factory=dict)

    def take(self, item: Mapping[str, Any], index: int) -> None:
        """Add one item."""
        kind, role = item.get("type", "message"), item.get("role")
        if kind == "message" and role == "user":
            self.messages.append({"role": "user", "content": text_of(item.get("content"), index, NAME)})
        elif kind == "message" and role == "assistant":
            self._add(
                "content", text_of(item.get("content"), index, NAME), closed_by=("content", "tool_calls")
            )
        elif kind == "reasoning":
            parts = item.get("content") or item.get("summary") or ()
            closed_by = ("content", "tool_calls", "reasoning_content")
            self._add("reasoning_content", text_of(parts, index, NAME), closed_by=closed_by)
        elif kind == "function_call":
            self._call(item, index)
        elif kind == "function_call_output":
            self._output(item, index)
        else:
            raise RequestRefused(
                f"`input[{index}]`: hermes cannot take an item of type {kind!r} and role {role!r}",
                field="input",
            )

    def _turn(self, closed_by: tuple[str, ...] = ()) -> dict[str, Any]:
        """The model's message at the end, or a new one where it has one of `closed_by` already."""
        last = self.messages[-1] if self.messages else {}
        if last.get("role") != "assistant" or any(last.get(key) for key in closed_by):
            self.messages.append({"role": "assistant", "content": ""})
        return self.messages[-1]

    def _add(self, key: str, text: str, *, closed_by: tuple[str, ...]) -> None:
        self._turn(closed_by)[key] = text

    def _call(self, item: Mapping[str, Any], index: int) -> None:
        call_id, name, arguments = item.get("call_id"), item.get("name"), item.get("arguments", "{}")
        if not isinstance(call_id, str) or not isinstance(name, str) or not isinstance(arguments, str):
            raise RequestRefused(
                f"`input[{index}]`: a function_call needs `call_id`, `name` and `arguments` as text",
                field="input",
            )
        self.names[call_id] = name
        call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        self._turn().setdefault("tool_calls", []).append(call)

    def _output(self, item: Mapping[str, Any], index: int) -> None:
        call_id = item.get("call_id")
        if not isinstance(call_id, str) or call_id not in self.names:
            raise RequestRefused(
                f"`input[{index}]`: no function_call before it has its `call_id`", field="input"
            )
        text = text_of(item.get("output"), index, NAME)
        message = {"role": "tool", "name": self.names[call_id], "tool_call_id": call_id, "content": text}
        self.messages.append(message)
