"""Responses in front of a model server that only has Chat Completions: what it is asked, what comes back."""

import json
from contextlib import asynccontextmanager

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import StreamingResponse
from starlette.routing import Route

from inspan_server.model.capture import Capture
from inspan_server.model.conversion import UnsupportedRequest, to_chat_request
from inspan_server.model.gateway import create_gateway
from inspan_server.model.script import parse_script
from inspan_server.model.upstream import Upstream
from inspan_server.serving import served

pytestmark = pytest.mark.anyio
LONG = "x" * 80
FUNCTION = {
    "type": "function",
    "name": "exec_command",
    "description": "Runs.",
    "strict": False,
    "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}}},
}
TOOLS = [
    FUNCTION,
    {"type": "namespace", "name": "mcp__ng", "tools": [{"type": "function", "name": "look_up"}]},
    {"type": "namespace", "name": "a", "tools": [{"type": "function", "name": LONG}]},
    {"type": "custom", "name": "apply_patch", "description": "Patches."},
]
ITEMS = [
    {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
    {"role": "user", "content": "Hi"},
    {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I call."}]},
    {"type": "function_call", "call_id": "c1", "name": "exec_command", "arguments": '{"cmd": "a'},
    {"type": "function_call", "call_id": "c2", "name": "look_up", "namespace": "mcp__ng", "arguments": "{}"},
    {"type": "custom_tool_call", "call_id": "c3", "name": "apply_patch", "input": "*** Begin"},
    {"type": "function_call_output", "call_id": "c1", "output": "no such file"},
    {
        "type": "function_call_output",
        "call_id": "c2",
        "output": [{"type": "input_text", "text": "found"}, {"type": "input_image", "image_url": "data:x"}],
    },
    {"type": "custom_tool_call_output", "call_id": "c3", "output": "ok"},
    {
        "role": "user",
        "content": [{"type": "input_text", "text": "See"}, {"type": "input_image", "image_url": "u"}],
    },
]
ASK = {
    "model": "policy",
    "instructions": "You are S.",
    "input": ITEMS,
    "tools": TOOLS,
    "tool_choice": {"type": "function", "name": "look_up", "namespace": "mcp__ng"},
    "parallel_tool_calls": True,
    "reasoning": {"effort": "low", "summary": "auto"},
    "max_output_tokens": 321,
    "temperature": 0.5,
    "text": {
        "verbosity": "low",
        "format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}},
    },
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "k",
    "client_metadata": {"a": "b"},
    "stream": True,
}


@pytest.fixture
def anyio_backend():
    return "asyncio"


def test_a_whole_request_converted():
    asked, names = to_chat_request(ASK)
    tools = asked.pop("tools")
    assert [tool["function"]["name"] for tool in tools][:2] == ["exec_command", "mcp__ng__look_up"]
    long = tools[2]["function"]["name"]
    assert len(long) == 64 and long.startswith("a__xxx")
    assert tools[0]["function"] == {key: value for key, value in FUNCTION.items() if key != "type"}
    assert tools[3]["function"]["parameters"]["required"] == ["input"]
    assert names.call_item(long, "{}") == {
        "type": "function_call", "name": LONG, "namespace": "a", "arguments": "{}",
    }  # fmt: skip
    assert asked == {
        "model": "policy",
        "max_tokens": 321,
        "temperature": 0.5,
        "parallel_tool_calls": True,
        "tool_choice": {"type": "function", "function": {"name": "mcp__ng__look_up"}},
        "reasoning_effort": "low",
        "verbosity": "low",
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "n", "schema": {"type": "object"}},
        },
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [
            {"role": "system", "content": "You are S."},
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hi"},
            {
                "role": "assistant",
                "content": "I call.",
                "reasoning_content": "Hm.",
                "tool_calls": [
                    _call("c1", "exec_command", '{"cmd": "a'),
                    _call("c2", "mcp__ng__look_up", "{}"),
                    _call("c3", "apply_patch", '{"input": "*** Begin"}'),
                ],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "no such file"},
            {"role": "tool", "tool_call_id": "c2", "content": "found"},
            {"role": "tool", "tool_call_id": "c3", "content": "ok"},
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:x"}}]},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "See"},
                    {"type": "image_url", "image_url": {"url": "u"}},
                ],
            },
        ],
    }


