"""Fifty open sessions, a provider that allows fifty sandboxes, and a server that is killed."""

from __future__ import annotations

import asyncio
import signal
from functools import partial

import httpx
import pytest

pytestmark = [pytest.mark.timeout(180)]
MANY = 50
LOCAL = {"harness_options": {"model": False}}


async def for_all(world, ask, count=MANY):
    limits = httpx.Limits(max_connections=20)
    async with httpx.AsyncClient(base_url=world.url, timeout=100, limits=limits) as http:
        return await asyncio.gather(*(ask(http, number) for number in range(count)))


@pytest.fixture
def world(worlds, tmp_path, monkeypatch):
    monkeypatch.setenv("INSPAN_TEST_QUOTA", str(MANY))
    return worlds(kind="local", sandbox_config={"workdir": str(tmp_path / "work")}, **LOCAL)


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGTERM, marks=pytest.mark.full, id="SIGTERM"),
        pytest.param(signal.SIGKILL, id="SIGKILL"),
    ],
)
def test_ended_with_fifty_sessions_and_a_quota_of_fifty_it_serves_others(world, bodies, wait_for, number):
    """The journal knows each sandbox: none is lost, and none stands in the way of new work."""

    async def seed(http, number, prefix="s"):
        answer = await http.post(
            "/v1/agent_sessions", json=bodies.seed(f"{prefix}{number}", f"{prefix}{number}")
        )
        return answer.status_code

    async def close(http, number, prefix="s"):
        answer = await http.post(
            "/v1/agent_sessions/close", json=bodies.close(f"{prefix}{number}", f"{prefix}{number}")
        )
        return answer.status_code

    assert asyncio.run(for_all(world, seed)) == [200] * MANY
    before = world.sandboxes()
    assert len(before) == MANY
    assert world.end(number) == (0 if number == signal.SIGTERM else -number)
    world.start()
    wait_for(lambda: httpx.get(f"{world.url}/readyz").status_code == 200, "being ready")
    # The retried seeds are answered from the journal: the same sandboxes, and no other.
    assert asyncio.run(for_all(world, seed)) == [200] * MANY
    assert world.sandboxes() == before
    refused = httpx.post(f"{world.url}/v1/agent_sessions", json=bodies.seed("more", "more"), timeout=100)
    assert (refused.status_code, "quota of 50 sandboxes is used up" in refused.text) == (503, True)
    assert asyncio.run(for_all(world, close)) == [200] * MANY
    assert world.sandboxes() == set()
    # They count no more.
    assert asyncio.run(for_all(world, partial(seed, prefix="t"), count=5)) == [200] * 5
    assert asyncio.run(for_all(world, partial(close, prefix="t"), count=5)) == [200] * 5
    assert world.sandboxes() == set()


@pytest.mark.full
def test_interrupted_with_fifty_sessions_it_closes_all_of_them(world, bodies):
    async def seed(http, number):
        answer = await http.post("/v1/agent_sessions", json=bodies.seed(f"s{number}", f"s{number}"))
        return answer.status_code

    assert asyncio.run(for_all(world, seed)) == [200] * MANY
    assert (world.end(signal.SIGINT), world.sandboxes(), world.processes()) == (0, set(), [])


def test_killed_while_fifty_are_being_set_up_it_reaps_them_before_it_admits_others(world, bodies, wait_for):
    """No set-up that was cut off counts against the quota when new work comes."""
    most = 0

    async def seed(http, number):
        try:
            await http.post("/v1/agent_sessions", json=bodies.seed(f"s{number}", f"r{number}"))
        except httpx.TransportError:
            return

    async def cut_off():
        asking = asyncio.create_task(for_all(world, seed))
        while len(world.sandboxes()) < 5:
            await asyncio.sleep(0.01)
        world.kill()
        await asking

    asyncio.run(asyncio.wait_for(cut_off(), 60))
    world.start()
    answer = httpx.post(f"{world.url}/v1/agent_sessions", json=bodies.seed("new", "new"), timeout=100)
    assert answer.status_code == 200
    # When the new one was let in, only published sessions were left of the old ones.
    listed = httpx.get(f"{world.url}/healthz").json()
    most = listed["sessions"]
    assert len(world.sandboxes()) <= most <= MANY + 1
    for number in range(MANY):
        closed = httpx.post(
            f"{world.url}/v1/agent_sessions/close", json=bodies.close(f"s{number}", f"r{number}"), timeout=60
        )
        assert closed.status_code == 200
    httpx.post(f"{world.url}/v1/agent_sessions/close", json=bodies.close("new", "new"), timeout=60)
    wait_for(lambda: not world.sandboxes(), "the end of all sandboxes")
    assert world.processes() == []
