"""The gateway over real HTTP: what a harness gets, and what is recorded of it."""

import json
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

import anyio
import httpx
import pytest
from attrs import frozen

from inspan_server.model.capture import Capture
from inspan_server.model.gateway import create_gateway
from inspan_server.model.script import Reply, Script, parse_script
from inspan_server.serving import served

pytestmark = pytest.mark.anyio
ASK = {"model": "policy", "messages": [{"role": "user", "content": "Say hello"}]}
STREAM = {**ASK, "stream": True, "stream_options": {"include_usage": True}}
USAGE = {"prompt_tokens": 10, "completion_tokens": 5}


@pytest.fixture
def anyio_backend():
    return "asyncio"


@asynccontextmanager
async def gateway(script, **options):
    capture = options.pop("capture", None) or Capture()
    async with served(create_gateway(parse_script(script), capture, **options), graceful_timeout_s=1) as url:
        async with httpx.AsyncClient(base_url=url, timeout=20) as client:
            yield client, capture


def chat(key="r1", segment=""):
    return f"/ng-rollout/{key}{segment}/v1/chat/completions"


def events(text):
    assert text.endswith("\n\n")
    blocks = text.removesuffix("\n\n").split("\n\n")
    assert all(block.startswith("data: ") for block in blocks)
    return [block.removeprefix("data: ") for block in blocks]


async def test_a_plain_answer_and_its_record():
    async with gateway({"r1": [{"content": "hello", "usage": USAGE}]}) as (client, capture):
        answer = await client.post(chat(), json=ASK, headers={"Authorization": "Bearer sk-canary-1"})
    assert answer.status_code == 200
    body = answer.json()
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "hello"}
    (call,) = capture.calls("r1")
    assert call.request == ASK
    assert call.response == body
    assert (call.response_id, call.status, call.outcome) == (body["id"], 200, "answered")
    assert call.usage == {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    assert (call.route, call.token_capture, call.streamed) == ("/v1/chat/completions", False, False)
    assert call.cookie_returned is None
    assert call.started_at > 1_700_000_000
    assert call.duration_ms >= 0


async def test_a_streamed_answer_and_its_record():
    reply = {
        "reasoning": "I think",
        "tool_calls": [{"name": "shell", "arguments": {"command": "ls -l"}}],
        "usage": USAGE,
    }
    tools = [
        {"type": "function", "function": {"name": "bash", "parameters": {"properties": {"command": {}}}}}
    ]
    async with gateway({"r1": [reply]}) as (client, capture):
        answer = await client.post(chat(segment="/training-token-capture"), json={**STREAM, "tools": tools})
    assert answer.headers["content-type"].startswith("text/event-stream")
    *chunks, done = events(answer.text)
    assert done == "[DONE]"
    chunks = [json.loads(chunk) for chunk in chunks]
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["total_tokens"] == 15
    assert chunks[-2]["choices"][0]["finish_reason"] == "tool_calls"
    (call,) = capture.calls("r1")
    assert (call.token_capture, call.streamed, call.outcome) == (True, True, "answered")
    (tool_call,) = call.response["choices"][0]["message"]["tool_calls"]
    assert tool_call["function"] == {"name": "bash", "arguments": '{"command": "ls -l"}'}
    assert call.response_id == chunks[0]["id"]


@pytest.mark.parametrize("body", [ASK, STREAM], ids=["plain", "stream"])
async def test_omitted_usage_stays_omitted(body):
    async with gateway({"r1": [{"content": "x"}]}) as (client, capture):
        text = (await client.post(chat(), json=body)).text
    assert capture.calls("r1")[0].usage is None
    if body is ASK:
        assert "usage" not in json.loads(text)
    else:
        assert all(json.loads(event)["usage"] is None for event in events(text)[:-1])


async def test_usage_is_streamed_only_when_asked_for():
    async with gateway({"r1": [{"content": "x", "usage": USAGE}]}) as (client, capture):
        text = (await client.post(chat(), json={**ASK, "stream": True})).text
    assert all("usage" not in json.loads(event) for event in events(text)[:-1])
    assert capture.calls("r1")[0].usage["total_tokens"] == 15


async def test_replies_come_in_order_for_each_rollout_by_itself_and_then_run_out():
    script = {"r1": [{"content": "r1 a"}, {"content": "r1 b"}], "*": [{"content": "other"}]}
    async with gateway(script) as (client, capture):

        async def text(key):
            return (await client.post(chat(key), json=ASK)).json()["choices"][0]["message"]["content"]

        assert [await text("r1"), await text("r2"), await text("r1"), await text("r3")] == [
            "r1 a", "other", "r1 b", "other",
        ]  # fmt: skip
        for number in (3, 4):
            spent = await client.post(chat("r1"), json=STREAM)
            assert spent.status_code == 400
            message = f"script for rollout r1 has 2 replies; call {number} has none"
            assert spent.json()["error"]["message"] == message
            assert spent.json()["error"]["type"] == "script_exhausted"
    assert [(c.status, c.outcome) for c in capture.calls("r1")][2:] == [(400, "refused"), (400, "refused")]


async def test_a_rollout_that_the_script_does_not_know():
    async with gateway({"r1": [{"content": "x"}]}) as (client, capture):
        answer = await client.post(chat("r9"), json=ASK)
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "script_exhausted")
    assert "r9" in answer.json()["error"]["message"]
    assert capture.calls("r9")[0].outcome == "refused"


