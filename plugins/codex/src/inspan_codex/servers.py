"""Tool grants as MCP servers that Codex can connect to."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from inspan_core.errors import RequestRefused
from inspan_core.wire import DirectHttpAccess, McpAccess, ToolAccess

# What Codex 0.171.0 takes for the name of a server; the model sees ``mcp__<name>``.
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_STRANGE = re.compile(r"[^A-Za-z0-9_-]")


def read_servers(grants: Iterable[ToolAccess]) -> tuple[McpAccess, ...]:
    """The grants, checked.

    Raises:
        RequestRefused: Codex cannot take a grant's name.
    """
    servers = tuple(grant for grant in grants if isinstance(grant, McpAccess))
    for server in servers:
        if not _NAME.fullmatch(server.name):
            raise RequestRefused(
                f"codex cannot name an MCP server {server.name!r}: expected letters, digits, '_' and '-'",
                field="tool_accesses",
            )
    return servers


def server_name(grant: DirectHttpAccess, taken: Collection[str]) -> str:
    """What the model sees the functions of `grant` under: its name as far as Codex takes it."""
    name = _STRANGE.sub("_", grant.name)
    while name in taken:
        name += "_"
    return name
