"""The real Pi in real sandboxes against the gateway: what it did, as the gateway witnessed it."""

from __future__ import annotations

import json
import os
import shutil
from functools import partial
from pathlib import Path

import pytest

import inspan_pi
from inspan_core.findings import Outcome
from inspan_runtime.install import SandboxInstaller
from inspan_runtime.install_cache import RuntimeCache
from inspan_runtime.testing.recorded import outputs
from inspan_server.testing.plugin_runs import KEY, SESSION_DIR, own_cache, plugin_run
from inspan_server.testing.replies import call, error, said, shell

everywhere = pytest.mark.parametrize("place", ["local", "bubblewrap"])
pytestmark = [pytest.mark.anyio, pytest.mark.sandbox, pytest.mark.registry, pytest.mark.timeout(300)]

COMMAND = "pwd; printf hi > out.txt; echo x > ~/kept"
REPLIES = [
    {**call("bash", command=COMMAND), "reasoning": "Look first.", "content": "I look."},
    call("read", path="out.txt"),
    said("It says hi."),
]
ASKED = {
    "input": [
        {"role": "user", "content": "Earlier."},
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": "What does out.txt say?"},
    ],
    "instructions": "Answer in one sentence.",
    "max_output_tokens": 321,
    "temperature": 0.25,
    "reasoning": {"effort": "low"},
}


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def cache():
    return own_cache()


@pytest.fixture
def episode(tmp_path, cache):
    """A context manager that makes an episode in a sandbox with a gateway for a script."""
    return partial(plugin_run, inspan_pi, folder=tmp_path, cache=cache, options={"max_retries": 0})


@everywhere
async def test_an_episode_with_two_tools(episode, place):
    async with episode(REPLIES, place=place) as (one, url, capture):
        parsed = await one.run(ASKED, url)
        # The tools keep the task's HOME, and the harness leaves nothing there or in the task's folder.
        seen = await one.sandbox.exec(["sh", "-c", "ls -A ~; cat ~/kept; ls -A"], timeout_s=20)
    assert seen.stdout.decode().split() == ["kept", "x", "out.txt"]
    assert (parsed.outcome, parsed.detail) == (Outcome.COMPLETED, None)
    output = parsed.response["output"]
    assert [item["type"] for item in output] == [
        "reasoning",
        "message",
        "function_call",
        "function_call_output",
        "function_call",
        "function_call_output",
        "message",
    ]
    assert json.loads(output[2]["arguments"]) == {"command": COMMAND}
    assert output[3]["output"].strip() == one.workdir
    assert output[5]["output"] == "hi"
    assert output[6]["content"][0]["text"] == "It says hi."
    assert parsed.response["usage"] == {
        "input_tokens": 300,
        "input_tokens_details": {"cached_tokens": 120},
        "output_tokens": 60,
        "output_tokens_details": {"reasoning_tokens": 15},
        "total_tokens": 360,
    }
    assert [gap.code for gap in parsed.observations.gaps] == []
    invocation, *tools = parsed.observations.records
    calls = capture.calls("r1")
    assert [ref.response_id for ref in invocation.model_calls] == [call.response_id for call in calls]
    called = [item["call_id"] for item in output if item["type"] == "function_call"]
    assert [(tool.tool_call_id, tool.status) for tool in tools] == [(id_, "completed") for id_ in called]
    assert all(tool.completed_at >= tool.started_at for tool in tools)
    check_requests(calls)


def check_requests(calls):
    """What Pi really sent, with the key: without it the gateway refuses."""
    assert [call.route for call in calls] == ["/v1/chat/completions"] * 3
    body = calls[0].request
    assert {
        name: body[name] for name in ("model", "max_tokens", "temperature", "stream", "reasoning_effort")
    } == {
        "model": "org/policy",
        "max_tokens": 321,
        "temperature": 0.25,
        "stream": True,
        "reasoning_effort": "low",
    }
    system, *rest = body["messages"]
    assert system["role"] == "system"
    assert "Answer in one sentence." in system["content"]
    assert [(m["role"], text_of(m)) for m in rest] == [
        ("user", "Earlier."),
        ("assistant", "Yes."),
        ("user", "What does out.txt say?"),
    ]
    last = calls[2].request["messages"]
    assert [m["role"] for m in last[-4:]] == ["assistant", "tool", "assistant", "tool"]
    assert last[-4]["reasoning_content"] == "Look first."


