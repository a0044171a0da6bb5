"""The gateway in front of a real model server: what passes, what is kept, and what is never recorded."""

import json
from contextlib import asynccontextmanager, nullcontext, suppress

import anyio
import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from inspan_core.errors import ConfigError, UsageError
from inspan_server.model.capture import Capture
from inspan_server.model.gateway import create_gateway
from inspan_server.model.script import parse_script
from inspan_server.model.upstream import COOKIES_OF_A_ROLLOUT, CookieJars, Upstream
from inspan_server.serving import served

pytestmark = pytest.mark.anyio
CHAT = {"model": "policy", "messages": [{"role": "user", "content": "Hi"}], "logit_bias": {"7": 1}}
RESPONSES = {"model": "policy", "input": "Hi", "future_field": True}
CHUNK = (
    'data: {"id":"c1","model":"m","choices":[{"index":0,"delta":{"content":"a\\u00e9"},"finish_reason":%s}]}'
)
STREAM = [
    b": a comment\r\n\r\n",
    (CHUNK % "null").encode() + b"\r\n\r\n",
    (CHUNK % '"stop"').encode()[:50],
    (CHUNK % '"stop"').encode()[50:] + b"\n\n",
    b'data: {"id":"c1","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}\n\n',
    b"data: [DONE]\n\n",
]
EVENTS = [
    b'event: response.created\ndata: {"type":"response.created","response":{"id":"resp_u"}}\n\n',
    b'event: response.completed\ndata: {"type":"response.completed","response":{"id":"resp_u","output":[],'
    b'"usage":{"input_tokens":3,"output_tokens":2,"total_tokens":5}}}\n\n',
]


@pytest.fixture
def anyio_backend():
    return "asyncio"


class ModelServer:
    """A model server whose next answers a test sets; keeps every call."""

    def __init__(self):
        self.calls = []
        self.answers = []
        self.gone = anyio.Event()
        self.app = Starlette(routes=[Route("/api/v1/{path:path}", self.answer, methods=["GET", "POST"])])

    async def answer(self, request):
        self.calls.append((request.path_params["path"], dict(request.headers), await request.body()))
        answer = self.answers.pop(0)
        return answer if isinstance(answer, Response) else answer(self, request)


def streaming(parts, *, whole=True):
    def answer(server, request):
        async def send():
            for part in parts:
                yield part
            if not whole:
                raise ConnectionAbortedError("on purpose")

        return StreamingResponse(send(), media_type="text/event-stream")

    return answer


def silent(server, request):
    async def send():
        yield STREAM[1]
        try:
            await anyio.sleep(600)
        finally:
            server.gone.set()

    return StreamingResponse(send(), media_type="text/event-stream")


@asynccontextmanager
async def gateway(answers, **options):
    server, capture = ModelServer(), Capture()
    server.answers = list(answers)
    async with served(server.app, graceful_timeout_s=0.2) as model_url:
        upstream = Upstream(base_url=f"{model_url}/api/v1", key="sk-upstream-canary", **options)
        app = create_gateway(None, capture, upstream=upstream, keys=lambda key: "sk-rollout-canary")
        async with served(app, graceful_timeout_s=0.2) as url:
            headers = {"Authorization": "Bearer sk-rollout-canary"}
            async with httpx.AsyncClient(base_url=url, timeout=20, headers=headers) as client:
                yield client, capture, server


def path(key="r1", route="chat/completions"):
    return f"/ng-rollout/{key}/v1/{route}"


async def test_body_answer_and_headers_pass_unchanged():
    body = json.dumps(CHAT, indent=3).encode()
    raw = b'{ "id":"x",  "choices": [], "usage": {"total_tokens": 5} }'
    answer = Response(
        raw, headers={"x-request-id": "7", "retry-after": "3", "content-type": "application/json"}
    )
    async with gateway([answer]) as (client, capture, server):
        got = await client.post(
            path(), content=body, headers={"content-type": "application/json", "x-own": "1"}
        )
    assert (got.status_code, got.content) == (200, raw)
    assert (got.headers["x-request-id"], got.headers["retry-after"]) == ("7", "3")
    [(route, headers, sent)] = server.calls
    assert (route, sent) == ("chat/completions", body)
    assert headers["authorization"] == "Bearer sk-upstream-canary"
    assert "x-own" not in headers
    (call,) = capture.calls("r1")
    assert (call.request, call.response, call.response_id, call.outcome) == (
        CHAT,
        json.loads(raw),
        "x",
        "answered",
    )
    assert call.usage == {"total_tokens": 5}


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500, 503])
@pytest.mark.parametrize(("route", "body"), [("chat/completions", CHAT), ("responses", RESPONSES)])
async def test_errors_pass_with_status_and_body(route, body, status):
    raw = b'{"object":"error", "message":"context_length_exceeded ...","code":%d}' % status
    answers = [Response(raw, status, media_type="application/json") for _ in range(2)]
    async with gateway(answers) as (client, capture, _):
        for streamed in (False, True):
            got = await client.post(path(route=route), json={**body, "stream": streamed})
            assert (got.status_code, got.content) == (status, raw)
    assert [(c.status, c.outcome, c.response["code"]) for c in capture.calls("r1")] == [
        (status, "refused", status)
    ] * 2


