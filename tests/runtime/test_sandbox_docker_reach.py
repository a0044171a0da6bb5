"""A session in somebody else's container without a network: it reaches its model, and nothing else."""

import os
import shutil

import httpx
import pytest

import inspan_echo
from inspan_core.hookspecs import hookimpl
from inspan_core.plugins import load_plugins
from inspan_runtime.providers.docker.provider import DockerProvider
from inspan_runtime.testing.sandbox_check_support import out
from inspan_server.agent.app import create_app
from inspan_server.agent.config_reading import parse_config
from inspan_server.model.capture import Capture
from inspan_server.model.gateway import create_gateway
from inspan_server.model.script import parse_script
from inspan_server.serving import served

pytestmark = [pytest.mark.anyio, pytest.mark.docker, pytest.mark.timeout(240)]
PYTHON = "/usr/bin/python3"
REPLIES = [{"tool_calls": [{"name": "shell", "arguments": {"command": "echo ran"}}]}, {"content": "done"}]


@pytest.fixture
def anyio_backend():
    return "asyncio"


class Docker:
    @hookimpl
    def inspan_sandbox_providers(self):
        return {"docker": DockerProvider}


@pytest.fixture
def container(start_theirs):
    """One of busybox that shows the host's own Python."""
    if shutil.which(PYTHON) is None:
        pytest.skip(f"this host has no {PYTHON} to show inside")
    folders = ["/usr", *(one for one in ("/lib", "/lib64") if os.path.isdir(one))]
    mounts = [f"--volume={os.path.realpath(one)}:{one}:ro" for one in folders]
    start_theirs("theirs", "--workdir=/root", *mounts)
    return "theirs"


async def ports(sandbox):
    """Where anything listens inside."""
    rows = (await out(sandbox, "cat /proc/net/tcp")).decode().splitlines()[1:]
    return {int(row.split()[1][-4:], 16) for row in rows if row.split()[3] == "0A"}


async def test_its_session_reaches_the_model(container, any_engine, tmp_path):
    options = {"engine": any_engine.name, "engine_options": list(any_engine.options)}
    options |= {"runtime_dir": str(tmp_path / "run")}
    sandbox = await DockerProvider(options).connect({"sandbox_id": container})
    ended = {"agent_session_id": "s1", "episode_id": {"rollout_id": "r1", "attempt": 0}}
    connection = {"kind": "direct", "provider_config_ref": "box", "descriptor": {"sandbox_id": container}}
    access = {"connection": connection, "workdir": "/root"}
    seed = {**ended, "task_id": {"taskset": "t", "task_id": "x"}, "sandbox_access": access}
    gateway = create_gateway(parse_script({"*": REPLIES}), Capture())
    async with served(gateway, graceful_timeout_s=0.2) as model:
        config = {
            "harness": "echo",
            "model_server": {"base_url": model, "name": "policy"},
            "sandbox_providers": {"box": {"kind": "docker", **options}},
            "runtime_cache_dir": str(tmp_path / "cache"),
        }
        app = create_app(parse_config(config), load_plugins([Docker(), inspan_echo], entry_points=False))
        async with served(app, graceful_timeout_s=1) as url, httpx.AsyncClient(timeout=90) as client:
            seeded = await client.post(f"{url}/v1/agent_sessions", json=seed)
            assert seeded.status_code == 200, seeded.text
            assert await ports(sandbox) == {httpx.URL(model).port}
            ran = await client.post(f"{url}/ng-rollout/r1/v1/responses", json={"input": "go"})
            assert (ran.status_code, "done" in ran.text) == (200, True), ran.text
            closed = await client.post(f"{url}/v1/agent_sessions/close", json=ended)
            assert closed.status_code == 200, closed.text
            assert await ports(sandbox) == set()
    assert await sandbox.is_alive()
