"""The bodies of a scripted model's answers, in both APIs.

Shapes: OpenAI's Chat Completions (objects and chunks) and Responses (objects and server-sent events), as the
harnesses of this repository read them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

Head = Mapping[str, Any]
Told = Mapping[str, Any]
"""``{"text", "calls", "usage"}`` of a `scripted_model.Reply`."""


def chat_answer(response_id: str, head: Head, told: Told) -> dict[str, Any]:
    """A whole Chat Completions answer."""
    message: dict[str, Any] = {"role": "assistant", "content": told["text"]}
    calls = _chat_calls(told)
    if calls:
        message["tool_calls"] = calls
    answer = {
        "id": response_id,
        "object": "chat.completion",
        **head,
        "choices": [{"index": 0, "message": message, "finish_reason": _finish(told)}],
    }
    usage = _chat_usage(told)
    return answer if usage is None else {**answer, "usage": usage}


def chat_chunks(response_id: str, head: Head, told: Told) -> Iterator[bytes]:
    """The same as chunks of an event stream."""
    frame = {"id": response_id, "object": "chat.completion.chunk", **head}
    calls = [{"index": index, **call} for index, call in enumerate(_chat_calls(told))]
    for choice in (
        {"delta": {"role": "assistant", "content": told["text"] or ""}, "finish_reason": None},
        {"delta": {"tool_calls": calls} if calls else {}, "finish_reason": None},
        {"delta": {}, "finish_reason": _finish(told)},
    ):
        yield _event({**frame, "choices": [{"index": 0, **choice}]})
    usage = _chat_usage(told)
    if usage is not None:
        yield _event({**frame, "choices": [], "usage": usage})
    yield b"data: [DONE]\n\n"


def _chat_calls(told: Told) -> list[dict[str, Any]]:
    return [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        for call_id, name, arguments in told["calls"]
    ]


def _finish(told: Told) -> str:
    return "tool_calls" if told["calls"] else "stop"


def _chat_usage(told: Told) -> dict[str, int] | None:
    if told["usage"] is None:
        return None
    given, written = told["usage"]
    return {"prompt_tokens": given, "completion_tokens": written, "total_tokens": given + written}


def responses_answer(response_id: str, head: Head, told: Told) -> dict[str, Any]:
    """A whole Responses answer."""
    return {**_response(response_id, head, "completed"), "output": _items(told), "usage": _usage(told)}


def responses_events(response_id: str, head: Head, told: Told) -> Iterator[bytes]:
    """The same as server-sent events."""
    begun = _response(response_id, head, "in_progress")
    items = _items(told)
    events: list[dict[str, Any]] = [{"type": "response.created", "response": begun}]
    for index, item in enumerate(items):
        at = {"output_index": index}
        opened = {**item, "status": "in_progress"}
        if item["type"] == "message":
            opened["content"] = []
        events.append({"type": "response.output_item.added", **at, "item": opened})
        if item["type"] == "message":
            delta = {"item_id": item["id"], "content_index": 0, "delta": told["text"]}
            events.append({"type": "response.output_text.delta", **at, **delta})
        events.append({"type": "response.output_item.done", **at, "item": item})
    events.append({"type": "response.completed", "response": responses_answer(response_id, head, told)})
    for number, event in enumerate(events):
        yield _event({**event, "sequence_number": number}, name=str(event["type"]))


def _response(response_id: str, head: Head, status: str) -> dict[str, Any]:
    return {
        "id": response_id,
        "object": "response",
        "created_at": head["created"],
        "model": head["model"],
        "status": status,
        "output": [],
        "usage": None,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }


def _items(told: Told) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    if told["text"] is not None:
        content = [{"type": "output_text", "text": told["text"], "annotations": []}]
        head = {"type": "message", "id": "msg_0", "role": "assistant", "status": "completed"}
        items.append({**head, "content": content})
    for number, (call_id, name, arguments) in enumerate(told["calls"]):
        called = {"call_id": call_id, "name": name, "arguments": arguments}
        items.append({"type": "function_call", "id": f"fc_{number}", "status": "completed", **called})
    return items


def _usage(told: Told) -> dict[str, Any] | None:
    if told["usage"] is None:
        return None
    given, written = told["usage"]
    return {
        "input_tokens": given,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": given + written,
    }


def _event(value: Mapping[str, Any], *, name: str | None = None) -> bytes:
    head = b"" if name is None else f"event: {name}\n".encode()
    return head + b"data: " + json.dumps(value).encode() + b"\n\n"
