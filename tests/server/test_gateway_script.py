"""Scripts are read strictly: what does not fit is named by rollout, reply and key."""

import json

import pytest

from inspan_core.errors import ConfigError
from inspan_server.model.script import (
    Reply,
    ScriptedError,
    ScriptedToolCall,
    Usage,
    load_script,
    parse_script,
)


def test_a_script_becomes_typed_replies():
    script = parse_script(
        {
            "r1": [
                {
                    "reasoning": "look",
                    "content": "text",
                    "tool_calls": [
                        {"name": "bash", "arguments": {"command": "ls"}},
                        {"name": "x", "arguments": "{"},
                    ],
                    "usage": {"prompt_tokens": 3, "completion_tokens": 4, "cached_tokens": 1},
                    "finish_reason": "length",
                    "delay_s": 1,
                    "drop_after_chunks": 0,
                },
                {"error": {"status": 429, "body": ["slow down"]}, "delay_s": 0.5},
            ],
            "*": [{"content": ""}],
        }
    )
    assert script.replies("r1") == (
        Reply(
            reasoning="look",
            content="text",
            tool_calls=(
                ScriptedToolCall(name="bash", arguments={"command": "ls"}),
                ScriptedToolCall(name="x", arguments="{"),
            ),
            usage=Usage(prompt_tokens=3, completion_tokens=4, cached_tokens=1),
            finish_reason="length",
            delay_s=1.0,
            drop_after_chunks=0,
        ),
        Reply(error=ScriptedError(status=429, body=["slow down"]), delay_s=0.5),
    )
    assert script.replies("any other") == (Reply(content=""),)
    assert parse_script({"r1": []}).replies("r2") is None


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], r"expected an object of rollout keys, got \[\]"),
        ({}, r"expected an object of rollout keys, got {}"),
        ({7: []}, "rollout key 7: expected a string"),
        ({"r": {}}, "rollout 'r': expected a list of replies, got {}"),
        ({"r": ["hello"]}, "rollout 'r', reply 0: expected an object, got 'hello'"),
        (
            {"r": [{"content": "a"}, {"contents": "b"}]},
            "rollout 'r', reply 1: unknown key 'contents'; known are",
        ),
        ({"r": [{}]}, "rollout 'r', reply 0: says nothing"),
        ({"r": [{"usage": {"prompt_tokens": 1, "completion_tokens": 1}}]}, "says nothing"),
        ({"r": [{"content": 5}]}, "rollout 'r', reply 0, content: expected text, got 5"),
        ({"r": [{"tool_calls": {}}]}, "reply 0, tool_calls: expected a list, got {}"),
        ({"r": [{"tool_calls": [{"arguments": {}}]}]}, r"tool_calls\[0\]: name is missing"),
        (
            {"r": [{"tool_calls": [{"name": "a", "arguments": []}]}]},
            r"tool_calls\[0\], arguments: expected an object",
        ),
        ({"r": [{"tool_calls": [{"name": "a", "args": {}}]}]}, r"tool_calls\[0\]: unknown key 'args'"),
        ({"r": [{"content": "a", "usage": {"prompt_tokens": 1}}]}, "prompt_tokens and completion_tokens"),
        (
            {"r": [{"content": "a", "usage": {"prompt_tokens": -1, "completion_tokens": 1}}]},
            "prompt_tokens: expected",
        ),
        ({"r": [{"content": "a", "usage": {"prompt_tokens": True, "completion_tokens": 1}}]}, "got True"),
        ({"r": [{"content": "a", "finish_reason": "done"}]}, "finish_reason: expected one of"),
        ({"r": [{"error": {"status": 200}}]}, "error, status: expected 400 to 599, got 200"),
        ({"r": [{"error": {}}]}, "error, status: expected 400 to 599, got None"),
        ({"r": [{"error": {"status": 500}, "content": "a"}]}, "an error stands alone"),
        ({"r": [{"content": "a", "delay_s": -1}]}, "delay_s: expected 0 to 3600 seconds, got -1"),
        ({"r": [{"content": "a", "delay_s": float("nan")}]}, "delay_s: expected 0 to 3600 seconds, got nan"),
        ({"r": [{"content": "a", "drop_after_chunks": 1.5}]}, "drop_after_chunks: expected a whole number"),
    ],
)
def test_what_does_not_fit_is_named(value, message):
    with pytest.raises(ConfigError, match=message):
        parse_script(value)


def test_yaml_and_json_files_give_the_same_script(tmp_path):
    (tmp_path / "s.yaml").write_text(
        '"*":\n  - content: "hé"\n    usage: {prompt_tokens: 1, completion_tokens: 2}\n'
    )
    value = {"*": [{"content": "hé", "usage": {"prompt_tokens": 1, "completion_tokens": 2}}]}
    (tmp_path / "s.json").write_text(json.dumps(value))
    assert load_script(tmp_path / "s.yaml") == load_script(tmp_path / "s.json") == parse_script(value)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"{", "while parsing"),
        (b"\xff\xfe\xff", "script .*bad.yaml: "),
        (b"r: [{x: 1}]", "bad.yaml: rollout 'r'"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, data, message):
    (tmp_path / "bad.yaml").write_bytes(data)
    with pytest.raises(ConfigError, match=message):
        load_script(tmp_path / "bad.yaml")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.yaml"):
        load_script(tmp_path / "none.yaml")


def test_a_script_without_end_is_refused():
    with pytest.raises(ConfigError, match="larger than"):
        load_script("/dev/zero")
