"""What stands in the state folder: no secret for longer than it is needed; nothing is lost without a word."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing

import anyio
import pytest

from inspan_core.errors import ConfigError
from inspan_core.events import ClientGone, CloseRequested
from inspan_core.findings import Cookie
from inspan_runtime.journal_sqlite import EVENTS_FILE, SECRETS_FILE, JournalError, SqliteJournal
from inspan_server.agent.state_files import kept_key

CANARY = b"canary-of-a-grant"
GRANT = {
    "kind": "direct_http", "name": "g", "required": False, "base_url": "http://127.0.0.1:9",
    "headers": {"x-key": CANARY.decode()}, "cookies": {"c": CANARY.decode()},
}  # fmt: skip


def held(folder):
    return {path.name for path in folder.iterdir() if CANARY in path.read_bytes()}


@pytest.mark.anyio
async def test_secrets_leave_the_write_ahead_log_too_when_their_session_is_forgotten(
    agent, bodies, until, tmp_path
):
    state = tmp_path / "state"
    async with agent(state_dir=str(state), session_close_retry_window_seconds=0.1) as server:
        for name in ("a", "b"):
            server.client.cookies.clear()
            seeded = await server.client.post(
                "/v1/agent_sessions", json=bodies.seed(name, name, tool_accesses=[GRANT])
            )
            assert (seeded.status_code, held(state) <= {SECRETS_FILE, f"{SECRETS_FILE}-wal"}) == (200, True)
        assert held(state), "or the test would say nothing"
        for name in ("a", "b"):
            server.client.cookies.clear()
            closed = await server.client.post("/v1/agent_sessions/close", json=bodies.close(name, name))
            assert closed.status_code == 200
        await until(lambda: not held(state), "the end of all secrets")


def begun(folder):
    """A journal of one session with a secret, as a killed server leaves it."""
    journal = SqliteJournal(folder)
    journal.keep("s", "place", b"{}")
    journal.keep("s", "seed", CANARY, secret=True)
    journal.append("s", CloseRequested(at=1.0, waiter=None, cookie=Cookie.SAME, same_episode=True))
    return journal


def test_secrets_that_a_killed_server_removed_are_overwritten_by_the_next(tmp_path):
    killed = begun(tmp_path / "killed")
    killed.forget("s")
    killed.append("t", ClientGone(at=2.0, waiter=1))
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    for path in killed.folder.iterdir():
        (state / path.name).write_bytes(path.read_bytes())
    assert held(state) == {f"{SECRETS_FILE}-wal"}
    journal = SqliteJournal(state)
    assert ([each.name for each in journal.load()], held(state)) == (["t"], set())
    journal.close()
    killed.close()


@pytest.mark.parametrize("name", [EVENTS_FILE, SECRETS_FILE])
@pytest.mark.parametrize("is_closed", [True, False])
@pytest.mark.parametrize("is_emptied", [True, False])
def test_a_journal_that_has_lost_a_file_is_refused_and_no_other_is_made(
    tmp_path, name, is_closed, is_emptied
):
    journal, state = begun(tmp_path / "first"), tmp_path / "state"
    if is_closed:
        journal.close()
    state.mkdir(mode=0o700)
    for path in journal.folder.iterdir():
        if path.name != name:
            (state / path.name).write_bytes(path.read_bytes())
    if is_emptied:
        (state / name).touch()
    for _ in range(2):
        with pytest.raises(JournalError, match=f"{name} is missing or empty, but what belongs to it is"):
            SqliteJournal(state)
    assert (state / name).exists() == is_emptied
    (state / name).write_bytes((journal.folder / name).read_bytes())
    again = SqliteJournal(state)
    assert [each.secrets for each in again.load()] == [{"seed": CANARY}]
    again.close()
    if not is_closed:
        journal.close()


def test_a_server_that_was_killed_while_it_made_its_journal_is_followed_by_another(tmp_path):
    SqliteJournal(tmp_path).close()
    (tmp_path / SECRETS_FILE).unlink()
    journal = SqliteJournal(tmp_path)
    assert list(journal.load()) == []
    journal.close()


@pytest.mark.anyio
async def test_a_session_whose_seed_is_lost_keeps_the_server_from_starting(agent, bodies, tmp_path):
    state = tmp_path / "state"
    async with agent(state_dir=str(state)) as server:
        seed = bodies.seed(tool_accesses=[GRANT])
        assert (await server.client.post("/v1/agent_sessions", json=seed)).status_code == 200
    with closing(sqlite3.connect(state / SECRETS_FILE)) as database, database:
        database.execute("DELETE FROM contents")
    with pytest.raises(JournalError, match="a session 's1' that this inspan cannot go on with: its seed is"):
        async with agent(state_dir=str(state)):
            raise AssertionError("it started")


@pytest.mark.anyio
async def test_the_answer_of_a_close_is_kept_before_it_is_given(agent, bodies, tmp_path):
    """A server that is killed right afterwards could not make it again from what a run leaves behind."""
    state, killed = tmp_path / "state", tmp_path / "killed"
    killed.mkdir(mode=0o700)
    async with agent(state_dir=str(state)) as server:
        await server.client.post("/v1/agent_sessions", json=bodies.seed())
        assert (
            await server.client.post("/ng-rollout/r1/v1/responses", json={"input": "x"})
        ).status_code == 200
        closed = await server.client.post("/v1/agent_sessions/close", json=bodies.close())
        assert closed.status_code == 200
        for path in state.iterdir():
            (killed / path.name).write_bytes(path.read_bytes())
    journal = SqliteJournal(killed)
    (stored,) = journal.load()
    journal.close()
    assert json.loads(stored.contents["closed"]) == closed.json()


@pytest.mark.parametrize("mode", [0o777, 0o770])
def test_a_folder_where_others_may_put_their_files_is_refused(tmp_path, mode):
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(JournalError, match=f"has mode {mode:04o}: others may put files"):
        SqliteJournal(folder)
    assert list(folder.iterdir()) == []


@pytest.mark.anyio
async def test_a_key_that_is_no_file_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "cookie.key")
    with anyio.fail_after(20):
        with pytest.raises(ConfigError, match=r"cookie\.key does not hold 32 bytes"):
            await anyio.to_thread.run_sync(kept_key, tmp_path / "cookie.key", abandon_on_cancel=True)