async def test_calls_at_once_take_successive_replies():
    replies = [{"content": str(number), "delay_s": 0.05} for number in range(20)]
    async with gateway({"r1": replies}) as (client, capture):
        got = []

        async def ask(body):
            answer = await client.post(chat(), json=body)
            assert answer.status_code == 200
            got.append(answer.text)

        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(ask, STREAM if number % 2 else ASK)
    answered = [call.response["choices"][0]["message"]["content"] for call in capture.calls("r1")]
    assert sorted(answered, key=int) == [str(number) for number in range(20)]
    assert len({call.model_call_id for call in capture.calls("r1")}) == 20
    assert len(got) == 20


async def test_scripted_errors_pass_status_and_body_and_retries_are_counted():
    body = {
        "error": {"message": "This model's maximum context length is 10", "code": "context_length_exceeded"}
    }
    script = {
        "r1": [
            {"error": {"status": 429}},
            {"error": {"status": 500}},
            {"content": "ok"},
            {"error": {"status": 400, "body": body}},
        ]
    }
    async with gateway(script) as (client, capture):
        answers = [await client.post(chat(), json=STREAM) for _ in range(3)]
        answers.append(await client.post(chat(), json=ASK))
    assert [answer.status_code for answer in answers] == [429, 500, 200, 400]
    assert answers[0].json()["error"] == {
        "message": "scripted error 429", "type": "scripted_error", "param": None, "code": None,
    }  # fmt: skip
    assert answers[3].json() == body
    calls = capture.calls("r1")
    assert [(c.attempt, c.outcome) for c in calls] == [
        (1, "refused"),
        (2, "refused"),
        (3, "answered"),
        (1, "refused"),
    ]
    assert calls[3].response == body


async def test_the_same_request_after_a_good_answer_is_no_retry():
    async with gateway({"r1": [{"content": "a"}, {"content": "b"}]}) as (client, capture):
        for _ in range(2):
            await client.post(chat(), json=ASK)
    assert [call.attempt for call in capture.calls("r1")] == [1, 1]


@pytest.mark.parametrize("chunks", [0, 2])
async def test_a_dropped_stream_breaks_off(chunks):
    script = {"r1": [{"content": "a long answer " * 10, "drop_after_chunks": chunks}, {"content": "again"}]}
    async with gateway(script) as (client, capture):
        seen = b""
        with pytest.raises(httpx.RemoteProtocolError):
            async with client.stream("POST", chat(), json=STREAM) as answer:
                async for part in answer.aiter_raw():
                    seen += part
        assert seen.count(b"data: ") == chunks
        assert b"[DONE]" not in seen
        assert (await client.post(chat(), json=STREAM)).status_code == 200
    first, second = capture.calls("r1")
    assert (first.status, first.outcome, first.attempt) == (200, "dropped", 1)
    assert (second.outcome, second.attempt) == ("answered", 2)


