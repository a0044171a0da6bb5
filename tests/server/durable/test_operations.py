"""What operators have: probes, metrics, logs, hand-over, and the verbs on single sessions."""

from __future__ import annotations

import json
import signal
import sqlite3
import ssl
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from inspan_runtime.journal_sqlite import SqliteJournal
from inspan_server.cli.main import main

pytestmark = [pytest.mark.timeout(120)]
INSPAN = [sys.executable, "-c", "import sys; from inspan_server.cli.main import main; sys.exit(main())"]
TOKEN = "a-token-of-the-tests"
CERTIFICATE = Path(__file__).with_name("loopback.pem")
"""Of the tests alone: for 127.0.0.1, signed by itself, with its key."""


def verb(world, *words):
    ended = subprocess.run(
        [*INSPAN, "sessions", *words, "--config", str(world.config), "--json"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert "Traceback" not in ended.stderr
    return ended.returncode, json.loads(ended.stdout) if ended.stdout else ended.stderr


def serve_once(world):
    """Start a server that is expected to refuse; its exit code and what it said."""
    ended = subprocess.run(
        [*INSPAN, "serve", "--config", str(world.config), "--port", "0"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert "Traceback" not in ended.stderr
    return ended.returncode, ended.stderr


@pytest.fixture
def world(worlds, tmp_path):
    return worlds(
        kind="local",
        sandbox_config={"workdir": str(tmp_path / "work")},
        harness_options={"model": False},
        drain_timeout_seconds=20,
    )


def kill(world):
    """Kill the server, and have its database take over what stands in its log."""
    world.kill()
    SqliteJournal(world.folder / "state").close()


def seed(world, bodies, name="s"):
    return httpx.post(f"{world.url}/v1/agent_sessions", json=bodies.seed(name, name), timeout=60)


def metrics(world):
    lines = httpx.get(f"{world.url}/metrics").text.splitlines()
    return {
        name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")
    }


def test_an_episode_shows_in_the_metrics(world):
    world.episode()
    found = metrics(world)
    assert found["inspan_sessions_seeded_total"] == found["inspan_sessions_closed_total"] == 1
    assert found['inspan_sessions{phase="CLOSED"}'] == 1
    assert found['inspan_requests_total{request="activate",status="200"}'] == 1
    assert found['inspan_step_seconds_count{step="Launch"}'] == 1
    assert (found["inspan_runs_active"], found["inspan_runs_queued"], found["inspan_ready"]) == (0, 0, 1)
    refused = httpx.post(f"{world.url}/v1/agent_sessions", json={})
    assert refused.status_code == 422
    assert metrics(world)['inspan_requests_total{request="seed",status="422"}'] == 1


def test_sigterm_hands_over_and_the_next_server_goes_on(world, bodies):
    assert seed(world, bodies).status_code == 200
    sandboxes = world.sandboxes()
    assert world.end() == 0
    assert "handed over 1 sessions, 0 of them running: s" in world.log.read_text()
    assert world.sandboxes() == sandboxes
    world.start()
    assert seed(world, bodies).status_code == 200, "it is answered from the journal"
    assert world.sandboxes() == sandboxes
    closed = httpx.post(f"{world.url}/v1/agent_sessions/close", json=bodies.close("s", "s"), timeout=60)
    assert (closed.status_code, world.sandboxes()) == (200, set())
    assert metrics(world)["inspan_sessions_recovered_total"] == 1


def test_sigint_closes_all(world, bodies):
    assert seed(world, bodies).status_code == 200
    assert world.end(signal.SIGINT) == 0
    assert world.sandboxes() == set()


def test_sessions_are_listed_shown_and_closed_through_the_server(world, bodies):
    seed(world, bodies)
    code, listed = verb(world, "list")
    assert (code, [(each["agent_session_id"], each["phase"]) for each in listed]) == (0, [("s", "READY")])
    code, shown = verb(world, "show", "s")
    assert (code, shown["sandbox"], shown["owned"]) == (0, "live", True)
    code, complaint = verb(world, "close", "s", "--abandon")
    assert (code, "only a session whose release has failed can be abandoned" in complaint) == (1, True)
    assert verb(world, "close", "s")[0] == 0
    assert verb(world, "show", "s")[1]["phase"] == "CLOSED"
    assert verb(world, "show", "nobody") == (1, "inspan sessions: no session 'nobody' is kept here\n")


def test_nobody_else_uses_the_verbs_of_operators(world, bodies):
    seed(world, bodies)
    for headers in ({}, {"Authorization": "Bearer guess"}, {"Authorization": "Basic " + "0" * 64}):
        asked = httpx.get(f"{world.url}/admin/sessions", headers=headers)
        assert (asked.status_code, "s" in asked.json()) == (401, False)


def test_a_server_that_is_down_is_read_from_its_journal(world, bodies):
    seed(world, bodies)
    world.kill()
    code, listed = verb(world, "list")
    assert (code, [(each["agent_session_id"], each["phase"]) for each in listed]) == (0, [("s", "READY")])
    code, complaint = verb(world, "close", "s")
    assert (code, "no server runs" in complaint) == (1, True)
    world.start()
    assert httpx.get(f"{world.url}/healthz").json()["sessions"] == 1


def test_a_session_that_cannot_be_released_is_abandoned_by_the_operator(world, bodies, wait_for):
    """Its sandbox was taken away under the server, so that nothing of it can be proven."""
    seed(world, bodies)
    kill(world)
    with closing(sqlite3.connect(world.folder / "state" / "sessions.sqlite")) as database, database:
        rows = database.execute("SELECT session, number, event FROM events ORDER BY number").fetchall()
        last = max(row[1] for row in rows)
        events = [
            '{"event":"CloseRequested","at":1.0,"waiter":null,"cookie":"same","same_episode":true}',
            '{"event":"StepFailed","at":2.0,"order":3,"detail":"the stop was not confirmed"}',
        ]
        for number, event in enumerate(events, start=last + 1):
            database.execute("INSERT INTO events VALUES (?, ?, ?)", (rows[0][0], number, event))
    code, shown = verb(world, "show", "s")
    assert (code, shown["phase"]) == (0, "CLOSE_FAILED"), shown
    code, shown = verb(world, "close", "s", "--abandon")
    assert (code, shown["phase"], shown["gradable"]) == (0, "CLOSED", False)
    world.start()
    assert metrics(world)["inspan_sessions_abandoned_total"] == 1
    closed = httpx.post(f"{world.url}/v1/agent_sessions/close", json=bodies.close("s", "s"), timeout=60)
    assert (closed.status_code, "abandoned by the operator" in closed.text) == (503, True)


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        ("""UPDATE events SET event = '{"event": "Unheard"}'""", "an event of session 's' that this inspan"),
        ("UPDATE events SET event = 'no json'", "an event of session 's' that this inspan"),
        ("DELETE FROM contents", "a session 's' that this inspan cannot go on with"),
        ("DELETE FROM events WHERE number = 2", "a session 's' that this inspan cannot go on with"),
        ("PRAGMA user_version = 99", "is of version 99, and this inspan reads version"),
    ],
)
def test_a_journal_that_cannot_be_read_is_left_as_it_is(world, bodies, damage, complaint):
    seed(world, bodies)
    kill(world)
    path = world.folder / "state" / "sessions.sqlite"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(damage)
        before = list(database.iterdump())
    code, said = serve_once(world)
    assert (code, complaint in said) == (3, True), said
    with closing(sqlite3.connect(path)) as database:
        assert list(database.iterdump()) == before


def test_a_second_server_on_one_folder_is_refused(world):
    code, said = serve_once(world)
    assert (code, "is in use by another server" in said) == (3, True)


def test_logs_are_json_lines_that_hold_no_token(worlds, tmp_path):
    config = {"kind": "local", "sandbox_config": {"workdir": str(tmp_path / "work")}, "bearer_token": TOKEN}
    world = worlds(**config, harness_options={"model": False})
    assert httpx.post(f"{world.url}/v1/agent_sessions", json={}).status_code == 401
    shown = {"Authorization": f"Bearer {TOKEN}"}
    assert httpx.post(f"{world.url}/v1/agent_sessions", json={}, headers=shown).status_code == 422
    assert httpx.get(f"{world.url}/metrics").status_code == 401
    assert (
        httpx.get(f"{world.url}/readyz").status_code == httpx.get(f"{world.url}/healthz").status_code == 200
    )
    assert world.end() == 0
    assert TOKEN not in world.log.read_text()


def test_tls_is_served_to_clients_and_to_the_verbs_of_operators(worlds, bodies, tmp_path):
    files = {"certfile": str(CERTIFICATE), "keyfile": str(CERTIFICATE)}
    world = worlds(
        kind="local",
        sandbox_config={"workdir": str(tmp_path / "work")},
        harness_options={"model": False},
        tls=files,
    )
    trusted = ssl.create_default_context(cafile=str(CERTIFICATE))
    url = world.url.replace("http://", "https://")
    with httpx.Client(base_url=url, verify=trusted, timeout=60) as http:
        assert http.post("/v1/agent_sessions", json=bodies.seed("s")).status_code == 200
        assert http.post("/v1/agent_sessions/close", json=bodies.close("s")).status_code == 200
        code, listed = verb(world, "list")
        assert (code, [each["phase"] for each in listed]) == (0, ["CLOSED"])
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{world.url}/healthz")


def test_a_state_folder_that_cannot_be_looked_into_is_told(tmp_path, capsys):
    config = tmp_path / "agent.yaml"
    state_dir = f"/{'n' * 300}"
    model_server = {"base_url": "http://127.0.0.1:9"}
    config.write_text(json.dumps({"harness": "echo", "model_server": model_server, "state_dir": state_dir}))
    assert main(["sessions", "list", "--config", str(config)]) == 3
    assert f"{state_dir} cannot be looked into: File name too long" in capsys.readouterr().err


def test_an_address_that_others_reach_needs_a_token(world):
    ended = subprocess.run(
        [*INSPAN, "serve", "--config", str(world.config), "--port", "0", "--host", "0.0.0.0"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (ended.returncode, "set bearer_token, or allow_unauthenticated: true" in ended.stderr) == (2, True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_comes_while_it_starts_is_not_lost(world, number):
    """It may come as soon as the address is listened at, before anything is served."""
    for _ in range(3):
        assert world.end(number) in (0, -number), world.log.read_text()
        world.start()
