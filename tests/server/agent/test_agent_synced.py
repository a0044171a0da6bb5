"""With `journal_sync: full` nothing follows from an event before the disk has it."""

import errno
import os
import threading

import anyio
import pytest

pytestmark = pytest.mark.anyio
ACTIVATE = "/ng-rollout/r1/v1/responses"


@pytest.fixture
def disk(monkeypatch):
    """Syncs wait for the gate, and fail while there is an error; those of keys and folders are not meant."""

    class Disk:
        gate, error, syncs = threading.Event(), None, 0

    real, found = os.fdatasync, Disk()

    def fdatasync(descriptor):
        found.syncs += 1
        assert found.gate.wait(30)
        if found.error is not None:
            raise OSError(found.error, os.strerror(found.error))
        real(descriptor)

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    found.gate.set()
    yield found
    found.gate.set()


async def test_no_sandbox_is_made_before_the_disk_has_the_seed(agent, bodies, until, disk, tmp_path):
    async with agent(state_dir=str(tmp_path / "state"), journal_sync="full") as server:
        disk.gate.clear()
        answers = []

        async def seed():
            answers.append(await server.client.post("/v1/agent_sessions", json=bodies.seed()))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(seed)
            await until(lambda: disk.syncs, "the wait for the disk")
            health = await server.client.get("/healthz")
            assert (health.status_code, server.service.phases) == (200, {"s1": "NEW"})
            assert await server.provider.list({}) == []
            disk.gate.set()
        assert answers[0].status_code == 200
        ran = await server.client.post(ACTIVATE, json={"input": "hi"})
        closed = await server.client.post("/v1/agent_sessions/close", json=bodies.close())
        assert (ran.status_code, closed.status_code) == (200, 200)
        assert disk.syncs >= 12, "an episode's events come one after the other"


async def test_what_the_disk_refuses_is_refused_or_tried_again(agent, bodies, until, disk, caplog, tmp_path):
    async with agent(state_dir=str(tmp_path / "state"), journal_sync="full") as server:
        disk.error = errno.EIO
        refused = await server.client.post("/v1/agent_sessions", json=bodies.seed())
        assert (refused.status_code, await server.provider.list({})) == (503, [])
        disk.error = None
        seeded = await server.client.post("/v1/agent_sessions", json=bodies.seed())
        assert seeded.status_code == 200
        disk.gate.clear()
        answers = []

        async def activate():
            answers.append(await server.client.post(ACTIVATE, json={"input": "hi"}))

        syncs = disk.syncs
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(activate)
            await until(lambda: disk.syncs > syncs, "the wait for the disk")
            disk.gate.set()
            await until(lambda: server.service.phases["s1"] == "ACTIVE", "the run")
            disk.error = errno.EIO
            await until(lambda: "waits for its journal" in caplog.text or answers, "an answer it cannot keep")
            disk.error = None
        assert (answers[0].status_code, answers[0].json()["status"]) == (200, "completed")
        closed = await server.client.post("/v1/agent_sessions/close", json=bodies.close())
        assert closed.status_code == 200
    async with agent(state_dir=str(tmp_path / "state"), journal_sync="full") as server:
        again = await server.client.post("/v1/agent_sessions/close", json=bodies.close())
        assert again.json() == closed.json()
