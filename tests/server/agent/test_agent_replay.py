"""The captured exchanges, sent in their order to our own server: the same statuses, cookies and shapes.

Where the specification is stricter than what was captured, `STRICTER` says so.
"""

import json
from pathlib import Path

import pytest
from attrs import evolve

import inspan_echo
from inspan_core.hookspecs import hookimpl
from inspan_core.plugins import load_plugins
from inspan_core.sandbox import SandboxSpec
from inspan_runtime.providers.local import LocalProvider
from inspan_server.agent.cookies import COOKIE_NAME

pytestmark = pytest.mark.anyio
EXCHANGES = [
    json.loads(line) for line in (Path(__file__).parents[1] / "exchanges.jsonl").read_text().splitlines()
]
NEEDED = frozenset(
    {"id", "created_at", "model", "object", "output", "parallel_tool_calls", "tool_choice", "tools"}
)
STRICTER = {"activate-minimal-body": 409}
"""A session has one activation; a second, different one is refused."""

FORGED = {"activate-marker-not-a-string", "seed-marker-empty"}
"""Their cookies had a valid signature over nonsense, which only the server itself could make."""


class AnyGrantEcho:
    """The echo harness, declared to take any grant, so that captured seeds with grants are taken."""

    __name__ = "any-grant-echo"
    inspan_install = staticmethod(inspan_echo.inspan_install)
    inspan_stage = staticmethod(inspan_echo.inspan_stage)
    inspan_collect = staticmethod(inspan_echo.inspan_collect)
    inspan_parse = staticmethod(inspan_echo.inspan_parse)

    @hookimpl
    def inspan_harness(self):
        return evolve(inspan_echo.inspan_harness(), tool_sources=frozenset({"direct_http", "mcp"}))

    @hookimpl
    def inspan_sandbox_providers(self):
        return {"local": LocalProvider}


def session_of_cookie(exchange, bound):
    """Whose cookie the capture sent: `cookie` says only that it was one."""
    case, body = exchange["case"], exchange["request"]["body"]
    if "unknown-session" in case:
        return body["agent_session_id"] if "agent_session_id" in body else "a-session-of-yesterday"
    return bound


async def test_the_capture_is_answered_as_it_was(agent, cookie_of, tmp_path, tools_url):
    plugins = load_plugins([AnyGrantEcho()], entry_points=False)
    run_dir = str(tmp_path / "run")
    blocks = {name: {"kind": "local", "runtime_dir": run_dir} for name in ("box", "p")}
    async with agent(plugins=plugins, sandbox_providers=blocks) as server:
        sandbox = await server.provider.create(SandboxSpec(workdir=str(tmp_path / "w")), key="borrowed")
        first = EXCHANGES[0]["request"]["body"]["agent_session_id"]
        closed = []
        try:
            for exchange in EXCHANGES:
                cookie = cookie_of(session_of_cookie(exchange, first))
                answer = await send(server, exchange, cookie, sandbox, tools_url)
                check(exchange, answer)
                if exchange["case"].startswith("close") and answer.status_code == 200:
                    closed.append((exchange["case"], answer.json()))
        finally:
            await sandbox.stop()
    same = [body for case, body in closed if case in ("close", "close-again-cookie", "close-again-no-cookie")]
    assert len(same) == 3
    assert same[0] == same[1] == same[2]
    assert same[0]["agent_observations"]["records"][0]["kind"] == "agent_invocation"


async def send(server, exchange, cookie, sandbox, tools_url):
    request = exchange["request"]
    body, headers = request["body"], {"content-type": "application/json"}
    if exchange["case"] == "seed-422-text-content-type":
        headers["content-type"] = "text/plain"
    if request["cookie"]:
        headers.update({"cookie": f"{COOKIE_NAME}="} if exchange["case"] in FORGED else cookie)
    if isinstance(body, dict) and exchange["case"].startswith("seed-with-grants"):
        # Nobody answered there; we try what is granted.
        body = json.loads(json.dumps(body).replace("http://127.0.0.1:9", tools_url))
        access = body["sandbox_access"]
        body = {**body, "sandbox_access": {**access, "workdir": str(server.root / "w")}}
        body["sandbox_access"]["connection"] = {
            **access["connection"],
            "descriptor": dict(sandbox.descriptor),
        }
    content = b"" if body is None else body if isinstance(body, str) else json.dumps(body)
    server.client.cookies.clear()
    return await server.client.request(request["method"], request["path"], content=content, headers=headers)


def check(exchange, answer):
    case = exchange["case"]
    assert answer.status_code == STRICTER.get(case, exchange["status"]), (case, answer.text)
    assert (COOKIE_NAME in answer.cookies) == exchange["sets_session_cookie"], case
    got, wanted = answer.json(), exchange["body"]
    if case in STRICTER or answer.status_code in (404, 405, 409):
        assert type(got["detail"]) is str
    elif answer.status_code == 422:
        assert [(each["type"], each["loc"]) for each in got["detail"]] == [
            (each["type"], each["loc"]) for each in wanted["detail"]
        ], case
    elif case == "activate":
        needed = {
            "id",
            "created_at",
            "model",
            "object",
            "output",
            "parallel_tool_calls",
            "tool_choice",
            "tools",
        }
        assert needed <= set(got)
        assert set(got) <= set(wanted), "a reader of responses knows no other field"
        assert [set(item) for item in got["output"]] <= [set(item) for item in wanted["output"]]
    else:
        assert set(got) == set(wanted)
        assert got["agent_session_id"] == wanted["agent_session_id"]


def test_the_capture_holds_what_the_replay_needs():
    assert len(EXCHANGES) == 58
    assert {exchange["status"] for exchange in EXCHANGES} == {200, 404, 405, 409, 422}
