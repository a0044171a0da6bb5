"""Sandboxes that a provider completed after the server that ordered them had died, in real sandboxes."""

from __future__ import annotations

import anyio
import httpx
import pytest

from inspan_core.errors import SandboxTransportError
from inspan_core.sandbox import SandboxSpec
from inspan_runtime.orphans import PAUSES_S, PROCESS_LABEL, SERVER_LABEL, Ownership, reap_orphans
from inspan_runtime.providers.local import LocalProvider

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]
OWN = Ownership(server="ours", process="living")


@pytest.fixture
def anyio_backend():
    return "asyncio"


async def make(provider, folder, name, server, process):
    labels = {SERVER_LABEL: server, PROCESS_LABEL: process}
    sandbox = await provider.create(SandboxSpec(workdir=str(folder / "work"), labels=labels), key=name)
    await sandbox.disconnect()
    return sandbox.descriptor["sandbox_id"]


@pytest.fixture
async def boxes(tmp_path):
    """Makes sandboxes with the labels of some server's process; ``alive()`` names those that are up."""
    provider = LocalProvider({"runtime_dir": str(tmp_path / "run")})

    class Boxes:
        def __init__(self):
            self.ids = {}

        async def make(self, name, server, process):
            self.ids[await make(provider, tmp_path, name, server, process)] = name

        async def alive(self):
            return {self.ids[each["sandbox_id"]] for each in await provider.list({})}

        def knows(self, sandbox_id):
            return self.ids[sandbox_id] == "known"

    yield Boxes()
    for descriptor in await provider.list({}):
        await (await provider.connect(descriptor)).stop()
    await provider.aclose()


class Unlisted(LocalProvider):
    """The provider does not answer at the first look."""

    async def list(self, labels):
        raise SandboxTransportError("the provider is down")


async def test_what_a_dead_process_ordered_and_nobody_knows_is_stopped_also_when_it_comes_late(
    boxes, tmp_path
):
    options, looks, done = {"runtime_dir": str(tmp_path / "run")}, [], []
    await boxes.make("known", "ours", "dead")
    await boxes.make("unknown", "ours", "dead")
    await boxes.make("being made", "ours", "living")
    await boxes.make("of others", "theirs", "dead")

    async def sleep(pause_s):
        looks.append((pause_s, done.copy(), await boxes.alive()))
        if len(looks) == 2:
            await boxes.make("late", "ours", "dead")

    await reap_orphans(
        OWN,
        lambda: (LocalProvider if looks else Unlisted)(options),
        boxes.knows,
        lambda: done.append("looked"),
        sleep=sleep,
    )
    stay = {"known", "being made", "of others"}
    assert [alive for _, _, alive in looks] == [stay | {"unknown"}, stay, stay, stay, stay, stay]
    assert looks[0][1] == ["looked"], "a look that fails holds up nobody"
    assert tuple(pause_s for pause_s, _, _ in looks) == PAUSES_S
    assert await boxes.alive() == stay


async def test_a_sandbox_that_is_created_while_orphans_are_looked_for_is_nobodys_orphan(boxes, tmp_path):
    class Busy(LocalProvider):
        async def list(self, labels):
            found = await super().list(labels)
            if "made meanwhile" not in boxes.ids.values():
                await boxes.make("made meanwhile", "ours", "living")
            return found

    async def sleep(_):
        return

    await boxes.make("unknown", "ours", "dead")
    options = {"runtime_dir": str(tmp_path / "run")}
    await reap_orphans(OWN, lambda: Busy(options), boxes.knows, lambda: None, sleep=sleep)
    assert await boxes.alive() == {"made meanwhile"}


def test_a_server_reaps_what_its_dead_one_had_ordered_and_keeps_what_its_sessions_have(
    worlds, bodies, tmp_path, wait_for
):
    world = worlds(
        kind="local", sandbox_config={"workdir": str(tmp_path / "work")}, harness_options={"model": False}
    )
    assert httpx.post(f"{world.url}/v1/agent_sessions", json=bodies.seed("s"), timeout=60).status_code == 200
    ours, server = world.sandboxes(), (tmp_path / "state" / "server.id").read_bytes().hex()[:32]
    world.kill()
    provider = LocalProvider({"runtime_dir": str(tmp_path / "run")})
    anyio.run(make, provider, tmp_path, "completed after the crash", server, "dead")
    world.start()
    wait_for(lambda: httpx.get(f"{world.url}/readyz").status_code == 200, "being ready")
    assert (len(ours), world.sandboxes()) == (1, ours)
    assert "which a dead server had ordered and nobody knows" in world.log.read_text()
    closed = httpx.post(f"{world.url}/v1/agent_sessions/close", json=bodies.close("s"), timeout=60)
    assert (closed.status_code, world.sandboxes()) == (200, set())
