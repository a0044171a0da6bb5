"""Request fields and options: each is applied, or refused by name."""

from __future__ import annotations

import json

import pytest

from inspan_core.errors import ConfigError, RequestRefused, UnsupportedTarget
from inspan_core.function_tools import granted_functions
from inspan_core.harness import Target
from inspan_pi.declaration import HARNESS, read_options
from inspan_pi.request import PiRequest, read_request
from inspan_pi.runtime import runtime_key
from inspan_pi.settings import literal, run_order
from inspan_runtime.requests import check_request
from inspan_runtime.testing.bad_requests import BAD_REQUESTS, HARMLESS

DEFAULTS = read_options({})


def order(request, options=DEFAULTS, **changed):
    given = {
        "session_id": "s-1",
        "prefix": "/opt/r",
        "session_dir": "/tmp/s",
        "workdir": "/app",
        "model_base_url": "http://127.0.0.1:1/ng-rollout/k/v1",
        "model_name": "org/model:7b",
        "model_key": "sk-$1",
        "run_timeout_s": 100.0,
    }
    return run_order(read_request(request, options), options, **{**given, **changed})


def test_a_plain_prompt():
    assert read_request({"input": "hi"}, DEFAULTS) == PiRequest(
        prompt="hi", history=(), system=None, max_output_tokens=16384, thinking="off", sampling={}
    )


def test_everything_that_can_be_applied():
    request = {
        "input": [
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": [{"type": "input_text", "text": "one"}]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
            {"type": "function_call", "call_id": "c", "name": "bash", "arguments": '{"command": "ls"}'},
            {"type": "function_call_output", "call_id": "c", "output": "a"},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "an a"}]},
            {"role": "user", "content": "two"},
        ],
        "instructions": "be kind",
        "max_output_tokens": 50,
        "temperature": 0.2,
        "top_p": 1,
        "reasoning": {"effort": "high", "summary": None},
        "tools": [],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "metadata": {"agent_timeout_sec": "5"},
    }
    read = read_request(request, DEFAULTS)
    assert (read.prompt, read.system) == ("two", "be kind\n\nbe brief")
    assert (read.max_output_tokens, read.thinking) == (50, "high")
    assert read.sampling == {"temperature": 0.2, "top_p": 1}
    assert read.history == (
        {"role": "user", "content": [{"type": "text", "text": "one"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "thinkingSignature": "reasoning_content"},
                {"type": "toolCall", "id": "c", "name": "bash", "arguments": {"command": "ls"}},
            ],
            "stopReason": "toolUse",
        },
        {
            "role": "toolResult",
            "toolCallId": "c",
            "toolName": "bash",
            "content": [{"type": "text", "text": "a"}],
            "isError": False,
        },
        {"role": "assistant", "content": [{"type": "text", "text": "an a"}], "stopReason": "stop"},
    )


def test_several_user_messages_in_a_row_stay_apart():
    read = read_request({"input": [{"role": "user", "content": w} for w in ("a", "b", "c")]}, DEFAULTS)
    assert read.prompt == "c"
    assert [message["content"][0]["text"] for message in read.history] == ["a", "b"]


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        *BAD_REQUESTS,
        ({"input": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]}, "input"),
        ({"input": [{"role": "user", "content": "x"}, {"role": "system", "content": "y"}]}, "input"),
        (
            {"input": [{"type": "function_call", "call_id": "c", "name": "n", "arguments": "[1"}]},
            "input",
        ),
        ({"input": "x", "max_output_tokens": 0}, "max_output_tokens"),
        ({"input": "x", "max_output_tokens": True}, "max_output_tokens"),
        ({"input": "x", "temperature": "hot"}, "temperature"),
        ({"input": "x", "top_p": True}, "top_p"),
        ({"input": "x", "reasoning": {"effort": "ultra"}}, "reasoning"),
        ({"input": "x", "reasoning": {"summary": "auto"}}, "reasoning"),
        ({"input": "x", "reasoning": 5}, "reasoning"),
    ],
)
def test_what_pi_cannot_do_is_refused_by_name(request_, field):
    with pytest.raises(RequestRefused) as caught:
        check_request(HARNESS, request_)
        granted_functions(request_, HARNESS, ())
        read_request(request_, DEFAULTS)
    assert caught.value.field == field
    assert field in str(caught.value)


