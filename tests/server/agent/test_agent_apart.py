"""Many sessions of one server at a time: nothing of one reaches another."""

import anyio
import httpx
import pytest

import inspan_echo
from inspan_core.hookspecs import hookimpl
from inspan_core.plugins import load_plugins
from inspan_core.sandbox import SandboxSpec
from inspan_runtime.providers.local import LocalProvider
from inspan_server.agent.app import create_app
from inspan_server.agent.config_reading import parse_config
from inspan_server.model.capture import Capture
from inspan_server.model.gateway import create_gateway
from inspan_server.model.script import parse_script
from inspan_server.serving import served

SESSIONS = 32


class LocalOnly:
    @hookimpl
    def inspan_sandbox_providers(self):
        return {"local": LocalProvider}


def key_of(capture_key):
    return f"key-of-{capture_key}"


def replies(number):
    """Each is asked for other things, and the answer tells whose it is."""
    look = {"name": "shell", "arguments": {"command": "pwd; cat mark; env | grep -c key-of"}}
    return [{"tool_calls": [look]}, {"content": f"answer {number}"}]


@pytest.mark.anyio
async def test_workdirs_keys_and_models_of_many_sessions_never_mix(tmp_path, bodies):
    """The gateway refuses a key that is not the rollout's own, and counts it."""
    rollouts = [f"r{number}" for number in range(SESSIONS)]
    capture, script = Capture(), parse_script({name: replies(name) for name in rollouts})
    gateway = create_gateway(script, capture, keys={name: key_of(name) for name in rollouts})
    provider = LocalProvider({"runtime_dir": str(tmp_path / "run")})
    async with served(gateway, graceful_timeout_s=1) as model:
        config = {
            "harness": "echo",
            "model_server": {"base_url": model, "name": "policy"},
            "sandbox_providers": {"box": {"kind": "local", "runtime_dir": str(tmp_path / "run")}},
            "runtime_cache_dir": str(tmp_path / "cache"),
            "concurrency": 8,
        }
        plugins = load_plugins([LocalOnly(), inspan_echo], entry_points=False)
        app = create_app(parse_config(config), plugins, model_key=key_of)
        found = {}

        async def session(name):
            workdir = tmp_path / f"work-{name}"
            sandbox = await provider.create(SandboxSpec(workdir=str(workdir), ttl_s=300.0), key=name)
            (workdir / "mark").write_text(f"mark of {name}\n")
            connection = {"kind": "direct", "provider_config_ref": "box"}
            connection["descriptor"] = dict(sandbox.descriptor)
            access = {"connection": connection, "workdir": str(workdir)}
            # A client of its own: its cookies are the session's.
            async with httpx.AsyncClient(base_url=url, timeout=120) as client:
                body = bodies.seed(f"s-{name}", name, sandbox_access=access)
                seeded = await client.post("/v1/agent_sessions", json=body)
                assert seeded.status_code == 200, seeded.text
                ran = await client.post(f"/ng-rollout/{name}/v1/responses", json={"input": f"I am {name}"})
                closed = await client.post("/v1/agent_sessions/close", json=bodies.close(f"s-{name}", name))
            found[name] = (ran.json(), closed.json())
            await sandbox.stop()

        async with served(app, graceful_timeout_s=2) as url:
            with anyio.fail_after(100):
                async with anyio.create_task_group() as tasks:
                    for name in rollouts:
                        tasks.start_soon(session, name)
    await provider.aclose()
    assert (capture.unauthorized_calls, capture.stray_calls) == (0, 0)
    for name in rollouts:
        response, closed = found[name]
        output, message = response["output"][-2:]
        assert output["output"].split("\n")[:3] == [str(tmp_path / f"work-{name}"), f"mark of {name}", "0"]
        assert message["content"][0]["text"] == f"answer {name}"
        asked = [call.request["messages"][-1]["content"] for call in capture.calls(name)[:1]]
        assert asked == [f"I am {name}"]
        assert [call.status for call in capture.calls(name)] == [200, 200]
        ids = [call.response_id for call in capture.calls(name)]
        (invocation,) = [
            record
            for record in closed["agent_observations"]["records"]
            if record["kind"] == "agent_invocation"
        ]
        assert [reference["response_id"] for reference in invocation["model_calls"]] == ids
