"""A server that is killed or told to stop at random moments, again and again, under clients that ask on.

Every episode is answered, launched once or provably never, closed with one answer, and leaves nothing. Calls
on the host go on beside them: each is answered at last. A failure tells its seed: INSPAN_TEST_SEED plays the
same moments again, though not the same races.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from attrs import define, field

pytestmark = [pytest.mark.sandbox]
KEYS = 600
CLIENT_S = 300.0
INSPAN = [sys.executable, "-c", "import sys; from inspan_server.cli.main import main; sys.exit(main())"]


@pytest.fixture
def script(tmp_path):
    def says(key, counts, pause_s):
        command = f"echo {key} >> {counts}/launches; sleep {pause_s}"
        return {"tool_calls": [{"name": "shell", "arguments": {"command": command}}]}

    done = {"content": "it is done"}
    sessions = {f"e{n}": [says(f"e{n}", "/counts", (n % 4) * 0.2), done] for n in range(KEYS)}
    # A host call is run anew after each kill, and goes on where the model was.
    host = {f"h{n}": [says(f"h{n}", tmp_path / "counts", 0.1), done] * 40 for n in range(KEYS)}
    return {**sessions, **host}


@define
class Episode:
    """What one client saw of one episode."""

    key: str
    activated: httpx.Response
    closed: httpx.Response
    again: httpx.Response


@define
class Clients:
    """Episodes one after the other in several threads, until it is over."""

    world: object
    bodies: object
    over: threading.Event = field(factory=threading.Event)
    numbers: object = field(factory=lambda: iter(range(KEYS)))
    lock: threading.Lock = field(factory=threading.Lock)

    def next_number(self):
        with self.lock:
            return next(self.numbers)

    def asked(self, http, path, body, tried_again=(503,)):
        """The first answer that is none of these."""
        ends = time.monotonic() + CLIENT_S
        while time.monotonic() < ends:
            try:
                answer = http.post(path, json=body)
            except httpx.TransportError:
                answer = None
            if answer is not None and answer.status_code not in tried_again:
                return answer
            # Half a second, as Environment Servers do.
            threading.Event().wait(0.5)
        raise AssertionError(
            f"{path} {body}: no answer within {CLIENT_S} s, the last is {answer and answer.text}"
        )

    def episodes(self):
        """Plays episodes; what became of each."""
        seen = []
        while not self.over.is_set():
            key = f"e{self.next_number()}"
            with httpx.Client(base_url=self.world.url, timeout=CLIENT_S) as http:
                seeded = self.asked(http, "/v1/agent_sessions", self.bodies.seed(f"s-{key}", key))
                assert seeded.status_code == 200, seeded.text
                ran = self.asked(http, f"/ng-rollout/{key}/v1/responses", {"input": "work"}, tried_again=())
                closes = [
                    self.asked(http, "/v1/agent_sessions/close", self.bodies.close(f"s-{key}", key))
                    for _ in range(2)
                ]
            seen.append(Episode(key, ran, *closes))
        return seen

    def host_calls(self):
        """Calls on the host; their answers."""
        seen = []
        while not self.over.is_set():
            path = f"/ng-rollout/h{len(seen)}/v1/responses"
            with httpx.Client(base_url=self.world.url, timeout=CLIENT_S) as http:
                seen.append(self.asked(http, path, {"input": "work"}))
        return seen


def end_one(world, chance, pause, start_s):
    """Let the server live for a while, and end it one way or the other; how long the next one's start took.

    Args:
        start_s: How long its own took: on a busy machine all else takes longer too.
    """
    pause.wait(chance.choice([0.0, 0.3, 1.0, 3.0]) * chance.random() * start_s)
    number = signal.SIGKILL if chance.random() < 0.7 else signal.SIGTERM
    world.server.send_signal(number)
    code = world.server.wait(60)
    assert code in (0, -signal.SIGKILL, -number), (number, code, world.log.read_text()[-3000:])
    begun = time.monotonic()
    world.start()
    return time.monotonic() - begun


def play(world, bodies, chance, *, rounds, count):
    clients = Clients(world, bodies)
    with ThreadPoolExecutor(count + 1) as pool:
        try:
            playing = [pool.submit(clients.episodes) for _ in range(count)]
            hosting = pool.submit(clients.host_calls)
            start_s = 1.0
            for _ in range(rounds):
                start_s = end_one(world, chance, clients.over, start_s)
        finally:
            clients.over.set()
        return [each for client in playing for each in client.result(CLIENT_S)], hosting.result(CLIENT_S)


def check(world, episodes, host_calls):
    launches = Counter((world.folder / "counts" / "launches").read_text().split())
    answered = [each for each in episodes if each.activated.status_code == 200]
    for each in episodes:
        told = (each.key, each.activated.status_code, each.activated.text[:500], launches[each.key])
        if each in answered:
            assert "it is done" in each.activated.text and launches[each.key] == 1, told
            assert len(world.model.capture.calls(each.key)) == 2, told
        else:
            # Killed between the order to launch and the launch: that is found out, and never made up for.
            assert each.activated.status_code == 503 and "never launched" in each.activated.text, told
            assert launches[each.key] == 0, told
        assert (each.closed.status_code, each.again.status_code) == (200, 200), each.closed.text
        assert each.closed.json() == each.again.json()
    assert len(answered) >= len(episodes) / 2
    assert {call.status_code for call in host_calls} <= {200}, [call.text for call in host_calls]
    listed = subprocess.run(
        [*INSPAN, "sessions", "list", "--config", str(world.config), "--json"],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    phases = {each["agent_session_id"]: each["phase"] for each in json.loads(listed.stdout)}
    assert phases == {f"s-{each.key}": "CLOSED" for each in episodes}
    assert "Traceback" not in world.log.read_text()


def storm(worlds, bodies, wait_for, **size):
    seed = int(os.environ.get("INSPAN_TEST_SEED") or random.randrange(2**32))
    world = worlds(drain_timeout_seconds=0.3, host_execution=True)
    try:
        episodes, host_calls = play(world, bodies, random.Random(seed), **size)
        check(world, episodes, host_calls)
        wait_for(lambda: not world.sandboxes() and not world.processes(), "the end of all sandboxes")
        left = world.folder / "state" / "host"
        wait_for(lambda: not left.exists() or not list(left.iterdir()), "the end of all host calls")
    except Exception as error:
        raise AssertionError(f"INSPAN_TEST_SEED={seed}: {type(error).__name__}: {error}") from error
    return episodes, host_calls


@pytest.mark.timeout(600)
def test_a_few_deaths(worlds, bodies, wait_for):
    episodes, host_calls = storm(worlds, bodies, wait_for, rounds=5, count=5)
    assert len(episodes) >= 5 and len(host_calls) >= 1


@pytest.mark.full
@pytest.mark.timeout(2400)
def test_many_deaths(worlds, bodies, wait_for):
    episodes, host_calls = storm(worlds, bodies, wait_for, rounds=40, count=8)
    assert len(episodes) >= 20 and len(host_calls) >= 3
