"""Requests as Hermes can take them, and what the shim is ordered to do for them."""

from __future__ import annotations

import json

import pytest

from inspan_core.errors import ConfigError, RequestRefused
from inspan_core.function_tools import granted_functions
from inspan_core.wire import DirectHttpAccess, McpAccess, McpConnection
from inspan_hermes.declaration import HARNESS, read_options
from inspan_hermes.request import read_request
from inspan_hermes.servers import read_servers
from inspan_hermes.settings import run_order
from inspan_runtime.requests import check_request
from inspan_runtime.testing.bad_requests import BAD_REQUESTS, HARMLESS

HISTORY = [
    {"role": "user", "content": "Earlier."},
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]},
    {"role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
    {"type": "function_call", "call_id": "c0", "name": "terminal", "arguments": "{}"},
    {"type": "function_call", "call_id": "c1", "name": "terminal", "arguments": '{"a'},
    {"type": "function_call_output", "call_id": "c0", "output": "old"},
    {"type": "function_call_output", "call_id": "c1", "output": "bad"},
    {"role": "assistant", "content": "Yes."},
]
GRANT = DirectHttpAccess(name="shop", base_url="http://127.0.0.1:7/t", cookies={"c": "1"}, headers={"X": "y"})


def order(request, grants=(), **options):
    read = read_options(options)
    return run_order(
        read_request(request, read),
        read,
        prefix="/opt/rt",
        session_dir="/s",
        workdir="/app",
        model_base_url="http://127.0.0.1:8/ng-rollout/r/v1",
        model_name="org/policy",
        model_key='sk-"x',
        run_timeout_s=60.0,
        servers=read_servers(grants),
        tools=granted_functions(request, HARNESS, grants),
    )


def test_every_field_reaches_the_agent_and_is_asked_of_its_model_calls():
    request = {
        "input": "Do it",
        "instructions": "Be brief.",
        "temperature": 0.5,
        "top_p": 0.9,
        "max_output_tokens": 321,
        "reasoning": {"effort": "low"},
    }
    made = order(request)
    agent = made["agent"]
    assert (made["prompt"], agent["ephemeral_system_prompt"]) == ("Do it", "Be brief.")
    assert (agent["max_tokens"], agent["request_overrides"]) == (321, {"temperature": 0.5, "top_p": 0.9})
    assert agent["reasoning_config"] == {"enabled": True, "effort": "low"}
    assert made["asked"] == {
        "temperature": 0.5, "top_p": 0.9, "max_tokens": 321, "reasoning_effort": "low",
    }  # fmt: skip
    assert (agent["base_url"], agent["api_key"], agent["model"]) == (
        "http://127.0.0.1:8/ng-rollout/r/v1", 'sk-"x', "org/policy",
    )  # fmt: skip


def test_what_is_not_asked_is_left_to_hermes():
    made = order({"input": "Do it"})
    assert made["asked"] == {}
    agent = made["agent"]
    assert (agent["max_tokens"], agent["reasoning_config"], agent["request_overrides"]) == (None, None, {})
    assert (agent["ephemeral_system_prompt"], made["history"]) == (None, [])


def test_the_key_and_headers_are_in_no_file_but_the_order_and_no_variable():
    grant = McpAccess(name="ng", connection=McpConnection(url="http://h/mcp", headers={"X": "tok-7"}))
    made = order({"input": "telling"}, [grant])
    shown = json.dumps([made["config"], made["env"]])
    assert all(word not in shown for word in ("sk-", "tok-7", "telling", "127.0.0.1:8"))


def test_system_messages_join_the_instructions():
    items = [{"role": "system", "content": "A"}, {"role": "developer", "content": "B"}]
    made = order({"input": [*items, {"role": "user", "content": "Hi"}], "instructions": "I"})
    assert made["agent"]["ephemeral_system_prompt"] == "I\n\nA\n\nB"


def test_a_history_becomes_messages_in_which_one_turn_of_the_model_is_one_message():
    made = order({"input": [*HISTORY, {"role": "user", "content": "Now."}]})
    assert made["prompt"] == "Now."
    user, turn, first, second, last = made["history"]
    assert user == {"role": "user", "content": "Earlier."}
    assert (turn["reasoning_content"], turn["content"]) == ("Hm.", "I look.")
    assert [call["function"]["arguments"] for call in turn["tool_calls"]] == ["{}", '{"a']
    assert [(m["role"], m["tool_call_id"], m["content"]) for m in (first, second)] == [
        ("tool", "c0", "old"), ("tool", "c1", "bad"),
    ]  # fmt: skip
    assert last == {"role": "assistant", "content": "Yes."}