async def test_only_the_repetition_of_a_call_without_a_good_answer_is_a_further_attempt():
    answers = [Response(b"{}", 500), streaming(STREAM[:2]), streaming(STREAM), streaming(STREAM)]
    async with gateway(answers) as (client, capture, _):
        for number in range(4):
            with suppress(httpx.RemoteProtocolError) if number == 1 else nullcontext():
                await client.post(path(), json={**CHAT, "stream": True})
    assert [(c.attempt, c.outcome) for c in capture.calls("r1")] == [
        (1, "refused"),
        (2, "dropped"),
        (3, "answered"),
        (1, "answered"),
    ]


async def test_an_error_that_is_not_json_passes_too():
    async with gateway([Response(b"<html>\xff</html>", 502, media_type="text/html")]) as (client, capture, _):
        got = await client.post(path(), json=CHAT)
    assert (got.status_code, got.content, got.headers["content-type"][:9]) == (
        502,
        b"<html>\xff</html>",
        "text/html",
    )
    assert capture.calls("r1")[0].response == {"undecodable": "<html>�</html>"}


async def test_streams_pass_byte_for_byte_and_are_put_together_for_the_record():
    async with gateway([streaming(STREAM), streaming(EVENTS)]) as (client, capture, _):
        chat = await client.post(path(), json={**CHAT, "stream": True})
        responses = await client.post(path(route="responses"), json={**RESPONSES, "stream": True})
    assert (chat.content, responses.content) == (b"".join(STREAM), b"".join(EVENTS))
    first, second = capture.calls("r1")
    assert first.response["choices"] == [
        {"index": 0, "message": {"role": "assistant", "content": "aéaé"}, "finish_reason": "stop"}
    ]
    assert (first.usage["total_tokens"], first.outcome, first.streamed) == (5, "answered", True)
    assert (second.response_id, second.usage["total_tokens"], second.outcome) == ("resp_u", 5, "answered")


@pytest.mark.parametrize(
    ("route", "body", "parts"), [("chat/completions", CHAT, STREAM[:2]), ("responses", RESPONSES, EVENTS[:1])]
)
@pytest.mark.parametrize("whole", [True, False])
async def test_a_stream_that_breaks_off_breaks_off_here_too(route, body, parts, whole):
    async with gateway([streaming(parts, whole=whole)]) as (client, capture, _):
        seen = b""
        with pytest.raises(httpx.RemoteProtocolError):
            async with client.stream("POST", path(route=route), json={**body, "stream": True}) as answer:
                async for part in answer.aiter_raw():
                    seen += part
    assert seen == b"".join(parts)
    (call,) = capture.calls("r1")
    assert (call.status, call.outcome) == (200, "dropped")


async def test_cookies_of_the_upstream_stay_with_their_rollout():
    def with_cookies(*cookies):
        answer = JSONResponse({"choices": []})
        for cookie in cookies:
            answer.raw_headers.append((b"set-cookie", cookie.encode()))
        return answer

    gone = "b=; Max-Age=0"
    answers = [
        with_cookies("node=one; Path=/elsewhere; Domain=example.org; Secure; HttpOnly", "b=2"),
        with_cookies("node=other"),
        with_cookies("node=two", gone, "c=; Expires=Thu, 01 Jan 1970 00:00:00 GMT"),
        with_cookies(),
        with_cookies(),
    ]
    async with gateway(answers) as (client, _, server):
        for key in ("r1", "r2", "r1", "r1", "r2"):
            got = await client.post(path(key), json=CHAT)
            assert [c.partition("=")[0] for c in got.headers.get_list("set-cookie")] == ["inspan_rollout"]
            assert "node" not in client.cookies
    sent = [headers.get("cookie") for _, headers, _ in server.calls]
    assert sent == [None, None, "node=one; b=2", "node=two", "node=other"]


