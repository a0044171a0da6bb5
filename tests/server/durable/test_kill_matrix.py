"""The server is killed at every record of its journal, started again, and the client retries.

In every cell exactly one launch takes effect, one sandbox exists at a time, the client gets one response, the
close succeeds, and nothing is left: counted from outside, by files that the harness itself writes.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
import yaml

SERVER = Path(__file__).with_name("dying_server.py")
EPISODE = {"rollout_id": "r", "attempt": 0}
DEADLINE_S = 60.0
RECORDS = [
    "SeedRequested", "SandboxReady", "Installed", "ActivateRequested", "SlotGranted", "Staged",
    "ExecReturned", "TerminationConfirmed", "Collected", "Parsed", "CloseRequested", "SandboxStopped",
]  # fmt: skip


class Client:
    """An Environment Server's habits: it retries a lost connection until it gets an answer."""

    def __init__(self, world, http):
        self.world, self.http = world, http

    def post(self, path, body):
        ends = time.monotonic() + DEADLINE_S
        while time.monotonic() < ends:
            try:
                return self.http.post(path, json=body)
            except httpx.TransportError:
                self.world.revive()
        raise AssertionError(f"{path}: no answer within {DEADLINE_S} s")


class World:
    """One server process at a time, over one state folder and one folder of counters."""

    def __init__(self, tmp_path, kill_at, moment, config):
        self.folder, self.kill_at, self.moment = tmp_path, kill_at, moment
        self.kills = 0
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.config = tmp_path / "agent.yaml"
        self.config.write_text(yaml.safe_dump(config))
        self.log = (tmp_path / "server.log").open("ab")
        self.server = None
        self.start(kill_at)

    def start(self, kill_at):
        argv = [sys.executable, str(SERVER), str(self.config), str(self.port), str(kill_at), self.moment]
        self.server = subprocess.Popen(argv, stdout=self.log, stderr=self.log)
        ends = time.monotonic() + DEADLINE_S
        while time.monotonic() < ends:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                if self.server.poll() is not None:
                    break
                time.sleep(0.01)
        raise AssertionError((self.folder / "server.log").read_text())

    def revive(self):
        if self.server.poll() is None:
            return
        assert self.server.returncode == -signal.SIGKILL, (self.folder / "server.log").read_text()
        self.kills += 1
        self.start(0)

    def end(self):
        if self.server.poll() is None:
            self.server.terminate()
            self.server.wait(timeout=60)
        self.log.close()


def episode(world):
    """Seed, activate, close as a client does; the three answers."""
    with httpx.Client(base_url=world.url, timeout=40.0) as http:
        return _episode(Client(world, http))


def _episode(client):
    seed = {
        "agent_session_id": "s",
        "episode_id": EPISODE,
        "task_id": {"taskset": "t", "task_id": "x"},
    }
    seeded = client.post("/v1/agent_sessions", seed)
    activated = client.post("/ng-rollout/r/v1/responses", {"input": "say hello"})
    closed = client.post("/v1/agent_sessions/close", {"agent_session_id": "s", "episode_id": EPISODE})
    return seeded, activated, closed


def config(tmp_path, kind):
    workdir = str(tmp_path / "work") if kind == "local" else "/work"
    return {
        "harness": "echo",
        "harness_options": {"model": False},
        "model_server": {"base_url": "http://127.0.0.1:9"},
        "sandbox_providers": {"box": {"kind": kind, "runtime_dir": str(tmp_path / "run")}},
        "sandbox_provider": "box",
        "sandbox_config": {"workdir": workdir},
        "state_dir": str(tmp_path / "state"),
        "session_close_timeout_seconds": 10,
    }


def records(tmp_path):
    path = tmp_path / "agent.records"
    return path.read_text().split() if path.exists() else []


def run(tmp_path, kill_at, moment):
    world = World(tmp_path, kill_at, moment, config(tmp_path, "local"))
    try:
        return world, episode(world)
    finally:
        world.end()


def test_without_a_kill_the_journal_has_these_records(tmp_path):
    _, (seeded, activated, closed) = run(tmp_path, 0, "after")
    assert [seeded.status_code, activated.status_code, closed.status_code] == [200, 200, 200]
    assert records(tmp_path) == RECORDS


@pytest.mark.parametrize("moment", [pytest.param("before", marks=pytest.mark.full), "after"])
@pytest.mark.parametrize(("kill_at", "record"), list(enumerate(RECORDS, start=1)), ids=RECORDS)
def test_killed_at_a_record(tmp_path, kill_at, record, moment):
    world, (seeded, activated, closed) = run(tmp_path, kill_at, moment)
    assert world.kills == 1
    assert seeded.status_code == 200 and closed.status_code == 200
    if (record, moment) == ("Staged", "after"):
        # The launch was ordered and never claimed: it is fenced, and not ordered again.
        assert activated.status_code == 503 and "never launched" in activated.json()["detail"]
    else:
        assert activated.status_code == 200 and "say hello" in activated.text
    written = records(tmp_path)
    assert written.count("Staged") <= 1 + (record == "Staged")
    assert written.count("TerminationConfirmed") <= 1 and written.count("Parsed") <= 1
    if record != "SandboxStopped":
        assert written[-1] == "SandboxStopped"
