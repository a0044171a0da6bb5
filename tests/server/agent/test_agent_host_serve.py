"""Host calls of a real server process that is told to stop, or killed."""

import contextlib
import os
import signal
import subprocess
import sys

import anyio
import httpx
import pytest
import yaml

from inspan_runtime.testing.processes import lives
from inspan_server.model.capture import Capture
from inspan_server.model.gateway import create_gateway
from inspan_server.model.script import parse_script
from inspan_server.serving import served

pytestmark = pytest.mark.anyio
COMMAND = "import sys; from inspan_server.cli.main import main; sys.exit(main())"


@pytest.fixture
def model(tmp_path):
    """A model that has the harness say that it runs, and go on for ever."""
    command = (
        f"echo $$ > {tmp_path}/launched.part; mv {tmp_path}/launched.part {tmp_path}/launched; sleep 300"
    )
    calls = [{"name": "bash", "arguments": {"command": command}}]
    return served(
        create_gateway(parse_script({"*": [{"tool_calls": calls}]}), Capture()), graceful_timeout_s=1
    )


@contextlib.contextmanager
def process_of(tmp_path, model_url):
    config = {
        "harness": "echo",
        "port": 0,
        "model_server": {"base_url": model_url},
        "host_execution": True,
        "state_dir": str(tmp_path / "state"),
        "runtime_cache_dir": str(tmp_path / "cache"),
        "session_close_timeout_seconds": 10,
        "drain_timeout_seconds": 1,
    }
    path = tmp_path / "agent.yaml"
    path.write_text(yaml.safe_dump(config))
    arguments = [sys.executable, "-c", COMMAND, "serve", "--config", str(path)]
    with (tmp_path / "log").open("ab") as log:
        process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=log, text=True)
    with process:
        try:
            yield process
        finally:
            process.kill()


@contextlib.asynccontextmanager
async def server(tmp_path, model_url):
    with process_of(tmp_path, model_url) as process:
        line = await anyio.to_thread.run_sync(process.stdout.readline)
        assert line.startswith("inspan serve: http"), (tmp_path / "log").read_text()
        async with httpx.AsyncClient(base_url=line.split()[2], timeout=60) as client:
            yield process, client


async def called(client, answers):
    try:
        answers.append((await client.post("/ng-rollout/r1/v1/responses", json={"input": "x"})).status_code)
    except httpx.TransportError:
        answers.append(None)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_the_harness_of_a_server_that_ends_is_stopped_by_it_or_by_the_next(
    model, tmp_path, until, number
):
    folder, answers = tmp_path / "state" / "host", []
    async with model as url:
        async with server(tmp_path, url) as (process, client), anyio.create_task_group() as tasks:
            tasks.start_soon(called, client, answers)
            await until((tmp_path / "launched").exists, "the launch")
            shell = int((tmp_path / "launched").read_text())
            process.send_signal(number)
            code = await anyio.to_thread.run_sync(process.wait, 40)
        assert answers[0] in (None, 503), (tmp_path / "log").read_text()
        if number == signal.SIGTERM:
            assert code == 0, (tmp_path / "log").read_text()
        else:
            assert len(os.listdir(folder)) == 1
            async with server(tmp_path, url) as (_, client):
                assert (await client.get("/healthz")).status_code == 200
        assert not lives(shell)
        assert os.listdir(folder) == []


async def test_what_a_killed_server_had_only_begun_to_make_is_removed_by_the_next(model, tmp_path):
    """A folder under its first name, with a lock that nobody holds."""
    begun = tmp_path / "state" / "host" / ".new-0123456789abcdef"
    begun.mkdir(parents=True, mode=0o700)
    begun.parent.chmod(0o700)
    begun.parent.parent.chmod(0o700)
    (begun / "lock").touch(mode=0o600)
    (begun / "home").mkdir()
    async with model as url, server(tmp_path, url) as (_, client):
        assert (await client.get("/healthz")).status_code == 200
        assert os.listdir(begun.parent) == []