def _call(call_id, name, arguments):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_two_tools_of_one_flat_name_stay_apart():
    tools = [
        {"type": "function", "name": "a__b"},
        {"type": "namespace", "name": "a", "tools": [{"type": "function", "name": "b"}]},
    ]
    asked, names = to_chat_request({"model": "m", "input": "x", "tools": tools})
    first, second = (tool["function"]["name"] for tool in asked["tools"])
    assert first != second
    assert names.call_item(first, "")["name"] == "a__b"
    assert names.call_item(second, "")["namespace"] == "a"


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"future_field": 1}, "future_field"),
        ({"background": True}, "background"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"tool_choice": {"type": "hosted"}, "tools": [FUNCTION]}, "tool_choice"),
        ({"text": {"format": {"type": "grammar"}}}, "text"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input"),
        ({"input": [{"role": "critic", "content": "x"}]}, "input"),
        ({"input": ["x"]}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]}, "input"),
    ],
)
def test_what_has_no_equivalent_is_refused_by_name(more, field):
    with pytest.raises(UnsupportedRequest) as caught:
        to_chat_request({"model": "m", "input": "x", **more})
    assert caught.value.field == field
    assert str(caught.value).startswith(field)


def test_what_is_empty_or_without_effect_is_no_reason_to_refuse():
    body = {"model": "m", "input": "x", "previous_response_id": None, "store": True, "metadata": {"a": "b"}}
    asked, _ = to_chat_request(
        {**body, "reasoning": {}, "tools": [], "parallel_tool_calls": True, "text": None}
    )
    assert asked == {"model": "m", "messages": [{"role": "user", "content": "x"}]}


@asynccontextmanager
async def chat_only(app):
    """The gateway in front of an application that only has Chat Completions below ``/v1``."""
    capture = Capture()
    async with served(app, graceful_timeout_s=0.2) as model_url:
        upstream = Upstream(base_url=f"{model_url}/ng-rollout/up/v1", api="chat_completions")
        async with served(create_gateway(None, capture, upstream=upstream), graceful_timeout_s=0.2) as url:
            async with httpx.AsyncClient(base_url=url, timeout=20) as client:
                yield client, capture


def scripted(replies):
    seen = Capture()
    return create_gateway(parse_script({"*": replies}), seen), seen