def test_options_reach_the_configuration():
    made = order(
        {"input": "Hi"}, context_length=70000, max_turns=7, max_retries=2, compaction=False,
        compaction_threshold=0.8, command_timeout_s=9, context_files=True, max_output_tokens=55,
    )  # fmt: skip
    config, agent = made["config"], made["agent"]
    assert (config["model"]["context_length"], made["context_length"]) == (70000, 70000)
    assert config["compression"] == {"enabled": False, "threshold": 0.8}
    assert (config["agent"]["api_max_retries"], agent["max_iterations"]) == (3, 7)
    assert (config["terminal"]["timeout"], made["env"]["TERMINAL_TIMEOUT"]) == (9, "9")
    assert (agent["skip_context_files"], agent["max_tokens"]) == (False, 55)
    assert made["asked"] == {"max_tokens": 55}


def grant(name="ng", **changes):
    connection = McpConnection(url="http://127.0.0.1:7/mcp", headers={"X-Token": "tok"})
    return McpAccess(name=name, connection=connection, **changes)


def test_grants_become_servers():
    servers = order({"input": "Hi"}, [grant(), grant("opt.2", required=False)])["servers"]
    assert {name: server["required"] for name, server in servers.items()} == {"ng": True, "opt.2": False}
    config = servers["ng"]["config"]
    assert (config["url"], config["headers"]) == ("http://127.0.0.1:7/mcp", {"X-Token": "tok"})
    assert (config["sampling"], config["elicitation"]) == ({"enabled": False}, {"enabled": False})


def test_grants_that_would_have_one_name_for_the_model_are_refused():
    with pytest.raises(RequestRefused, match=r"'a-b' and 'a\.b' apart"):
        read_servers([grant("a-b"), grant("a.b")])


def test_functions_become_tools_that_the_shim_calls():
    tool = {"type": "function", "name": "buy", "parameters": {"type": "object", "properties": {}}}
    bridge = order({"input": "Hi", "tools": [tool]}, [GRANT])["tool_bridge"]
    assert (bridge["base_url"], bridge["cookies"], bridge["headers"]) == (
        "http://127.0.0.1:7/t", {"c": "1"}, {"X": "y"},
    )  # fmt: skip
    assert [each["name"] for each in bridge["tools"]] == ["buy"]
    assert order({"input": "Hi"}, [GRANT])["tool_bridge"] is None


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        *BAD_REQUESTS,
        ({"input": "x", "temperature": "hot"}, "temperature"),
        ({"input": "x", "top_p": True}, "top_p"),
        ({"input": "x", "max_output_tokens": 0}, "max_output_tokens"),
        ({"input": "x", "max_output_tokens": 1.5}, "max_output_tokens"),
        ({"input": "x", "reasoning": {"effort": "huge"}}, "reasoning"),
        ({"input": "x", "reasoning": {"summary": "auto"}}, "reasoning"),
        ({"input": "x", "reasoning": "low"}, "reasoning"),
        ({"input": [{"role": "user", "content": "x"}, {"role": "system", "content": "y"}]}, "input"),
    ],
)
def test_what_hermes_cannot_do_is_refused_by_name(request_, field):
    with pytest.raises(RequestRefused) as caught:
        check_request(HARNESS, request_)
        order(request_)
    assert caught.value.field == field


def test_a_function_may_not_take_a_built_in_name():
    with pytest.raises(RequestRefused, match="'terminal'"):
        order({"input": "x", "tools": [{"type": "function", "name": "terminal"}]}, [GRANT])


def test_values_that_say_what_happens_anyway_are_taken():
    check_request(HARNESS, HARMLESS)
    assert order(HARMLESS)["prompt"] == "x"


@pytest.mark.parametrize(
    "options",
    [
        {"context_length": 1000},
        {"max_turns": 0},
        {"max_retries": -1},
        {"max_output_tokens": -1},
        {"command_timeout_s": True},
        {"compaction": 1},
        {"compaction_threshold": 2},
        {"context_files": "no"},
        {"a": 1},
    ],
)
def test_an_option_that_does_not_fit_is_named(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        read_options(options)
