"""Real tool servers on loopback ports, good ones and bad ones of every kind."""

import base64
import json
import os
from contextlib import asynccontextmanager

import anyio
import httpx
import pytest
from attrs import define, field
from starlette.applications import Starlette
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

import inspan_codex
import inspan_hermes
import inspan_pi
from inspan_core.hookspecs import hookimpl
from inspan_core.plugins import load_plugins
from inspan_core.wire import DirectHttpAccess, McpAccess, McpConnection
from inspan_runtime.install_cache import default_cache_dir
from inspan_runtime.providers.bubblewrap import BubblewrapProvider
from inspan_server.agent.app import create_app
from inspan_server.agent.config_reading import parse_config
from inspan_server.model.capture import Capture
from inspan_server.model.gateway import create_gateway
from inspan_server.model.script import parse_script
from inspan_server.serving import served

KEY = "sk-canary-4711"
TOKEN = "canary-of-the-grant"
HARNESSES = {"pi": inspan_pi, "codex": inspan_codex, "hermes": inspan_hermes}
RETRIES = {"pi": 0, "codex": 0, "hermes": 1}
"""What each calls one try."""
ACTIVATE = "/ng-rollout/r1/v1/responses"


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


def function(name, **properties):
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "name": name, "description": f"Does {name}.", "parameters": schema}


TOOLS = [
    function("book", room={"type": "string"}),
    function("basket"),
    function("refuse"),
]


@define(eq=False)
class Hotel:
    """Tools whose whole state is in the session's cookie, as with signed session cookies."""

    seen: list = field(factory=list)

    async def call(self, request):
        if request.method == "HEAD":
            return Response(status_code=405)
        if request.headers.get("x-episode") != TOKEN:
            return JSONResponse({"error": "who are you"}, 401)
        tool, body = request.path_params.get("tool"), await request.json()
        basket = self.basket(request.cookies)
        self.seen.append((tool, body))
        if tool == "refuse":
            return JSONResponse({"error": "fully booked"}, 409)
        if tool == "basket":
            return JSONResponse(basket)
        answer = JSONResponse({"ok": True, "rooms": len(basket) + 1})
        answer.set_cookie("stay", self.cookie([*basket, body["room"]]), httponly=True)
        answer.set_cookie("welcome", "", max_age=0)
        return answer

    @staticmethod
    def cookie(basket):
        return base64.b64encode(json.dumps(basket).encode()).decode()

    @staticmethod
    def basket(cookies):
        return json.loads(base64.b64decode(cookies["stay"]))

    def reward(self, initial, resources_cookies):
        """The verification of the task: it has nothing but the jar."""
        return float(self.basket(resources_cookies or initial) == ["12", "14"])

    @property
    def app(self):
        return Starlette(
            routes=[
                Route("/hotel", self.call, methods=["HEAD"]),
                Route("/hotel/{tool}", self.call, methods=["POST"]),
            ]
        )


class Bubblewrap:
    @hookimpl
    def inspan_sandbox_providers(self):
        return {"bubblewrap": BubblewrapProvider}


@pytest.fixture
def world(tmp_path):
    """``async with world(harness, replies, *plugins) as w``: Agent Server, gateway and tool server."""

    @asynccontextmanager
    async def start(harness, replies, *more, **options):
        hotel, capture = Hotel(), Capture()
        gateway = create_gateway(parse_script({"r1": replies}), capture, keys={"r1": KEY})
        plugins = load_plugins([Bubblewrap(), HARNESSES[harness], *more], entry_points=False)
        async with (
            served(gateway, graceful_timeout_s=0.2) as model,
            served(hotel.app, graceful_timeout_s=0.2) as tools,
        ):
            config = {
                "harness": harness,
                "model_server": {"base_url": model, "name": "policy", "api_key": KEY},
                "sandbox_provider": "box",
                "sandbox_config": {"workdir": "/app"},
                "sandbox_providers": {"box": {"kind": "bubblewrap", "runtime_dir": str(tmp_path / "run")}},
                "runtime_cache_dir": str(default_cache_dir(os.environ)),
                "state_dir": str(tmp_path / "state"),
                "harness_options": {"max_retries": RETRIES[harness], **options},
            }
            app = create_app(parse_config(config), plugins)
            async with (
                served(app, graceful_timeout_s=0.5) as url,
                httpx.AsyncClient(base_url=url, timeout=120) as client,
            ):
                yield World(client, hotel, capture, f"{tools}/hotel", app.state.service, tmp_path)

    return start


@define(eq=False)
class World:
    """One session, driven over HTTP."""

    client: httpx.AsyncClient
    hotel: Hotel
    capture: Capture
    base_url: str
    service: object
    root: object
    key: str = KEY
    token: str = TOKEN
    tools: list = field(factory=lambda: TOOLS)

    @property
    def initial(self):
        return {"stay": Hotel.cookie([]), "welcome": "yes, first-visit"}

    async def seed(self, **changes):
        grant = {"kind": "direct_http", "name": "hotel.tools", "base_url": self.base_url}
        grant |= {"headers": {"X-Episode": TOKEN}, "cookies": self.initial, **changes}
        episode = {"rollout_id": "r1", "attempt": 0}
        body = {"agent_session_id": "s1", "episode_id": episode, "task_id": {"taskset": "t", "task_id": "x"}}
        return await self.client.post("/v1/agent_sessions", json={**body, "tool_accesses": [grant]})

    async def activate(self, **request):
        return await self.client.post(
            ACTIVATE, json={"input": "Book 12 and 14.", "tools": self.tools, **request}
        )

    async def close(self):
        body = {"agent_session_id": "s1", "episode_id": {"rollout_id": "r1", "attempt": 0}}
        closed = await self.client.post("/v1/agent_sessions/close", json=body)
        assert closed.status_code == 200, closed.text
        return closed.json()

    def kept(self):
        """Everything of the journal but the store of secrets."""
        return b"".join(
            path.read_bytes()
            for path in (self.root / "state").iterdir()
            if path.is_file() and not path.name.startswith("secrets")
        )