REPLY = {
    "reasoning": "I think.",
    "content": "I call.",
    "tool_calls": [
        {"name": "exec_command", "arguments": {"cmd": "ls"}},
        {"name": "mcp__ng__look_up", "arguments": "{"},
        {"name": "apply_patch", "arguments": {"input": "*** Begin"}},
    ],
    "usage": {"prompt_tokens": 10, "completion_tokens": 5, "cached_tokens": 4},
}


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_answer_comes_back_as_responses_with_namespaces_and_usage(streamed):
    app, seen = scripted([REPLY])
    async with chat_only(app) as (client, capture):
        answer = await client.post("/ng-rollout/r1/v1/responses", json={**ASK, "stream": streamed})
    assert answer.status_code == 200
    if streamed:
        assert answer.headers["content-type"].startswith("text/event-stream")
        last = json.loads(answer.text.removesuffix("\n\n").rpartition("data: ")[2])
        assert last["type"] == "response.completed"
        response = last["response"]
    else:
        response = answer.json()
    reasoning, message, shell, looked, patch = response["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "I think."}]
    assert message["content"][0]["text"] == "I call."
    assert (shell["name"], shell["arguments"]) == ("exec_command", '{"cmd": "ls"}')
    assert (looked["name"], looked["namespace"], looked["arguments"]) == ("look_up", "mcp__ng", "{")
    assert (patch["type"], patch["input"]) == ("custom_tool_call", "*** Begin")
    assert response["usage"] == {
        "input_tokens": 10,
        "output_tokens": 5,
        "total_tokens": 15,
        "input_tokens_details": {"cached_tokens": 4},
    }
    (call,) = capture.calls("r1")
    assert (call.route, call.response, call.streamed, call.outcome) == (
        "/v1/responses", response, streamed, "answered",
    )  # fmt: skip
    (asked,) = seen.calls("up")
    assert asked.request["messages"][3]["reasoning_content"] == "Hm."


async def test_errors_pass_unchanged_and_limits_are_incomplete():
    body = {"error": {"message": "too long", "code": "context_length_exceeded"}}
    replies = [
        {"error": {"status": 400, "body": body}},
        {"content": "half", "finish_reason": "length"},
        {"content": "half", "failure": {"message": "gave up"}},
        {"content": "half of it", "drop_after_chunks": 3},
        {"content": "half of it", "drop_after_chunks": 1},
    ]
    app, _ = scripted(replies)
    async with chat_only(app) as (client, capture):

        async def ask(streamed=True):
            return await client.post("/ng-rollout/r1/v1/responses", json={**ASK, "stream": streamed})

        refused = await ask()
        assert (refused.status_code, refused.json()) == (400, body)
        assert '"type": "response.incomplete"' in (await ask()).text
        failed = (await ask()).text
        assert '"type": "response.failed"' in failed and "gave up" in failed
        with pytest.raises(httpx.RemoteProtocolError):
            await ask()
        broken = await ask(streamed=False)
        assert (broken.status_code, broken.json()["error"]["type"]) == (502, "upstream_error")
    assert [call.outcome for call in capture.calls("r1")] == [
        "refused", "answered", "answered", "dropped", "refused",
    ]  # fmt: skip


async def test_what_cannot_be_converted_never_reaches_the_model():
    app, seen = scripted([REPLY])
    async with chat_only(app) as (client, _):
        body = {**ASK, "previous_response_id": "resp_1"}
        answer = await client.post("/ng-rollout/r1/v1/responses", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "previous_response_id")
    assert seen.calls("up") == ()


async def test_interleaved_calls_and_pieces_of_any_size():
    """Two calls whose arguments come by turns, and events cut in the middle of a character."""

    def chunk(delta, finish=None):
        return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

    def piece(index, arguments, **head):
        function = {"arguments": arguments, **({"name": head.pop("name")} if "name" in head else {})}
        return chunk({"tool_calls": [{"index": index, **head, "function": function}]})

    chunks = [
        chunk({"reasoning": "é😀"}),
        piece(0, "", id="c0", name="exec_command"),
        piece(1, '{"a"', id="c1", name="mcp__ng__look_up"),
        piece(0, '{"cmd": "é'),
        piece(1, ": 1}"),
        piece(0, '"}'),
        chunk({}, "tool_calls"),
    ]
    data = b"".join(b"data: " + json.dumps(each, ensure_ascii=False).encode() + b"\n\n" for each in chunks)

    async def answer(request):
        async def send():
            for start in range(0, len(data), 7):
                yield data[start : start + 7]

        return StreamingResponse(send(), media_type="text/event-stream")

    app = Starlette(routes=[Route("/ng-rollout/up/v1/chat/completions", answer, methods=["POST"])])
    async with chat_only(app) as (client, capture):
        await client.post("/ng-rollout/r1/v1/responses", json=ASK)
    reasoning, first, second = capture.calls("r1")[0].response["output"]
    assert reasoning["content"][0]["text"] == "é😀"
    assert (first["call_id"], first["arguments"]) == ("c0", '{"cmd": "é"}')
    assert (second["call_id"], second["name"], second["arguments"]) == ("c1", "look_up", '{"a": 1}')
    assert capture.calls("r1")[0].usage is None
