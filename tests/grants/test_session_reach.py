"""Borrowed sandboxes without a network: their sessions reach the model and granted tools, nothing else."""

from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import attrs
import httpx
import pytest

import inspan_echo
from inspan_core.errors import ReachUnavailable
from inspan_core.hookspecs import hookimpl
from inspan_core.plugins import load_plugins
from inspan_core.sandbox import SandboxSpec
from inspan_runtime.providers.bubblewrap import BubblewrapProvider
from inspan_runtime.testing.sandbox_boundary_checks import GREET, greeting
from inspan_runtime.testing.sandbox_check_support import out
from inspan_runtime.testing.sandbox_wrappers import WrappedSandbox, of
from inspan_server.agent.app import create_app
from inspan_server.agent.config_reading import parse_config
from inspan_server.model.capture import Capture
from inspan_server.model.gateway import create_gateway
from inspan_server.model.script import parse_script
from inspan_server.serving import served

pytestmark = [pytest.mark.anyio, pytest.mark.sandbox]
SEEDS, CLOSES = "/v1/agent_sessions", "/v1/agent_sessions/close"
REPLIES = [{"tool_calls": [{"name": "shell", "arguments": {"command": "echo ran"}}]}, {"content": "done"}]
TAKE = "import socket, sys, time; s = socket.create_server(('127.0.0.1', int(sys.argv[1]))); time.sleep(60)"


class GrantedEcho:
    """Echo as a harness that takes MCP grants; remembers the URLs that it was told."""

    provider = BubblewrapProvider

    def __init__(self):
        self.seen = []

    @hookimpl
    def inspan_sandbox_providers(self):
        return {"bubblewrap": self.provider}

    @hookimpl
    def inspan_harness(self):
        return attrs.evolve(inspan_echo.inspan_harness(), tool_sources=frozenset({"builtin", "mcp"}))

    @hookimpl
    async def inspan_install(self, context):
        return await inspan_echo.inspan_install(context)

    @hookimpl
    async def inspan_stage(self, context):
        tools = [access.connection.url for access in context.tool_accesses]
        self.seen.append((context.model_base_url, *tools))
        return await inspan_echo.inspan_stage(context)

    @hookimpl
    async def inspan_collect(self, context):
        await inspan_echo.inspan_collect(context)

    @hookimpl
    def inspan_parse(self, run):
        return inspan_echo.inspan_parse(run)


@attrs.define(eq=False)
class Place:
    """A sandbox of somebody else's, and what its sessions use."""

    sandbox: object
    tools: object
    root: object
    model: str = ""
    plugin: object = attrs.field(factory=GrantedEcho)

    @asynccontextmanager
    async def server(self, **changes):
        config = {
            "harness": "echo",
            "model_server": {"base_url": self.model, "name": "policy"},
            "sandbox_providers": {"box": {"kind": "bubblewrap", "runtime_dir": str(self.root / "run")}},
            "runtime_cache_dir": str(self.root / "cache"),
            "cookie_secret": "a secret of the tests",
            **changes,
        }
        app = create_app(parse_config(config), load_plugins([self.plugin], entry_points=False))
        async with served(app, graceful_timeout_s=1) as url, httpx.AsyncClient(timeout=60) as client:
            client.base_url = url
            yield client

    async def seed(self, client, session="s1", **changes):
        mcp = {"kind": "mcp", "name": "ng", "required": True, **changes}
        mcp["connection"] = {"transport": "streamable_http", "url": f"{self.tools}/mcp", "headers": {}}
        descriptor = dict(self.sandbox.descriptor)
        connection = {"kind": "direct", "provider_config_ref": "box", "descriptor": descriptor}
        body = {
            **ended(session),
            "task_id": {"taskset": "t", "task_id": "x"},
            "tool_accesses": [mcp],
            "sandbox_access": {"connection": connection, "workdir": "/app"},
        }
        return await client.post(SEEDS, json=body)

    async def runs(self, client, session="s1"):
        ran = await client.post(f"/ng-rollout/{session}/v1/responses", json={"input": "go"})
        assert ran.status_code == 200, ran.text
        assert "done" in ran.text

    async def closes(self, client, session="s1"):
        closed = await client.post(CLOSES, json=ended(session))
        assert closed.status_code == 200, closed.text

    async def answers(self, url):
        argv = ["sh", "-c", GREET, "sh", str(urlsplit(url).port), self.sandbox.descriptor["python"]]
        return (await self.sandbox.exec(argv, timeout_s=20)).stdout.strip()

    async def is_open(self, url):
        """Whether anything listens inside at the URL's port."""
        rows = (await out(self.sandbox, "cat /proc/net/tcp")).decode().splitlines()[1:]
        fields = [row.split() for row in rows]
        return f"{urlsplit(url).port:04X}" in {each[1][-4:] for each in fields if each[3] == "0A"}


def ended(session):
    return {"agent_session_id": session, "episode_id": {"rollout_id": session, "attempt": 0}}


