"""Granted servers are tried from inside the sandbox before any model call; what cannot be used is refused."""

import sys
import time
from functools import partial

import anyio
import pytest

from inspan_core.errors import RequestRefused
from inspan_core.harness import HarnessSpec
from inspan_core.sandbox import SandboxSpec
from inspan_runtime import grant_reach
from inspan_runtime.grant_reach import ask_servers, judge_grants, loopback_urls, try_grants, url_problem
from inspan_runtime.providers.bubblewrap import BubblewrapProvider
from inspan_runtime.providers.local import LocalProvider

pytestmark = pytest.mark.anyio

SPEC = HarnessSpec(
    name="some",
    version="1",
    model_api="responses",
    level=3,
    request_fields={"input": "applied", "metadata": "applied"},
    tool_sources=frozenset({"builtin", "mcp", "direct_http"}),
    builtin_tools=frozenset({"exec_command"}),
)
WHOLE = ["initialize", "notifications/initialized", "tools/list"]


@pytest.fixture
async def sandbox(tmp_path):
    provider = LocalProvider({"runtime_dir": str(tmp_path / "run")})
    made = await provider.create(SandboxSpec(workdir=str(tmp_path / "app"), ttl_s=300.0), key="grants")
    yield made
    await made.stop()
    await provider.aclose()


@pytest.fixture
def quick(monkeypatch):
    """Less patience: what hangs, hangs for ever."""
    monkeypatch.setattr(grant_reach, "REQUIRED_LIMIT_S", 2.0)
    monkeypatch.setattr(grant_reach, "OPTIONAL_LIMIT_S", 1.0)


@pytest.mark.parametrize("fault", ["", "session", "stream", "redirect", "pages"])
async def test_a_server_that_works_is_used(sandbox, tool_server, mcp_grant, fault):
    async with tool_server(fault) as (server, url):
        grant = mcp_grant(f"{url}/mcp")
        tried = await try_grants(sandbox, sys.executable, SPEC, [grant])
    assert (tried.usable, tried.gaps) == ((grant,), ())
    more = {"session": ["DELETE"], "pages": ["tools/list"]}.get(fault, [])
    assert server.seen == [*WHOLE, *more]
    assert server.headers["x-episode"] == "episode-7"
    assert server.headers["mcp-protocol-version"]


@pytest.mark.parametrize(
    ("url", "reach"),
    [
        ("http://127.0.0.1:8080/mcp", ("http://127.0.0.1:8080",)),
        ("https://localhost/x", ("https://localhost:443",)),
        ("http://[::1]:5/", ("http://[::1]:5",)),
        ("http://127.3.2.1", ("http://127.3.2.1:80",)),
        ("http://127.example.org", ()),
        ("http://192.0.2.1:80", ()),
        ("https://tools.example.org", ()),
    ],
)
def test_only_the_hosts_loopback_has_to_be_given(mcp_grant, url, reach):
    assert loopback_urls([mcp_grant(url), mcp_grant(url, "again")]) == reach


BAD = {
    "status 401": "answered initialize with HTTP status 401",
    "status 500": "answered initialize with HTTP status 500",
    "status 502 at tools/list": "answered tools/list with HTTP status 502",
    "error": "answered initialize with an error: not today, [redacted]",
    "no mcp": "no MCP server",
    "no tools": "lists no tools",
    "collides": "its tool 'exec_command' has the name of a built-in tool of harness 'some'",
    "hang": "did not answer within",
    "hang at tools/list": "did not answer within",
}


@pytest.mark.parametrize("fault", BAD)
async def test_a_required_server_that_does_not_is_refused(sandbox, tool_server, mcp_grant, quick, fault):
    async with tool_server(fault) as (_, url):
        with pytest.raises(RequestRefused) as refused:
            await try_grants(sandbox, sys.executable, SPEC, [mcp_grant(f"{url}/mcp")])
    assert "tool grant 'ng' cannot be used: " in str(refused.value)
    assert BAD[fault] in str(refused.value)
    assert refused.value.field == "tool_accesses"


async def test_nobody_there_and_a_certificate_that_nobody_signed(sandbox, tool_server, mcp_grant, http_grant):
    for grant in (mcp_grant("http://127.0.0.1:9/mcp"), http_grant("http://127.0.0.1:9/tools")):
        with pytest.raises(RequestRefused, match="cannot be reached from inside the sandbox"):
            await try_grants(sandbox, sys.executable, SPEC, [grant])
    async with tool_server() as (_, url):
        spoken = url.replace("http:", "https:")
        with pytest.raises(RequestRefused, match="cannot be reached from inside the sandbox"):
            await try_grants(sandbox, sys.executable, SPEC, [mcp_grant(f"{spoken}/mcp")])


