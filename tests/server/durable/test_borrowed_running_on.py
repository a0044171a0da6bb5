"""A borrowed sandbox without a network: its harness keeps its model while its server is dead."""

from __future__ import annotations

import signal
import threading

import anyio
import httpx
import pytest

from inspan_core.sandbox import Mount, SandboxSpec
from inspan_runtime.providers.bubblewrap import BubblewrapProvider

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(120)]


def lose(http, world):
    """Ask for the run as a client whose connection breaks."""
    try:
        http.post(f"{world.url}/ng-rollout/waits/v1/responses", json={"input": "wait"}, timeout=60)
    except httpx.TransportError:
        return


async def borrowed(world):
    """The descriptor of a sandbox that somebody else made, and declared nothing for."""
    provider = BubblewrapProvider({"runtime_dir": str(world.folder / "run")})
    counts = Mount(source=str(world.folder / "counts"), target="/counts", read_only=False)
    made = await provider.create(SandboxSpec(workdir="/work", mounts=(counts,), ttl_s=300.0), key="theirs")
    return dict(made.descriptor)


async def listening(world, descriptor):
    """The ports at which anything listens inside."""
    provider = BubblewrapProvider({"runtime_dir": str(world.folder / "run")})
    sandbox = await provider.connect(descriptor)
    rows = (await sandbox.exec(["cat", "/proc/net/tcp"], timeout_s=20)).stdout.decode().splitlines()[1:]
    return {int(row.split()[1][-4:], 16) for row in rows if row.split()[3] == "0A"}


def test_a_harness_calls_its_model_while_no_server_lives(worlds, bodies, wait_for):
    world = worlds()
    descriptor = anyio.run(borrowed, world)
    connection = {"kind": "direct", "provider_config_ref": "box", "descriptor": descriptor}
    seed = {
        **bodies.seed("s", "waits"),
        "sandbox_access": {"connection": connection, "workdir": "/work"},
    }
    with httpx.Client(timeout=60) as http:
        seeded = http.post(f"{world.url}/v1/agent_sessions", json=seed)
        assert seeded.status_code == 200, seeded.text
        port = httpx.URL(world.model.url).port
        assert anyio.run(listening, world, descriptor) == {port}
        asking = threading.Thread(target=lose, args=(http, world))
        asking.start()
        wait_for(world.launches, "the launch")
        assert world.end(signal.SIGKILL) == -signal.SIGKILL
        asking.join(30)
        (world.folder / "counts" / "go").touch()
        wait_for(lambda: len(world.model.capture.calls("waits")) == 2, "the second call of the model")
        world.start()
        again = http.post(f"{world.url}/ng-rollout/waits/v1/responses", json={"input": "wait"})
        assert (again.status_code, "it is done" in again.text) == (200, True), again.text
        closed = http.post(f"{world.url}/v1/agent_sessions/close", json=bodies.close("s", "waits"))
        assert closed.status_code == 200, closed.text
    assert world.launches() == 1
    assert anyio.run(listening, world, descriptor) == set()
