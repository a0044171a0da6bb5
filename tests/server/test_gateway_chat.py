"""Answers as pure values: chunks put together again are the whole answer; tools fit the harness."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inspan_server.model.adapt import NoFittingTool, adapt_tool_call, advertised_tools
from inspan_server.model.chat import completion, completion_chunks
from inspan_server.model.script import Reply, ScriptedToolCall, Usage

TEXT = st.text(st.characters(codec="utf-8"), max_size=60)
CALLS = st.lists(
    st.builds(
        ScriptedToolCall,
        name=st.sampled_from(["bash", "read", "edit"]),
        arguments=TEXT | st.dictionaries(TEXT, TEXT, max_size=3),
    ),
    max_size=3,
).map(tuple)
REPLIES = st.builds(
    Reply,
    reasoning=st.none() | TEXT.filter(bool),
    content=st.none() | TEXT.filter(bool),
    tool_calls=CALLS,
    usage=st.none()
    | st.builds(Usage, prompt_tokens=st.integers(0, 99), completion_tokens=st.integers(0, 99)),
)


def answer_to(reply, tools=()):
    ids = iter(range(100))
    request = {"model": "policy", "tools": list(tools)}
    return completion(
        reply, request, response_id="chatcmpl-1", created=7, new_call_id=lambda: f"call_{next(ids)}"
    )


def joined(chunks):
    """What a client makes of a stream, written from OpenAI's streaming rules."""
    message, finish_reason, usage = {"role": None, "content": None}, None, None
    calls = {}
    for chunk in chunks:
        assert chunk["object"] == "chat.completion.chunk"
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            assert finish_reason is None, "a choice went on after its end"
            delta = choice["delta"]
            message["role"] = delta.get("role", message["role"])
            for key in ("content", "reasoning_content"):
                if delta.get(key):
                    message[key] = (message.get(key) or "") + delta[key]
            for part in delta.get("tool_calls", ()):
                call = calls.setdefault(part["index"], {"function": {"name": "", "arguments": ""}})
                call.update({key: part[key] for key in ("id", "type") if key in part})
                for key, piece in part["function"].items():
                    call["function"][key] += piece
            finish_reason = choice["finish_reason"]
    if calls:
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    return message, finish_reason, usage


@given(reply=REPLIES, include_usage=st.booleans())
def test_a_stream_put_together_is_the_plain_answer(reply, include_usage):
    answer = answer_to(reply)
    chunks = list(completion_chunks(answer, include_usage=include_usage))
    message, finish_reason, usage = joined(chunks)
    assert message == answer["choices"][0]["message"]
    assert finish_reason == answer["choices"][0]["finish_reason"]
    assert usage == (answer.get("usage") if include_usage else None)
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert {chunk["id"] for chunk in chunks} == {"chatcmpl-1"}


def test_the_whole_answer():
    reply = Reply(
        reasoning="hm",
        content="hi",
        tool_calls=(ScriptedToolCall(name="bash", arguments={"command": "ls"}),),
        usage=Usage(prompt_tokens=10, completion_tokens=5, cached_tokens=4, reasoning_tokens=2),
    )
    assert answer_to(reply) == {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 7,
        "model": "policy",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "hi",
                    "reasoning_content": "hm",
                    "tool_calls": [
                        {
                            "id": "call_0",
                            "type": "function",
                            "function": {"name": "bash", "arguments": '{"command": "ls"}'},
                        }
                    ],
                },
                "logprobs": None,
                "finish_reason": "tool_calls",
            }
        ],
        "usage": {
            "prompt_tokens": 10,
            "completion_tokens": 5,
            "total_tokens": 15,
            "prompt_tokens_details": {"cached_tokens": 4},
            "completion_tokens_details": {"reasoning_tokens": 2},
        },
    }


def test_arguments_come_in_several_pieces_and_name_and_id_only_first():
    reply = Reply(tool_calls=(ScriptedToolCall(name="bash", arguments={"command": "echo " + "x" * 50}),))
    parts = [
        part
        for chunk in completion_chunks(answer_to(reply), include_usage=False)
        for choice in chunk["choices"]
        for part in choice["delta"].get("tool_calls", ())
    ]
    assert parts[0] == {
        "index": 0,
        "id": "call_0",
        "type": "function",
        "function": {"name": "bash", "arguments": ""},
    }
    assert len(parts) > 3
    assert all(
        set(part) == {"index", "function"} and set(part["function"]) == {"arguments"} for part in parts[1:]
    )


def tool(name, *properties):
    parameters = {"type": "object", "properties": {key: {"type": "string"} for key in properties}}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


@pytest.mark.parametrize(
    ("tools", "expected"),
    [
        (
            [tool("read", "path"), tool("bash", "command", "timeout")],
            ("bash", {"command": "ls", "timeout": 5}),
        ),
        ([tool("exec_command", "cmd")], ("exec_command", {"cmd": "ls", "timeout": 5})),
        ([tool("terminal", "command", "background")], ("terminal", {"command": "ls", "timeout": 5})),
        ([tool("execute", "command")], ("execute", {"command": "ls", "timeout": 5})),
        ([tool("exec", "command")], ("exec", {"command": "ls", "timeout": 5})),
        # A tool of the right name that takes something else is not the shell.
        (
            [tool("exec", "program"), tool("terminal", "command")],
            ("terminal", {"command": "ls", "timeout": 5}),
        ),
        # The harness has a tool of this very name: nothing to adapt.
        ([tool("shell", "script"), tool("bash", "command")], ("shell", {"command": "ls", "timeout": 5})),
        # No schema told: the name decides.
        ([{"type": "function", "function": {"name": "bash"}}], ("bash", {"command": "ls", "timeout": 5})),
    ],
)
def test_the_abstract_shell_becomes_the_harness_s_own(tools, expected):
    advertised = advertised_tools({"tools": tools})
    assert adapt_tool_call("shell", {"command": "ls", "timeout": 5}, advertised) == expected


def test_raw_arguments_and_other_names_pass_unchanged():
    advertised = advertised_tools({"tools": [tool("exec_command", "cmd")]})
    assert adapt_tool_call("shell", '{"command": "l', advertised) == ("exec_command", '{"command": "l')
    assert adapt_tool_call("no_such_tool", {"a": 1}, advertised) == ("no_such_tool", {"a": 1})


@pytest.mark.parametrize("tools", [None, [], "x", [7, {"function": 3}], [tool("read", "path")]])
def test_no_shell_advertised_is_an_error(tools):
    with pytest.raises(NoFittingTool, match="abstract tool 'shell'"):
        adapt_tool_call("shell", {"command": "ls"}, advertised_tools({"tools": tools}))


def test_object_arguments_are_sent_as_json():
    answer = answer_to(Reply(tool_calls=(ScriptedToolCall(name="a", arguments={"x": "é\ud800"}),)))
    raw = answer["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]
    assert json.loads(raw) == {"x": "é\ud800"}
