"""Requests as Codex can take them, and what the shim is ordered to write for it."""

from __future__ import annotations

import json
import tomllib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inspan_codex.declaration import HARNESS, read_options
from inspan_codex.request import read_request
from inspan_codex.servers import read_servers
from inspan_codex.settings import run_order
from inspan_codex.toml_text import to_toml
from inspan_core.errors import ConfigError, RequestRefused
from inspan_core.function_tools import granted_functions
from inspan_core.wire import McpAccess, McpConnection
from inspan_runtime.requests import check_request
from inspan_runtime.testing.bad_requests import BAD_REQUESTS, HARMLESS

HISTORY = [
    {"role": "user", "content": "Earlier."},
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]},
    {"type": "function_call", "call_id": "c0", "name": "exec_command", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c0", "output": "old"},
    {"role": "assistant", "content": [{"type": "output_text", "text": "Yes."}]},
]


def order(request, servers=(), **options):
    return run_order(
        read_request(request),
        read_options(options),
        thread_id="t-1",
        prefix="/opt/rt",
        session_dir="/s",
        workdir="/app",
        model_base_url="http://127.0.0.1:8/ng-rollout/r/v1",
        model_name="org/policy",
        model_key='sk-"x',
        run_timeout_s=60.0,
        servers=servers,
        tools=granted_functions(request, HARNESS, ()),
    )


def config(made):
    return tomllib.loads(made["files"]["home/config.toml"])


def test_prompt_instructions_and_model_reach_files_and_standard_input_only():
    made = order({"input": 'Do "it"\n', "instructions": "Be \\ brief."})
    assert made["prompt"] == 'Do "it"\n'
    settings = config(made)
    assert settings["developer_instructions"] == "Be \\ brief."
    assert settings["model"] == "org/policy"
    provider = settings["model_providers"]["inspan"]
    assert (provider["base_url"], provider["experimental_bearer_token"]) == (
        "http://127.0.0.1:8/ng-rollout/r/v1", 'sk-"x',
    )  # fmt: skip
    # A key that the pinned version did not know would end the run, instead of being ignored.
    assert "--strict-config" in made["argv"]
    assert (made["argv"][0], made["program"]) == ("inspan-h", "/opt/rt/bin/inspan-h")
    shown = json.dumps([made["argv"], made["env"]])
    assert all(word not in shown for word in ("codex", "Do", "brief", "sk-", "policy", "127.0"))
    assert set(made["env"]) == {"CODEX_HOME", "CODEX_SQLITE_HOME"}


def test_system_messages_join_the_instructions():
    items = [{"role": "system", "content": "A"}, {"role": "developer", "content": "B"}]
    made = order({"input": [*items, {"role": "user", "content": "Hi"}], "instructions": "I"})
    assert config(made)["developer_instructions"] == "I\n\nA\n\nB"


def test_instructions_may_take_the_place_of_codex_s_own():
    made = order({"input": "Hi", "instructions": "Only this."}, system_prompt="replace")
    assert config(made)["model_instructions_file"] == "/s/home/instructions.md"
    assert made["files"]["home/instructions.md"] == "Only this."
    assert "developer_instructions" not in config(made)


def test_a_history_becomes_a_thread_that_is_resumed():
    made = order({"input": [*HISTORY, {"role": "user", "content": "Now."}], "instructions": "Be brief."})
    assert made["argv"][:3] == ["inspan-h", "exec", "resume"]
    assert made["argv"][-2:] == ["t-1", "-"]
    assert made["prompt"] == "Now."
    text = made["files"]["home/sessions/2000/01/01/rollout-2000-01-01T00-00-00-t-1.jsonl"]
    meta, *items = [json.loads(line) for line in text.splitlines()]
    assert (meta["type"], meta["payload"]["id"], meta["payload"]["cwd"]) == ("session_meta", "t-1", "/app")
    shown = [
        (i["payload"]["type"], i["payload"].get("role"), json.dumps(i["payload"]).count(t))
        for i, t in zip(items, ["Be brief.", "Earlier.", "Hm.", "c0", "old", "Yes."], strict=True)
    ]
    assert shown == [
        ("message", "developer", 1), ("message", "user", 1), ("reasoning", None, 1),
        ("function_call", None, 1), ("function_call_output", None, 1), ("message", "assistant", 1),
    ]  # fmt: skip
    assert "developer_instructions" not in config(made)


def test_options_reach_the_configuration():
    settings = config(order({"input": "Hi"}, max_retries=7, compaction_at_tokens=5000, context_files=True))
    assert settings["model_providers"]["inspan"]["stream_max_retries"] == 7
    assert settings["model_providers"]["inspan"]["request_max_retries"] == 0
    assert settings["model_auto_compact_token_limit"] == 5000
    assert settings["project_doc_max_bytes"] == 32768
    plain = config(order({"input": "Hi"}))
    assert (plain["model_auto_compact_token_limit"], plain["project_doc_max_bytes"]) == (272_000, 0)


def grant(name="ng", **changes):
    connection = McpConnection(url="http://127.0.0.1:7/mcp", headers={"X-Token": "tok"})
    return McpAccess(name=name, connection=connection, **changes)


def test_grants_become_servers_of_the_configuration():
    made = order({"input": "Hi"}, servers=read_servers([grant(), grant("opt_2", required=False)]))
    servers = config(made)["mcp_servers"]
    assert {name: server["required"] for name, server in servers.items()} == {"ng": True, "opt_2": False}
    assert (servers["ng"]["url"], servers["ng"]["http_headers"]) == (
        "http://127.0.0.1:7/mcp",
        {"X-Token": "tok"},
    )
    assert "tok" not in json.dumps([made["argv"], made["env"]])


def test_a_grant_that_codex_cannot_name_is_refused():
    with pytest.raises(RequestRefused, match=r"'a\.b'"):
        read_servers([grant("a.b")])


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        *BAD_REQUESTS,
        ({"input": "x", "max_output_tokens": 5}, "max_output_tokens"),
        ({"input": "x", "temperature": 0.5}, "temperature"),
        ({"input": "x", "top_p": 0.5}, "top_p"),
        ({"input": "x", "reasoning": {"effort": "low"}}, "reasoning"),
    ],
)
def test_what_codex_cannot_do_is_refused_by_name(request_, field):
    with pytest.raises(RequestRefused) as caught:
        check_request(HARNESS, request_)
        order(request_)
    assert caught.value.field == field


def test_values_that_say_what_happens_anyway_are_taken():
    check_request(HARNESS, HARMLESS)
    assert read_request(HARMLESS).prompt == "x"


@pytest.mark.parametrize(
    "options",
    [
        {"max_retries": -1},
        {"compaction_at_tokens": True},
        {"system_prompt": "x"},
        {"context_files": 1},
        {"a": 1},
    ],
)
def test_an_option_that_does_not_fit_is_named(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        read_options(options)


TEXT = st.text(st.characters(codec="utf-8"), max_size=30)
TABLES = st.recursive(
    st.dictionaries(TEXT, TEXT | st.booleans() | st.integers(-(2**60), 2**60) | st.lists(TEXT, max_size=3)),
    lambda inner: st.dictionaries(TEXT, inner | TEXT, max_size=3),
    max_leaves=6,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(TABLES)
def test_any_table_is_read_back_as_it_was(table):
    assert tomllib.loads(to_toml(table)) == table


def test_half_a_surrogate_pair_is_replaced():
    assert tomllib.loads(to_toml({"a": "x\ud800y"})) == {"a": "x\ufffdy"}
