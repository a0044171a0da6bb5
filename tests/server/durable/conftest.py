"""Servers in processes that are killed and started again, and what is left to see of them from outside."""

from __future__ import annotations

import datetime
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import anyio
import anyio.from_thread
import httpx
import pytest
import yaml

from inspan_runtime.providers.bubblewrap import BubblewrapProvider
from inspan_runtime.providers.local import LocalProvider
from inspan_server.model.capture import Capture
from inspan_server.model.gateway import create_gateway
from inspan_server.model.script import parse_script
from inspan_server.serving import served

SERVER = Path(__file__).with_name("dying_server.py")
EPISODE = {"rollout_id": "r", "attempt": 0}
DEADLINE_S = 60.0
KILLED = "killed"
WAITS = "echo launched >> /counts/launches; while [ ! -e /counts/go ]; do sleep 0.05; done"
SCRIPT = {
    "waits": [
        {"tool_calls": [{"name": "shell", "arguments": {"command": WAITS}}]},
        {"content": "it is done"},
    ],
    "*": [
        {"tool_calls": [{"name": "shell", "arguments": {"command": "echo launched >> /counts/launches"}}]},
        {"content": "it is done"},
    ],
}


def until(condition, what, *, pause_s=0.02):
    ends = time.monotonic() + DEADLINE_S
    while time.monotonic() < ends:
        found = condition()
        if found:
            return found
        time.sleep(pause_s)
    raise AssertionError(f"{what} did not happen within {DEADLINE_S} s")


class World:
    """One server process at a time, over one state folder; what its sandboxes leave is seen on the host."""

    def __init__(self, folder, config, *, kill_at=0, moment="after", then=(), model=None):
        self.folder, self.model, self.then = folder, model, list(then)
        self.at_death = None
        self.kills = 0
        # Held to the end, also while no server listens: nobody else is given it.
        self.held = socket.socket()
        self.held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.held.bind(("127.0.0.1", 0))
        self.port = self.held.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.config = folder / "agent.yaml"
        self.config.write_text(yaml.safe_dump(config))
        self.log = folder / "server.log"
        self.server = None
        self.start(kill_at, moment)

    def start(self, kill_at=0, moment="after"):
        self.dies, self.moment = kill_at != 0, moment
        argv = [sys.executable, str(SERVER), str(self.config), str(self.port), str(kill_at), moment]
        with self.log.open("ab") as log:
            self.server = subprocess.Popen(argv, stdout=log, stderr=log)
        until(self._listens, "listening")

    def _listens(self):
        if self.server.poll() is not None:
            # One that is killed while it recovers may be gone before anybody has looked.
            assert self.dies and self.server.returncode == -signal.SIGKILL, self.log.read_text()
            return True
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True

    def kill(self):
        self.server.kill()
        self.server.wait(20)

    def revive(self):
        if self.server.poll() is None:
            return
        assert self.server.returncode == -signal.SIGKILL, self.log.read_text()
        self.kills += 1
        if self.at_death is not None:
            self.at_death()
        with self.folder.joinpath("agent.records").open("a") as records:
            records.write(f"{KILLED}-{self.moment}\n")
        self.start(*(self.then.pop(0) if self.then else ()))

    def end(self, number=signal.SIGTERM):
        if self.server.poll() is None:
            self.server.send_signal(number)
            try:
                self.server.wait(60)
            finally:
                self.kill()  # One that does not end is not left to the tests that follow.
        return self.server.returncode

    # --- the client ---

    def post(self, http, path, body):
        """As an Environment Server does: a lost connection is tried again until there is an answer."""
        ends = time.monotonic() + DEADLINE_S
        while time.monotonic() < ends:
            try:
                return http.post(path, json=body)
            except httpx.TransportError:
                self.revive()
        raise AssertionError(f"{path}: no answer within {DEADLINE_S} s")

    def episode(self, session="s", rollout="r", **seed):
        """Seed, activate, close; the three answers."""
        with httpx.Client(base_url=self.url, timeout=60.0) as http:
            seeded = self.post(http, "/v1/agent_sessions", {**seed_body(session, rollout), **seed})
            activated = self.post(http, f"/ng-rollout/{rollout}/v1/responses", {"input": "say hello"})
            closed = self.post(http, "/v1/agent_sessions/close", close_body(session, rollout))
        return seeded, activated, closed

    def closes_again(self):
        with httpx.Client(base_url=self.url, timeout=60.0) as http:
            return self.post(http, "/v1/agent_sessions/close", close_body("s")).json()

    # --- from outside ---

    def records(self):
        path = self.folder / "agent.records"
        return path.read_text().split() if path.exists() else []

    def lives(self):
        """The records of each server's life; all but the last end with how it was killed."""
        lives = [[]]
        for record in self.records():
            lives[-1].append(record)
            if record.startswith(KILLED):
                lives.append([])
        return lives

    def launches(self):
        path = self.folder / "counts" / "launches"
        return len(path.read_text().split()) if path.exists() else 0

    def model_calls(self):
        return len(self.model.capture.calls("r"))

    def sandboxes(self):
        """The folders of sandboxes that are up."""
        # os.walk passes over folders that vanish meanwhile.
        return {Path(path).name for path, _, files in os.walk(self.folder / "run") if "ready" in files}

    def processes(self):
        """Processes that name this test's folder of sandboxes, or live in it."""
        found, mark = [], str(self.folder / "run").encode()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) not in (os.getpid(), self.server.pid):
                try:
                    line = (entry / "cmdline").read_bytes()
                    place = os.readlink(entry / "cwd").encode()
                except OSError:
                    continue
                if mark in line or place.startswith(mark):
                    found.append((entry.name, line))
        return found


