"""The real Codex in real sandboxes against the gateway: what it did, as the gateway witnessed it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import inspan_codex
from inspan_core.findings import Outcome
from inspan_core.wire import McpAccess, McpConnection
from inspan_runtime.install import SandboxInstaller
from inspan_runtime.install_cache import RuntimeCache
from inspan_runtime.testing.recorded import outputs
from inspan_server.serving import served
from inspan_server.testing.plugin_runs import KEY, own_cache, plugin_run
from inspan_server.testing.replies import USAGE, said, shell

pytestmark = [pytest.mark.anyio, pytest.mark.sandbox, pytest.mark.registry, pytest.mark.timeout(400)]
full = pytest.mark.full

LOOK = (
    "env; for p in /proc/[0-9]*/environ /proc/[0-9]*/cmdline; do cat $p 2>/dev/null; done | tr '\\0' '\\n';"
    " echo; grep -rl canary-471[1] /tmp /app; cd /tmp/inspan-sessions/1; stat -c '%a %n' $PWD/*; ls home"
)
WORDS = ("code[x]", "pytho[n]", "tellin[g]", "inspan_code[x]", "opena[i]", "sandbox_runne[r]", "superviso[r]")
KILL = "; ".join(f"pkill -f '{word}'" for word in WORDS) + "; pkill '^code[x]'; echo survived; pkill -V"


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def cache():
    return own_cache()


@pytest.fixture
def episode(tmp_path, cache):
    """A context manager that makes an episode in a sandbox with a gateway for a script."""

    def make(replies, *, max_retries=0, **more):
        named = {name: more.pop(name) for name in ("place", "reach", "tool_accesses") if name in more}
        options = {"max_retries": max_retries, **more}
        return plugin_run(inspan_codex, replies, folder=tmp_path, cache=cache, options=options, **named)

    return make


@pytest.mark.parametrize("place", ["bubblewrap", pytest.param("local", marks=full)])
async def test_an_episode_with_tools_as_the_gateway_saw_it(episode, place):
    replies = [
        {
            **shell("pwd; printf hi > out.txt; echo x > ~/kept; exit 3"),
            "reasoning": "Look.",
            "content": "I look.",
        },
        shell("cat out.txt; cat ~/kept"),
        said("It says hi."),
    ]
    request = {
        "input": [
            {"role": "user", "content": "Earlier."},
            {"role": "assistant", "content": "Yes."},
            {"role": "user", "content": 'What does "out.txt" say?\n\U0001f600'},
        ],
        "instructions": "Answer in one sentence.",
    }
    async with episode(replies, place=place) as (one, url, capture):
        parsed = await one.run(request, url)
    assert (parsed.outcome, parsed.detail) == (Outcome.COMPLETED, None)
    assert [gap.code for gap in parsed.observations.gaps] == []
    first, second = outputs(parsed)
    assert "Process exited with code 3" in first and one.workdir in first
    assert second.endswith("Output:\nhix\n")
    calls = capture.calls("r1")
    assert [(c.route, c.status, c.outcome, c.streamed) for c in calls] == [
        ("/v1/responses", 200, "answered", True)
    ] * 3
    invocation, *tools = parsed.observations.records
    assert [ref.response_id for ref in invocation.model_calls] == [call.response_id for call in calls]
    assert [(t.tool_name, t.status) for t in tools] == [
        ("exec_command", "failed"),
        ("exec_command", "completed"),
    ]
    counted = {key: sum(c.usage[key] for c in calls) for key in ("input_tokens", "output_tokens")}
    assert {key: parsed.response["usage"][key] for key in counted} == counted == {
        "input_tokens": 300, "output_tokens": 60,
    }  # fmt: skip
    shown = [item for item in calls[0].request["input"] if item.get("role") != "developer"]
    texts = [(item["role"], item["content"][0]["text"]) for item in shown]
    assert texts == [("user", "Earlier."), ("assistant", "Yes."), ("user", request["input"][2]["content"])]
    developer = [i["content"][0]["text"] for i in calls[0].request["input"] if i.get("role") == "developer"]
    assert developer[-1] == "Answer in one sentence."
    asked = calls[0].request
    assert (asked["model"], asked["reasoning"]) == ("org/policy", {})
    assert not {"temperature", "top_p", "max_output_tokens"} & set(asked)
    again = [item["type"] for item in calls[2].request["input"]]
    assert again[-5:] == [
        "message",
        "function_call",
        "function_call_output",
        "function_call",
        "function_call_output",
    ]
    assert "reasoning" in again


async def test_what_others_in_the_sandbox_can_see_and_do(episode):
    async with episode([shell(LOOK), shell(KILL), said("ok")]) as (one, url, capture):
        parsed = await one.run({"input": "telling-word: pkill -f telling"}, url)
    assert (parsed.outcome, parsed.detail) == (Outcome.COMPLETED, None)
    seen, killed = outputs(parsed)
    assert KEY not in seen
    assert "telling-word" not in seen
    assert "CODEX_HOME=" not in seen.partition("SHLVL")[0]
    assert "600 /tmp/inspan-sessions/1/events.jsonl" in seen
    # Both held the key, and are gone once they are read.
    assert "input.json" not in seen and "config.toml" not in seen
    assert "survived\npkill from procps" in killed
    assert (capture.stray_calls, capture.unauthorized_calls) == (0, 0)


async def test_a_deadline_during_a_tool_keeps_the_work_and_stops_everything(episode):
    async with episode([shell("sleep 4711.5 & sleep 4711.5")]) as (one, url, capture):
        parsed = await one.run({"input": "Wait."}, url, timeout=10.0)
        count = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -c 'sleep 4711[.]5' || true"
        found = await one.sandbox.exec(["sh", "-c", count], timeout_s=20)
    assert parsed.outcome is Outcome.INCOMPLETE
    assert parsed.response["metadata"] == {"stop_reason": "time_limit"}
    assert [item["type"] for item in parsed.response["output"]] == ["function_call"]
    assert found.stdout.decode().strip() == "0"
    assert len(capture.calls("r1")) == 1


ENDINGS = [
    ("refused key", [{"error": {"status": 401}}] * 3, Outcome.UNPROCESSABLE, 3),
    (
        "overflow",
        [{"error": {"status": 400, "body": {"message": "maximum context length"}}}],
        Outcome.UNPROCESSABLE,
        1,
    ),
    ("too many", [{"error": {"status": 429}}], Outcome.FAILED, 1),
    ("broken for ever", [{"error": {"status": 500}}] * 3, Outcome.FAILED, 3),
    ("broken once", [{"error": {"status": 500}}, said("ok")], Outcome.COMPLETED, 2),
    ("dropped once", [{"content": "half of it", "drop_after_chunks": 4}, said("ok")], Outcome.COMPLETED, 2),
    ("cut short", [{"content": "half", "finish_reason": "length", "usage": USAGE}], Outcome.INCOMPLETE, 1),
    ("no usage", [{"content": "ok"}], Outcome.COMPLETED, 1),
]


@full
@pytest.mark.parametrize(("name", "replies", "outcome", "count"), ENDINGS, ids=[e[0] for e in ENDINGS])
async def test_endings(episode, name, replies, outcome, count):
    async with episode(replies, place="local", max_retries=2) as (one, url, capture):
        parsed = await one.run({"input": "Hi."}, url)
    assert (parsed.outcome, len(capture.calls("r1"))) == (outcome, count)
    usage = None if parsed.response is None else parsed.response["usage"]
    answered = all(c.usage is not None for c in capture.calls("r1") if c.status == 200)
    assert (usage is not None) == (answered and parsed.response is not None)


@full
async def test_a_long_prompt_with_anything_in_it(episode):
    prompt = "\"quotes\" 'and' $HOME `x` \\ \u2028 \U0001f600 pkill -f codex\n" + "x" * 200_000
    async with episode([said("ok")], place="local") as (one, url, capture):
        await one.run({"input": prompt}, url)
    assert capture.calls("r1")[0].request["input"][-1]["content"][0]["text"] == prompt


@full
async def test_a_service_of_its_own_session_survives(episode):
    serve = "setsid sleep 4712.5 >/dev/null 2>&1 </dev/null & echo started"
    async with episode([shell(serve), said("ok")]) as (one, url, _):
        parsed = await one.run({"input": "Serve."}, url)
        count = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -c 'sleep 4712[.]5' || true"
        found = await one.sandbox.exec(["sh", "-c", count], timeout_s=20)
    assert parsed.outcome is Outcome.COMPLETED
    assert found.stdout.decode().strip() == "1"


class TokenServer:
    """An MCP server whose one tool gives out a token that the call's header has to earn."""

    def __init__(self):
        self.seen = []
        self.app = Starlette(routes=[Route("/mcp", self.answer, methods=["GET", "POST", "DELETE"])])

    async def answer(self, request):
        if request.method != "POST":
            return Response(status_code=405)
        message = await request.json()
        self.seen.append(message["method"])
        if "id" not in message:
            return Response(status_code=202)
        schema = {"type": "object", "properties": {"key": {"type": "string"}}}
        results = {
            "initialize": {
                "protocolVersion": message["params"].get("protocolVersion"),
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "t", "version": "1"},
            },
            "tools/list": {"tools": [{"name": "give", "inputSchema": schema}]},
            "tools/call": {
                "content": [{"type": "text", "text": "see there"}],
                "structuredContent": {"token": request.headers.get("x-episode")},
            },
        }
        result = results.get(message["method"], {})
        return JSONResponse({"jsonrpc": "2.0", "id": message["id"], "result": result})


