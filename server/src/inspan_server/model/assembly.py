"""A streamed answer put together for its record while it passes through, within a bound."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from attrs import define, field

HELD_LIMIT_CHARS = 8 * 1024 * 1024
ENDS = ("response.completed", "response.incomplete", "response.failed")
_TEXTS = ("content", "reasoning_content", "reasoning", "refusal")


class Assembly(Protocol):
    """What a stream has said so far."""

    @property
    def is_whole(self) -> bool:
        """Whether the answer's own end came."""

    @property
    def is_final(self) -> bool:
        """Whether nothing can come any more that belongs to the answer."""

    def feed(self, event: Mapping[str, Any]) -> None:
        """Take one event."""

    def answer(self) -> dict[str, Any]:
        """The answer as a plain request would have got it, as far as it came."""


@define
class ChatAssembly:
    """Chunks of Chat Completions; ends with a ``finish_reason`` for every choice that began, or an error."""

    _head: dict[str, Any] = field(factory=dict)
    _choices: dict[int, dict[str, Any]] = field(factory=dict)
    _held: int = 0
    _left_out: int = 0

    @property
    def is_whole(self) -> bool:
        ended = [choice["finish_reason"] is not None for choice in self._choices.values()]
        return "error" in self._head or (bool(ended) and all(ended))

    @property
    def is_final(self) -> bool:
        # The usage comes after the end of the text.
        return False

    def feed(self, event: Mapping[str, Any]) -> None:
        for key in ("id", "created", "model", "system_fingerprint", "usage", "error"):
            if event.get(key) is not None:
                self._head[key] = event[key]
        choices = event.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, Mapping):
                self._choice(choice)

    def _choice(self, choice: Mapping[str, Any]) -> None:
        number = choice.get("index")
        index = number if isinstance(number, int) else 0
        made = self._choices.setdefault(
            index, {"index": index, "message": {"role": "assistant", "content": None}, "finish_reason": None}
        )
        if isinstance(choice.get("finish_reason"), str):
            made["finish_reason"] = choice["finish_reason"]
        delta = choice.get("delta")
        if not isinstance(delta, Mapping):
            return
        for key in _TEXTS:
            if isinstance(delta.get(key), str):
                made["message"][key] = (made["message"].get(key) or "") + self._kept(delta[key])
        calls = delta.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            if isinstance(call, Mapping):
                self._call(made["message"].setdefault("tool_calls", []), call)

    def _call(self, calls: list[dict[str, Any]], piece: Mapping[str, Any]) -> None:
        index = piece.get("index")
        at = index if isinstance(index, int) and 0 <= index <= len(calls) else len(calls)
        if at == len(calls):
            empty = {"name": "", "arguments": ""}
            calls.append({"id": piece.get("id"), "type": "function", "function": empty})
        function = piece.get("function")
        for key in ("name", "arguments"):
            if isinstance(function, Mapping) and isinstance(function.get(key), str):
                calls[at]["function"][key] += self._kept(function[key])

    def _kept(self, text: str) -> str:
        kept = text[: max(0, HELD_LIMIT_CHARS - self._held)]
        self._held += len(kept)
        self._left_out += len(text) - len(kept)
        return kept

    def answer(self) -> dict[str, Any]:
        choices = [self._choices[index] for index in sorted(self._choices)]
        answer = {**self._head, "object": "chat.completion", "choices": choices}
        return {**answer, "left_out_chars": self._left_out} if self._left_out else answer


@define
class ResponsesAssembly:
    """Events of Responses; the last one holds the whole answer."""

    _response: dict[str, Any] = field(factory=dict)
    _items: list[Any] = field(factory=list)
    _held: int = 0
    _is_whole: bool = False

    @property
    def is_whole(self) -> bool:
        return self._is_whole

    @property
    def is_final(self) -> bool:
        return self._is_whole

    def feed(self, event: Mapping[str, Any]) -> None:
        response = event.get("response")
        if isinstance(response, Mapping):
            self._response = dict(response)
        if event.get("type") in ENDS or event.get("type") == "error":
            self._is_whole = True
        if event.get("type") == "error":
            self._response["error"] = {key: event.get(key) for key in ("code", "message")}
        if event.get("type") == "response.output_item.done":
            self._held += len(str(event.get("item")))
            if self._held <= HELD_LIMIT_CHARS:
                self._items.append(event.get("item"))

    def answer(self) -> dict[str, Any]:
        if self._response.get("output"):
            return self._response
        return {**self._response, "output": self._items}
