"""Fits a scripted tool call to the tools that the harness advertises.

One script can drive several harnesses: it names the abstract tool ``shell`` with ``{"command": ...}``, and
each harness sees its own shell tool called with its own argument.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import frozen

SHELL = "shell"


@frozen
class ShellTool:
    """A harness's shell tool and the argument that takes the command."""

    name: str
    argument: str


# Pi and OpenCode; Codex; Hermes; DeepAgents; OpenClaw.
SHELL_TOOLS = (
    ShellTool("bash", "command"),
    ShellTool("exec_command", "cmd"),
    ShellTool("terminal", "command"),
    ShellTool("execute", "command"),
    ShellTool("exec", "command"),
)


class NoFittingTool(ValueError):
    """The script names an abstract tool, and none of the advertised tools can stand for it."""


def advertised_tools(request: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Function tools of a Chat Completions request: name to parameter properties (empty when not given)."""
    tools = request.get("tools")
    found: dict[str, Mapping[str, Any]] = {}
    for tool in tools if isinstance(tools, list) else ():
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if isinstance(function, Mapping) and isinstance(function.get("name"), str):
            parameters = function.get("parameters")
            properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
            found[function["name"]] = properties if isinstance(properties, Mapping) else {}
    return found


def adapt_tool_call(
    name: str, arguments: Mapping[str, Any] | str, advertised: Mapping[str, Mapping[str, Any]]
) -> tuple[str, Mapping[str, Any] | str]:
    """The call as the harness can understand it.

    A name that the harness advertises, and any name that is not abstract, is passed on unchanged, as are
    raw string arguments.

    Returns:
        The tool's name and its arguments, for example ``("exec_command", {"cmd": "ls"})``.

    Raises:
        NoFittingTool: No advertised tool can stand for the abstract one.
    """
    if name != SHELL or name in advertised:
        return name, arguments
    tool = _shell_tool(advertised)
    if isinstance(arguments, str):
        return tool.name, arguments
    fitted = {tool.argument if key == "command" else key: value for key, value in arguments.items()}
    return tool.name, fitted


def _shell_tool(advertised: Mapping[str, Mapping[str, Any]]) -> ShellTool:
    for tool in SHELL_TOOLS:
        properties = advertised.get(tool.name)
        if properties is not None and (not properties or tool.argument in properties):
            return tool
    raise NoFittingTool(
        f"the script calls the abstract tool {SHELL!r}, which needs one of {_listed(SHELL_TOOLS)}; "
        f"the request advertises {', '.join(sorted(advertised)) or 'no tools'}"
    )


def _listed(tools: Sequence[ShellTool]) -> str:
    return ", ".join(f"{tool.name}{{{tool.argument}}}" for tool in tools)
