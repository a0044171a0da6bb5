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
        "url": changes.pop("url", f"http://127.0.0.1:9/{name}"),
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


@pytest.fixture
def url(tools_url):
    return f"{tools_url}/mcp"


async def test_grants_of_both_sources_reach_the_hooks_and_unusable_ones_do_not(agent, bodies, url):
    plugin = GrantedEcho()
    loaded = load_plugins([plugin], entry_points=False)
    bare = {"transport": "streamable_http", "url": url}
    configured = [grant("always", url=url), grant("both", connection=bare)]
    http = {"kind": "direct_http", "name": "http", "required": False, "base_url": "http://127.0.0.1:9"}
    gone = grant("gone", required=False)
    async with agent(plugins=loaded, tool_accesses=configured) as server:
        body = bodies.seed(tool_accesses=[grant("both", url=url), grant("seeded", url=url), http, gone])
        assert (await server.client.post("/v1/agent_sessions", json=body)).status_code == 200
        assert (await server.client.post(ACTIVATE, json={"input": "hi"})).status_code == 200
        closed = await server.client.post("/v1/agent_sessions/close", json=bodies.close())
    assert plugin.seen == [
        ("install", ["always", "both", "seeded", "gone"]),
        ("stage", ["always", "both", "seeded"]),
    ]
    assert plugin.headers == [{"X-T": "t"}] * 3
    gaps = [gap["code"] for gap in closed.json()["agent_observations"]["gaps"]]
    assert gaps == ["tool_grant_skipped", "tool_grant_unreachable"]


async def test_a_required_grant_that_cannot_be_used_is_a_422_that_names_it(agent, bodies, url):
    loaded = load_plugins([GrantedEcho()], entry_points=False)
    http = {"kind": "direct_http", "name": "web", "base_url": "http://127.0.0.1:9"}
    async with agent(plugins=loaded) as server:
        for grants, words in (
            ([grant("down")], "'down' cannot be used: it cannot be reached from inside the sandbox"),
            ([grant("bash", url=url)], "'bash' collides with a built-in tool"),
            ([http], "'web' is direct_http; harness 'echo' can use: builtin, mcp"),
        ):
            refused = await server.client.post("/v1/agent_sessions", json=bodies.seed(tool_accesses=grants))
            assert (refused.status_code, words in refused.text) == (422, True), refused.text
        # What was refused left nothing behind: the same id can be seeded.
        fitting = bodies.seed(tool_accesses=[grant("up", url=url)])
        assert (await server.client.post("/v1/agent_sessions", json=fitting)).status_code == 200


async def test_a_restarted_server_knows_which_grants_can_be_used(agent, bodies, url, tmp_path):
    loaded = load_plugins([plugin := GrantedEcho()], entry_points=False)
    state = {"state_dir": str(tmp_path / "state"), "plugins": loaded}
    grants = [grant("up", url=url), grant("down", required=False)]
    async with agent(**state) as server:
        await server.client.post("/v1/agent_sessions", json=bodies.seed(tool_accesses=grants))
        cookies = dict(server.client.cookies)
    async with agent(**state) as server:
        server.client.cookies.update(cookies)
        assert (await server.client.post(ACTIVATE, json={"input": "hi"})).status_code == 200
        closed = await server.client.post("/v1/agent_sessions/close", json=bodies.close())
    assert plugin.seen == [("install", ["up", "down"]), ("stage", ["up"])]
    gaps = [gap["code"] for gap in closed.json()["agent_observations"]["gaps"]]
    assert gaps == ["tool_grant_unreachable"]
