"""A real Agent Server on a loopback port, with the echo harness in sandboxes of provider ``local``."""

from contextlib import asynccontextmanager
from types import SimpleNamespace

import anyio
import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import inspan_echo
from inspan_core.hookspecs import hookimpl
from inspan_core.plugins import load_plugins
from inspan_runtime.providers.local import LocalProvider
from inspan_server.agent.app import create_app
from inspan_server.agent.config_reading import parse_config
from inspan_server.agent.cookies import COOKIE_NAME, SessionCookies
from inspan_server.serving import served

SECRET = "a secret of the tests"


class LocalOnly:
    """Brings the one provider that these tests need."""

    @hookimpl
    def inspan_sandbox_providers(self):
        return {"local": LocalProvider}


@pytest.fixture
def anyio_backend():
    return "asyncio"


def episode(rollout="r1", attempt=0):
    return {"rollout_id": rollout, "attempt": attempt}


def seed_body(session="s1", rollout="r1", **changes):
    return {
        "agent_session_id": session,
        "episode_id": episode(rollout),
        "task_id": {"taskset": "t", "task_id": "x"},
        **changes,
    }


def close_body(session="s1", rollout="r1"):
    return {"agent_session_id": session, "episode_id": episode(rollout)}


@pytest.fixture
def agent(tmp_path):
    """Start an Agent Server: ``async with agent(harness_options=...) as server``."""
    (tmp_path / "work").mkdir()

    def config(**changes):
        return parse_config(
            {
                "harness": "echo",
                "model_server": {"base_url": "http://127.0.0.1:9", "name": "policy"},
                "sandbox_provider": "box",
                "sandbox_config": {"workdir": str(tmp_path / "work")},
                "sandbox_providers": {"box": {"kind": "local", "runtime_dir": str(tmp_path / "run")}},
                "runtime_cache_dir": str(tmp_path / "cache"),
                "cookie_secret": SECRET,
                "session_close_timeout_seconds": 20,
                "harness_options": {"model": False},
                **changes,
            }
        )

    @asynccontextmanager
    async def started(*, plugins=None, **changes):
        loaded = plugins or load_plugins([LocalOnly(), inspan_echo], entry_points=False)
        app = create_app(config(**changes), loaded)
        async with served(app, graceful_timeout_s=2) as url:
            async with httpx.AsyncClient(base_url=url, timeout=40) as client:
                yield SimpleNamespace(
                    app=app,
                    service=app.state.service,
                    url=url,
                    client=client,
                    provider=provider(),
                    root=tmp_path,
                )

    def provider():
        return LocalProvider({"runtime_dir": str(tmp_path / "run")})

    return started


@pytest.fixture(autouse=True)
def no_sandbox_outlives_its_test(tmp_path):
    """A server with a journal leaves its sandboxes to the next one: here nobody comes."""
    yield
    if (tmp_path / "run").exists():
        anyio.run(stop_all, LocalProvider({"runtime_dir": str(tmp_path / "run")}))


async def stop_all(provider):
    with anyio.fail_after(30):
        for descriptor in await provider.list({}):
            await (await provider.connect(descriptor)).stop()


@pytest.fixture
def cookie_of():
    """A ``Cookie`` header for a session, as the server itself would make it."""
    cookies = SessionCookies(SECRET.encode())
    return lambda session: {"cookie": f"{COOKIE_NAME}={cookies.value(session)}"}


@pytest.fixture
def until():
    """Poll with a deadline."""

    async def wait(condition, what):
        with anyio.move_on_after(20):
            while not condition():  # The server's phases have no event to wait for.
                await anyio.sleep(0.005)
            return
        raise AssertionError(f"{what} did not happen")

    return wait


@pytest.fixture
def bodies():
    return SimpleNamespace(seed=seed_body, close=close_body, episode=episode)


@pytest.fixture
def anyio_sync():
    """Call an async function from a plain test."""

    def call(function, *arguments):
        async def bounded():
            with anyio.fail_after(30):
                return await function(*arguments)

        return anyio.run(bounded)

    return call


async def answer_mcp(request):
    """A whole MCP server with one tool."""
    if request.method == "HEAD":
        return Response(status_code=405)
    message = await request.json()
    results = {
        "initialize": {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": {}},
        "tools/list": {"tools": [{"name": "give", "inputSchema": {"type": "object"}}]},
    }
    if "id" not in message:
        return Response(status_code=202)
    return JSONResponse({"jsonrpc": "2.0", "id": message["id"], "result": results[message["method"]]})


@pytest.fixture
async def tools_url():
    """Where granted tools answer: an MCP server at ``/mcp``, and anything at the root."""
    routes = [Route(path, answer_mcp, methods=["HEAD", "POST"]) for path in ("/", "/mcp")]
    async with served(Starlette(routes=routes), graceful_timeout_s=0.1) as url:
        yield url
