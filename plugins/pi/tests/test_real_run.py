"""The real Pi in real sandboxes against a scripted model server: what it did, as the server saw it too."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import anyio
import pytest

import inspan_pi
from inspan_core.findings import Outcome
from inspan_core.harness import ParseInput
from inspan_core.sandbox import SandboxSpec
from inspan_runtime.contexts import ArtifactContext, RunContext, SessionContext
from inspan_runtime.install import SandboxInstaller
from inspan_runtime.install_build import package_client_env
from inspan_runtime.install_cache import RuntimeCache, default_cache_dir
from inspan_runtime.providers.bubblewrap import BubblewrapProvider
from inspan_runtime.providers.local import LocalProvider
from inspan_runtime.sandbox_session import SandboxSession

everywhere = pytest.mark.parametrize("place", ["local", "bubblewrap"], indirect=True)
pytestmark = [pytest.mark.anyio, pytest.mark.sandbox, pytest.mark.registry, pytest.mark.timeout(300)]

KEY = "sk-canary-4711"
SCRIPT = [
    {
        "reasoning": "Look first.",
        "text": "I look.",
        "calls": [
            {
                "id": "call_a",
                "name": "bash",
                "args": '{"command": "pwd; printf hi > out.txt; echo x > ~/kept"}',
            }
        ],
    },
    {"calls": [{"id": "call_b", "name": "read", "args": '{"path": "out.txt"}'}]},
    {"text": "It says hi."},
]


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
async def place(request, tmp_path):
    """Provider, folders inside, and where runtimes go: a folder of the test, except in isolation."""
    runtime_dir = {"runtime_dir": str(tmp_path / "run")}
    if getattr(request, "param", "bubblewrap") == "local":
        provider = LocalProvider(runtime_dir)
        yield provider, str(tmp_path / "app"), str(tmp_path / "session"), {"roots": [str(tmp_path / "rt")]}
    else:
        provider = BubblewrapProvider(runtime_dir)
        yield provider, "/app", "/tmp/inspan-sessions/1", {}
    await provider.aclose()


@pytest.fixture
def cache():
    """The user's own cache, so that the registries are asked once and not for every test run."""
    return RuntimeCache(default_cache_dir(os.environ), client_env=package_client_env(os.environ))


class Episode:
    """One sandbox with the plugin's hooks driven by hand, in the order of a session."""

    def __init__(self, sandbox, workdir, session_dir, installer):
        self.sandbox = sandbox
        self.common = {
            "sandbox": sandbox,
            "session_dir": session_dir,
            "workdir": workdir,
            "installer": installer,
            "options": {"max_retries": 0},
        }
        self.session = SandboxSession(
            sandbox=sandbox, session_dir=session_dir, workdir=workdir, owns_sandbox=False, harness="pi"
        )
        self.runtime = {}

    async def seed(self):
        self.runtime = await inspan_pi.inspan_install(SessionContext(**self.common))

    async def run(self, request, base_url, *, timeout=60.0):
        async def stage():
            context = RunContext(
                **self.common,
                request=request,
                runtime=self.runtime,
                model_base_url=base_url,
                model_name="org/policy",
                model_key=KEY,
                run_timeout_s=timeout,
            )
            return await inspan_pi.inspan_stage(context)

        async def collect():
            context = ArtifactContext(**self.common)
            await inspan_pi.inspan_collect(context)
            return context.artifacts

        artifacts = await self.session.execute(
            stage_activation=stage, collect=collect, timeout=timeout, close_timeout=30
        )
        receipt = self.session.receipt
        assert receipt is not None and receipt.cleanup_confirmed
        return inspan_pi.inspan_parse(
            ParseInput(
                artifacts=artifacts,
                request=request,
                return_code=receipt.return_code,
                timed_out=receipt.timed_out,
                interrupted=False,
                model_name="org/policy",
                sandbox_id=self.sandbox.sandbox_id,
            )
        )


@pytest.fixture
async def episode(place, cache, model_server):
    """A function that makes an episode with a model server for a script."""
    provider, workdir, session_dir, where = place
    made = []

    async def make(script):
        server = model_server(script)
        reach = f"http://127.0.0.1:{server.server_port}"
        spec = SandboxSpec(workdir=workdir, ttl_s=600.0, reach=(reach,))
        sandbox = await provider.create(spec, key=f"pi-{len(made)}")
        made.append(sandbox)
        episode = Episode(
            sandbox, workdir, session_dir, SandboxInstaller(sandbox, cache, workdir=workdir, **where)
        )
        await episode.seed()
        return episode, server

    yield make
    for sandbox in made:
        await sandbox.stop()


