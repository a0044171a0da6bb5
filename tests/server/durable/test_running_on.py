"""A harness that runs while its server goes: it runs on, and the next server answers the activation."""

from __future__ import annotations

import signal
import threading

import httpx
import pytest

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(120)]


def lose(http, world):
    """Ask for the run as a client whose connection breaks."""
    try:
        http.post(f"{world.url}/ng-rollout/waits/v1/responses", json={"input": "wait"}, timeout=60)
    except httpx.TransportError:
        return


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_harness_outlives_its_server_and_is_awaited_by_the_next(worlds, bodies, wait_for, number):
    world = worlds(drain_timeout_seconds=0.2)
    with httpx.Client() as http:
        assert (
            http.post(
                f"{world.url}/v1/agent_sessions", json=bodies.seed("s", "waits"), timeout=60
            ).status_code
            == 200
        )
        asking = threading.Thread(target=lose, args=(http, world))
        asking.start()
        wait_for(world.launches, "the launch")
        code = world.end(number)
        asking.join(30)
        assert code == (0 if number == signal.SIGTERM else -number), world.log.read_text()
        if number == signal.SIGTERM:
            assert "handed over 1 sessions, 1 of them running: s" in world.log.read_text()
        world.start()
        (world.folder / "counts" / "go").touch()
        again = http.post(f"{world.url}/ng-rollout/waits/v1/responses", json={"input": "wait"}, timeout=60)
        assert (again.status_code, "it is done" in again.text) == (200, True), again.text
        assert world.launches() == 1
        closed = http.post(
            f"{world.url}/v1/agent_sessions/close", json=bodies.close("s", "waits"), timeout=60
        )
        gaps = {gap["code"] for gap in closed.json()["agent_observations"]["gaps"]}
        assert closed.status_code == 200 and gaps <= {"usage_unavailable"}, "the script tells no usage"
    assert world.sandboxes() == set()