async def test_a_granted_tool_is_connected_before_the_model_is_asked(episode):
    replies = [{"tool_calls": [{"name": "give", "arguments": {"key": "k"}}], "usage": USAGE}, said("ok")]
    server = TokenServer()
    async with served(server.app, graceful_timeout_s=0.2) as tools_url:
        connection = McpConnection(url=f"{tools_url}/mcp", headers={"X-Episode": "e-7"})
        grant = McpAccess(name="ng", connection=connection)
        async with episode(replies, reach=(tools_url,), tool_accesses=[grant]) as (one, url, capture):
            parsed = await one.run({"input": "Hi."}, url)
    assert (parsed.outcome, parsed.detail) == (Outcome.COMPLETED, None)
    assert server.seen == ["initialize", "notifications/initialized", "tools/list", "tools/call"]
    first, second = capture.calls("r1")
    assert "mcp__ng" in [tool.get("name") for tool in first.request["tools"]]
    assert second.request["input"][-1]["output"].endswith('{"token":"e-7"}')
    assert outputs(parsed)[0].endswith('{"token":"e-7"}')


@full
async def test_a_required_server_that_is_not_there_ends_the_run_before_the_model_is_asked(episode):
    grant = McpAccess(name="ng", connection=McpConnection(url="http://127.0.0.1:9/mcp"))
    async with episode([said("ok")], place="local", tool_accesses=[grant]) as (one, url, capture):
        parsed = await one.run({"input": "Hi."}, url)
    assert (parsed.outcome, capture.calls("r1")) == (Outcome.FAILED, ())
    assert "failed to initialize: ng" in parsed.detail["message"]


