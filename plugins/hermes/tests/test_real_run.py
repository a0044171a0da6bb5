"""The real Hermes in real sandboxes against the gateway: what it did, as the gateway witnessed it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import anyio
import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import inspan_hermes
from inspan_core.errors import HarnessError
from inspan_core.findings import Outcome
from inspan_core.wire import DirectHttpAccess, McpAccess, McpConnection
from inspan_runtime.install import SandboxInstaller
from inspan_runtime.install_cache import RuntimeCache
from inspan_runtime.testing.recorded import codes, outputs
from inspan_server.serving import served
from inspan_server.testing.plugin_runs import KEY, SESSION_DIR, own_cache, plugin_run
from inspan_server.testing.replies import USAGE, call, error, said, shell

pytestmark = [pytest.mark.anyio, pytest.mark.sandbox, pytest.mark.registry, pytest.mark.timeout(400)]
full = pytest.mark.full

LOOK = (
    "env; for p in /proc/[0-9]*/environ /proc/[0-9]*/cmdline; do cat $p 2>/dev/null; done | tr '\\0' '\\n';"
    f" echo; grep -rl canary-471[1] /tmp /app ~ 2>/dev/null; stat -c '%a %n' {SESSION_DIR}/*; ls -A ~"
)
WORDS = (
    "pytho[n]",
    "tellin[g]",
    "inspan_herme[s]",
    "agen[t]",
    "sandbox_runne[r]",
    "superviso[r]",
)
KILL = "; ".join(f"pkill -f '{word}'" for word in WORDS) + "; pkill '^pytho[n]'; echo survived; pkill -V"
OVERFLOW = {"error": {"message": "This model's maximum context length is 65536 tokens.", "code": 400}}


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def cache():
    return own_cache()


@pytest.fixture
def episode(tmp_path, cache):
    """A context manager that makes an episode in a sandbox with a gateway for a script."""

    def make(replies, *, reach=(), tool_accesses=(), **options):
        return plugin_run(
            inspan_hermes,
            replies,
            folder=tmp_path,
            cache=cache,
            reach=reach,
            tool_accesses=tool_accesses,
            options=options,
        )

    return make


async def count(one, word):
    """Processes of the sandbox whose command line holds a word."""
    script = f"cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -c '{word}' || true"
    found = await one.sandbox.exec(["sh", "-c", script], timeout_s=20)
    return int(found.stdout)


async def test_an_episode_with_tools_as_the_gateway_saw_it(episode):
    replies = [
        {
            **shell("pwd; printf hi > out.txt; echo x > ~/kept; git config --global a.b c; exit 3"),
            "reasoning": "Look.",
            "content": "I look.",
        },
        shell("cat out.txt; cat ~/kept"),
        said("It says hi."),
    ]
    request = {
        "input": [
            {"role": "user", "content": "Earlier."},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]},
            {"role": "assistant", "content": "Yes."},
            {"role": "user", "content": 'What does "out.txt" say?\n\U0001f600'},
        ],
        "instructions": "Answer in one sentence.",
        "temperature": 0.5,
        "top_p": 0.9,
        "max_output_tokens": 321,
        "reasoning": {"effort": "low"},
    }
    async with episode(replies) as (one, url, capture):
        parsed = await one.run(request, url)
        home = await one.sandbox.exec(["sh", "-c", "cat ~/kept ~/.gitconfig; ls -A ~ /app"], timeout_s=20)
    assert (parsed.outcome, parsed.detail) == (Outcome.COMPLETED, None)
    assert codes(parsed) == []
    first, second = [json.loads(output) for output in outputs(parsed)]
    assert (first["output"], first["exit_code"]) == ("/app", 3)
    assert second["output"] == "hix"
    assert home.stdout.decode().split() == [
        "x", "[a]", "b", "=", "c", "/app:", "out.txt", "/root:", ".gitconfig", "kept",
    ]  # fmt: skip
    calls = capture.calls("r1")
    assert [(c.route, c.status, c.outcome, c.streamed) for c in calls] == [
        ("/v1/chat/completions", 200, "answered", True)
    ] * 3
    invocation, *tools = parsed.observations.records
    assert [ref.response_id for ref in invocation.model_calls] == [c.response_id for c in calls]
    assert [(t.tool_name, t.status, t.timing_source) for t in tools] == [
        ("terminal", "failed", "harness"),
        ("terminal", "completed", "harness"),
    ]
    counted = {
        "input_tokens": sum(c.usage["prompt_tokens"] for c in calls),
        "output_tokens": sum(c.usage["completion_tokens"] for c in calls),
    }
    assert {key: parsed.response["usage"][key] for key in counted} == counted == {
        "input_tokens": 300, "output_tokens": 60,
    }  # fmt: skip
    for asked in (c.request for c in calls):
        sent = {
            key: asked[key] for key in ("model", "temperature", "top_p", "max_tokens", "reasoning_effort")
        }
        assert sent == {
            "model": "org/policy", "temperature": 0.5, "top_p": 0.9, "max_tokens": 321,
            "reasoning_effort": "low",
        }  # fmt: skip
    system, *shown = calls[0].request["messages"]
    assert system["content"].endswith("Answer in one sentence.")
    assert [(m["role"], m["content"]) for m in shown] == [
        ("user", "Earlier."), ("assistant", "Yes."), ("user", request["input"][3]["content"]),
    ]  # fmt: skip
    # Hermes shows a model server of one's own no earlier reasoning.
    assert "reasoning_content" not in shown[1]
    again = calls[2].request["messages"]
    assert [m["role"] for m in again[4:]] == ["assistant", "tool", "assistant", "tool"]


async def test_what_others_in_the_sandbox_can_see_and_do(episode):
    # Hermes gives its shells a script of this name: the last one kills itself, and nothing else.
    replies = [shell(LOOK), shell(KILL), shell("pkill -f 'herme[s]'"), said("ok")]
    async with episode(replies) as (one, url, capture):
        own = await one.sandbox.exec(["env"], timeout_s=20)
        parsed = await one.run({"input": "telling-word: pkill -f telling"}, url)
    assert (parsed.outcome, parsed.detail) == (Outcome.COMPLETED, None)
    seen, killed, _ = [json.loads(output)["output"] for output in outputs(parsed)]
    assert KEY not in seen
    assert "telling-word" not in seen
    assert f"{SESSION_DIR}/input.json" not in seen
    assert f"600 {SESSION_DIR}/events.jsonl" in seen
    assert "survived\npkill from procps" in killed
    tool_env = {line.partition("=")[0] for line in seen.partition("\n\n")[0].splitlines()}
    theirs = {line.partition("=")[0] for line in own.stdout.decode().splitlines()}
    assert not [name for name in tool_env if name.startswith(("HERMES", "TIRITH", "TERMINAL_"))]
    assert theirs <= tool_env
    assert ".hermes" not in seen
    assert (capture.strays, capture.unauthorized_calls) == ((), 0)


@full
async def test_a_deadline_during_a_tool_keeps_the_work_and_stops_everything(episode):
    async with episode([shell("echo begun > note; sleep 4711.5")]) as (one, url, capture):
        parsed = await one.run({"input": "Wait."}, url, timeout=45.0)
        assert await count(one, "sleep 4711[.]5") == 0
    assert parsed.outcome is Outcome.INCOMPLETE
    assert parsed.response["metadata"] == {"stop_reason": "time_limit"}
    assert parsed.response["output"][0]["type"] == "function_call"
    assert [t.status for t in parsed.observations.records[1:]] == ["cancelled"]
    assert len(capture.calls("r1")) == 1
    # Interrupted, not killed: Hermes came to its end and said so.
    assert json.loads(one.artifacts.files["output.json"])["result"]["interrupted"] is True


async def test_close_during_a_tool_collects_what_there_is(episode):
    async with episode([shell("sleep 4713.5")]) as (one, url, capture):
        async with anyio.create_task_group() as tasks:

            async def run():
                with pytest.raises(HarnessError):
                    await one.run({"input": "Wait."}, url, timeout=200.0)

            tasks.start_soon(run)
            with anyio.fail_after(60):
                while await count(one, "sleep 4713[.]5") == 0:
                    await anyio.sleep(0.1)
            await one.session.close(timeout=30.0)
        assert one.session.receipt.cleanup_confirmed
        events = one.session.artifacts.files["events.jsonl"]
    assert b"sleep 4713.5" in events
    assert len(capture.calls("r1")) == 1


class ToolServer:
    """An MCP server whose tool gives out what the call's header has to earn; and the same as a function."""

    def __init__(self, tools=("give",)):
        self.seen = []
        self.called = []
        self.tools = tools
        routes = [
            Route("/mcp", self.answer, methods=["GET", "POST", "DELETE"]),
            Route("/t/{name}", self.function, methods=["POST"]),
        ]
        self.app = Starlette(routes=routes)

    async def function(self, request):
        self.called.append((request.path_params["name"], await request.json(), dict(request.cookies)))
        response = JSONResponse({"token": request.headers.get("x-episode")})
        response.set_cookie("visits", str(len(self.called)))
        return response

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
                "protocolVersion": message.get("params", {}).get("protocolVersion"),
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "t", "version": "1"},
            },
            "tools/list": {"tools": [{"name": name, "inputSchema": schema} for name in self.tools]},
            "tools/call": {
                "content": [{"type": "text", "text": "see there"}],
                "structuredContent": {"token": request.headers.get("x-episode")},
            },
        }
        result = results.get(message["method"], {})
        return JSONResponse({"jsonrpc": "2.0", "id": message["id"], "result": result})


