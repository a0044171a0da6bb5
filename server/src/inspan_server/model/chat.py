"""Chat Completions answers, whole and in chunks: pure functions from a scripted reply to JSON objects."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from inspan_server.model.adapt import adapt_tool_call, advertised_tools
from inspan_server.model.script import Reply, Usage

# Small enough that arguments, text and multi-byte characters are cut at awkward places.
PIECE_CHARS = 12


def openai_error(
    message: str, *, type_: str, code: str | None = None, param: str | None = None
) -> dict[str, Any]:
    """An error body of OpenAI's shape."""
    return {"error": {"message": message, "type": type_, "param": param, "code": code}}


def usage_object(usage: Usage) -> dict[str, Any]:
    """Chat Completions usage; details only for what the script tells."""
    shown: dict[str, Any] = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
    }
    if usage.cached_tokens is not None:
        shown["prompt_tokens_details"] = {"cached_tokens": usage.cached_tokens}
    if usage.reasoning_tokens is not None:
        shown["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning_tokens}
    return shown


def completion(
    reply: Reply,
    request: Mapping[str, Any],
    *,
    response_id: str,
    created: int,
    new_call_id: Callable[[], str],
) -> dict[str, Any]:
    """The whole answer, as a plain request gets it.

    Raises:
        NoFittingTool: The reply names an abstract tool for which the request advertises none.
    """
    advertised = advertised_tools(request)
    message: dict[str, Any] = {"role": "assistant", "content": reply.content}
    if reply.reasoning is not None:
        message["reasoning_content"] = reply.reasoning
    if reply.tool_calls:
        message["tool_calls"] = []
    for call in reply.tool_calls:
        name, arguments = adapt_tool_call(call.name, call.arguments, advertised)
        raw = arguments if isinstance(arguments, str) else json.dumps(arguments)
        message["tool_calls"].append(
            {"id": new_call_id(), "type": "function", "function": {"name": name, "arguments": raw}}
        )
    answer: dict[str, Any] = {
        "id": response_id,
        "object": "chat.completion",
        "created": created,
        "model": request["model"],
        "choices": [
            {
                "index": 0,
                "message": message,
                "logprobs": None,
                "finish_reason": reply.finish_reason or ("tool_calls" if reply.tool_calls else "stop"),
            }
        ],
    }
    if reply.usage is not None:
        answer["usage"] = usage_object(reply.usage)
    return answer


def completion_chunks(answer: Mapping[str, Any], *, include_usage: bool) -> Iterator[dict[str, Any]]:
    """The same answer as the chunks of a stream: role, reasoning, text, tool calls, the end, usage.

    Args:
        answer: What `completion` returned.
        include_usage: Whether the request asked for it (``stream_options.include_usage``); a chunk for
            it is only made when the answer has usage.
    """
    head = {key: answer[key] for key in ("id", "created", "model")}

    def chunk(delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        made = {**head, "object": "chat.completion.chunk", "choices": [choice]}
        return {**made, "usage": None} if include_usage else made

    choice = answer["choices"][0]
    message = choice["message"]
    yield chunk({"role": "assistant", "content": ""})
    for piece in _pieces(message.get("reasoning_content") or ""):
        yield chunk({"reasoning_content": piece})
    for piece in _pieces(message["content"] or ""):
        yield chunk({"content": piece})
    for index, call in enumerate(message.get("tool_calls", ())):
        function = call["function"]
        opened = {"name": function["name"], "arguments": ""}
        yield chunk(
            {"tool_calls": [{"index": index, "id": call["id"], "type": "function", "function": opened}]}
        )
        for piece in _pieces(function["arguments"]):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    yield chunk({}, choice["finish_reason"])
    if include_usage and "usage" in answer:
        yield {**head, "object": "chat.completion.chunk", "choices": [], "usage": answer["usage"]}


def _pieces(text: str) -> Iterator[str]:
    for start in range(0, len(text), PIECE_CHARS):
        yield text[start : start + PIECE_CHARS]