async def test_a_dropped_plain_answer_breaks_off():
    async with gateway({"r1": [{"content": "a long answer", "drop_after_chunks": 1}]}) as (client, capture):
        with pytest.raises(httpx.RemoteProtocolError):
            await client.post(chat(), json=ASK)
    assert capture.calls("r1")[0].outcome == "dropped"


@frozen(kw_only=True)
class WatchedScript(Script):
    """Tells when it was asked for a reply."""

    asked: anyio.Event

    def replies(self, rollout_key):
        self.asked.set()
        return super().replies(rollout_key)


def silent_script(asked):
    return WatchedScript({"r1": (Reply(content="late", delay_s=600),)}, asked=asked)


async def test_a_client_that_goes_during_the_silence_is_recorded():
    asked, capture = anyio.Event(), Capture()
    async with served(create_gateway(silent_script(asked), capture), graceful_timeout_s=1) as url:
        parts = urlsplit(url)
        async with await anyio.connect_tcp(parts.hostname, parts.port) as connection:
            body = json.dumps(ASK).encode()
            head = f"POST {chat()} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            await connection.send(head + body)
            with anyio.fail_after(10):
                await asked.wait()
        with anyio.fail_after(10):
            while not capture.calls("r1"):
                await anyio.sleep(0.01)
    (gone,) = capture.calls("r1")
    assert (gone.status, gone.response, gone.request, gone.outcome) == (None, None, ASK, "client_gone")


async def test_a_silent_call_does_not_hold_up_the_server_s_end():
    asked, capture = anyio.Event(), Capture()
    async with httpx.AsyncClient(timeout=600) as client, anyio.create_task_group() as tasks:

        async def ask(url):
            # The server cuts the call off: an error, or no answer at all, but never the reply.
            with suppress(httpx.TransportError):
                assert (await client.post(url + chat(), json=ASK)).status_code == 500

        with anyio.fail_after(20):
            async with served(create_gateway(silent_script(asked), capture), graceful_timeout_s=0.2) as url:
                tasks.start_soon(ask, url)
                await asked.wait()