def test_cookies_are_bounded_in_number_and_size():
    jars = CookieJars(max_rollouts=2)
    jars.take("r1", [f"c{n}={n}" for n in range(COOKIES_OF_A_ROLLOUT + 5)] + ["big=" + "x" * 5000, "bad"])
    assert jars.header("r1").split("; ") == [f"c{n}={n}" for n in range(5, COOKIES_OF_A_ROLLOUT + 5)]
    for key in ("r2", "r3"):
        jars.take(key, ["a=1"])
    assert (jars.header("r1"), jars.header("r2"), jars.header("r3")) == (None, "a=1", "a=1")


@pytest.mark.parametrize("text", ["a=1; Max-Age=x", "a=1; Max-Age=9", "a=1; Expires=never", "a=1; Max-Age"])
def test_a_cookie_of_an_odd_or_coming_end_is_kept(text):
    jars = CookieJars()
    jars.take("r", [text])
    assert jars.header("r") == "a=1"


async def test_no_key_is_recorded_and_nothing_of_it_reaches_the_wrong_side(tmp_path):
    async with gateway([JSONResponse({"choices": []})]) as (client, capture, server):
        got = await client.post(path(), json=CHAT)
    capture.export_jsonl(tmp_path / "calls.jsonl")
    assert "canary" not in (tmp_path / "calls.jsonl").read_text()
    assert "canary" not in str(got.headers)
    assert "sk-rollout" not in str(server.calls)
    assert "canary" not in repr(Upstream(base_url="http://x/v1", key="sk-canary"))


async def test_models_are_the_upstream_s():
    async with gateway([JSONResponse({"data": [{"id": "real"}]})]) as (client, _, server):
        assert (await client.get(path(route="models"))).json() == {"data": [{"id": "real"}]}
    assert server.calls[0][0] == "models"


async def test_an_upstream_that_is_not_there_is_a_502():
    capture = Capture()
    async with served(Starlette()) as url:
        pass
    app = create_gateway(None, capture, upstream=Upstream(base_url=f"{url}/v1"))
    async with served(app, graceful_timeout_s=0.2) as here, httpx.AsyncClient(base_url=here) as client:
        got = await client.post(path(), json={**CHAT, "stream": True})
    assert (got.status_code, got.json()["error"]["code"]) == (502, "upstream_unreachable")
    assert (capture.calls("r1")[0].status, capture.calls("r1")[0].outcome) == (502, "refused")


async def test_a_silent_upstream_is_given_up():
    async with gateway([silent], silence_timeout_s=0.2) as (client, capture, _):
        with pytest.raises(httpx.RemoteProtocolError):
            await client.post(path(), json={**CHAT, "stream": True})
    assert capture.calls("r1")[0].outcome == "dropped"


async def test_a_harness_that_goes_ends_the_upstream_s_call_too():
    async with gateway([silent]) as (client, capture, server):
        async with client.stream("POST", path(), json={**CHAT, "stream": True}) as answer:
            async for _ in answer.aiter_raw():
                break
        with anyio.fail_after(10):
            await server.gone.wait()
            while not capture.calls("r1"):
                await anyio.sleep(0.01)
    (call,) = capture.calls("r1")
    assert (call.outcome, call.response["choices"][0]["message"]["content"]) == ("client_gone", "aé")


async def test_rollouts_at_once_do_not_mix():
    def echo(server, request):
        return JSONResponse({"choices": [], "id": json.loads(server.calls[-1][2])["user"]})

    async with gateway([echo] * 20) as (client, capture, _):

        async def ask(key):
            got = await client.post(path(key), json={**CHAT, "user": key})
            assert got.json()["id"] == key

        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(ask, f"r{number}")
    assert all(capture.calls(f"r{n}")[0].response_id == f"r{n}" for n in range(20))


def test_a_gateway_has_one_source_of_answers():
    script, upstream = parse_script({"*": []}), Upstream(base_url="http://127.0.0.1:1/v1")
    for given in ((None, None), (script, upstream)):
        with pytest.raises(UsageError, match="either a script or an upstream"):
            create_gateway(given[0], Capture(), upstream=given[1])


@pytest.mark.parametrize("fault", [{"base_url": "127.0.0.1:8000"}, {"api": "responses"}])
def test_an_upstream_that_does_not_fit_is_refused(fault):
    with pytest.raises(ConfigError, match=next(iter(fault))):
        Upstream(**{"base_url": "http://127.0.0.1:1/v1", **fault})
