"""Secrets that a harness, a tool or a model server repeats are in no answer and in no journal."""

import pytest

from inspan_core.errors import InspanError, InstallError, SandboxError
from inspan_core.harness import Artifacts
from inspan_core.wire import DirectHttpAccess, McpAccess, McpConnection
from inspan_runtime.redaction import redacted, secrets_of, without_secrets
from inspan_server.model.capture import Capture
from inspan_server.model.gateway import create_gateway
from inspan_server.model.script import parse_script
from inspan_server.serving import served

ACTIVATE = "/ng-rollout/r1/v1/responses"
KEY = 'sk-canary-"of\\these-tests'


@pytest.mark.anyio
async def test_a_key_that_is_repeated_to_us_is_not_passed_on(agent, bodies, tmp_path):
    repeated = {"error": {"status": 401, "body": {"error": {"message": f"wrong key: {KEY}"}}}}
    printed = {"tool_calls": [{"name": "shell", "arguments": {"command": f"printf %s '{KEY}'"}}]}
    script = parse_script({"*": [printed, repeated]})
    async with served(create_gateway(script, Capture()), graceful_timeout_s=1) as model:
        changes = {"model_server": {"base_url": model, "api_key": KEY}, "harness_options": {}}
        async with agent(state_dir=str(tmp_path / "state"), **changes) as server:
            await server.client.post("/v1/agent_sessions", json=bodies.seed())
            ran = await server.client.post(ACTIVATE, json={"input": "hi"})
            kept = b"".join(path.read_bytes() for path in (tmp_path / "state").iterdir())
            closed = await server.client.post("/v1/agent_sessions/close", json=bodies.close())
    assert (ran.status_code, "wrong key: [redacted]" in ran.text) == (422, True), ran.text
    assert "printf %s '[redacted]'" in closed.text
    for text in (ran.text, closed.text, kept.decode("latin-1")):
        assert "canary" not in text


def test_the_secrets_of_an_episode_are_its_key_and_what_its_grants_carry():
    grants = (
        DirectHttpAccess(
            name="a",
            base_url="http://h",
            headers={"x": "in-a-header"},
            cookies={"c": "in-a-cookie", "d": "1"},
        ),
        McpAccess(name="b", connection=McpConnection(url="http://h", headers={"x": "of-a-server"})),
    )
    assert secrets_of(grants, "the-key-itself", "of-a-changed-jar") == (
        "the-key-itself",
        "in-a-header",
        "in-a-cookie",
        "of-a-server",
        "of-a-changed-jar",
    )
    assert secrets_of(grants, "none")[0] == "in-a-header"


def test_the_longer_of_two_secrets_goes_first():
    artifacts = Artifacts(files={"log": b"12345678 and 1234567890"})
    cleaned = redacted(artifacts, ["12345678", "1234567890"])
    assert cleaned.files == {"log": b"[redacted] and [redacted]"}


@pytest.mark.parametrize("kind", [InstallError, SandboxError, RuntimeError, KeyError])
def test_an_error_of_a_plugin_tells_no_secret(kind):
    with pytest.raises(Exception) as raised, without_secrets(["the-key-itself"]):
        raise kind("curl -H the-key-itself: 401")
    assert isinstance(raised.value, kind) == issubclass(kind, InspanError)
    assert "the-key-itself" not in str(raised.value) and "curl -H [redacted]: 401" in str(raised.value)
    with pytest.raises(kind) as raised, without_secrets(["the-key-itself"]):
        raise kind("nothing secret")
    assert "nothing secret" in str(raised.value)
