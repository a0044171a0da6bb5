"""Generated requests to the Model Server's gateway and to the Environment Server: refused, and forgotten."""

import json
import socket
from contextlib import contextmanager
from types import SimpleNamespace
from urllib.parse import urlsplit

import anyio.from_thread
import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inspan_server.environment.app import create_environment_app
from inspan_server.environment.episode import EpisodeLimits, Servers
from inspan_server.model.capture import Capture
from inspan_server.model.gateway import create_gateway
from inspan_server.model.script import parse_script
from inspan_server.serving import served

BAD_INPUT = settings(
    deadline=None,
    max_examples=30,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
KEY = "canary-key-of-the-rollout"
TEXT = st.text(st.characters(codec=None), max_size=12)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | TEXT | st.just(10**400)
VALUES = st.recursive(
    SCALARS, lambda each: st.lists(each, max_size=4) | st.dictionaries(TEXT, each, max_size=4), max_leaves=10
)
CHAT = {
    "model": "policy",
    "messages": [{"role": "user", "content": "hi"}],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
    "stream": False,
}
RESPONSES = {"model": "policy", "input": [{"role": "user", "content": "hi"}], "stream": False}
EPISODE_RUN = {
    "episode_id": {"rollout_id": "r", "attempt": 0},
    "task": {
        "task_id": {"taskset": "t", "task_id": "x"},
        "task_input": {"responses_create_params": {"input": "hi"}, "task_data": {}},
    },
}


def spoilt(valid):
    """The object with some fields set to anything, or taken away."""

    def change(changes):
        body = {**valid, **changes[0]}
        return json.dumps({key: item for key, item in body.items() if key not in changes[1]}).encode()

    names = st.sampled_from(sorted(valid)) | TEXT
    return st.tuples(st.dictionaries(names, VALUES, max_size=3), st.sets(names, max_size=1)).map(change)


def any_body(valid):
    return st.one_of(
        spoilt(valid),
        spoilt(valid),
        VALUES.map(lambda value: json.dumps(value).encode()),
        st.binary(max_size=100),
        st.sampled_from([b"[" * 50_000, b'{"a":' * 50_000, b"NaN", b"9" * 6000, b'"\\ud800"', b""]),
    )


@contextmanager
def running(app):
    with anyio.from_thread.start_blocking_portal() as portal:
        with portal.wrap_async_context_manager(served(app, graceful_timeout_s=1)) as url:
            with httpx.Client(base_url=url, timeout=20) as client:
                yield SimpleNamespace(client=client, port=urlsplit(url).port, url=url)


@pytest.fixture
def gateway():
    script = parse_script({"*": [{"content": "x"}] * 3})
    with running(create_gateway(script, Capture(), keys=lambda rollout: KEY)) as server:
        yield server


@pytest.fixture
def environment():
    """Nobody answers where its servers should be."""
    nowhere = "http://127.0.0.1:9"
    servers = Servers(agent_url=nowhere, resources_url=nowhere)
    limits = EpisodeLimits(episode_timeout_s=0.2, cleanup_timeout_s=0.1)
    with running(create_environment_app(servers, limits=limits)) as server:
        yield server


def refused_quietly(server, logged, path, body, headers):
    logged.clear()
    answer = server.client.post(path, content=body, headers=headers)
    assert answer.status_code < 500, answer.text
    told = answer.text + str(answer.headers) + logged.text
    assert KEY not in told and "canary-of-the-client" not in told
    assert not [record for record in logged.records if record.levelname == "ERROR"], logged.text


@settings(BAD_INPUT)
@given(
    call=st.one_of(
        st.tuples(st.just("chat/completions"), any_body(CHAT)),
        st.tuples(st.just("responses"), any_body(RESPONSES)),
    ),
    rollout=st.sampled_from(["r", "r", "..", "a%2Fb", "%00", "a" * 300, "%ff"]),
    token=st.sampled_from([KEY, KEY, "canary-of-the-client", "x", "é"]),
    content_type=st.sampled_from(["application/json", "text/plain", "application/json; charset=utf-16"]),
)
def test_the_gateway_refuses_what_is_wrong(gateway, logged, call, rollout, token, content_type):
    path, body = call
    headers = {"authorization": f"Bearer {token}".encode(), "content-type": content_type}
    refused_quietly(gateway, logged, f"/ng-rollout/{rollout}/v1/{path}", body, headers)


@settings(BAD_INPUT)
@given(body=any_body(EPISODE_RUN), content_type=st.sampled_from(["application/json", "text/plain"]))
def test_the_environment_refuses_what_is_wrong(environment, logged, body, content_type):
    headers = {"content-type": content_type, "x-any": "canary-of-the-client"}
    refused_quietly(environment, logged, "/run", body, headers)


def test_a_client_that_leaves_amid_a_body_is_no_failure_of_either(gateway, environment, raw, logged):
    """It is nobody's fault, and no traceback is written."""
    for server, path in ((gateway, "/ng-rollout/r/v1/responses"), (environment, "/run")):
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
                headers = [f"Authorization: Bearer {KEY}"]
                connection.sendall(raw.request(path, b'{"a"', length=100, headers=headers))
        for _ in range(10):
            assert server.client.get("/nothing").status_code == 404
    assert not [record for record in logged.records if record.levelname == "ERROR"], logged.text
