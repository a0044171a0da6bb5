"""Tool grants on their way from configuration and seed to the harness's hooks."""

import attrs
import pytest

import inspan_echo
from inspan_core.hookspecs import hookimpl
from inspan_core.plugins import load_plugins
from inspan_runtime.providers.local import LocalProvider

pytestmark = pytest.mark.anyio
ACTIVATE = "/ng-rollout/r1/v1/responses"


def grant(name, **changes):
    connection = {
        "transport": "streamable_http",
        "url": f"http://127.0.0.1:9/{name}",
        "headers": {"X-T": "t"},
    }
    return {"kind": "mcp", "name": name, "required": True, "connection": connection, **changes}


class GrantedEcho:
    """Echo as a harness that takes MCP grants; remembers what its hooks were given."""

    def __init__(self):
        self.seen = []

    @hookimpl
    def inspan_sandbox_providers(self):
        return {"local": LocalProvider}

    @hookimpl
    def inspan_harness(self):
        return attrs.evolve(inspan_echo.inspan_harness(), tool_sources=frozenset({"builtin", "mcp"}))

    @hookimpl
    async def inspan_install(self, context):
        self.seen.append(("install", [access.name for access in context.tool_accesses]))
        return await inspan_echo.inspan_install(context)

    @hookimpl
    async def inspan_stage(self, context):
        self.seen.append(("stage", [access.name for access in context.tool_accesses]))
        self.headers = [dict(access.connection.headers) for access in context.tool_accesses]
        return await inspan_echo.inspan_stage(context)

    @hookimpl
    async def inspan_collect(self, context):
        await inspan_echo.inspan_collect(context)

    @hookimpl
    def inspan_parse(self, run):
        return inspan_echo.inspan_parse(run)


async def test_grants_of_both_sources_reach_the_hooks_and_unusable_ones_do_not(agent, bodies):
    plugin = GrantedEcho()
    loaded = load_plugins([plugin], entry_points=False)
    configured = [grant("always"), grant("both", connection={**grant("x")["connection"], "headers": {}})]
    http = {"kind": "direct_http", "name": "http", "required": False, "base_url": "http://127.0.0.1:9"}
    async with agent(plugins=loaded, tool_accesses=configured) as server:
        body = bodies.seed(tool_accesses=[grant("both"), grant("seeded"), http])
        assert (await server.client.post("/v1/agent_sessions", json=body)).status_code == 200
        assert (await server.client.post(ACTIVATE, json={"input": "hi"})).status_code == 200
        closed = await server.client.post("/v1/agent_sessions/close", json=bodies.close())
    assert plugin.seen == [("install", ["always", "both", "seeded"]), ("stage", ["always", "both", "seeded"])]
    assert plugin.headers == [{"X-T": "t"}] * 3
    gaps = [gap["code"] for gap in closed.json()["agent_observations"]["gaps"]]
    assert "tool_grant_skipped" in gaps
