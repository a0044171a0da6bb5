"""Twenty calls at once on the server's own host, and the server is killed: again and again.

Host calls are never journalled. The next server ends what they left before it listens, and a repeated call is
run anew; what belongs to sessions goes on meanwhile. It is counted from outside: by what each harness writes
to a file, by folders, and by every process that has a call's folder in its environment.
"""

from __future__ import annotations

import os
import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

pytestmark = [pytest.mark.timeout(240)]
AT_ONCE = 20
CLIENT_S = 100.0


@pytest.fixture
def script(tmp_path):
    """Each harness says in which folder it runs, leaves a process in a session of its own, and waits."""
    counts = tmp_path / "counts"
    beats = f"while :; do echo . >> {counts}/beats-$KEY-$(basename $(dirname $PWD)); sleep 0.5; done"
    waits = (
        f"export KEY; echo $KEY $PWD >> {counts}/launches; "
        f"setsid sh -c '{beats}' </dev/null >/dev/null 2>&1 & "
        f"until [ -e {counts}/go ]; do sleep 0.2; done; echo went on"
    )

    def step(key):
        return {"tool_calls": [{"name": "shell", "arguments": {"command": f"KEY={key}; {waits}"}}]}

    keys = [f"k{number}" for number in range(8 * AT_ONCE)]
    # A call that is repeated goes on where the model was: it is told the same once more.
    return {
        "*": [{"content": "it is done"}],
        **{key: [step(key), step(key), {"content": "it is done"}] for key in keys},
    }


@pytest.fixture
def world(worlds, tmp_path):
    return worlds(kind="local", sandbox_config={"workdir": str(tmp_path / "work")}, host_execution=True)


class Calls:
    """Clients that each want one call answered, and ask again when their connection is lost."""

    def __init__(self, world, keys):
        self.world, self.keys = world, keys
        self.over = threading.Event()
        self.pool = ThreadPoolExecutor(len(keys))
        self.answers = [self.pool.submit(self.ask, key) for key in keys]

    def ask(self, key):
        with httpx.Client(base_url=self.world.url, timeout=CLIENT_S) as http:
            while not self.over.is_set():
                try:
                    return http.post(f"/ng-rollout/{key}/v1/responses", json={"input": "work"})
                except httpx.TransportError:
                    self.over.wait(0.1)
        return None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.over.set()
        self.pool.shutdown()

    def all_answers(self):
        return [answer.result(CLIENT_S) for answer in self.answers]


def lines(path):
    return path.read_text().splitlines() if path.exists() else []


def launches(world):
    """(key, the folder's name) of each run that began to work."""
    found = {tuple(line.split()) for line in lines(world.folder / "counts" / "launches")}
    return {(key, Path(workdir).parent.name) for key, workdir in found}


def folders(world):
    place = world.folder / "state" / "host"
    return {entry.name for entry in place.iterdir()} if place.exists() else set()


def processes_of(world, names):
    """Processes whose environment, arguments or working directory name a call's folder."""
    marks = [f"{world.folder}/state/host/{name}".encode() for name in names]
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == world.server.pid:
            continue
        try:
            told = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
            told += bytes((entry / "cwd").readlink())
        except OSError:
            continue
        if any(mark in told for mark in marks):
            found[entry.name] = told[:300]
    return found


def beats(world, names):
    """What the processes of these calls have written so far."""
    sizes = {path.name: path.stat().st_size for path in (world.folder / "counts").glob("beats-*")}
    return {file: size for file, size in sizes.items() if any(file.endswith(name) for name in names)}


def seed_one(world, bodies):
    seeded = httpx.post(f"{world.url}/v1/agent_sessions", json=bodies.seed("s", "of-a-session"), timeout=60)
    assert seeded.status_code == 200, seeded.text
    return seeded.cookies


def play(world, number, wait_for, kill_from):
    """One round: calls begin, the server is killed when so many have, and the next one answers them."""
    keys = [f"k{number * AT_ONCE + each}" for each in range(AT_ONCE)]
    go = world.folder / "counts" / "go"
    with Calls(world, keys) as calls:
        wait_for(lambda: sum(key in keys for key, _ in launches(world)) >= kill_from, f"{kill_from} launches")
        world.kill()
        left, begun = folders(world), {each for each in launches(world) if each[0] in keys}
        assert {name for _, name in begun} <= left
        world.start()
        assert httpx.get(f"{world.url}/healthz", timeout=60).status_code == 200
        assert processes_of(world, left) == {}
        assert not left & folders(world)
        written = beats(world, left)
        wait_for(
            lambda: httpx.get(f"{world.url}/readyz", timeout=60).status_code == 200, "the session's sandbox"
        )
        go.touch()
        answers = calls.all_answers()
        assert [answer.status_code for answer in answers] == [200] * AT_ONCE, answers[0].text
        assert all("it is done" in answer.text for answer in answers)
        ran = {each for each in launches(world) if each[0] in keys}
        anew = Counter(key for key, name in ran if name not in left)
        twice = [each for each in ran if anew[each[0]] > 1]
        assert not twice, "an answer that was lost is run anew once"
        assert {key for key, _ in begun} <= set(anew), "and is run anew from its beginning"
        with Calls(world, keys) as again:
            assert [each.text for each in again.all_answers()] == [each.text for each in answers]
    assert {each for each in launches(world) if each[0] in keys} == ran, "a repetition is replayed"
    assert beats(world, left) == written, "what the dead server's calls had left writes no more"
    wait_for(lambda: not folders(world), "the removal of all folders")
    wait_for(lambda: not processes_of(world, [""]), "the end of all processes of host calls")
    go.unlink()


def finish(world, bodies, cookies):
    """The session that was there all the time is as it was."""
    with httpx.Client(base_url=world.url, timeout=60, cookies=cookies) as http:
        ran = http.post("/ng-rollout/of-a-session/v1/responses", json={"input": "work"})
        assert (ran.status_code, "it is done" in ran.text) == (200, True), ran.text
        assert (
            http.post("/v1/agent_sessions/close", json=bodies.close("s", "of-a-session")).status_code == 200
        )
    assert world.sandboxes() == set()


def test_twenty_calls_are_cut_off_and_run_anew(world, bodies, wait_for):
    cookies = seed_one(world, bodies)
    sandboxes = world.sandboxes()
    play(world, 0, wait_for, AT_ONCE)
    assert world.sandboxes() == sandboxes, "no call ever makes a sandbox"
    finish(world, bodies, cookies)


@pytest.mark.full
@pytest.mark.timeout(600)
def test_round_after_round_at_any_moment(world, bodies, wait_for):
    """Killed when any number of them has begun; set-up, launch, run and release are all cut somewhere."""
    seed = int(os.environ.get("INSPAN_TEST_SEED") or random.randrange(2**32))
    chance = random.Random(seed)
    cookies = seed_one(world, bodies)
    sandboxes = world.sandboxes()
    for number in range(8):
        kill_from = chance.randrange(AT_ONCE + 1)
        try:
            play(world, number, wait_for, kill_from)
        except AssertionError as error:
            raise AssertionError(f"round {number} of seed {seed}, killed at {kill_from}: {error}") from error
    assert world.sandboxes() == sandboxes
    finish(world, bodies, cookies)
