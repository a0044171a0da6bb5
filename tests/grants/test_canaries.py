"""The server's secrets stay out of the sandbox, and an episode's own out of all that lasts."""

import json
import os
import re
import subprocess
import sys

import anyio
import anyio.to_thread
import httpx
import pytest
import yaml
from starlette.responses import JSONResponse

from inspan_core.sandbox import SandboxSpec
from inspan_runtime.install_cache import RuntimeCache, default_cache_dir
from inspan_runtime.install_shared import create_with_runtimes
from inspan_runtime.providers.bubblewrap import BubblewrapProvider
from inspan_server.model.capture import Capture
from inspan_server.model.gateway import create_gateway
from inspan_server.model.script import parse_script
from inspan_server.serving import served

pytestmark = [pytest.mark.anyio, pytest.mark.sandbox, pytest.mark.registry, pytest.mark.timeout(200)]

COMMAND = [
    sys.executable,
    "-c",
    "import sys; from inspan_server.cli.main import main; sys.exit(main())",
    "serve",
]
OF_THE_SERVER = {
    name: f"canary-of-the-server-{number}"
    for number, name in enumerate(
        ("OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN", "DATABASE_URL", "HF_TOKEN")
    )
}
KEY = "canary-of-the-episode-key"
OF_THE_EPISODE = [KEY, "canary-of-the-mcp-header", "canary-of-the-http-header", "canary-of-the-cookie"]
ANY = re.compile(rb"canary[-]of")
LOOK = (
    "env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n'; "
    "echo files:; grep -rlE 'canary[-]of' /tmp /run /app /dev/shm 2>/dev/null; echo end"
)
FIND = "grep -rlE 'canary[-]of' /tmp /run /app /dev/shm /var/tmp /root/.codex 2>/dev/null; echo end"


def replies():
    usage = {"prompt_tokens": 10, "completion_tokens": 2}
    look = {"tool_calls": [{"name": "shell", "arguments": {"command": LOOK}}], "usage": usage}
    given = {"tool_calls": [{"name": "give", "arguments": {}}], "usage": usage}
    book = {"tool_calls": [{"name": "book", "arguments": {"room": "12"}}], "usage": usage}
    return [look, given, book, {"content": "Done.", "usage": usage}]


async def test_no_secret_leaves_its_place(tmp_path, tool_server, anyio_backend):
    provider = BubblewrapProvider({"runtime_dir": str(tmp_path / "run")})
    gateway = create_gateway(parse_script({"*": replies()}), Capture(), keys={"r1": KEY})
    async with (
        served(gateway, graceful_timeout_s=0.2) as model,
        tool_server(answers={"book": booked}) as (tools, url),
    ):
        spec = SandboxSpec(workdir="/app", ttl_s=600.0, reach=(model, url))
        cache = RuntimeCache(default_cache_dir(os.environ), client_env={})
        sandbox = await create_with_runtimes(provider, spec, cache.shared, key="borrowed", timeout_s=60)
        try:
            with serving(tmp_path, model) as server:
                texts = await one_session(server, sandbox, url)
                left = (await sandbox.exec(["sh", "-c", FIND], timeout_s=60)).stdout
                await forgotten(tmp_path / "state")
                server.process.terminate()
                log, _ = await anyio.to_thread.run_sync(server.process.communicate)
                # Nothing is owed any more, and not even free pages of the store of secrets tell of it.
                for path in (tmp_path / "state").iterdir():
                    assert ANY.search(path.read_bytes()) is None, path
        finally:
            await sandbox.stop()
            await provider.aclose()
    assert tools.headers["x-episode"] == "canary-of-the-mcp-header"
    assert tools.called[0][2]["x-t"] == "canary-of-the-http-header"
    assert tools.called[0][2]["cookie"] == "c=canary-of-the-cookie"
    looked = next(text for text in texts["ran"]["output"] if text["type"] == "function_call_output")["output"]
    assert "PATH=" in looked and "files:\nend" in looked
    assert left == b"end\n"
    closed = texts["closed"]
    assert closed.pop("resources_cookies") == {"c": "canary-of-a-new-cookie"}
    for text in (log.encode(), json.dumps(texts).encode(), looked.encode()):
        assert ANY.search(text) is None, text[-3000:]


def booked(body, request):
    answer = JSONResponse({"room": body["room"]})
    answer.set_cookie("c", "canary-of-a-new-cookie")
    return answer


async def one_session(server, sandbox, url):
    episode = {"rollout_id": "r1", "attempt": 0}
    mcp = {"url": f"{url}/mcp", "headers": {"x-episode": "canary-of-the-mcp-header"}}
    grants = [
        {"kind": "mcp", "name": "ng", "connection": {"transport": "streamable_http", **mcp}},
        {
            "kind": "direct_http",
            "name": "web",
            "base_url": f"{url}/tools",
            "headers": {"x-t": "canary-of-the-http-header"},
            "cookies": {"c": "canary-of-the-cookie"},
        },
    ]
    connection = {"kind": "direct", "provider_config_ref": "box", "descriptor": dict(sandbox.descriptor)}
    body = {"agent_session_id": "s1", "episode_id": episode, "task_id": {"taskset": "t", "task_id": "x"}}
    body |= {"tool_accesses": grants, "sandbox_access": {"connection": connection, "workdir": "/app"}}
    book = {"type": "function", "name": "book", "parameters": {"type": "object"}}
    async with httpx.AsyncClient(base_url=server.url, timeout=120) as client:
        seeded = await client.post("/v1/agent_sessions", json=body)
        assert seeded.status_code == 200, seeded.text
        asked = {"input": "Go.", "tools": [book]}
        ran = await client.post("/ng-rollout/r1/v1/responses", json=asked)
        assert ran.status_code == 200, ran.text
        kept = {path.name: path.read_bytes() for path in server.state.iterdir() if path.is_file()}
        ended = {"agent_session_id": "s1", "episode_id": episode}
        closed = await client.post("/v1/agent_sessions/close", json=ended)
        assert closed.status_code == 200, closed.text
    after = {path.name: path.read_bytes() for path in server.state.iterdir() if path.is_file()}
    for name, data in [*kept.items(), *after.items()]:
        assert name.startswith("secrets") or ANY.search(data) is None, name
    assert any(ANY.search(data) for name, data in kept.items() if name.startswith("secrets"))
    return {"seeded": seeded.json(), "ran": ran.json(), "closed": closed.json()}


async def forgotten(state):
    """The retry window's end: no file of the server's holds a secret of the session any more."""
    with anyio.fail_after(60):
        while any(ANY.search(path.read_bytes()) for path in state.glob("secrets*")):
            await anyio.sleep(0.1)


class serving:
    """``inspan serve`` as a process of its own, with secrets in its environment."""

    def __init__(self, folder, model):
        self.state = folder / "state"
        config = {
            "harness": "codex",
            "port": 0,
            "model_server": {"base_url": model, "name": "policy", "api_key": KEY},
            "sandbox_providers": {"box": {"kind": "bubblewrap", "runtime_dir": str(folder / "run")}},
            "runtime_cache_dir": str(default_cache_dir(os.environ)),
            "state_dir": str(self.state),
            "session_close_retry_window_seconds": 1,
        }
        (folder / "agent.yaml").write_text(yaml.safe_dump(config))
        self.process = subprocess.Popen(
            [*COMMAND, "--config", str(folder / "agent.yaml")],
            env={**os.environ, **OF_THE_SERVER},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def __enter__(self):
        line = self.process.stdout.readline()
        assert line.startswith("inspan serve: http://127.0.0.1:"), line
        self.url = line.split()[2]
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate(timeout=20)