async def test_granted_tools_of_both_kinds_are_there_before_the_model_is_asked(episode):
    function = {"type": "function", "name": "buy", "parameters": {"type": "object", "properties": {}}}
    replies = [call("mcp__n_g__give", key="k"), call("buy", what=1), call("buy", what=2), said("ok")]
    server = ToolServer()
    async with served(server.app, graceful_timeout_s=0.2) as tools_url:
        headers = {"X-Episode": "e-7"}
        grants = [
            McpAccess(name="n-g", connection=McpConnection(url=f"{tools_url}/mcp", headers=headers)),
            DirectHttpAccess(name="shop", base_url=f"{tools_url}/t", cookies={"c": "1"}, headers=headers),
        ]
        async with episode(replies, reach=(tools_url,), tool_accesses=grants) as (one, url, capture):
            parsed = await one.run({"input": "Hi.", "tools": [function]}, url)
            jar = await one.sandbox.download(f"{SESSION_DIR}/cookies.json", limit_bytes=4096)
    assert (parsed.outcome, parsed.detail) == (Outcome.COMPLETED, None)
    assert server.seen[:4] == ["initialize", "notifications/initialized", "tools/list", "tools/call"]
    first, second, *_ = capture.calls("r1")
    names = [tool["function"]["name"] for tool in first.request["tools"]]
    assert {"mcp__n_g__give", "buy", "terminal"} <= set(names)
    assert '{"token": "e-7"}' in second.request["messages"][-1]["content"].replace('\\"', '"')
    assert [json.loads(output) for output in outputs(parsed)[1:]] == [{"token": "e-7"}] * 2
    assert server.called == [
        ("buy", {"what": 1}, {"c": "1"}),
        ("buy", {"what": 2}, {"c": "1", "visits": "1"}),
    ]
    assert json.loads(jar.data) == {"cookies": {"c": "1", "visits": "2"}}


