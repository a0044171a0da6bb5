"""A Responses request as a Chat Completions request: what has no equivalent is refused by name.

Tools of namespaces and tools that take free text become plain functions (`inspan_server.model.tool_names`),
reasoning becomes ``reasoning_content`` of the answer that followed it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inspan_server.model.chat_messages import UnsupportedRequest, to_messages
from inspan_server.model.tool_names import ToolNames, UnsupportedTool, read_tools

__all__ = ["UnsupportedRequest", "to_chat_request"]

# Under another name, or as they are.
RENAMED = {
    "model": "model",
    "temperature": "temperature",
    "top_p": "top_p",
    "max_output_tokens": "max_tokens",
    "parallel_tool_calls": "parallel_tool_calls",
    "service_tier": "service_tier",
    "user": "user",
    "seed": "seed",
}
# About the service's own storage, caches and bookkeeping: no effect on what the model says.
WITHOUT_EFFECT = frozenset(
    {
        "background", "client_metadata", "include", "metadata", "prompt_cache_key", "prompt_cache_retention",
        "safety_identifier", "store", "stream_options", "truncation",
    }
)  # fmt: skip
HANDLED = frozenset({"input", "instructions", "tools", "tool_choice", "reasoning", "text", "stream"})


def to_chat_request(body: Mapping[str, Any]) -> tuple[dict[str, Any], ToolNames]:
    """Convert a request.

    Returns:
        The Chat Completions request, and the tools by the names that it uses.

    Raises:
        UnsupportedRequest: Names the field.
    """
    for name, value in body.items():
        known = name in RENAMED or name in WITHOUT_EFFECT or name in HANDLED
        if not known and value not in (None, [], {}, ""):
            raise UnsupportedRequest(name, f"{name}: has no equivalent in Chat Completions")
    if body.get("background") is True:
        raise UnsupportedRequest("background", "background: has no equivalent in Chat Completions")
    try:
        names = read_tools(body.get("tools"), strict=True)
    except UnsupportedTool as error:
        raise UnsupportedRequest("tools", str(error)) from error
    asked: dict[str, Any] = {new: body[name] for name, new in RENAMED.items() if body.get(name) is not None}
    asked["messages"] = to_messages(body.get("instructions"), body["input"], names)
    if names.tools:
        asked["tools"] = names.chat_tools()
        if body.get("tool_choice") is not None:
            asked["tool_choice"] = _tool_choice(body["tool_choice"], names)
    else:
        asked.pop("parallel_tool_calls", None)
    asked.update(_reasoning(body.get("reasoning")), **_text(body.get("text")))
    if body.get("stream") is True:
        asked |= {"stream": True, "stream_options": {"include_usage": True}}
    return asked, names


def _tool_choice(choice: Any, names: ToolNames) -> Any:
    if isinstance(choice, str):
        return choice
    if isinstance(choice, Mapping) and choice.get("type") in ("function", "custom"):
        flat = names.flat(str(choice.get("name")), choice.get("namespace"))
        return {"type": "function", "function": {"name": flat}}
    raise UnsupportedRequest("tool_choice", f"tool_choice: {choice!r:.80} has no equivalent")


def _reasoning(reasoning: Any) -> dict[str, Any]:
    """The effort; a summary's style has no meaning where reasoning comes as it is."""
    effort = reasoning.get("effort") if isinstance(reasoning, Mapping) else None
    return {} if effort is None else {"reasoning_effort": effort}


def _text(text: Any) -> dict[str, Any]:
    if not isinstance(text, Mapping):
        return {}
    asked: dict[str, Any] = {}
    if text.get("verbosity") is not None:
        asked["verbosity"] = text["verbosity"]
    given = text.get("format")
    given = given if isinstance(given, Mapping) else {}
    kind = given.get("type")
    if kind == "json_object":
        asked["response_format"] = {"type": "json_object"}
    elif kind == "json_schema":
        schema = {key: value for key, value in given.items() if key != "type"}
        asked["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif kind not in (None, "text"):
        raise UnsupportedRequest("text", f"text.format: {kind!r} has no equivalent")
    return asked
