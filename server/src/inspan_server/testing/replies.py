"""Replies of a scripted model, as `inspan_server.model.script` takes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Reply = dict[str, Any]

USAGE = {"prompt_tokens": 100, "completion_tokens": 20, "cached_tokens": 40, "reasoning_tokens": 5}


def call(name: str, **arguments: Any) -> Reply:
    """The model calls a tool."""
    return {"tool_calls": [{"name": name, "arguments": arguments}], "usage": USAGE}


def shell(command: str, **more: Any) -> Reply:
    """The model calls the harness's shell, whatever its name is."""
    return {**call("shell", command=command), **more}


def said(text: str = "Done.", usage: Mapping[str, int] | None = USAGE) -> Reply:
    """The model answers with text."""
    return {"content": text, **({} if usage is None else {"usage": dict(usage)})}


def error(status: int, body: Any = None) -> Reply:
    """The model server refuses the call."""
    return {"error": {"status": status, **({} if body is None else {"body": body})}}
