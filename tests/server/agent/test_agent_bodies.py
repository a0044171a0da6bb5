"""Bodies that do not fit are refused before any session rule, in the contract's shape."""

import json

import pytest

from inspan_server.agent.bodies import BODY_LIMIT_BYTES
from inspan_server.agent.cookies import COOKIE_NAME

pytestmark = pytest.mark.anyio
PATHS = ["/v1/agent_sessions", "/v1/agent_sessions/close", "/ng-rollout/r1/v1/responses", "/v1/responses"]
JSON = {"content-type": "application/json"}


@pytest.mark.parametrize("path", PATHS)
async def test_a_bad_body_is_refused_before_the_cookie_is_looked_at(agent, path):
    async with agent() as server:
        for data, kind in (
            (b"", "missing"),
            (b"{nope", "json_invalid"),
            (b'{"input": NaN}', "json_invalid"),
            (b'{"a": "\\ud83d"}', "string_unicode"),
            (b"[" * 200 + b"]" * 200, "too_deep"),
            (b"[]", "model_attributes_type"),
            (b"\xff", "json_invalid"),
        ):
            headers = {**JSON, "cookie": f"{COOKIE_NAME}=forged"}
            answer = await server.client.post(path, content=data, headers=headers)
            assert answer.status_code == 422, data
            assert answer.json()["detail"][0]["type"] == kind
            assert set(answer.json()["detail"][0]) == {"type", "loc", "msg", "input"}


@pytest.mark.parametrize("path", PATHS)
async def test_another_content_type_is_refused_and_none_is_json(agent, path):
    async with agent() as server:
        body = json.dumps({"input": "hi", "surplus": 1}).encode()
        for content_type in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
            answer = await server.client.post(path, content=body, headers={"content-type": content_type})
            assert answer.json()["detail"][0]["type"] == "model_attributes_type"
        for headers in ({}, {"content-type": "application/json; charset=utf-8"}):
            answer = await server.client.post(path, content=body, headers=headers)
            assert "extra_forbidden" in [each["type"] for each in answer.json()["detail"]]


async def test_a_body_over_the_bound_is_refused_announced_or_not(agent):
    async with agent() as server:

        async def flood():
            for _ in range(40):
                yield b" " * (1024 * 1024)

        large = b" " * (BODY_LIMIT_BYTES + 1)
        announced = await server.client.post("/v1/agent_sessions", content=large, headers=JSON)
        chunked = await server.client.post("/v1/agent_sessions", content=flood(), headers=JSON)
    for answer in (announced, chunked):
        assert answer.status_code == 413
        assert answer.json()["detail"][0]["type"] == "too_large"


async def test_secrets_of_a_refused_body_do_not_reach_the_sentence(agent, bodies):
    grant = {
        "kind": "mcp",
        "name": "m",
        "connection": {"url": "http://h", "headers": {"authorization": "sk-canary"}},
    }
    async with agent() as server:
        answer = await server.client.post("/v1/agent_sessions", json=bodies.seed(tool_accesses=[grant]))
    assert answer.status_code == 422
    assert "sk-canary" not in answer.text


async def test_unknown_paths_and_methods_are_answered_in_json(agent):
    async with agent() as server:
        for method, path, status in (
            ("GET", "/v1/agent_sessions", 405),
            ("POST", "/v1/nothing", 404),
            ("POST", "/v1/agent_sessions/", 404),
            ("POST", "/ng-rollout/a/b/v1/responses", 404),
            ("POST", "/ng-rollout//v1/responses", 404),
        ):
            answer = await server.client.request(method, path)
            assert (answer.status_code, type(answer.json()["detail"])) == (status, str), path
            assert COOKIE_NAME in answer.cookies
            assert ("allow" in answer.headers) == (status == 405)