@pytest.mark.parametrize("fault", [pytest.param("refused", marks=full), "no tools"])
async def test_a_required_server_that_cannot_be_used_ends_the_run_before_the_model_is_asked(episode, fault):
    server = ToolServer(tools=())
    async with served(server.app, graceful_timeout_s=0.2) as tools_url:
        there = "http://127.0.0.1:9" if fault == "refused" else tools_url
        grant = McpAccess(name="ng", connection=McpConnection(url=f"{there}/mcp"))
        async with episode([said("ok")], reach=(tools_url,), tool_accesses=[grant]) as (one, url, capture):
            parsed = await one.run({"input": "Hi."}, url)
    assert (parsed.outcome, capture.calls("r1")) == (Outcome.FAILED, ())
    assert "tool_server_unavailable: tool server 'ng'" in parsed.detail["message"]
    assert parsed.response is None


@full
async def test_an_optional_server_that_is_not_there_is_a_gap(episode):
    connection = McpConnection(url="http://127.0.0.1:9/mcp")
    grant = McpAccess(name="ng", connection=connection, required=False)
    async with episode([said("ok")], tool_accesses=[grant]) as (one, url, _):
        parsed = await one.run({"input": "Hi."}, url)
    assert parsed.outcome is Outcome.COMPLETED
    assert codes(parsed) == ["tool_server_disconnected"]


