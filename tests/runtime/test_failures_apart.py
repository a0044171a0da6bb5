"""A failure in output, process metadata or capture keeps the receipt, the release and the first error."""

from __future__ import annotations

import json
import sys
from contextlib import asynccontextmanager
from types import SimpleNamespace

import anyio
import pytest

from inspan_core import HarnessSpec, ParsedActivation, SandboxCommand, SandboxSpec, hookimpl, load_plugins
from inspan_core.errors import ArtifactError
from inspan_core.findings import Cookie, Outcome
from inspan_core.observations import AgentObservationBundle, ObservationGap
from inspan_core.session import Settings
from inspan_core.wire import (
    CloseRequest,
    DirectSandboxConnection,
    EpisodeId,
    SandboxAccess,
    SeedRequest,
    TaskId,
)
from inspan_runtime.install_cache import RuntimeCache
from inspan_runtime.providers.builtin import inspan_sandbox_providers
from inspan_runtime.service import AgentService, ServiceSettings

pytestmark = pytest.mark.anyio
EPISODE = EpisodeId(rollout_id="r")


@pytest.fixture
def anyio_backend():
    return "asyncio"


class ScriptHarness:
    """A harness plugin whose program is the request's input, run by a shell."""

    def __init__(self, *, parse_error=None, collect_error=None):
        self.parse_error = parse_error
        self.collect_error = collect_error
        self.parsed = 0

    @hookimpl
    def inspan_harness(self):
        return HarnessSpec(
            name="script",
            version="1",
            model_api="chat_completions",
            level=2,
            request_fields={"input": "applied", "metadata": "applied"},
        )

    @hookimpl
    async def inspan_install(self, context):
        return {"python": (await context.installer.target()).python}

    @hookimpl
    async def inspan_stage(self, context):
        argv = ["/bin/sh", "-c", context.request["input"]]
        return SandboxCommand(
            argv=argv, python=context.runtime["python"] or sys.executable, env={"D": context.session_dir}
        )

    @hookimpl
    async def inspan_collect(self, context):
        await context.download("output.json", limit_bytes=1000)
        if self.collect_error is not None:
            raise self.collect_error

    @hookimpl
    def inspan_parse(self, run):
        self.parsed += 1
        if self.parse_error is not None:
            raise self.parse_error
        gaps = [
            ObservationGap(code=problem.code, detail=problem.detail) for problem in run.artifacts.problems
        ]
        text = run.artifacts.files.get("output.json", b"null").decode()
        failed = run.return_code != 0
        return ParsedActivation(
            outcome=Outcome.FAILED if failed else Outcome.COMPLETED,
            response={"id": "r", "object": "response", "output": [], "text": text},
            observations=AgentObservationBundle(source="script", gaps=tuple(gaps)),
            detail=f"the harness exited with {run.return_code}" if failed else None,
        )


@asynccontextmanager
async def open_session(tmp_path, harness):
    provider = inspan_sandbox_providers()["local"]({})
    sandbox = await provider.create(SandboxSpec(workdir=str(tmp_path / "work")), key=tmp_path.name)
    plugins = load_plugins(extra=[harness], entry_points=False)
    service = AgentService(
        plugins.harness("script"),
        {"box": lambda: inspan_sandbox_providers()["local"]({})},
        ServiceSettings(
            model_base_url="http://127.0.0.1:9",
            model_name="none",
            session_dir_root=str(tmp_path / "sessions"),
            session=Settings(close_step_timeout_s=5.0),
        ),
        cache=RuntimeCache(tmp_path / "cache", client_env={}),
    )
    seed = SeedRequest(
        agent_session_id="s",
        episode_id=EPISODE,
        task_id=TaskId(taskset="t", task_id="x"),
        sandbox_access=SandboxAccess(
            connection=DirectSandboxConnection(
                kind="direct", provider_config_ref="box", descriptor=sandbox.descriptor
            ),
            workdir=str(tmp_path / "work"),
        ),
    )
    try:
        async with service:
            with anyio.fail_after(30):
                assert (await service.seed(seed, "d", Cookie.ABSENT)).status == 200
                yield SimpleNamespace(
                    run=lambda script: service.activate("r", False, {"input": script}, "a", "s", Cookie.SAME),
                    close=lambda: service.close(
                        CloseRequest(agent_session_id="s", episode_id=EPISODE), Cookie.SAME
                    ),
                    evidence=lambda: service.evidence("s"),
                    sandbox=sandbox,
                )
    finally:
        await sandbox.stop()
        await provider.aclose()


