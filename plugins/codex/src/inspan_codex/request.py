"""A Responses request as Codex can take it: pure; what Codex cannot take is refused by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import frozen

from inspan_core.errors import RequestRefused
from inspan_core.request_text import SYSTEM_ROLES, instructions_of, items_of, refuse_choices, text_of

NAME = "codex"


@frozen(kw_only=True)
class CodexRequest:
    """What Codex is asked.

    Attributes:
        prompt: The last user message; Codex takes it on standard input.
        history: The items before it, as Codex's own record of a session holds them.
        instructions: Instructions and leading system messages, or None.
    """

    prompt: str
    history: tuple[Mapping[str, Any], ...]
    instructions: str | None


def read_request(request: Mapping[str, Any]) -> CodexRequest:
    """Map a checked Responses request.

    Raises:
        RequestRefused: Codex has no equivalent for what a field asks; names the field.
    """
    refuse_choices(request, NAME)
    for name in ("max_output_tokens", "temperature", "top_p", "reasoning"):
        if request.get(name) not in (None, {}):
            raise RequestRefused(f"codex cannot enforce `{name}` for a model server of one's own", field=name)
    instructions = instructions_of(request, NAME)
    prompt, history = _conversation(items_of(request), instructions)
    text = "\n\n".join(part for part in instructions if part)
    return CodexRequest(prompt=prompt, history=tuple(history), instructions=text or None)


def _conversation(
    items: Sequence[Mapping[str, Any]], instructions: list[str]
) -> tuple[str, list[Mapping[str, Any]]]:
    """Split the input into the prompt and what came before; leading system messages join the instructions."""
    history: list[Mapping[str, Any]] = []
    called: set[str] = set()
    for index, item in enumerate(items):
        if item.get("role") in SYSTEM_ROLES and not history:
            instructions.append(text_of(item.get("content"), index, NAME))
        else:
            history.append(_past(item, index, called))
    last = history.pop() if history else {}
    if last.get("role") != "user" or not last["content"][0]["text"].strip():
        raise RequestRefused("the last item of `input` must be a user message with text", field="input")
    return str(last["content"][0]["text"]), history


def _past(item: Mapping[str, Any], index: int, called: set[str]) -> Mapping[str, Any]:
    """One earlier item in the shape of Codex's record."""
    kind, role = item.get("type", "message"), item.get("role")
    if kind == "message" and role in ("user", "assistant", *SYSTEM_ROLES):
        part = "output_text" if role == "assistant" else "input_text"
        own_role = "developer" if role in SYSTEM_ROLES else role
        text = text_of(item.get("content"), index, NAME)
        return {"type": "message", "role": own_role, "content": [{"type": part, "text": text}]}
    if kind == "reasoning":
        text = text_of(item.get("content") or item.get("summary") or (), index, NAME)
        content = [{"type": "reasoning_text", "text": text}]
        return {"type": "reasoning", "summary": [], "content": content, "encrypted_content": None}
    if kind == "function_call":
        return _past_call(item, index, called)
    if kind == "function_call_output":
        call_id = item.get("call_id")
        if not isinstance(call_id, str) or call_id not in called:
            raise RequestRefused(
                f"`input[{index}]`: no function_call before it has its `call_id`", field="input"
            )
        output = text_of(item.get("output"), index, NAME)
        return {"type": "function_call_output", "call_id": call_id, "output": output}
    raise RequestRefused(
        f"`input[{index}]`: codex cannot take an item of type {kind!r} and role {role!r}", field="input"
    )


def _past_call(item: Mapping[str, Any], index: int, called: set[str]) -> Mapping[str, Any]:
    call_id, name, arguments = item.get("call_id"), item.get("name"), item.get("arguments", "{}")
    if not isinstance(call_id, str) or not isinstance(name, str) or not isinstance(arguments, str):
        raise RequestRefused(
            f"`input[{index}]`: a function_call needs `call_id`, `name` and `arguments` as text",
            field="input",
        )
    called.add(call_id)
    call = {"type": "function_call", "name": name, "arguments": arguments, "call_id": call_id}
    if isinstance(item.get("namespace"), str):
        call["namespace"] = item["namespace"]
    return call