@full
async def test_a_compaction_is_a_model_call_through_the_gateway(episode):
    big = {"prompt_tokens": 200_000, "completion_tokens": 20}
    replies = [{**shell("echo one"), "usage": big}, said("Summary."), said("Done.")]
    async with episode(replies, compaction_at_tokens=100_000) as (one, url, capture):
        parsed = await one.run({"input": "Hi."}, url)
    records = parsed.observations.records
    (compaction,) = [record for record in records if record.kind == "context_compaction"]
    assert compaction.model_calls[0].response_id == capture.calls("r1")[1].response_id
    assert "Summary." in compaction.summary
    assert parsed.response["usage"]["input_tokens"] == 200_200


@full
async def test_without_a_limit_compaction_is_as_late_as_can_be(episode):
    big = {"prompt_tokens": 240_000, "completion_tokens": 20}
    replies = [{**shell("echo one"), "usage": big}, said("Done.")]
    async with episode(replies, place="local") as (one, url, capture):
        parsed = await one.run({"input": "Hi."}, url)
    assert (parsed.outcome, len(capture.calls("r1"))) == (Outcome.COMPLETED, 2)


@full
async def test_a_warm_cache_needs_no_package_client_and_a_broken_runtime_is_repaired(
    episode, cache, tmp_path
):
    async with episode([said("ok")], place="local") as (one, _, _):
        archives = Path(cache.root) / "archives"
        shutil.copytree(archives, tmp_path / "warm" / "archives", copy_function=os.link)
        one.installer = SandboxInstaller(
            one.sandbox,
            RuntimeCache(tmp_path / "warm", client_env={"PATH": "/nonexistent"}),
            workdir=one.workdir,
            roots=[str(tmp_path / "rt")],
        )
        program = Path(one.runtime["prefix"]) / "bin" / "inspan-h"
        before = program.stat().st_ino
        await one.seed()
        assert program.stat().st_ino == before
        program.write_text("#!/bin/sh\nexit 1\n")
        await one.seed()
        assert program.stat().st_size > 300_000_000
