"""Tools of a Responses request under the flat names that Chat Completions has, and back.

Responses groups tools in namespaces (Codex sends those of an MCP server so), and lets a tool take free text
in place of arguments. Chat Completions knows neither: a tool of a namespace is called
``<namespace>__<name>`` there, and free text becomes the one argument ``input``.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from attrs import field, frozen

NAME_LIMIT_CHARS = 64
FREE_TEXT = "input"
_UNFIT = re.compile(r"[^A-Za-z0-9_-]")


class UnsupportedTool(ValueError):
    """A tool that Chat Completions has no equivalent of."""


@frozen(kw_only=True)
class NamedTool:
    """One tool of the request.

    Attributes:
        name: As in the request.
        namespace: The namespace that it is in, or None.
        takes_text: Whether it is a custom tool, called with free text.
        definition: Its object in the request.
    """

    name: str
    namespace: str | None
    takes_text: bool
    definition: Mapping[str, Any]


@frozen
class ToolNames:
    """The tools of one request by flat name."""

    tools: Mapping[str, NamedTool] = field(factory=dict)

    def flat(self, name: str, namespace: str | None = None) -> str:
        """The flat name of a tool, advertised or not: history may name tools that are gone."""
        for flat, tool in self.tools.items():
            if (tool.name, tool.namespace) == (name, namespace):
                return flat
        return _flat(name, namespace, ())

    def scripted(self, name: str) -> str:
        """The flat name that a script means: a flat one, or a plain one that only one namespace has."""
        if name in self.tools:
            return name
        found = [flat for flat, tool in self.tools.items() if tool.name == name]
        return found[0] if len(found) == 1 else name

    def chat_tools(self) -> list[dict[str, Any]]:
        """The tools as Chat Completions advertises them."""
        return [_chat_tool(flat, tool) for flat, tool in self.tools.items()]

    def call_item(self, flat: str, arguments: str) -> dict[str, Any]:
        """A call by its flat name, as a Responses item without ids and status."""
        tool = self.tools.get(flat)
        if tool is None:
            return {"type": "function_call", "name": flat, "arguments": arguments}
        if tool.takes_text:
            return {"type": "custom_tool_call", "name": tool.name, "input": _free_text(arguments)}
        item = {"type": "function_call", "name": tool.name, "arguments": arguments}
        return item if tool.namespace is None else {**item, "namespace": tool.namespace}


def read_tools(tools: Any, *, strict: bool) -> ToolNames:
    """The tools of a Responses request.

    Args:
        tools: The request's ``tools``.
        strict: Whether a tool without an equivalent is refused; else it is left out.

    Raises:
        UnsupportedTool: Names the tool.
    """
    found: dict[str, NamedTool] = {}
    for tool in _flattened(tools if isinstance(tools, list) else [], strict):
        found[_flat(tool.name, tool.namespace, found)] = tool
    return ToolNames(found)


def _flattened(tools: list[Any], strict: bool) -> Iterator[NamedTool]:
    for definition in tools:
        kind = definition.get("type") if isinstance(definition, Mapping) else None
        if kind == "namespace" and isinstance(definition.get("tools"), list):
            for tool in _flattened(definition["tools"], strict):
                yield NamedTool(
                    name=tool.name,
                    namespace=str(definition.get("name")),
                    takes_text=tool.takes_text,
                    definition=tool.definition,
                )
        elif kind in ("function", "custom") and isinstance(definition.get("name"), str):
            takes_text = kind == "custom"
            name = definition["name"]
            yield NamedTool(name=name, namespace=None, takes_text=takes_text, definition=definition)
        elif strict:
            shown = json.dumps(definition)[:80]
            raise UnsupportedTool(f"tools: {shown} has no equivalent in Chat Completions")


def _flat(name: str, namespace: str | None, taken: Mapping[str, Any] | tuple[()]) -> str:
    full = _UNFIT.sub("_", name if namespace is None else f"{namespace}__{name}")
    if len(full) <= NAME_LIMIT_CHARS and full not in taken:
        return full
    digest = hashlib.sha256(f"{namespace}\n{name}".encode()).hexdigest()[:8]
    return f"{full[: NAME_LIMIT_CHARS - 9]}_{digest}"


def _chat_tool(flat: str, tool: NamedTool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": flat}
    for key in ("description", "parameters", "strict"):
        if tool.definition.get(key) is not None:
            function[key] = tool.definition[key]
    if tool.takes_text:
        text = {"type": "string", "description": "The whole input as text."}
        function["parameters"] = {"type": "object", "properties": {FREE_TEXT: text}, "required": [FREE_TEXT]}
    return {"type": "function", "function": function}


def _free_text(arguments: str) -> str:
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    text = value.get(FREE_TEXT) if isinstance(value, dict) else None
    return text if isinstance(text, str) else arguments