@full
async def test_a_shim_that_does_not_find_its_settings_in_force_does_not_ask_the_model(episode):
    async with episode([said("ok")]) as (one, url, capture):
        site = Path(one.runtime["prefix"]) / "site"
        script = (
            f"cp {SESSION_DIR}/lib/inspan_hermes/agent_run.py /tmp/a && "
            "sed 's/agent.max_iterations, order/agent.max_iterations + 1, order/' /tmp/a "
            f"> {SESSION_DIR}/lib/inspan_hermes/agent_run.py; ls {site}/run_agent.py"
        )
        await one.sandbox.exec(["sh", "-c", script], timeout_s=20)
        parsed = await one.run({"input": "Hi."}, url)
    assert (parsed.outcome, capture.calls("r1")) == (Outcome.FAILED, ())
    assert "settings_not_in_force: max_iterations" in parsed.detail["message"]


ENDINGS = [
    ("refused key", [error(401)] * 3, Outcome.UNPROCESSABLE, 1),
    ("overflow", [error(400, OVERFLOW)] * 4, Outcome.UNPROCESSABLE, 2),
    ("overflow after work", [shell("echo a"), *[error(400, OVERFLOW)] * 4], Outcome.INCOMPLETE, 3),
    ("too many twice", [error(429), error(429), said("ok")], Outcome.COMPLETED, 3),
    ("broken for ever", [error(500)] * 4, Outcome.FAILED, 3),
    ("broken once", [error(500), said("ok")], Outcome.COMPLETED, 2),
    ("dropped once", [{"content": "half of it", "drop_after_chunks": 2}, said("ok")], Outcome.COMPLETED, 2),
    (
        "cut short",
        [{"content": "half", "finish_reason": "length", "usage": USAGE}] * 4,
        Outcome.INCOMPLETE,
        4,
    ),
    ("no usage", [{"content": "ok"}], Outcome.COMPLETED, 1),
]


@full
@pytest.mark.parametrize(("name", "replies", "outcome", "number"), ENDINGS, ids=[e[0] for e in ENDINGS])
async def test_endings(episode, name, replies, outcome, number):
    async with episode(replies) as (one, url, capture):
        parsed = await one.run({"input": "Hi."}, url, timeout=120.0)
    assert (parsed.outcome, len(capture.calls("r1"))) == (outcome, number)
    usage = None if parsed.response is None else parsed.response["usage"]
    answered = all(c.usage is not None for c in capture.calls("r1") if c.status == 200)
    assert (usage is not None) == (answered and parsed.response is not None)


@full
async def test_a_silent_model_is_waited_for_until_the_deadline(episode):
    async with episode([{"content": "late", "delay_s": 100.0}]) as (one, url, capture):
        parsed = await one.run({"input": "Hi."}, url, timeout=45.0)
    assert parsed.outcome is Outcome.FAILED
    assert [c.outcome for c in capture.calls("r1")] == ["client_gone"]


@full
async def test_the_turns_are_limited_and_the_summary_is_kept(episode):
    replies = [shell("echo 1"), shell("echo 2"), said("I did two.")]
    async with episode(replies, max_turns=2) as (one, url, capture):
        parsed = await one.run({"input": "Hi."}, url)
    assert parsed.outcome is Outcome.INCOMPLETE
    assert parsed.response["metadata"] == {"stop_reason": "max_turns"}
    assert parsed.response["output"][-1]["content"][0]["text"] == "I did two."
    assert len(capture.calls("r1")) == 3