def test_values_that_say_what_happens_anyway_are_taken():
    check_request(HARNESS, HARMLESS)
    assert read_request(HARMLESS, DEFAULTS).prompt == "x"


@pytest.mark.parametrize(
    "options",
    [
        {"colour": "red"},
        {"context_window": 0},
        {"max_output_tokens": "many"},
        {"max_retries": -1},
        {"max_retries": True},
        {"thinking": "hard"},
        {"tools": ["bash", "browser"]},
        {"tools": "bash"},
        {"system_prompt": "prepend"},
        {"context_files": "no"},
    ],
)
def test_an_option_that_does_not_fit_is_named(options):
    [name] = options
    with pytest.raises(ConfigError, match=f"'{name}'"):
        read_options(options)


def test_the_declared_defaults_are_valid_options():
    assert read_options(dict(HARNESS.options)) == DEFAULTS


def test_the_command_names_neither_prompt_nor_model_nor_key_nor_url():
    made = order({"input": "secret words", "instructions": "more words"})
    words = " ".join([*made["argv"], *made["env"], *made["env"].values()])
    for hidden in ("secret words", "more words", "sk-", "org/model", "ng-rollout"):
        assert hidden not in words
    assert made["prompt"] == "secret words"
    assert made["files"]["agent/APPEND_SYSTEM.md"] == "more words"


def test_models_and_settings_as_pi_reads_them():
    request = {"input": "x", "temperature": 0.5, "max_output_tokens": 9, "reasoning": {"effort": "low"}}
    made = order(request, read_options({"max_retries": 0, "tools": ["bash"], "context_window": 1000}))
    provider = json.loads(made["files"]["agent/models.json"])["providers"]["inspan"]
    assert provider["apiKey"] == "sk-$$1"
    assert provider["baseUrl"] == "http://127.0.0.1:1/ng-rollout/k/v1"
    assert provider["models"] == [
        {
            "id": "org/model:7b",
            "reasoning": True,
            "input": ["text"],
            "contextWindow": 1000,
            "maxTokens": 9,
            "samplingParams": {"temperature": 0.5},
        }
    ]
    settings = json.loads(made["files"]["agent/settings.json"])
    assert settings["defaultTools"] == ["bash"]
    assert settings["retry"]["enabled"] is False
    assert settings["retry"]["provider"]["timeoutMs"] > 100_000
    assert (settings["compaction"], settings["cacheWarming"]) == ({"enabled": False}, "off")


def test_instructions_replace_pis_prompt_only_when_told_to():
    files = order({"input": "x", "instructions": "i"}, read_options({"system_prompt": "replace"}))["files"]
    assert files["agent/SYSTEM.md"] == "i"
    assert "agent/APPEND_SYSTEM.md" not in files
    assert "-nc" in order({"input": "x"})["argv"]
    assert "-nc" not in order({"input": "x"}, read_options({"context_files": True}))["argv"]


@pytest.mark.parametrize(
    ("key", "written"), [("plain", "plain"), ("!cmd", "$!cmd"), ("a$B", "a$$B"), ("$!x", "$$!x")]
)
def test_keys_are_taken_literally(key, written):
    assert literal(key) == written


@pytest.mark.parametrize(
    ("arch", "libc", "version"),
    [
        ("x86_64", "glibc", "2.36"),
        ("aarch64", "glibc", "2.28"),
        ("x86_64", "musl", None),
        ("aarch64", "musl", None),
    ],
)
def test_supported_targets(arch, libc, version):
    key = runtime_key(Target(os="linux", arch=arch, libc=libc, libc_version=version))
    assert (key.arch, key.libc) == (arch, libc)
    assert key.version.startswith("1.6.0-")


@pytest.mark.parametrize(
    ("target", "says"),
    [
        (Target(os="linux", arch="riscv64", libc="glibc"), "riscv64"),
        (Target(os="darwin", arch="x86_64", libc="unknown"), "darwin"),
        (Target(os="linux", arch="x86_64", libc="glibc", libc_version="2.17"), "2.17"),
    ],
)
def test_unsupported_targets_say_what_was_found_and_what_is_supported(target, says):
    with pytest.raises(UnsupportedTarget, match=says) as caught:
        runtime_key(target)
    assert "2.28" in str(caught.value)