@pytest.fixture
async def place(tmp_path, tool_server):
    provider = BubblewrapProvider({"runtime_dir": str(tmp_path / "run")})
    gateway = create_gateway(parse_script({"*": REPLIES}), Capture())
    async with served(gateway, graceful_timeout_s=0.2) as model, tool_server() as (_, url):
        sandbox = await provider.create(SandboxSpec(workdir="/app", ttl_s=300.0), key="theirs")
        try:
            yield Place(sandbox, url, tmp_path, model)
        finally:
            await sandbox.stop()


async def test_model_and_tools_are_reached_for_as_long_as_the_session_lives(place):
    with greeting() as (other, secret):
        async with place.server() as client:
            seeded = await place.seed(client)
            assert seeded.status_code == 200, seeded.text
            assert [await place.is_open(url) for url in (place.model, place.tools, other)] == [1, 1, 0]
            assert secret not in await place.answers(other)
            await place.runs(client)
            await place.closes(client)
            assert not any([await place.is_open(url) for url in (place.model, place.tools)])
    assert place.plugin.seen == [(f"{place.model}/ng-rollout/s1/v1", f"{place.tools}/mcp")]
    assert await out(place.sandbox, "echo alive") == b"alive\n"


async def test_two_sessions_in_one_sandbox_do_not_disturb_each_other(place):
    async with place.server() as client, httpx.AsyncClient(base_url=client.base_url, timeout=60) as other:
        assert [(await place.seed(c, s)).status_code for c, s in ((client, "s1"), (other, "s2"))] == [200] * 2
        await place.closes(client, "s1")
        await place.runs(other, "s2")
        assert await place.is_open(place.tools)
        await place.closes(other, "s2")
        assert not any([await place.is_open(url) for url in (place.model, place.tools)])


async def test_ports_that_are_taken_inside_are_rewritten_for_the_harness(place):
    python = place.sandbox.descriptor["python"]
    for url in (place.model, place.tools):
        await out(place.sandbox, f'"{python}" -I -c "{TAKE}" {urlsplit(url).port} >/dev/null 2>&1 & :')
        await out(place.sandbox, f"until grep -q ':{urlsplit(url).port:04X} ' /proc/net/tcp; do :; done")
    async with place.server() as client:
        seeded = await place.seed(client)
        assert seeded.status_code == 200, seeded.text
        await place.runs(client)
        await place.closes(client)
    ((model, tools),) = place.plugin.seen
    assert urlsplit(model).path == "/ng-rollout/s1/v1" and urlsplit(tools).path == "/mcp"
    assert urlsplit(model).port not in (urlsplit(place.model).port, urlsplit(tools).port)
    assert urlsplit(tools).port != urlsplit(place.tools).port
    assert not any([await place.is_open(url) for url in (model, tools)])


async def test_a_restarted_server_takes_its_ways_over_and_closes_them(place, tmp_path):
    state = {"state_dir": str(tmp_path / "state")}
    async with place.server(**state) as client:
        assert (await place.seed(client)).status_code == 200
        cookies = dict(client.cookies)
    assert await place.is_open(place.model), "a harness that runs on has lost its model"
    async with place.server(**state) as client:
        client.cookies.update(cookies)
        await place.runs(client)
        assert await place.is_open(place.tools)
        await place.closes(client)
        assert not any([await place.is_open(url) for url in (place.model, place.tools)])


async def test_a_model_server_that_is_down_is_503_and_can_be_seeded_again(place):
    model, place.model = place.model, "http://127.0.0.1:9"
    async with place.server() as client:
        refused = await place.seed(client)
        assert refused.status_code == 503 and "model server http://127.0.0.1:9" in refused.text, refused.text
        assert not any([await place.is_open(url) for url in (place.model, place.tools)])
    place.model = model
    async with place.server() as client:
        assert (await place.seed(client)).status_code == 200
        await place.closes(client)


@pytest.mark.full
async def test_a_model_server_that_says_that_it_is_down_is_503(place, tool_server):
    async with tool_server("status 503") as (_, url):
        place.model = f"{url}/tools"
        async with place.server() as client:
            refused = await place.seed(client)
    assert refused.status_code == 503 and "it answered with HTTP status 503" in refused.text, refused.text


class Closed(WrappedSandbox):
    """A sandbox whose provider can open no way."""

    async def reach(self, url, *, holder, timeout_s=30.0):
        raise ReachUnavailable(f"way to {url} cannot be opened: this user may not enter the network")


class Mistaken(WrappedSandbox):
    """A sandbox whose provider believes that the host is reached anyway."""

    async def reach(self, url, *, holder, timeout_s=30.0):
        return None


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Closed, "way to {} cannot be opened: this user may not enter"),
        pytest.param(
            Mistaken,
            "the model server {}: it cannot be reached from inside the sandbox",
            marks=pytest.mark.full,
        ),
    ],
)
async def test_a_model_to_which_there_is_no_way_is_422_that_says_why(place, kind, words):
    place.plugin.provider = lambda options: of(kind)(BubblewrapProvider(options))
    async with place.server() as client:
        refused = await place.seed(client)
    assert refused.status_code == 422, refused.text
    assert words.format(place.model) in refused.text
