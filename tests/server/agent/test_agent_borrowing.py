"""The rules of a sandbox that is supplied: what is refused, what is closed, and what is left alone."""

import pytest

from inspan_core.sandbox import SandboxSpec
from inspan_runtime.providers.local import LocalProvider

pytestmark = pytest.mark.anyio
SEED = "/v1/agent_sessions"
GOOD = {"connection": {"kind": "direct", "provider_config_ref": "box", "descriptor": {}}, "workdir": "/app"}


def access(**changes):
    """A sandbox access with changes at its top and, by the name `connection`, in its connection."""
    connection = {**GOOD["connection"], **changes.pop("connection", {})}
    made = {**GOOD, "connection": connection, **changes}
    return {name: value for name, value in made.items() if value is not None}


@pytest.mark.parametrize(
    ("given", "place"),
    [
        (access(connection={"kind": "container_network"}), "kind"),
        (access(connection={"kind": "DIRECT"}), "kind"),
        (access(workdir="app"), "workdir"),
        (access(workdir=""), "workdir"),
        (access(workdir=None), "workdir"),
        (access(connection={"descriptor": "box-1"}), "descriptor"),
        (access(connection={"surprise": 1}), "surprise"),
    ],
)
async def test_access_that_does_not_fit_is_refused_by_its_place(agent, bodies, given, place):
    async with agent() as server:
        answer = await server.client.post(SEED, json=bodies.seed(sandbox_access=given))
    assert answer.status_code == 422, answer.text
    faults = answer.json()["detail"]
    assert any(place in map(str, fault["loc"]) for fault in faults), faults


@pytest.mark.parametrize(
    "descriptor",
    [
        {},
        {"provider": "bubblewrap", "sandbox_id": "inspan-0", "state": "/run/x/inspan-0", "workdir": "/app"},
        {"provider": "local", "sandbox_id": "inspan-0", "state": "/elsewhere/inspan-0", "workdir": "/app"},
        {"sandbox_id": "container"},
    ],
)
async def test_descriptor_of_another_provider_is_refused(agent, bodies, descriptor):
    async with agent() as server:
        body = bodies.seed(sandbox_access=access(connection={"descriptor": descriptor}))
        answer = await server.client.post(SEED, json=body)
    assert answer.status_code == 422 and "descriptor" in answer.json()["detail"], answer.text


async def test_sandbox_that_is_gone_is_told_and_its_client_closed(agent, bodies, tmp_path, monkeypatch):
    closed = []
    aclose = LocalProvider.aclose

    async def counted(self):
        closed.append(self)
        await aclose(self)

    monkeypatch.setattr(LocalProvider, "aclose", counted)
    async with agent() as server:
        sandbox = await server.provider.create(SandboxSpec(workdir=str(tmp_path / "work")), key="gone")
        given = access(connection={"descriptor": dict(sandbox.descriptor)}, workdir=str(tmp_path / "work"))
        await sandbox.stop()
        before = len(closed)
        answer = await server.client.post(SEED, json=bodies.seed(sandbox_access=given))
        assert answer.status_code == 503 and "no longer exists" in answer.json()["detail"], answer.text
        assert len(closed) == before + 1, "the provider's client of a failed connect is open"
