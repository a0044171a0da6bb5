"""A Responses request's input as Chat Completions messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inspan_core.errors import RequestRefused

_ROLES = ("user", "assistant", "system", "developer")
_TEXT_PARTS = ("input_text", "output_text", "text")


def to_messages(request: Mapping[str, Any]) -> list[dict[str, str]]:
    """The messages, instructions first.

    Returns:
        ``[{"role": "user", "content": "Say hello"}]``

    Raises:
        RequestRefused: An item is not a message of text: the harness could only drop it.
    """
    given = request["input"]
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    messages = [_message(index, item) for index, item in enumerate(items)]
    instructions = request.get("instructions")
    return ([{"role": "system", "content": instructions}] if instructions else []) + messages


def _message(index: int, item: Mapping[str, Any]) -> dict[str, str]:
    role = item.get("role")
    if item.get("type", "message") != "message" or role not in _ROLES:
        raise _refusal(index, f"is {item.get('type', role)!r}, expected a message")
    return {"role": "system" if role == "developer" else str(role), "content": _text(index, item)}


def _text(index: int, item: Mapping[str, Any]) -> str:
    content = item.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    texts = []
    for part in parts:
        text = part.get("text") if isinstance(part, dict) and part.get("type") in _TEXT_PARTS else None
        if not isinstance(text, str):
            raise _refusal(index, "holds content that is not text")
        texts.append(text)
    return "\n".join(texts)


def _refusal(index: int, what: str) -> RequestRefused:
    return RequestRefused(f"input[{index}] {what}: the echo harness takes messages of text", field="input")
