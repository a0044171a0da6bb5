"""Episodes of ``/run``, and the server is killed at each of their stages.

Nothing of them is journalled: a repeated episode is run anew, in a new session of the Resources Server. But
no session there is left open, none is verified twice, and none is graded by what another one ran.
"""

from __future__ import annotations

import stat
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import anyio
import anyio.from_thread
import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from inspan_server.serving import served

pytestmark = [pytest.mark.timeout(180)]
AT_ONCE = 5
SECRET = "a-word-that-only-the-resources-server-set"
STAGES = ["seed_session", "the run", "verify", "close_session"]
FULL = {"verify", "close_session"}
CLIENT_S = 100.0


@pytest.fixture
def script(tmp_path):
    counts = tmp_path / "counts"
    waits = f"pwd >> {counts}/launches; until [ -e {counts}/go ]; do sleep 0.1; done"
    step = {"tool_calls": [{"name": "shell", "arguments": {"command": waits}}]}
    # A repeated episode goes on where the model was.
    return {"*": [step, step, {"content": "it is done"}] * 2}


class Resources:
    """A Resources Server in a thread of the test; one of its endpoints may be held up."""

    def __init__(self):
        self.calls, self.held, self.url = [], None, None

    async def answer(self, request):
        name, body = request.path_params["name"], await request.json()
        self.calls.append((name, body, dict(request.cookies)))
        while self.held == name:
            await anyio.sleep(0.02)
        answer = JSONResponse({"reward": 1.0, "of": body["task_data"] if "task_data" in body else None})
        if name == "seed_session":
            answer.set_cookie("of-the-session", f"{SECRET}.{body['resources_session_id']}")
        return answer

    def asked(self, name):
        return [(body, cookies) for called, body, cookies in self.calls if called == name]

    def sessions(self, name):
        return Counter(body["resources_session_id"] for body, _ in self.asked(name))


@pytest.fixture
def resources():
    found = Resources()
    app = Starlette(routes=[Route("/{name}", found.answer, methods=["POST"])])
    with anyio.from_thread.start_blocking_portal() as portal:
        with portal.wrap_async_context_manager(served(app, graceful_timeout_s=1)) as url:
            found.url = url
            yield found
            found.held = None


@pytest.fixture
def world(worlds, tmp_path, resources):
    return worlds(
        kind="local",
        sandbox_config={"workdir": str(tmp_path / "work")},
        host_execution=True,
        resources_server={"base_url": resources.url, "timeout_s": 60.0},
    )


def body_of(number):
    return {
        "responses_create_params": {"input": "work"},
        "episode_id": {"rollout_id": f"e{number}", "attempt": 0},
        "question": number,
    }


def ask(world, number, over):
    with httpx.Client(base_url=world.url, timeout=CLIENT_S) as http:
        while not over.is_set():
            try:
                return http.post("/run", json=body_of(number))
            except httpx.TransportError:
                over.wait(0.1)
    return None


def owed(world):
    folder = world.folder / "state" / "resources"
    return sorted(folder.iterdir()) if folder.exists() else []


def runs(world):
    """The folder of each run: the model may have it work twice in it."""
    path = world.folder / "counts" / "launches"
    return set(path.read_text().split()) if path.exists() else set()


def reached(world, resources, stage):
    if stage == "the run":
        return len(runs(world)) >= AT_ONCE
    return len(resources.asked(stage)) >= AT_ONCE


@pytest.mark.parametrize(
    "stage", [pytest.param(stage, marks=pytest.mark.full) if stage in FULL else stage for stage in STAGES]
)
def test_killed_at_a_stage_each_episode_is_run_anew_and_no_session_stays_open(
    world, resources, wait_for, stage
):
    resources.held = stage
    go = world.folder / "counts" / "go"
    if stage != "the run":
        go.touch()
    over = threading.Event()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        try:
            answers = [pool.submit(ask, world, number, over) for number in range(AT_ONCE)]
            wait_for(lambda: reached(world, resources, stage), f"{AT_ONCE} episodes at {stage}")
            first = set(resources.sessions("seed_session"))
            assert len(first) == AT_ONCE == len(owed(world))
            assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in owed(world))
            world.kill()
            resources.held = None
            world.start()
            wait_for(lambda: first <= set(resources.sessions("close_session")), "the close of what was open")
            go.touch()
            answers = [answer.result(CLIENT_S) for answer in answers]
        finally:
            over.set()
    assert [answer.status_code for answer in answers] == [200] * AT_ONCE, answers[0].text
    assert all(answer.json()["reward"] == 1.0 for answer in answers)
    check_sessions(world, resources, first, stage)
    wait_for(lambda: not owed(world), "that nothing is owed")
    again = httpx.post(f"{world.url}/run", json=body_of(0), timeout=CLIENT_S)
    assert again.json() == answers[0].json(), "a repetition is replayed"
    check_sessions(world, resources, first, stage)
    assert SECRET not in world.log.read_text()


def check_sessions(world, resources, first, stage):
    seeded, closed = resources.sessions("seed_session"), resources.sessions("close_session")
    assert set(seeded.values()) == {1} and len(seeded) == 2 * AT_ONCE, "each episode twice, never one session"
    assert set(closed) == set(seeded)
    asked = resources.asked("seed_session")
    episodes = {body["resources_session_id"]: body["episode_id"] for body, _ in asked}
    for body, cookies in resources.asked("close_session"):
        name = body["resources_session_id"]
        assert body["episode_id"] == episodes[name]
        # The answer to a seed that was cut off told nobody its cookie.
        assert cookies.get("of-the-session") == f"{SECRET}.{name}" or (name in first and not cookies)
    verified = [cookies["of-the-session"].partition(".")[2] for _, cookies in resources.asked("verify")]
    assert len(verified) == len(set(verified)), "no session is verified twice"
    assert set(seeded) - first <= set(verified)
    if stage in ("seed_session", "the run"):
        assert not first & set(verified)
    assert len(runs(world)) == (AT_ONCE if stage == "seed_session" else 2 * AT_ONCE)