async def test_the_model_server_is_tried_by_the_same_command_as_the_grants(
    sandbox, tool_server, mcp_grant, monkeypatch
):
    commands, run = [], sandbox.exec

    async def counted(argv, **more):
        commands.append(argv)
        return await run(argv, **more)

    monkeypatch.setattr(sandbox, "exec", counted)
    async with tool_server() as (_, url):
        grants = [mcp_grant(f"{url}/mcp"), mcp_grant("http://127.0.0.1:9/mcp", "gone", required=False)]
        report = await ask_servers(sandbox, sys.executable, grants, url=f"{url}/v1")
        assert len(commands) == 1
        assert url_problem(report, f"{url}/v1") is None
        assert [grant.name for grant in judge_grants(report, SPEC, grants).usable] == [grants[0].name]
    report = await ask_servers(sandbox, sys.executable, [], url=f"{url}/v1")
    assert "cannot be reached" in url_problem(report, f"{url}/v1")
    assert await ask_servers(sandbox, sys.executable, []) == {} and len(commands) == 2


async def test_optional_ones_are_left_out_all_within_one_bound(
    sandbox, tool_server, mcp_grant, http_grant, quick
):
    async with tool_server("hang") as (_, slow), tool_server() as (_, good):
        grants = [
            *(mcp_grant(f"{slow}/mcp", f"slow{number}", required=False) for number in range(8)),
            mcp_grant(f"{good}/mcp", "good"),
            http_grant(f"{good}/tools"),
            http_grant("http://127.0.0.1:9/", "gone", required=False),
        ]
        began = time.monotonic()
        tried = await try_grants(sandbox, sys.executable, SPEC, grants)
        took_s = time.monotonic() - began
    assert [grant.name for grant in tried.usable] == ["good", "web"]
    assert [gap.code for gap in tried.gaps] == ["tool_grant_unreachable"] * 9
    assert "'slow3' cannot be used: it did not answer within 1 seconds" in tried.gaps[3].detail
    # One after the other they would take eight seconds; the interpreter's start is the rest.
    assert took_s < 8 * grant_reach.OPTIONAL_LIMIT_S


async def test_a_direct_server_has_to_answer_and_is_not_called(sandbox, tool_server, http_grant):
    async with tool_server() as (server, url):
        grant = http_grant(f"{url}/tools", headers={"x-a": "b"})
        assert (await try_grants(sandbox, sys.executable, SPEC, [grant])).usable == (grant,)
    assert server.called == []
    async with tool_server("status 503") as (_, url):
        with pytest.raises(RequestRefused, match="HTTP status 503"):
            await try_grants(sandbox, sys.executable, SPEC, [http_grant(f"{url}/tools")])


WATCH = "while :; do cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ; sleep 0.01; done >/tmp/seen 2>/dev/null"
FIND = "grep -ac PATH= /tmp/seen; grep -rl canary-of /app /tmp /run /dev/shm"


@pytest.mark.sandbox
async def test_in_isolation_a_grant_is_reached_and_nothing_of_it_is_seen(tmp_path, tool_server, mcp_grant):
    """Its headers are in no command line, no environment and no file."""
    provider = BubblewrapProvider({"runtime_dir": str(tmp_path / "run")})
    async with tool_server("session") as (server, url):
        grant = mcp_grant(f"{url}/mcp", headers={"authorization": "Bearer canary-of-a-grant"})
        spec = SandboxSpec(workdir="/app", ttl_s=300.0, reach=loopback_urls([grant]))
        sandbox = await provider.create(spec, key="reached")
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(partial(sandbox.exec, ["sh", "-c", WATCH], timeout_s=60))
                tried = await try_grants(sandbox, sandbox.descriptor["python"], SPEC, [grant])
                tasks.cancel_scope.cancel()
            found = await sandbox.exec(["sh", "-c", FIND], timeout_s=60)
        finally:
            await sandbox.stop()
            await provider.aclose()
    assert (tried.usable, server.headers["authorization"]) == ((grant,), "Bearer canary-of-a-grant")
    count, *files = found.stdout.decode().split()
    assert int(count) > 0
    assert [name for name in files if not name.startswith("/proc/")] == []


@pytest.mark.sandbox
async def test_in_isolation_what_was_not_given_is_refused(tmp_path, tool_server, mcp_grant, quick):
    provider = BubblewrapProvider({"runtime_dir": str(tmp_path / "run")})
    async with tool_server() as (server, url):
        sandbox = await provider.create(SandboxSpec(workdir="/app", ttl_s=300.0), key="apart")
        try:
            with pytest.raises(RequestRefused, match="cannot be reached from inside the sandbox"):
                await try_grants(sandbox, sandbox.descriptor["python"], SPEC, [mcp_grant(f"{url}/mcp")])
        finally:
            await sandbox.stop()
            await provider.aclose()
    assert server.seen == []