@pytest.mark.parametrize(
    ("raw", "status", "message"),
    [
        (b"{", 400, "request body: expected JSON"),
        (b"[]", 400, "request body: expected an object, got list"),
        (b'{"model": "m", "messages": [NaN]}', 400, "NaN is not JSON"),
        (b"[" * 100_000, 400, "request body: expected JSON"),
        (b'{"messages": [{}]}', 400, "model: expected the name of a model, got nothing"),
        (b'{"model": "m", "messages": []}', 400, "messages: expected a list of messages that is not empty"),
        (
            b'{"model": "m", "messages": [{}], "stream": "yes"}',
            400,
            'stream: expected true or false, got "yes"',
        ),
    ],
)
async def test_a_body_that_does_not_fit_is_refused_and_takes_no_reply(raw, status, message):
    async with gateway({"r1": [{"content": "x"}]}) as (client, capture):
        answer = await client.post(chat(), content=raw, headers={"content-type": "application/json"})
        assert answer.status_code == status
        assert message in answer.json()["error"]["message"]
        assert (await client.post(chat(), json=ASK)).status_code == 200
    assert [call.outcome for call in capture.calls("r1")] == ["refused", "answered"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/", "/v1/models"])
async def test_a_call_without_its_rollout_is_a_stray(path):
    async with gateway({"*": [{"content": "x"}]}) as (client, capture):
        answer = await client.post(path, json=ASK)
    assert answer.status_code == 404
    assert "must carry its rollout" in answer.json()["error"]["message"]
    assert (capture.strays, capture.stray_calls, capture.rollout_keys) == ((path,), 1, ())


async def test_whoever_only_tries_whether_it_is_there_is_no_stray():
    """A session's seed does so, from inside its sandbox."""
    async with gateway({"*": []}) as (client, capture):
        answer = await client.head("/")
    assert (answer.status_code, capture.stray_calls) == (404, 0)


@pytest.mark.parametrize(
    "path", ["/ng-rollout/r1/v1/responses", "/ng-rollout/..%2fr/v1/models", "/ng-rollout/-a/v1/models"]
)
async def test_other_prefixed_paths_are_not_found(path):
    async with gateway({"*": [{"content": "x"}]}) as (client, capture):
        answer = await client.get(path)
    assert answer.status_code == 404
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert capture.stray_calls == 0


async def test_models_are_listed_and_that_is_no_model_call():
    async with gateway({"*": []}, models=["policy", "judge"]) as (client, capture):
        answer = await client.get("/ng-rollout/r1/v1/models")
    assert [model["id"] for model in answer.json()["data"]] == ["policy", "judge"]
    assert capture.calls("r1") == ()


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/v1/models"),
        ("GET", "/api/tags"),
        ("POST", "/api/show"),
        ("GET", "/v1/models/policy"),
        ("GET", "/v1/props"),
    ],
)
async def test_a_harness_that_tries_what_server_this_is_learns_nothing_and_leaves_no_record(method, path):
    async with gateway({"*": []}) as (client, capture):
        answer = await client.request(method, f"/ng-rollout/r1{path}", headers={"Authorization": "Bearer k"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
    assert (capture.calls("r1"), capture.stray_calls, capture.unauthorized_calls) == ((), 0, 0)


@pytest.mark.parametrize(
    "header", [None, "Bearer wrong", "Bearer key-of-2", "Basic key-of-1", "Bearer", "Bearer clé".encode()]
)
async def test_a_wrong_key_is_refused_and_not_recorded_as_the_rollout_s(header):
    keys = {"r1": "key-of-1", "r2": "key-of-2"}
    async with gateway({"*": [{"content": "x"}]}, keys=keys) as (client, capture):
        headers = {} if header is None else {"Authorization": header}
        answer = await client.post(chat(), json=ASK, headers=headers)
        assert answer.status_code == 401
        assert answer.json()["error"]["code"] == "invalid_api_key"
        unknown = await client.post(chat("r3"), json=ASK, headers={"Authorization": "Bearer None"})
        assert unknown.status_code == 401
        right = await client.post(chat(), json=ASK, headers={"Authorization": "Bearer key-of-1"})
        assert right.status_code == 200
    assert capture.unauthorized_calls == 2
    assert [call.status for call in capture.calls("r1")] == [200]


async def test_no_header_is_ever_recorded(tmp_path):
    async with gateway({"r1": [{"content": "x"}]}, keys=lambda key: "sk-canary") as (client, capture):
        await client.post(
            chat(), json=ASK, headers={"Authorization": "Bearer sk-canary", "X-Other": "sk-canary"}
        )
    capture.export_jsonl(tmp_path / "calls.jsonl")
    assert "canary" not in (tmp_path / "calls.jsonl").read_text()


async def test_the_rollout_s_cookie_is_set_and_its_return_noticed():
    async with gateway({"*": [{"content": "x"}] * 3}) as (client, capture):
        await client.post(chat("a"), json=ASK)
        cookie = client.cookies.get("inspan_rollout", path="/ng-rollout/a")
        assert cookie.isalnum()
        await client.post(chat("a"), json=STREAM)
        client.cookies.clear()
        await client.post(chat("a"), json=ASK)
        await client.post(chat("b"), json=ASK)
        assert client.cookies.get("inspan_rollout", path="/ng-rollout/b") != cookie
    assert [call.cookie_returned for call in capture.calls("a")] == [None, True, False]