@full
async def test_a_harness_that_is_killed_leaves_its_trace(episode):
    kill = (
        "for p in /proc/[0-9]*; do grep -q inspan-h $p/comm 2>/dev/null && kill -9 ${p#/proc/}; done; sleep 9"
    )
    async with episode([shell(kill)]) as (one, url, _):
        parsed = await one.run({"input": "Hi."}, url)
    assert (parsed.outcome, parsed.response["output"][0]["type"]) == (Outcome.FAILED, "function_call")
    assert parsed.detail["message"] == "Hermes ended in the middle of its work (exit code -9)"


@full
async def test_a_background_service_survives(episode):
    serve = call("terminal", command="exec sleep 4712.5 >/dev/null 2>&1", background=True)
    async with episode([serve, said("ok")]) as (one, url, _):
        parsed = await one.run({"input": "Serve."}, url)
        assert await count(one, "sleep 4712[.]5") >= 1
    assert parsed.outcome is Outcome.COMPLETED


@full
async def test_a_long_prompt_with_anything_in_it(episode):
    prompt = "\"quotes\" 'and' $HOME `x` \\ \u2028 \U0001f600 pkill -f hermes\n" + "x" * 200_000
    async with episode([said("ok")]) as (one, url, capture):
        await one.run({"input": prompt}, url)
    assert capture.calls("r1")[0].request["messages"][-1]["content"] == prompt


@full
async def test_a_compaction_is_a_model_call_through_the_gateway(episode):
    past = []
    for number in range(24):
        past.append({"role": "user", "content": f"Q{number} " + "word " * 1200})
        past.append({"role": "assistant", "content": f"A{number} " + "word " * 1200})
    replies = [said("## Summary\nWe counted."), said("Done.")]
    async with episode(replies, context_length=64_000) as (one, url, capture):
        parsed = await one.run({"input": [*past, {"role": "user", "content": "Go on."}]}, url, timeout=120.0)
    assert parsed.outcome is Outcome.COMPLETED
    compactions = [r for r in parsed.observations.records if r.kind == "context_compaction"]
    made = {ref.response_id for compaction in compactions for ref in compaction.model_calls}
    calls = capture.calls("r1")
    summaries = {c.response_id for c in calls if not c.request.get("tools")}
    assert made == summaries != set()
    assert compactions[-1].summary == "## Summary\nWe counted."
    spent = sum(c.usage["prompt_tokens"] for c in calls)
    assert parsed.response["usage"]["input_tokens"] == spent


@full
async def test_two_sessions_at_once_do_not_mix(episode):
    async with (
        episode([shell("cat mark; pwd"), said("one")]) as (first, first_url, _),
        episode([shell("cat mark; pwd"), said("two")]) as (second, second_url, _),
    ):
        for one, mark in ((first, "a"), (second, "b")):
            await one.sandbox.upload("/app/mark", mark.encode())
        answers = {}

        async def run(name, one, url):
            answers[name] = await one.run({"input": name, "instructions": f"I-{name}"}, url)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run, "a", first, first_url)
            tasks.start_soon(run, "b", second, second_url)
    for name, other in (("a", "b"), ("b", "a")):
        assert json.loads(outputs(answers[name])[0])["output"].startswith(name)
        assert f"I-{other}" not in json.dumps(answers[name].response)


@full
async def test_a_warm_cache_needs_no_package_client_and_a_broken_runtime_is_repaired(
    episode, cache, tmp_path
):
    async with episode([said("ok")]) as (one, _, _):
        shutil.copytree(Path(cache.root) / "archives", tmp_path / "warm" / "archives", copy_function=os.link)
        one.installer = SandboxInstaller(
            one.sandbox,
            RuntimeCache(tmp_path / "warm", client_env={"PATH": "/nonexistent"}),
            workdir="/app",
            roots=["/var/tmp/own"],
        )
        await one.seed()
        assert one.runtime["prefix"].startswith("/var/tmp/own/")
        broken = f"{one.runtime['prefix']}/site/run_agent.py"
        remove = f"rm {broken} {one.runtime['prefix']}/site/__pycache__/run_agent.*"
        await one.sandbox.exec(["sh", "-c", remove], timeout_s=20)
        await one.seed()
        found = await one.sandbox.exec(["test", "-f", broken], timeout_s=20)
    assert found.exit_code == 0
