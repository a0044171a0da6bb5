"""The input items of a Responses request as the messages of Chat Completions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from attrs import define, field

from inspan_server.model.tool_names import FREE_TEXT, ToolNames

SYSTEM_ROLES = ("system", "developer")
TEXT_PARTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")


class UnsupportedRequest(ValueError):
    """A request that Chat Completions cannot say.

    Attributes:
        field: The request's field.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


def to_messages(instructions: Any, items: Any, names: ToolNames) -> list[dict[str, Any]]:
    """Convert instructions and items.

    Raises:
        UnsupportedRequest: Names the item.
    """
    conversation = _Conversation(names=names)
    if isinstance(instructions, str) and instructions:
        conversation.messages.append({"role": "system", "content": instructions})
    if isinstance(items, str):
        conversation.messages.append({"role": "user", "content": items})
    else:
        for index, item in enumerate(items):
            if not isinstance(item, Mapping):
                raise UnsupportedRequest("input", f"input[{index}]: expected an object, got {item!r:.80}")
            conversation.take(item, f"input[{index}]")
    conversation.settle()
    return conversation.messages


@define
class _Conversation:
    names: ToolNames
    messages: list[dict[str, Any]] = field(factory=list)
    reasoning: list[str] = field(factory=list)
    images: list[dict[str, Any]] = field(factory=list)

    def take(self, item: Mapping[str, Any], where: str) -> None:
        kind = item.get("type") or "message"
        if kind == "message":
            self._message(item, where)
        elif kind == "reasoning":
            # What is only there encrypted cannot be told to another model.
            self.reasoning.append(_text(item.get("content") or item.get("summary") or [], where))
        elif kind in ("function_call", "custom_tool_call"):
            self._call(item)
        elif kind in ("function_call_output", "custom_tool_call_output"):
            self._output(item, where)
        else:
            message = f"{where}: an item of type {kind!r:.60} has no equivalent in Chat Completions"
            raise UnsupportedRequest("input", message)

    def _message(self, item: Mapping[str, Any], where: str) -> None:
        role = item.get("role")
        if role == "assistant":
            answer = self._answer()
            text = _text(item.get("content"), where)
            answer["content"] = text if answer["content"] is None else f"{answer['content']}\n{text}"
            return
        self.settle()
        if role in SYSTEM_ROLES:
            self.messages.append({"role": "system", "content": _text(item.get("content"), where)})
        elif role == "user":
            self.messages.append({"role": "user", "content": _content(item.get("content"), where)})
        else:
            raise UnsupportedRequest("input", f"{where}: unknown role {role!r:.60}")

    def _answer(self) -> dict[str, Any]:
        """The assistant's message at the end, opened if there is none."""
        self._show_images()
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self.messages.append({"role": "assistant", "content": None})
        answer = self.messages[-1]
        if self.reasoning:
            earlier = [answer["reasoning_content"]] if "reasoning_content" in answer else []
            answer["reasoning_content"] = "\n".join([*earlier, *self.reasoning])
            self.reasoning = []
        return answer

    def _call(self, item: Mapping[str, Any]) -> None:
        arguments = item.get("arguments")
        if item.get("type") == "custom_tool_call":
            arguments = json.dumps({FREE_TEXT: item.get("input")})
        function = {
            "name": self.names.flat(str(item.get("name")), item.get("namespace")),
            "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments),
        }
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        self._answer().setdefault("tool_calls", []).append(call)

    def _output(self, item: Mapping[str, Any], where: str) -> None:
        given = item.get("output")
        text = given if isinstance(given, str) else _text(given, where, images=self.images)
        self.messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": text})

    def settle(self) -> None:
        """End an answer that has only reasoning, and show what tools returned as images."""
        if self.reasoning:
            self._answer()
        self._show_images()

    def _show_images(self) -> None:
        """A tool's message holds only text, so its images come after the tools' messages."""
        if self.images:
            self.messages.append({"role": "user", "content": self.images})
            self.images = []


def _text(content: Any, where: str, *, images: list[dict[str, Any]] | None = None) -> str:
    if isinstance(content, str):
        return content
    texts = []
    for part in content if isinstance(content, list) else ():
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind in TEXT_PARTS:
            texts.append(str(part.get("text")))
        elif kind == "refusal":
            texts.append(str(part.get("refusal")))
        elif kind == "input_image" and images is not None:
            images.append(_image(part, where))
        else:
            raise UnsupportedRequest("input", f"{where}: a part of type {kind!r:.60} has no equivalent")
    return "\n".join(texts)


def _content(content: Any, where: str) -> Any:
    """Text where all of it is text; else parts."""
    if isinstance(content, str):
        return content
    parts: list[dict[str, Any]] = []
    for part in content if isinstance(content, list) else ():
        if isinstance(part, Mapping) and part.get("type") == "input_image":
            parts.append(_image(part, where))
        else:
            parts.append({"type": "text", "text": _text([part], where)})
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return parts


def _image(part: Mapping[str, Any], where: str) -> dict[str, Any]:
    if not isinstance(part.get("image_url"), str):
        raise UnsupportedRequest("input", f"{where}: an image without an image_url has no equivalent")
    image = {"url": part["image_url"]}
    if part.get("detail") is not None:
        image["detail"] = part["detail"]
    return {"type": "image_url", "image_url": image}
