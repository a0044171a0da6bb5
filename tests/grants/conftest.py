"""Real tool servers on loopback ports, good ones and bad ones of every kind."""

import json
from contextlib import asynccontextmanager

import anyio
import pytest
from attrs import define, field
from starlette.applications import Starlette
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from inspan_core.wire import DirectHttpAccess, McpAccess, McpConnection
from inspan_server.serving import served


@pytest.fixture
def anyio_backend():
    return "asyncio"


@define(eq=False)
class ToolServer:
    """An MCP server at ``/mcp``, ``direct_http`` tools at ``/tools``; `fault` says what is wrong with it.

    Attributes:
        seen: The MCP methods in order.
        called: (tool, arguments, headers) of each direct_http call.
    """

    fault: str = ""
    tools: tuple = ("give",)
    seen: list = field(factory=list)
    called: list = field(factory=list)
    headers: dict = field(factory=dict)
    answers: dict = field(factory=dict)

    async def mcp(self, request):
        if request.method == "DELETE":
            self.seen.append("DELETE")
            return Response(status_code=200)
        if request.method != "POST":
            return Response(status_code=405)
        if self.fault == "redirect" and request.url.path == "/mcp":
            return RedirectResponse("/mcp/", status_code=307)
        message = await request.json()
        method = message["method"]
        self.seen.append(method)
        self.headers = dict(request.headers)
        if self.fault == "hang" or self.fault == f"hang at {method}":
            await anyio.sleep_forever()
        if self.fault.startswith("status ") and self.fault.endswith(("0", "1", "3", f"at {method}")):
            return JSONResponse({"error": "no"}, int(self.fault.split()[1]))
        if self.fault == "no mcp":
            return Response("<html>hello</html>", media_type="text/html")
        if "id" not in message:
            return Response(status_code=202)
        if self.fault == "session" and method != "initialize":
            assert request.headers["mcp-session-id"] == "s-1"
        answer = {"jsonrpc": "2.0", "id": message["id"], **self.result(method, message["params"])}
        headers = {"mcp-session-id": "s-1"} if self.fault == "session" and method == "initialize" else {}
        if self.fault == "stream":
            note = {"jsonrpc": "2.0", "method": "notifications/message", "params": {}}
            return StreamingResponse(open_stream([note, answer]), media_type="text/event-stream")
        return JSONResponse(answer, headers=headers)

    def result(self, method, params):
        if self.fault == "error":
            told = self.headers.get("x-episode")
            return {"error": {"code": -32000, "message": f"not today, {told}"}}
        if method == "initialize":
            capabilities = {"tools": {}}
            info = {"name": "t", "version": "1"}
            version = params["protocolVersion"]
            return {"result": {"protocolVersion": version, "capabilities": capabilities, "serverInfo": info}}
        if method == "tools/list":
            names = {"no tools": (), "collides": ("bash", "exec_command")}.get(self.fault, self.tools)
            tools = [{"name": name, "inputSchema": {"type": "object"}} for name in names]
            if self.fault == "pages" and "cursor" not in params:
                return {"result": {"tools": tools, "nextCursor": "2"}}
            return {"result": {"tools": tools}}
        return {"result": {"content": [{"type": "text", "text": "ok"}]}}

    async def direct(self, request):
        if request.method == "HEAD":
            if self.fault.startswith("status "):
                return Response(status_code=int(self.fault.split()[1]))
            return Response(status_code=404)
        tool, body = request.path_params["tool"], await request.json()
        self.called.append((tool, body, dict(request.headers)))
        return self.answers[tool](body, request)

    @property
    def app(self):
        methods = ["GET", "POST", "DELETE"]
        return Starlette(
            routes=[
                Route("/mcp", self.mcp, methods=methods),
                Route("/mcp/", self.mcp, methods=methods),
                Route("/tools", self.direct, methods=["HEAD"]),
                Route("/tools/{tool}", self.direct, methods=["POST"]),
            ]
        )


async def open_stream(messages):
    """Server-sent events of a server that keeps the stream open."""
    for message in messages:
        yield f"event: message\r\ndata: {json.dumps(message)}\r\n\r\n"
    await anyio.sleep_forever()


@pytest.fixture
def tool_server():
    """``async with tool_server(fault) as (server, url)``."""

    @asynccontextmanager
    async def start(fault="", **changes):
        server = ToolServer(fault, **changes)
        async with served(server.app, graceful_timeout_s=0.1) as url:
            yield server, url

    return start


@pytest.fixture
def mcp_grant():
    """Makes a grant of an MCP server."""

    def make(url, name="ng", *, required=True, headers=None):
        connection = McpConnection(
            url=url, headers={"x-episode": "episode-7"} if headers is None else headers
        )
        return McpAccess(name=name, connection=connection, required=required)

    return make


@pytest.fixture
def http_grant():
    """Makes a grant of direct_http tools."""

    def make(url, name="web", *, required=True, **changes):
        return DirectHttpAccess(name=name, base_url=url, required=required, **changes)

    return make
