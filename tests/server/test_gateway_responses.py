"""The Responses API of the gateway over real HTTP, from the same scripts as Chat Completions."""

import json
from contextlib import asynccontextmanager

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inspan_server.model.capture import Capture
from inspan_server.model.chat import completion, completion_chunks
from inspan_server.model.gateway import create_gateway
from inspan_server.model.responses import ResponseStream, whole_response
from inspan_server.model.script import Reply, ScriptedToolCall, parse_script
from inspan_server.model.tool_names import read_tools
from inspan_server.serving import served

pytestmark = pytest.mark.anyio
TOOLS = [
    {"type": "function", "name": "exec_command", "parameters": {"properties": {"cmd": {}}}},
    {
        "type": "namespace",
        "name": "mcp__ng",
        "tools": [{"type": "function", "name": "look_up", "parameters": {"properties": {"key": {}}}}],
    },
    {"type": "custom", "name": "apply_patch"},
    {"type": "web_search"},
]
ASK = {"model": "policy", "input": "Say hello", "tools": TOOLS}
STREAM = {**ASK, "stream": True}
USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "cached_tokens": 4, "reasoning_tokens": 2}
SHOWN_USAGE = {
    "input_tokens": 10,
    "input_tokens_details": {"cached_tokens": 4},
    "output_tokens": 5,
    "output_tokens_details": {"reasoning_tokens": 2},
    "total_tokens": 15,
}
PATH = "/ng-rollout/r1/v1/responses"


@pytest.fixture
def anyio_backend():
    return "asyncio"


@asynccontextmanager
async def gateway(replies, **options):
    capture = Capture()
    app = create_gateway(parse_script({"*": replies}), capture, **options)
    async with served(app, graceful_timeout_s=1) as url:
        async with httpx.AsyncClient(base_url=url, timeout=20) as client:
            yield client, capture


def events(text):
    """The events of a stream; each is named by its type."""
    found = []
    for block in text.removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


def rebuilt(found):
    """The output that a client makes of the events, by OpenAI's rules: added, deltas, done."""
    items, texts = {}, {}
    for event in found:
        index = event.get("output_index")
        if event["type"] == "response.output_item.added":
            assert index not in items
            items[index] = event["item"]
        elif event["type"].endswith(".delta"):
            texts[index] = texts.get(index, "") + event["delta"]
            assert event["item_id"] == items[index]["id"]
        elif event["type"] == "response.output_item.done":
            item = event["item"]
            said = item.get("arguments", item.get("input"))
            said = item["content"][0]["text"] if said is None else said
            assert said == texts.get(index, "")
            items[index] = item
    return [items[index] for index in sorted(items)]


REPLY = {
    "reasoning": "I think of a plan.",
    "content": "I look, then I call.",
    "tool_calls": [
        {"name": "shell", "arguments": {"command": "ls -l"}},
        {"name": "look_up", "arguments": {"key": "k"}},
        {"name": "mcp__ng__look_up", "arguments": '{"key": '},
        {"name": "apply_patch", "arguments": {"input": "*** Begin"}},
        {"name": "nobody", "arguments": {}},
    ],
    "usage": USAGE,
}


async def test_a_streamed_answer_in_full_and_its_record():
    async with gateway([REPLY]) as (client, capture):
        answer = await client.post(PATH.replace("/v1", "/training-token-capture/v1"), json=STREAM)
    assert answer.headers["content-type"].startswith("text/event-stream")
    found = events(answer.text)
    assert [found[0]["type"], found[1]["type"]] == ["response.created", "response.in_progress"]
    assert found[0]["response"]["status"] == "in_progress"
    assert found[-1]["type"] == "response.completed"
    response = found[-1]["response"]
    assert rebuilt(found) == response["output"]
    kinds = [item["type"] for item in response["output"]]
    assert kinds == ["reasoning", "message", *["function_call"] * 3, "custom_tool_call", "function_call"]
    shell, looked, malformed, patch, nobody = response["output"][2:]
    assert (shell["name"], shell["arguments"], shell.get("namespace")) == (
        "exec_command", '{"cmd": "ls -l"}', None,
    )  # fmt: skip
    assert (looked["name"], looked["namespace"]) == ("look_up", "mcp__ng")
    assert (malformed["name"], malformed["namespace"], malformed["arguments"]) == (
        "look_up", "mcp__ng", '{"key": ',
    )  # fmt: skip
    assert (patch["name"], patch["input"]) == ("apply_patch", "*** Begin")
    assert nobody["name"] == "nobody"
    assert len({item["call_id"] for item in response["output"][2:]}) == 5
    assert response["usage"] == SHOWN_USAGE
    (call,) = capture.calls("r1")
    assert (call.route, call.token_capture, call.streamed, call.outcome) == (
        "/v1/responses", True, True, "answered",
    )  # fmt: skip
    assert (call.response, call.response_id, call.usage) == (response, response["id"], SHOWN_USAGE)
    assert call.request == STREAM


async def test_a_plain_answer_is_the_stream_s_last_word():
    async with gateway([REPLY, REPLY]) as (client, _):
        plain = (await client.post(PATH, json=ASK)).json()
        streamed = events((await client.post(PATH, json=STREAM)).text)[-1]["response"]
    assert plain["status"] == "completed"

    def without_ids(items):
        return [{k: v for k, v in item.items() if k not in ("id", "call_id")} for item in items]

    assert without_ids(plain["output"]) == without_ids(streamed["output"])