def codes(closed):
    return [gap["code"] for gap in closed.body["agent_observations"]["gaps"]]


async def test_a_whole_session(tmp_path):
    async with open_session(tmp_path, ScriptHarness()) as session:
        answer = await session.run('echo \'"fine"\' > "$D/output.json"')
        assert answer.status == 200 and json.loads(answer.body["text"]) == "fine"
        closed = await session.close()
        assert closed.status == 200 and codes(closed) == []
        assert session.evidence().gradable
        assert (await session.close()) == closed


@pytest.mark.parametrize(
    "output",
    ["ln -s /etc/passwd $D/output.json", "mkfifo $D/output.json", "mkdir $D/output.json",
     "truncate -s 1T $D/output.json", "true"],
    ids=["symlink", "fifo", "folder", "sparse", "missing"],
)  # fmt: skip
async def test_output_that_cannot_be_read_is_a_gap(tmp_path, output):
    async with open_session(tmp_path, ScriptHarness()) as session:
        answer = await session.run(output)
        assert answer.status == 200 and answer.body["text"] == "null"
        closed = await session.close()
        assert closed.status == 200 and len(codes(closed)) == 1 and codes(closed)[0].startswith("artifact_")
        assert session.evidence().receipt.cleanup_confirmed


async def test_process_metadata_that_is_garbage_costs_nothing(tmp_path):
    async with open_session(tmp_path, ScriptHarness()) as session:
        # Whatever lies there when the supervisor writes its report: a folder cannot be replaced by a file.
        answer = await session.run('mkdir -p "$D/processes.json/x"; echo 1 > "$D/output.json"')
        assert answer.status == 200
        assert session.evidence().receipt.cleanup_confirmed
        assert (await session.close()).status == 200


@pytest.mark.parametrize(
    ("harness", "gap"),
    [
        (ScriptHarness(collect_error=ArtifactError("nothing to copy")), "observation_capture_failed"),
        (ScriptHarness(collect_error=ValueError("a bug")), "observation_capture_failed"),
        (ScriptHarness(parse_error=ValueError("a bug in the parser")), "parse_failed"),
    ],
    ids=["capture", "capture-bug", "parser-bug"],
)
async def test_a_capture_error_keeps_the_receipt_and_the_release(tmp_path, harness, gap):
    async with open_session(tmp_path, harness) as session:
        answer = await session.run("true")
        assert answer.status == 503
        assert session.evidence().receipt.cleanup_confirmed and not session.evidence().gradable
        closed = await session.close()
        assert closed.status == 200 and gap in codes(closed)


@pytest.mark.parametrize("harm", ["mkdir -p $D/processes.json/x", "mkfifo $D/output.json", "rm -rf $D"])
async def test_what_goes_wrong_afterwards_does_not_replace_the_first_execution_error(tmp_path, harm):
    async with open_session(tmp_path, ScriptHarness()) as session:
        answer = await session.run(f"{harm}; exit 7")
        assert answer.status == 503 and answer.body["detail"] == "the harness exited with 7"
        assert session.evidence().receipt.cleanup_confirmed
        closed = await session.close()
        assert closed.status == 200 and codes(closed)


async def test_an_execution_error_is_told_and_replayed(tmp_path):
    async with open_session(tmp_path, ScriptHarness()) as session:
        answer = await session.run("exit 7")
        assert answer.status == 503 and answer.body["detail"] == "the harness exited with 7"
        assert await session.run("exit 7") == answer
        assert (await session.close()).status == 200
