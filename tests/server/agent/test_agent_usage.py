"""What the sandbox of a run has used is told at close."""

import pytest

pytestmark = pytest.mark.anyio


async def test_usage_of_a_run_is_a_record(agent, bodies):
    async with agent() as server:
        assert (await server.client.post("/v1/agent_sessions", json=bodies.seed())).status_code == 200
        answer = await server.client.post("/ng-rollout/r1/v1/responses", json={"input": "hi"})
        assert answer.status_code == 200, answer.text
        closed = await server.client.post("/v1/agent_sessions/close", json=bodies.close())
    records = closed.json()["agent_observations"]["records"]
    (sandbox,) = [each for each in records if each["kind"] == "sandbox"]
    assert (sandbox["role"], sandbox["provider"], sandbox["outcome"]) == ("agent", "local", "completed")
    assert sandbox["exit_code"] == 0 and sandbox["resource_usage_source"] == "processes"
    assert sandbox["cpu_time_s"] > 0 and sandbox["peak_memory_mib"] > 1


async def test_session_without_a_run_has_no_record(agent, bodies):
    async with agent() as server:
        assert (await server.client.post("/v1/agent_sessions", json=bodies.seed())).status_code == 200
        closed = await server.client.post("/v1/agent_sessions/close", json=bodies.close())
    assert closed.json()["agent_observations"]["records"] == []
