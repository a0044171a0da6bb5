"""A Responses request as Hermes can take it: pure; what Hermes cannot take is refused by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import define, field, frozen

from inspan_core.errors import RequestRefused
from inspan_hermes.declaration import HermesOptions

SYSTEM_ROLES = ("system", "developer")
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
    _only_defaults(request)
    system: list[str] = []
    instructions = request.get("instructions")
    if instructions is not None:
        if not isinstance(instructions, str):
            raise RequestRefused("`instructions` must be a string for hermes", field="instructions")
        system.append(instructions)
    prompt, history = _conversation(request.get("input"), system)
    limit = request.get("max_output_tokens")
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
        raise RequestRefused(
            f"`max_output_tokens` is {limit!r}, expected a whole number >= 1", field="max_output_tokens"
        )
    return HermesRequest(
        prompt=prompt,
        history=history,
        system="\n\n".join(part for part in system if part) or None,
        max_output_tokens=limit or options.max_output_tokens or None,
        effort=_effort(request.get("reasoning")),
        sampling=_sampling(request),
    )


def _only_defaults(request: Mapping[str, Any]) -> None:
    """Fields that Hermes serves in one way only."""
    if request.get("tool_choice") not in (None, "auto"):
        raise RequestRefused(
            f"hermes lets the model choose: `tool_choice` must be 'auto', not {request['tool_choice']!r}",
            field="tool_choice",
        )
    if request.get("parallel_tool_calls") not in (None, True):
        raise RequestRefused(
            "hermes cannot forbid several tool calls in one answer: `parallel_tool_calls` must be true",
            field="parallel_tool_calls",
        )


def _effort(reasoning: Any) -> str | None:
    if reasoning is None:
        return None
    if not isinstance(reasoning, Mapping):
        raise RequestRefused("`reasoning` must be an object", field="reasoning")
    for name, value in reasoning.items():
        if name != "effort" and value is not None:
            raise RequestRefused(f"hermes has no equivalent of `reasoning.{name}`", field="reasoning")
    effort = reasoning.get("effort")
    if effort is not None and effort not in EFFORTS:
        raise RequestRefused(
            f"`reasoning.effort` is {effort!r}, expected one of {', '.join(EFFORTS)}", field="reasoning"
        )
    return effort


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
    past = _Past()
    for index, item in enumerate(items):
        if not isinstance(item, Mapping):
            raise RequestRefused(f"`input[{index}]` is not an object", field="input")
        role = item.get("role")
        if role in SYSTEM_ROLES:
            if past.messages:
                raise RequestRefused(
                    f"`input[{index}]`: hermes takes {role} messages only before all others", field="input"
                )
            system.append(_text(item.get("content"), index))
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
            self.messages.append({"role": "user", "content": _text(item.get("content"), index)})
        elif kind == "message" and role == "assistant":
            self._add("content", _text(item.get("content"), index), closed_by=("content", "tool_calls"))
        elif kind == "reasoning":
            parts = item.get("content") or item.get("summary") or ()
            closed_by = ("content", "tool_calls", "reasoning_content")
            self._add("reasoning_content", _text(parts, index), closed_by=closed_by)
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
        text = _text(item.get("output"), index)
        message = {"role": "tool", "name": self.names[call_id], "tool_call_id": call_id, "content": text}
        self.messages.append(message)


def _text(content: Any, index: int) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise RequestRefused(f"`input[{index}].content` must be text", field="input")
    texts = []
    for part in content:
        if not isinstance(part, Mapping) or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise RequestRefused(f"`input[{index}]`: hermes takes only text, not {kind!r}", field="input")
        texts.append(part["text"])
    return "\n".join(texts)
