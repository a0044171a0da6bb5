"""The captured exchanges, sent in their order to our own server: the same statuses, cookies and shapes.

Where the specification is stricter than what was captured, `STRICTER` says so.
"""

import json
from pathlib import Path

import httpx
import pytest
from attrs import evolve

import inspan_echo
from inspan_core.hookspecs import hookimpl
from inspan_core.plugins import load_plugins
from inspan_core.sandbox import SandboxSpec
from inspan_runtime.providers.local import LocalProvider
from inspan_server.agent.cookies import COOKIE_NAME

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


@pytest.mark.anyio
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
                check(exchange, answer, bound_to(exchange, cookie, cookie_of))
                if exchange["case"].startswith("close") and answer.status_code == 200:
                    closed.append((exchange["case"], answer.json()))
        finally:
            await sandbox.stop()
    same = [body for case, body in closed if case in ("close", "close-again-cookie", "close-again-no-cookie")]
    assert len(same) == 3
    assert same[0] == same[1] == same[2]
    assert same[0]["agent_observations"]["records"][0]["kind"] == "agent_invocation"


def bound_to(exchange, cookie, cookie_of):
    """The value that the answer has to set: that of the session which is seeded, or that which came."""
    if exchange["case"] in FORGED:
        return None
    if exchange["request"]["path"] == "/v1/agent_sessions" and exchange["status"] == 200:
        cookie = cookie_of(exchange["request"]["body"]["agent_session_id"])
    elif not exchange["request"]["cookie"]:
        cookie = cookie_of("")
    return cookie["cookie"].partition("=")[2]


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


def check(exchange, answer, bound):
    """Status, cookie and shape; `bound` is the value of the cookie that binds the client from now on."""
    case = exchange["case"]
    assert answer.status_code == STRICTER.get(case, exchange["status"]), (case, answer.text)
    assert answer.headers["content-type"] == "application/json", case
    assert (COOKIE_NAME in answer.cookies) == exchange["sets_session_cookie"], case
    assert bound is None or answer.cookies[COOKIE_NAME] == bound, case
    got, wanted = answer.json(), exchange["body"]
    if case in STRICTER or answer.status_code in (404, 405, 409):
        assert set(got) == {"detail"} and type(got["detail"]) is str and got["detail"], case
    elif answer.status_code == 422:
        assert [(each["type"], each["loc"]) for each in got["detail"]] == [
            (each["type"], each["loc"]) for each in wanted["detail"]
        ], case
        assert all(each["msg"] for each in got["detail"]), case
        inputs = [
            (each["input"], asked["input"])
            for each, asked in zip(got["detail"], wanted["detail"], strict=True)
        ]
        assert all(is_same(*each) for each in inputs), case
    elif case == "activate":
        assert NEEDED <= set(got)
        assert set(got) <= set(wanted), "a reader of responses knows no other field"
        assert got["object"] == "response"
        for name in NEEDED - {"created_at"}:
            assert type(got[name]) is type(wanted[name]), name
        known = {item["type"]: set(item) for item in wanted["output"]}
        assert got["output"] and all(set(item) <= known[item["type"]] for item in got["output"])
    else:
        assert set(got) == set(wanted), case
        assert got["agent_session_id"] == wanted["agent_session_id"]
        for name in ("agent_observations", "resources_cookies"):
            assert (got.get(name) is None) == (wanted.get(name) is None), (case, name)


def is_same(told, asked):
    """Whether an input is repeated, a long one at least up to a bound."""
    is_cut = isinstance(told, str) and isinstance(asked, str) and len(told) > 100 and told.endswith("...")
    return asked.startswith(told[:-3]) if is_cut else told == asked


def canned(exchange, **changes):
    """The captured answer itself, or another."""
    body = changes.get("body", exchange["body"])
    cookie = {"set-cookie": f"{COOKIE_NAME}={changes.get('cookie', 'c')}"} if "cookie" not in changes else {}
    status = STRICTER.get(exchange["case"], exchange["status"])
    return httpx.Response(
        changes.get("status", status), json=body, headers=cookie, request=httpx.Request("POST", "http://x")
    )


def others(exchange):
    """Answers that differ from the captured one in what a client looks at."""
    body = exchange["body"]
    status = STRICTER.get(exchange["case"], exchange["status"])
    yield canned(exchange, status=200 if status != 200 else 409)
    yield canned(exchange, status=500)
    yield canned(exchange, cookie=None)
    yield canned(exchange, body={**body, "more": 1} if status in (200, 409) else {"detail": []})
    yield canned(exchange, body=dict.fromkeys(body))
    if status == 422:
        yield canned(exchange, body={"detail": [{**each, "input": "another"} for each in body["detail"]]})
    if "agent_observations" in body:
        is_known = body["agent_observations"] is not None
        yield canned(exchange, body={**body, "agent_observations": None if is_known else {"records": []}})


@pytest.mark.parametrize("exchange", EXCHANGES, ids=lambda exchange: exchange["case"])
def test_the_comparison_passes_the_capture_and_nothing_else(exchange):
    sentences = exchange["case"] in STRICTER
    check(exchange, canned(exchange, **({"body": {"detail": "no"}} if sentences else {})), "c")
    for other in others(exchange):
        with pytest.raises((AssertionError, KeyError, TypeError)):
            check(exchange, other, "c")


def test_the_capture_holds_what_the_replay_needs():
    assert len(EXCHANGES) == 58
    assert {exchange["status"] for exchange in EXCHANGES} == {200, 404, 405, 409, 422}