def text_of(message):
    content = message["content"]
    return content if isinstance(content, str) else content[0]["text"]


async def test_a_deadline_during_a_tool_keeps_the_work_and_stops_everything(episode):
    look = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -c '^.*sleep 4711[.]5' || true"
    async with episode([shell("sleep 4711.5")]) as (one, url, capture):
        parsed = await one.run({"input": "Wait."}, url, timeout=12.0)
        found = await one.sandbox.exec(["sh", "-c", look], timeout_s=20)
    assert parsed.outcome is Outcome.INCOMPLETE
    assert parsed.response["metadata"] == {"stop_reason": "time_limit"}
    assert parsed.response["output"][0]["type"] == "function_call"
    assert found.stdout.decode().strip() == "0"
    assert len(capture.calls("r1")) == 1


async def test_a_refused_key_is_a_422_with_the_servers_words(episode):
    replies = [error(401, {"error": {"message": "who are you"}})]
    async with episode(replies) as (one, url, capture):
        parsed = await one.run({"input": "Hi."}, url)
    assert parsed.outcome is Outcome.UNPROCESSABLE
    assert parsed.detail["model_status"] == 401
    assert parsed.detail["model_body"] == {"message": "who are you"}
    assert len(capture.calls("r1")) == 1


async def test_the_key_is_in_no_file_once_it_is_read_and_in_no_environment(episode):
    look = (
        "env; for p in /proc/[0-9]*/environ /proc/[0-9]*/cmdline; do cat $p 2>/dev/null; done"
        " | tr '\\0' '\\n'; "
        'echo; stat -c \'%a %n\' "$PI_CODING_AGENT_DIR"/../*; ls "$PI_CODING_AGENT_DIR"'
    )
    async with episode([shell(look), said("ok")]) as (one, url, _):
        parsed = await one.run({"input": "telling-word"}, url)
    (output,) = outputs(parsed)
    assert KEY not in output
    assert "telling-word" not in output
    assert f"600 {SESSION_DIR}/agent/../events.jsonl" in output
    # Both held the key, and are gone once they are read.
    assert "input.json" not in output and "models.json" not in output


async def test_tools_that_kill_by_telling_words_do_not_hit_the_harness(episode):
    words = (
        "pytho[n]",
        "nod[e]",
        "tellin[g]",
        "inspan_p[i]",
        "coding-agen[t]",
        "sandbox_runne[r]",
        "superviso[r]",
    )
    kill = "; ".join(f"pkill -f '{word}'" for word in words)
    kill += "; pkill '^nod[e]'; pkill '^p[i]'; echo survived; pkill -V"
    async with episode([shell(kill), said()]) as (one, url, _):
        parsed = await one.run({"input": "telling: pkill -f telling"}, url)
    assert (parsed.outcome, parsed.detail) == (Outcome.COMPLETED, None)
    (output,) = outputs(parsed)
    assert output.startswith("survived\n")
    assert "pkill from procps" in output


async def test_a_second_seed_finds_the_runtime_and_a_broken_one_is_repaired(episode):
    async with episode([said("Hello.")], shows_runtimes=False) as (one, url, _):
        prefix = one.runtime["prefix"]
        before = await one.sandbox.exec(["stat", "-c", "%i", prefix], timeout_s=20)
        await one.seed()
        after = await one.sandbox.exec(["stat", "-c", "%i", prefix], timeout_s=20)
        assert before.stdout == after.stdout
        await one.sandbox.exec(["sh", "-c", f"echo > {prefix}/start.mjs"], timeout_s=20)
        await one.seed()
        parsed = await one.run({"input": "Hi."}, url)
    assert parsed.outcome is Outcome.COMPLETED


async def test_a_warm_cache_needs_no_package_client(episode, cache, tmp_path):
    """With the archive there, a client environment that reaches nothing still installs."""
    async with episode([said("ok")]) as (one, _, _):
        warm = tmp_path / "warm"
        shutil.copytree(Path(cache.root) / "archives", warm / "archives", copy_function=os.link)
        offline = RuntimeCache(warm, client_env={"PATH": "/nonexistent", "PIP_NO_INDEX": "1"})
        one.installer = SandboxInstaller(one.sandbox, offline, workdir=one.workdir, roots=["/var/tmp/own"])
        await one.seed()
    assert one.runtime["prefix"].startswith("/var/tmp/own/pi-1.6.0-")