class Census:
    """Looks again and again how many sandboxes there are, while an episode goes on."""

    def __init__(self, world):
        self.world, self.most, self.seen = world, 0, set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self):
        while not self._over.wait(0.01):
            now = self.world.sandboxes()
            self.most, self.seen = max(self.most, len(now)), self.seen | now

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join(10)


def judge(world, answers, census, *, knows_records=True):
    """What holds for every episode of one client, whenever and however often its server was killed.

    Args:
        knows_records: Whether each kill came right before or after a record was kept, and not within.
    """
    seeded, activated, closed = answers
    assert (seeded.status_code, closed.status_code) == (200, 200), closed.text
    lives = world.lives()
    # The launch was ordered and never begun: it is fenced, and not ordered again.
    is_fenced = any(life[-2:] == ["Staged", f"{KILLED}-after"] for life in lives)
    if not knows_records:
        is_fenced = activated.status_code != 200
    launches = 0 if is_fenced else 1
    if launches:
        assert activated.status_code == 200 and "it is done" in activated.text, activated.text
    else:
        assert activated.status_code == 503 and "never launched" in activated.json()["detail"]
    assert world.launches() == launches
    assert world.model_calls() == 2 * launches
    for once in ("TerminationConfirmed", "Collected", "Parsed"):
        assert world.records().count(once) <= 1
    assert census.most == 1
    # A set-up that was cut off is undone before another one begins; a later kill makes no second one.
    cuts = [is_set_up_cut(lives, number) or not knows_records for number in range(len(lives) - 1)]
    assert len(census.seen) <= 1 + sum(cuts)
    assert world.closes_again() == closed.json()
    assert world.sandboxes() == set() and world.processes() == []


def is_set_up_cut(lives, number):
    """Whether a life ended between a seed and the record of what was installed."""
    told = [record for life in lives[: number + 1] for record in life]
    return "SeedRequested" in lives[number] and "Installed" not in told


def seed_body(session, rollout="r"):
    return {
        "agent_session_id": session,
        "episode_id": {"rollout_id": rollout, "attempt": 0},
        "task_id": {"taskset": "t", "task_id": "x"},
    }


def close_body(session, rollout="r"):
    return {"agent_session_id": session, "episode_id": {"rollout_id": rollout, "attempt": 0}}


class Model:
    """A scripted Model Server in a thread of the test: it outlives every Agent Server."""

    def __init__(self, url, capture):
        self.url, self.capture = url, capture


@pytest.fixture
def script():
    """What the model says: a test file may have its own."""
    return SCRIPT


@pytest.fixture
def model(script):
    capture = Capture()
    with anyio.from_thread.start_blocking_portal() as portal:
        gateway = create_gateway(parse_script(script), capture)
        with portal.wrap_async_context_manager(served(gateway, graceful_timeout_s=1)) as url:
            yield Model(url, capture)


@pytest.fixture
def worlds(tmp_path, model):
    """Start a world: ``worlds(kill_at=3)``; ends its servers, and sees that no sandbox outlives the test."""
    made = []
    (tmp_path / "counts").mkdir()

    def start(*, harness="echo", kind="bubblewrap", kill_at=0, moment="after", then=(), **changes):
        mounts = [{"source": str(tmp_path / "counts"), "target": "/counts", "read_only": False}]
        config = {
            "harness": harness,
            "model_server": {"base_url": model.url},
            "sandbox_providers": {"box": {"kind": kind, "runtime_dir": str(tmp_path / "run")}},
            "sandbox_provider": "box",
            "sandbox_config": {"workdir": "/work", "mounts": mounts},
            "state_dir": str(tmp_path / "state"),
            "session_close_timeout_seconds": 10,
            **changes,
        }
        kills = {"kill_at": kill_at, "moment": moment, "then": then}
        made.append(World(tmp_path, config, **kills, model=model))
        return made[-1]

    yield start
    for world in made:
        with world.held:
            world.end(signal.SIGINT)
            # A server that was killed left its sandboxes to the next one: here nobody comes.
            anyio.run(stop_all, world)
            until(partial(nothing_runs, world), "the end of all processes of sandboxes")


def nothing_runs(world):
    return world.processes() == []


async def stop_all(world):
    for kind in (LocalProvider, BubblewrapProvider):
        provider = kind({"runtime_dir": str(world.folder / "run")})
        with anyio.fail_after(30):
            for descriptor in await provider.list({}):
                await (await provider.connect(descriptor)).stop()
            await provider.aclose()


@pytest.fixture
def bodies():
    class Bodies:
        seed, close = staticmethod(seed_body), staticmethod(close_body)

    return Bodies


@pytest.fixture
def played():
    """Play one episode, killed as the world says, and judge it; its three answers."""

    def play(world, **known):
        with Census(world) as census:
            answers = world.episode()
        judge(world, answers, census, **known)
        return answers

    return play


@pytest.fixture
def wait_for():
    return until


@pytest.fixture
def read_json():
    return lambda text: [json.loads(line) for line in text.splitlines() if line.startswith("{")]


@pytest.fixture
def certificate(tmp_path):
    """A key and a certificate of our own for 127.0.0.1, in files of the test's."""
    folder = tmp_path / "tls"
    folder.mkdir()
    key, cert = folder / "key.pem", folder / "cert.pem"
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    days = str((datetime.date(2100, 1, 1) - datetime.date.today()).days)
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", days, *subject,
         "-keyout", str(key), "-out", str(cert)],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    return key, cert