@pytest.mark.parametrize(
    ("finish_reason", "reason"), [("length", "max_output_tokens"), ("content_filter", "content_filter")]
)
async def test_a_model_limit_is_an_incomplete_answer(finish_reason, reason):
    replies = [{"content": "half", "finish_reason": finish_reason, "usage": USAGE}] * 2
    async with gateway(replies) as (client, _):
        last = events((await client.post(PATH, json=STREAM)).text)[-1]
        plain = (await client.post(PATH, json=ASK)).json()
    assert last["type"] == "response.incomplete"
    for response in (last["response"], plain):
        assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": reason})
        assert response["usage"]["total_tokens"] == 15


async def test_a_model_that_fails_in_the_middle():
    replies = [{"content": "half", "failure": {"message": "gave up", "code": "oom"}}] * 4
    async with gateway(replies) as (client, capture):
        last = events((await client.post(PATH, json=STREAM)).text)[-1]
        plain = (await client.post(PATH, json=ASK)).json()
        chat = {"model": "policy", "messages": [{"role": "user", "content": "x"}]}
        whole = await client.post("/ng-rollout/r1/v1/chat/completions", json=chat)
        stream = await client.post("/ng-rollout/r1/v1/chat/completions", json={**chat, "stream": True})
    assert last["type"] == "response.failed"
    for response in (last["response"], plain):
        assert (response["status"], response["error"]) == ("failed", {"code": "oom", "message": "gave up"})
    assert (whole.status_code, whole.json()["error"]["message"]) == (500, "gave up")
    assert '"gave up"' in stream.text.split("\n\n")[-3]
    assert 'finish_reason": "stop' not in stream.text
    assert capture.calls("r1")[3].response["error"]["code"] == "oom"


async def test_omitted_usage_stays_omitted():
    async with gateway([{"content": "x"}] * 2) as (client, capture):
        assert (await client.post(PATH, json=ASK)).json()["usage"] is None
        assert events((await client.post(PATH, json=STREAM)).text)[-1]["response"]["usage"] is None
    assert [call.usage for call in capture.calls("r1")] == [None, None]


@pytest.mark.parametrize("count", [0, 3])
async def test_a_dropped_stream_breaks_off_and_its_repetition_is_counted(count):
    replies = [{"content": "a long answer " * 9, "drop_after_chunks": count}, {"error": {"status": 429}}]
    async with gateway([*replies, {"content": "ok"}]) as (client, capture):
        seen = b""
        with pytest.raises(httpx.RemoteProtocolError):
            async with client.stream("POST", PATH, json=STREAM) as answer:
                async for part in answer.aiter_raw():
                    seen += part
        assert seen.count(b"event: ") == count
        assert [(await client.post(PATH, json=STREAM)).status_code for _ in range(2)] == [429, 200]
    assert [(c.outcome, c.attempt) for c in capture.calls("r1")] == [
        ("dropped", 1), ("refused", 2), ("answered", 3),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"input": "x"}, "model: expected the name of a model, got nothing"),
        ({"model": "m", "input": []}, "input: expected text or a list of items that is not empty"),
        ({"model": "m", "input": "x", "tools": "all"}, "tools: expected a list of tools"),
    ],
)
async def test_a_body_that_does_not_fit_is_refused_and_takes_no_reply(body, message):
    async with gateway([{"content": "x"}]) as (client, _):
        refused = await client.post(PATH, json=body)
        assert (refused.status_code, message in refused.json()["error"]["message"]) == (400, True)
        assert (await client.post(PATH, json=ASK)).status_code == 200


async def test_a_script_that_no_tool_fits_says_so():
    async with gateway([{"tool_calls": [{"name": "shell", "arguments": {}}]}]) as (client, _):
        answer = await client.post(PATH, json={**ASK, "tools": TOOLS[1:]})
    assert answer.json()["error"]["type"] == "script_mismatch"


async def test_one_script_serves_both_apis_in_turn_and_asks_for_the_key():
    replies = [{"content": "first"}, {"content": "second"}]
    async with gateway(replies, keys={"r1": "sk-1"}) as (client, _):
        assert (await client.post(PATH, json=ASK)).status_code == 401
        headers = {"Authorization": "Bearer sk-1"}
        chat = {"model": "policy", "messages": [{"role": "user", "content": "x"}]}
        first = await client.post("/ng-rollout/r1/v1/chat/completions", json=chat, headers=headers)
        second = (await client.post(PATH, json=ASK, headers=headers)).json()
    assert first.json()["choices"][0]["message"]["content"] == "first"
    assert second["output"][0]["content"][0]["text"] == "second"


TEXT = st.text(st.characters(codec="utf-8"), max_size=40)
REPLIES = st.builds(
    Reply,
    reasoning=st.none() | TEXT.filter(bool),
    content=st.none() | TEXT.filter(bool),
    tool_calls=st.lists(
        st.builds(
            ScriptedToolCall,
            name=st.sampled_from(["exec_command", "mcp__ng__look_up", "apply_patch", "nobody"]),
            arguments=TEXT | st.dictionaries(TEXT, TEXT, max_size=2),
        ),
        max_size=3,
    ).map(tuple),
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(REPLIES)
def test_events_put_together_are_the_whole_answer(reply):
    ids = iter(range(100))
    names = read_tools(TOOLS, strict=False)
    asked = {"model": "policy", "tools": names.chat_tools()}
    answer = completion(reply, asked, response_id="x", created=7, new_call_id=lambda: f"call_{next(ids)}")

    def stream():
        return ResponseStream(
            request=ASK, names=names, response_id="resp_1", created_at=7, new_call_id=lambda: "call_x"
        )

    made = stream()
    found = [*made.begin()]
    for chunk in completion_chunks(answer, include_usage=True):
        found += made.feed(chunk)
    found += made.end()
    assert rebuilt(found) == made.response["output"] == whole_response(stream(), answer)["output"]
    assert made.response["status"] == "completed"