@everywhere
async def test_an_episode_with_two_tools(episode):
    one, server = await episode(SCRIPT)
    request = {
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
    parsed = await one.run(request, server.base_url)
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
    assert output[2]["arguments"] == SCRIPT[0]["calls"][0]["args"]
    assert output[3]["output"].strip() == one.common["workdir"]
    assert output[5]["output"] == "hi"
    assert output[6]["content"][0]["text"] == "It says hi."
    assert parsed.response["usage"] == {
        "input_tokens": 300,
        "input_tokens_details": {"cached_tokens": 120},
        "output_tokens": 60,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 360,
    }
    assert [gap.code for gap in parsed.observations.gaps] == []
    invocation, *tools = parsed.observations.records
    assert [ref.response_id for ref in invocation.model_calls] == ["chatcmpl-0", "chatcmpl-1", "chatcmpl-2"]
    assert [(tool.tool_call_id, tool.status) for tool in tools] == [
        ("call_a", "completed"),
        ("call_b", "completed"),
    ]
    assert all(tool.completed_at >= tool.started_at for tool in tools)
    check_requests(server)
    # The tools keep the task's HOME, and the harness leaves nothing there or in the task's folder.
    seen = await one.sandbox.exec(["sh", "-c", "ls -A ~; cat ~/kept; ls -A"], timeout_s=20)
    assert seen.stdout.decode().split() == ["kept", "x", "out.txt"]


def check_requests(server):
    """What Pi really sent."""
    assert [call["path"] for call in server.calls] == ["/ng-rollout/r1/v1/chat/completions"] * 3
    body = server.calls[0]["body"]
    assert server.calls[0]["headers"]["authorization"] == f"Bearer {KEY}"
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
    last = server.calls[2]["body"]["messages"]
    assert [m["role"] for m in last[-4:]] == ["assistant", "tool", "assistant", "tool"]
    assert last[-4]["reasoning_content"] == "Look first."


def text_of(message):
    content = message["content"]
    return content if isinstance(content, str) else content[0]["text"]


async def test_a_deadline_during_a_tool_keeps_the_work_and_stops_everything(episode):
    marker = "sleep 4711.5"
    script = [{"calls": [{"id": "call_a", "name": "bash", "args": json.dumps({"command": marker})}]}]
    one, server = await episode(script)
    parsed = await one.run({"input": "Wait."}, server.base_url, timeout=12.0)
    assert parsed.outcome is Outcome.INCOMPLETE
    assert parsed.response["metadata"] == {"stop_reason": "time_limit"}
    assert parsed.response["output"][0]["call_id"] == "call_a"
    calls = len(server.calls)
    found = await one.sandbox.exec(
        [
            "sh",
            "-c",
            "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -c '^.*sleep 4711[.]5' || true",
        ],
        timeout_s=20,
    )
    assert found.stdout.decode().strip() == "0"
    assert len(server.calls) == calls == 1


async def test_a_refused_key_is_a_422_with_the_servers_words(episode):
    one, server = await episode([{"status": 401, "body": {"error": {"message": "who are you"}}}])
    parsed = await one.run({"input": "Hi."}, server.base_url)
    assert parsed.outcome is Outcome.UNPROCESSABLE
    assert parsed.detail["model_status"] == 401
    assert parsed.detail["model_body"] == {"message": "who are you"}
    assert len(server.calls) == 1


async def test_the_key_is_in_no_file_once_it_is_read_and_in_no_environment(episode):
    look = (
        "env; for p in /proc/[0-9]*/environ /proc/[0-9]*/cmdline; do cat $p 2>/dev/null; done"
        " | tr '\\0' '\\n'; "
        'echo; stat -c \'%a %n\' "$PI_CODING_AGENT_DIR"/../*; ls "$PI_CODING_AGENT_DIR"'
    )
    script = [{"calls": [{"id": "c", "name": "bash", "args": json.dumps({"command": look})}]}, {"text": "ok"}]
    one, server = await episode(script)
    parsed = await one.run({"input": "telling-word"}, server.base_url)
    output = next(i["output"] for i in parsed.response["output"] if i["type"] == "function_call_output")
    assert KEY not in output
    assert "telling-word" not in output
    assert "600 /tmp/inspan-sessions/1/agent/../events.jsonl" in output
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
    kill = (
        "; ".join(f"pkill -f '{word}'" for word in words)
        + "; pkill '^nod[e]'; pkill '^p[i]'; echo survived; pkill -V"
    )
    script = [
        {"calls": [{"id": "c", "name": "bash", "args": json.dumps({"command": kill})}]},
        {"text": "Done."},
    ]
    one, server = await episode(script)
    parsed = await one.run({"input": "telling: pkill -f telling"}, server.base_url)
    assert (parsed.outcome, parsed.detail) == (Outcome.COMPLETED, None)
    output = parsed.response["output"][1]["output"]
    assert output.startswith("survived\n")
    assert "pkill from procps" in output


async def test_a_second_seed_finds_the_runtime_and_a_broken_one_is_repaired(episode, cache):
    one, server = await episode([{"text": "Hello."}])
    prefix = one.runtime["prefix"]
    before = await one.sandbox.exec(["stat", "-c", "%i", prefix], timeout_s=20)
    with anyio.fail_after(30):
        await one.seed()
    after = await one.sandbox.exec(["stat", "-c", "%i", prefix], timeout_s=20)
    assert before.stdout == after.stdout
    await one.sandbox.exec(["sh", "-c", f"echo > {prefix}/start.mjs"], timeout_s=20)
    await one.seed()
    parsed = await one.run({"input": "Hi."}, server.base_url)
    assert parsed.outcome is Outcome.COMPLETED


async def test_a_warm_cache_needs_no_package_client(place, cache, tmp_path, model_server):
    """With the archive there, a client environment that reaches nothing still installs."""
    provider, workdir, session_dir, where = place
    warm = tmp_path / "warm"
    sandbox = await provider.create(SandboxSpec(workdir=workdir, ttl_s=600.0), key="warm")
    try:
        first = SandboxInstaller(sandbox, cache, workdir=workdir, **where)
        key = inspan_pi.runtime.runtime_key(await first.target())
        await cache.archive(key, lambda folder: inspan_pi.runtime.build(folder, key))
        shutil.copytree(Path(cache.root) / "archives", warm / "archives")
        offline = RuntimeCache(warm, client_env={"PATH": "/nonexistent", "PIP_NO_INDEX": "1"})
        one = Episode(
            sandbox, workdir, session_dir, SandboxInstaller(sandbox, offline, workdir=workdir, **where)
        )
        await one.seed()
        assert one.runtime["pi"] == "1.6.0"
    finally:
        await sandbox.stop()
