"""A journal that cannot be written for a while: requests are refused meanwhile, and nothing is lost."""

import resource
import sqlite3
from contextlib import closing, contextmanager

import anyio
import pytest

from inspan_runtime.journal_sqlite import EVENTS_FILE, LOG_FILE, JournalError, SqliteJournal
from inspan_server.model.capture import Capture
from inspan_server.model.gateway import create_gateway
from inspan_server.model.script import parse_script
from inspan_server.serving import served

pytestmark = pytest.mark.anyio
ACTIVATE = "/ng-rollout/r1/v1/responses"
SLOW = parse_script({"*": [{"content": "at last", "delay_s": 1.0}]})


@contextmanager
def full(state):
    """No file of this process grows beyond a few bytes more than the log has: the kernel takes a part."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((state / LOG_FILE).stat().st_size + 20, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_a_run_whose_answers_cannot_be_journalled_goes_on_when_they_can(
    agent, bodies, until, caplog, tmp_path
):
    async with served(create_gateway(SLOW, Capture()), graceful_timeout_s=1) as model:
        changes = {"model_server": {"base_url": model}, "harness_options": {}}
        async with agent(state_dir=str(tmp_path / "state"), **changes) as server:
            await server.client.post("/v1/agent_sessions", json=bodies.seed())
            answers = []

            async def activate():
                answers.append(await server.client.post(ACTIVATE, json={"input": "hi"}))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(activate)
                await until(lambda: server.service.phases["s1"] == "ACTIVE", "the run")
                with full(tmp_path / "state"):
                    await until(lambda: "waits for its journal" in caplog.text, "the failure")
                    refused = await server.client.post("/v1/agent_sessions/close", json=bodies.close())
            assert (refused.status_code, "journal" in refused.json()["detail"]) == (503, True)
            assert (answers[0].status_code, answers[0].json()["status"]) == (200, "completed")
            closed = await server.client.post("/v1/agent_sessions/close", json=bodies.close())
            assert closed.status_code == 200


async def test_a_seed_that_could_not_be_journalled_leaves_nothing_to_the_next(agent, bodies, tmp_path):
    async with agent(state_dir=str(tmp_path / "state")) as server:
        await server.client.get("/healthz")  # It has started then, and read what it kept.
        with full(tmp_path / "state"):
            refused = await server.client.post("/v1/agent_sessions", json=bodies.seed(rollout="of-nobody"))
        assert refused.status_code == 503
        server.client.cookies.clear()
        seeded = await server.client.post("/v1/agent_sessions", json=bodies.seed())
        ran = await server.client.post(ACTIVATE, json={"input": "hi"})
        assert (seeded.status_code, ran.status_code) == (200, 200), ran.text
        await server.client.post("/v1/agent_sessions/close", json=bodies.close())


async def test_a_journal_with_an_event_that_cannot_be_read_names_the_session(agent, bodies, tmp_path):
    async with agent(state_dir=str(tmp_path / "state")) as server:
        await server.client.post("/v1/agent_sessions", json=bodies.seed())
    with closing(sqlite3.connect(tmp_path / "state" / EVENTS_FILE)) as database, database:
        database.execute("""UPDATE events SET event = '{"event": "Unheard"}'""")
    journal = SqliteJournal(tmp_path / "state")
    with closing(journal), pytest.raises(JournalError, match=r"an event of session 's1' that this inspan"):
        list(journal.load())
