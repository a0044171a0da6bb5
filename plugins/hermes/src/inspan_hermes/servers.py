"""Tool grants as MCP servers that Hermes can connect to."""

from __future__ import annotations

import re
from collections.abc import Iterable

from inspan_core.errors import RequestRefused
from inspan_core.wire import McpAccess, ToolAccess


def read_servers(grants: Iterable[ToolAccess]) -> tuple[McpAccess, ...]:
    """The grants, checked.

    Hermes shows the model a server's tools as ``mcp__<name>__<tool>``, where anything but letters, digits
    and ``_`` in the name is replaced: two names can become one.

    Raises:
        RequestRefused: Two grants would have the same name for the model.
    """
    servers = tuple(grant for grant in grants if isinstance(grant, McpAccess))
    shown: dict[str, str] = {}
    for server in servers:
        name = re.sub(r"[^A-Za-z0-9_]", "_", server.name)
        if name in shown:
            raise RequestRefused(
                f"hermes cannot tell the tool grants {shown[name]!r} and {server.name!r} apart: "
                f"both are mcp__{name} for the model",
                field="tool_accesses",
            )
        shown[name] = server.name
    return servers
