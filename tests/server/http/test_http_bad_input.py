"""Generated requests that are wrong in one way or many, to every route: refused, quickly, and forgotten."""

import copy
import gzip
import json
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

CANARIES = ("canary-in-authorization", "canary-in-a-cookie", "canary-in-a-header", "canary-in-a-grant")
GRANT = {
    "kind": "mcp",
    "name": "tools",
    "required": False,
    "connection": {
        "transport": "streamable_http",
        "url": "http://127.0.0.1:9/mcp",
        "headers": {"X-T": "canary-in-a-grant"},
    },
}
ACCESS = {
    "connection": {"kind": "direct", "provider_config_ref": "box", "descriptor": {"sandbox_id": "none"}},
    "workdir": "/w",
}
EPISODE = {"rollout_id": "gen", "attempt": 0}
VALID = [
    {"agent_session_id": "g", "episode_id": EPISODE, "task_id": {"taskset": "t", "task_id": "x"}},
    {
        "agent_session_id": "g",
        "episode_id": EPISODE,
        "task_id": {"taskset": "t", "task_id": "x"},
        "tool_accesses": [GRANT],
        "sandbox_access": ACCESS,
    },
    {"agent_session_id": "g", "episode_id": EPISODE},
    {"input": "hi", "metadata": {"agent_timeout_sec": "5"}, "tools": [], "tool_choice": "auto"},
    {"responses_create_params": {"input": [{"role": "user", "content": "hi"}]}, "x": 1},
]
ROUTES = [
    "/v1/agent_sessions",
    "/v1/agent_sessions/close",
    "/ng-rollout/gen/v1/responses",
    "/ng-rollout/gen/training-token-capture/v1/responses",
    "/v1/responses",
    "/run",
    "/healthz",
    "/readyz",
    "/metrics",
    "/admin/sessions",
    "/admin/sessions/g",
    "/admin/sessions/g/close",
    "/admin/sessions/g/abandon",
]
METHODS = ["POST", "GET", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "SEED", "post"]
TEXT = st.text(st.characters(codec=None), max_size=20)  # With lone surrogates.
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([10**30, -1, 2**63, 10**400, 0, 1]),
    st.floats(),
    TEXT,
    st.sampled_from(["", "/", "..", "\0", "a" * 5000, "r-a1", "http://", "file:///etc/passwd"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


def places(value, place=()):
    """Every place inside a JSON value."""
    yield place
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(item, (*place, key))


@st.composite
def spoilt(draw):
    """A valid body with a few places replaced, removed, or added to."""
    body = copy.deepcopy(draw(st.sampled_from(VALID)))
    for _ in range(draw(st.integers(0, 3))):
        place = draw(st.sampled_from([each for each in places(body) if each] or [()]))
        if not place:
            break
        parent = body
        for key in place[:-1]:
            parent = parent[key]
        match draw(st.sampled_from(["replace", "remove", "add"])):
            case "replace":
                parent[place[-1]] = draw(VALUES)
            case "remove":
                del parent[place[-1]]
            case "add" if isinstance(parent, dict):
                parent[draw(TEXT)] = draw(VALUES)
    return json.dumps(body).encode()


def doubled(text):
    """The same object with its keys twice."""
    return text[:-1] + b"," + text[1:] if text.startswith(b"{") and text != b"{}" else text


WHOLE = st.one_of(
    spoilt(),
    spoilt().map(doubled),
    spoilt().map(gzip.compress),
    spoilt().map(lambda body: body.decode().encode("utf-16")),
    spoilt().flatmap(lambda body: st.integers(0, len(body)).map(lambda cut: body[:cut])),
    VALUES.map(lambda value: json.dumps(value).encode()),
    st.binary(max_size=200),
    st.sampled_from(
        [b"[" * 50_000, b'{"a":' * 50_000, b'"\\ud800"', b"NaN", b"9" * 6000, b"1e999", b"\xef\xbb\xbf{}"]
    ),
    st.integers(90, 110).map(lambda depth: b'{"input":' + b"[" * depth + b"]" * depth + b"}"),
)
SEGMENT = st.one_of(
    TEXT.map(lambda text: quote(text.encode("utf-8", "replace"), safe="")),
    st.sampled_from(["..", ".", "%2e%2e", "a%2Fb", "%00", "%ff", "%0a", "a" * 6000, "%", "%zz", "gen%0a"]),
)
PATHS = st.one_of(
    st.sampled_from(ROUTES[:6]),
    st.sampled_from(ROUTES[:6]),
    st.sampled_from(ROUTES),
    SEGMENT.map("/ng-rollout/{}/v1/responses".format),
    SEGMENT.map("/admin/sessions/{}".format),
    SEGMENT.map("/{}".format),
    st.sampled_from([*(f"{path}/" for path in ROUTES), "//v1/responses", "/v1/agent_sessions?x=%", "/v1#"]),
)
FIELD_TEXT = st.text(
    st.characters(min_codepoint=32, max_codepoint=255, exclude_characters="\x7f"), max_size=40
)
COOKIES = st.one_of(
    FIELD_TEXT,
    FIELD_TEXT.map("inspan_agent_session={}".format),
    st.sampled_from(
        [
            "inspan_agent_session=",
            'inspan_agent_session="',
            "inspan_agent_session=.; inspan_agent_session=.",
            "inspan_agent_session=" + "A" * 5000 + "." + "0" * 64,
            "inspan_agent_session=AAAA." + "0" * 64,
            ";;;===",
        ]
    ),
)
CONTENT_TYPES = st.sampled_from(
    [
        "application/json",
        "application/json; charset=utf-16",
        "text/plain",
        "multipart/form-data; boundary=x",
        "application/x-www-form-urlencoded",
        "application/vnd.api+json",
        "",
        "\xff",
    ]
)
HEADERS = st.lists(
    st.one_of(
        st.just("Content-Type: application/json"),
        st.just("Authorization: Bearer ADMIN"),
        CONTENT_TYPES.map("Content-Type: {}".format),
        COOKIES.map(lambda cookie: f"Cookie: {cookie}; x=canary-in-a-cookie"),
        st.just("Authorization: Bearer canary-in-authorization"),
        FIELD_TEXT.map("Authorization: {}".format),
        FIELD_TEXT.map("X-Any: {}; canary-in-a-header".format),
        st.sampled_from(["Content-Encoding: gzip", "Accept: image/png", "Range: bytes=0-1", "TE: x"]),
    ),
    max_size=3,
)


def chunked(body, size):
    parts = [body[i : i + size] for i in range(0, len(body), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def request_bytes(method, path, headers, body, chunk_bytes):
    framing = f"Content-Length: {len(body)}" if chunk_bytes is None else "Transfer-Encoding: chunked"
    head = "\r\n".join([f"{method} {path} HTTP/1.1", "Host: x", framing, *headers, "", ""])
    return head.encode("latin-1") + (body if chunk_bytes is None else chunked(body, chunk_bytes))


def ask(server, raw, data):
    """One answer to some bytes; a server that does not answer in time fails the test."""
    with server.wire() as connection:
        connection.sendall(data)
        return raw.answer(connection, has_body=not data.startswith(b"HEAD"))


BAD_INPUT = settings(
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
CALL = {
    "method": st.one_of(st.just("POST"), st.just("POST"), st.sampled_from(METHODS)),
    "path": PATHS,
    "headers": HEADERS,
    "body": WHOLE,
    "chunk_bytes": st.sampled_from([None, None, 1, 7, 4096]),
}


def refused_quietly(server, raw, logged, **call):
    logged.clear()
    if call["chunk_bytes"] == 1 and len(call["body"]) > 1000:
        call["chunk_bytes"] = 4096
    call["headers"] = [each.replace("ADMIN", server.admin_key) for each in call["headers"]]
    answer = ask(server, raw, request_bytes(**call))
    assert answer is not None, "no answer"
    assert answer.status < 500, (answer.status, answer.body)
    if answer.status >= 400 and answer.body and b"json" in str(answer.headers).encode():
        assert "detail" in json.loads(answer.body)
    told = answer.body.decode("latin-1") + str(answer.headers)
    assert not [canary for canary in CANARIES[:3] if canary in told]
    assert not [record for record in logged.records if record.levelname in ("ERROR", "CRITICAL")], logged.text
    assert not [canary for canary in CANARIES if canary in logged.text]
    good = ask(server, raw, raw.request("/healthz", method="GET"))
    assert good.status == 200


@settings(BAD_INPUT, max_examples=60)
@given(**CALL)
def test_what_is_wrong_is_refused(server, raw, logged, **call):
    refused_quietly(server, raw, logged, **call)


@pytest.mark.full
@settings(BAD_INPUT, max_examples=3000)
@given(**CALL)
def test_much_that_is_wrong_is_refused(server, raw, logged, **call):
    refused_quietly(server, raw, logged, **call)


@settings(BAD_INPUT, max_examples=60)
@given(**{**CALL, "method": st.just("POST"), "path": st.sampled_from(ROUTES[:6])})
def test_where_the_host_path_is_open_it_is_the_same(host_server, raw, logged, **call):
    refused_quietly(host_server, raw, logged, **call)


@pytest.fixture
def host_server(start):
    """It has the host path, whose runs fail: nothing answers as a model there."""
    with start("asyncio", host_execution=True) as started:
        yield started


@pytest.mark.parametrize("digits", [10, 4000, 5000, 100_000])
@pytest.mark.parametrize("sign", [b"", b"-"])
def test_an_attempt_without_end_is_refused_wherever_it_is_said(server, raw, bodies, digits, sign):
    number = sign + b"1" * digits
    for path, body in (
        ("/v1/agent_sessions", bodies.seed()),
        ("/v1/agent_sessions/close", bodies.close()),
        ("/run", {"responses_create_params": {"input": "hi"}, "episode_id": bodies.seed()["episode_id"]}),
    ):
        text = json.dumps(body).encode().replace(b'"attempt": 0', b'"attempt": ' + number)
        answer = ask(server, raw, raw.request(path, text))
        assert (answer.status, len(answer.body) < 1000) == (422, True), answer.body[:300]
        assert "attempt" in answer.body.decode() or "json_invalid" in answer.body.decode()
    assert server.service.phases == {}
