"""A thousand open sessions in one process: each gets its own, and what hangs is nobody else's."""

from __future__ import annotations

import json
import sqlite3
import subprocess
from contextlib import closing

import anyio.lowlevel
import httpx
import pytest

from inspan_core.errors import SandboxTransportError
from inspan_core.findings import Outcome
from inspan_core.harness import HarnessSpec, ParsedActivation, SandboxCommand
from inspan_core.hookspecs import hookimpl
from inspan_core.observations import AgentObservationBundle
from inspan_core.plugins import load_plugins
from inspan_core.sandbox import ExecResult, FileContent
from inspan_runtime.testing.fake_commands import PREFLIGHT, kind_of
from inspan_runtime.testing.faults import CallKind
from inspan_server.agent.app import create_app
from inspan_server.agent.config_reading import parse_config
from inspan_server.serving import served

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(180)]
MANY = 1000
RECEIPT = b'{"cleanup_confirmed": true, "return_code": 0, "error": null, "timed_out": false}'


class Box:
    """A sandbox in memory that answers the runtime's own commands, and yields before each answer."""

    def __init__(self, shelf, key):
        self.shelf, self.sandbox_id, self.files = shelf, key, {}
        self.descriptor = {"provider": "shelf", "sandbox_id": key, "python": "/usr/bin/python3"}

    async def exec(self, argv, *, timeout_s, env=None, cwd=None, stdin=b"", output_limit_bytes=0):
        await self.shelf.pass_through(self.sandbox_id)
        kind = kind_of(argv, stdin)
        if kind is CallKind.LAUNCH:
            data = self.files[f"{argv[-1]}/input.json"]
            task = json.loads(data)
            if task["key"].removeprefix("key-of-") not in task["url"].split("/"):
                self.shelf.mixed.append(task)
            self.files[f"{argv[-1]}/output.json"] = data
            self.files[f"{argv[-1]}/cleanup.json"] = RECEIPT
            return ExecResult(exit_code=0)
        if kind is CallKind.LOOK:
            return ExecResult(exit_code=0, stdout=b"receipt\n")
        if argv[0] == "env":
            return ExecResult(exit_code=0, stdout=b"PATH=/usr/bin:/bin\0")
        return ExecResult(exit_code=0, stdout=self.shelf.facts(argv))

    async def upload(self, path, data, *, mode=0o644, timeout_s=60.0):
        await self.shelf.pass_through(self.sandbox_id)
        self.files[path] = data

    async def download(self, path, *, limit_bytes, tail=False, timeout_s=60.0):
        if path not in self.files:
            raise FileNotFoundError(path)
        return FileContent(data=self.files[path], size_bytes=len(self.files[path]))

    async def is_alive(self):
        return True

    async def disconnect(self):
        pass

    async def stop(self):
        if self.shelf.failing_stops:
            self.shelf.failing_stops -= 1
            if self.shelf.stops_hang:
                await anyio.sleep_forever()
            raise SandboxTransportError("the stop was not confirmed")
        self.shelf.boxes.pop(self.sandbox_id, None)


class Shelf:
    """A provider of such sandboxes; `hanging` names those that never answer."""

    name = "shelf"

    def __init__(self):
        self.made, self.slow, self.failing_stops, self.gate = [], set(), 0, anyio.Event()
        self.stops_hang = False
        self.boxes, self.hanging, self.mixed, self._facts = {}, set(), [], {}

    def facts(self, argv):
        """What a look at a sandbox prints is what it prints on this host."""
        kind = "shells" in argv[-1]
        if "uname" not in argv[-1]:
            return json.dumps(PREFLIGHT).encode()
        if kind not in self._facts:
            self._facts[kind] = subprocess.run(argv, capture_output=True, timeout=30).stdout
        return self._facts[kind]

    async def pass_through(self, key):
        if any(key.startswith(name) for name in self.hanging):
            await anyio.sleep_forever()
        await anyio.lowlevel.checkpoint()

    async def create(self, spec, *, key, timeout_s=60.0):
        self.made.append(key)
        if key.split(".")[0] in self.slow:
            await self.gate.wait()
        self.boxes[key] = Box(self, key)
        return self.boxes[key]

    async def connect(self, descriptor, *, timeout_s=30.0):
        await self.pass_through(descriptor["sandbox_id"])
        if descriptor["sandbox_id"] not in self.boxes:
            raise SandboxTransportError("not on the shelf")
        return self.boxes[descriptor["sandbox_id"]]

    async def stop(self, key, *, timeout_s=30.0):
        await self.pass_through(key)
        self.boxes.pop(key, None)

    async def list(self, labels):
        return [box.descriptor for box in self.boxes.values()]

    async def aclose(self):
        pass


class Repeats:
    """Its answer is the task's own input, with the model's URL that it was given."""

    def __init__(self, shelf):
        self.shelf = shelf

    @hookimpl
    def inspan_harness(self):
        return HarnessSpec(
            name="repeats",
            version="1",
            model_api="responses",
            level=2,
            request_fields={"input": "applied", "metadata": "ignored"},
        )

    @hookimpl
    async def inspan_install(self, context):
        return {"workdir": context.workdir}

    @hookimpl
    async def inspan_stage(self, context):
        task = {"input": context.request["input"], "url": context.model_base_url, "key": context.model_key}
        await context.upload_text("input.json", json.dumps(task))
        return SandboxCommand(argv=["/bin/true"], python="/usr/bin/python3")

    @hookimpl
    async def inspan_collect(self, context):
        await context.download("output.json", limit_bytes=4096)

    @hookimpl
    def inspan_parse(self, run):
        task = json.loads(run.artifacts.files["output.json"])
        return ParsedActivation(
            outcome=Outcome.COMPLETED,
            response={"id": "r", "object": "response", "said": task, "asked": run.request["input"]},
            observations=AgentObservationBundle(source=task["input"]),
        )

    @hookimpl
    def inspan_sandbox_providers(self):
        return {"shelf": lambda _options: self.shelf}


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def shelf():
    return Shelf()


@pytest.fixture
def app(shelf, tmp_path):
    def make(**changes):
        config = parse_config(
            {
                "harness": "repeats",
                "model_server": {"base_url": "http://127.0.0.1:9"},
                "sandbox_provider": "box",
                "sandbox_config": {"workdir": "/tmp"},
                "sandbox_providers": {"box": {"kind": "shelf"}},
                "runtime_cache_dir": str(tmp_path / "cache"),
                "session_close_timeout_seconds": 2,
                **changes,
            }
        )
        plugins = load_plugins([Repeats(shelf)], entry_points=False)
        return create_app(config, plugins, model_key=lambda key: f"key-of-{key}")

    return make


async def test_a_thousand_open_sessions_do_not_mix(app, shelf, bodies, tmp_path):
    async with served(app(state_dir=str(tmp_path / "state")), graceful_timeout_s=1) as url:
        answers, closes = {}, {}

        async def live(numbers, opened):
            async with httpx.AsyncClient(base_url=url, timeout=100) as http:
                for number in numbers:
                    http.cookies.clear()
                    seeded = await http.post(
                        "/v1/agent_sessions", json=bodies.seed(f"s{number}", f"r{number}")
                    )
                    assert seeded.status_code == 200, seeded.text
                    opened[number] = dict(http.cookies)
                opened["left"] -= 1
                while opened["left"]:
                    await anyio.sleep(0.01)
                for number in numbers:
                    http.cookies.clear()
                    http.cookies.update(opened[number])
                    answers[number] = await http.post(
                        f"/ng-rollout/r{number}/v1/responses", json={"input": f"task {number}"}
                    )
                    closes[number] = await http.post(
                        "/v1/agent_sessions/close", json=bodies.close(f"s{number}", f"r{number}")
                    )

        opened = {"left": 20}
        async with anyio.create_task_group() as clients:
            for first in range(20):
                clients.start_soon(live, range(first, MANY, 20), opened)
        assert len(opened) == MANY + 1 and not shelf.boxes and not shelf.mixed
        for number in range(MANY):
            said = answers[number].json()["said"]
            assert said["input"] == answers[number].json()["asked"] == f"task {number}"
            assert f"/ng-rollout/r{number}/v1" in said["url"]
            assert closes[number].json()["agent_observations"]["source"] == f"task {number}"


async def test_a_recovered_sandbox_that_hangs_holds_up_nobody_else(app, shelf, bodies, tmp_path):
    """Its set-up was cut off, and it never answers: new work waits for the bound, and no longer."""
    state = tmp_path / "state"
    async with served(app(state_dir=str(state)), graceful_timeout_s=1) as url, httpx.AsyncClient() as http:
        await http.post(f"{url}/v1/agent_sessions", json=bodies.seed("hangs", "r1"), timeout=30)
    with closing(sqlite3.connect(state / "sessions.sqlite")) as database, database:
        database.execute("DELETE FROM events WHERE number > 1")
    shelf.hanging.add("hangs")
    again = app(state_dir=str(state), recovery_timeout_seconds=1.0, session_close_timeout_seconds=30)
    async with served(again, graceful_timeout_s=1) as url, httpx.AsyncClient(timeout=30) as http:
        assert (await http.get(f"{url}/readyz")).json()["status"] == "recovering"
        seeded = await http.post(f"{url}/v1/agent_sessions", json=bodies.seed("other", "r2"))
        assert seeded.status_code == 200
        ready = await http.get(f"{url}/readyz")
        assert (ready.status_code, ready.json()["status"]) == (200, "ready")
        assert again.state.service.phases["hangs"] == "UNWINDING"
        http.cookies.clear()
        closed = await http.post(f"{url}/v1/agent_sessions/close", json=bodies.close("other", "r2"))
        assert closed.status_code == 200
        shelf.hanging.clear()


@pytest.mark.parametrize("let_go", ["before the close", "after the close"])
async def test_a_create_in_flight_is_joined_by_close_and_its_sandbox_stopped(app, shelf, bodies, let_go):
    """The creation is the session's: whoever goes away or closes, its one sandbox does not outlive it."""
    shelf.slow.add("slow")
    async with served(app(), graceful_timeout_s=1) as url, httpx.AsyncClient(timeout=30) as http:
        with anyio.move_on_after(0.2):  # The client gives up in the middle of the creation.
            await http.post(f"{url}/v1/agent_sessions", json=bodies.seed("slow", "r1"))
        assert len(shelf.made) == 1 and not shelf.boxes
        if let_go == "before the close":
            shelf.gate.set()
        async with anyio.create_task_group() as tasks:
            answers = []

            async def close():
                answers.append(
                    await http.post(f"{url}/v1/agent_sessions/close", json=bodies.close("slow", "r1"))
                )

            tasks.start_soon(close)
            await anyio.lowlevel.checkpoint()
            shelf.gate.set()
        assert answers[0].status_code == 200
        assert len(shelf.made) == 1 and not shelf.boxes


async def test_a_creation_that_hangs_is_nobody_elses(app, shelf, bodies):
    """Only its own session waits for it."""
    shelf.slow.add("slow")
    async with served(app(), graceful_timeout_s=1) as url, httpx.AsyncClient(timeout=30) as http:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(
                lambda: http.post(f"{url}/v1/agent_sessions", json=bodies.seed("slow", "r1"), timeout=60)
            )
            async with httpx.AsyncClient(timeout=30) as other:
                seeded = await other.post(f"{url}/v1/agent_sessions", json=bodies.seed("quick", "r2"))
                closed = await other.post(f"{url}/v1/agent_sessions/close", json=bodies.close("quick", "r2"))
            assert (seeded.status_code, closed.status_code) == (200, 200)
            shelf.gate.set()


@pytest.mark.parametrize("hangs", [False, True], ids=["fails", "hangs"])
async def test_a_failing_teardown_never_replaces_a_finished_result(app, shelf, bodies, hangs):
    """The result comes first and is kept; the release is apart, and tried again."""
    ends = {"graceful_timeout_s": 1, "shutdown_timeout_s": 10}
    async with served(app(), **ends) as url, httpx.AsyncClient(timeout=30) as http:
        await http.post(f"{url}/v1/agent_sessions", json=bodies.seed("s", "r1"))
        path = f"{url}/ng-rollout/r1/v1/responses"
        first = await http.post(path, json={"input": "once"})
        shelf.failing_stops, shelf.stops_hang = 1, hangs
        failed = await http.post(f"{url}/v1/agent_sessions/close", json=bodies.close("s", "r1"))
        assert (first.status_code, failed.status_code) == (200, 503)
        closed = await http.post(f"{url}/v1/agent_sessions/close", json=bodies.close("s", "r1"))
        assert closed.status_code == 200 and not shelf.boxes
        assert closed.json()["agent_observations"]["source"] == "once"
        assert closed.json()["agent_observations"]["gaps"] == []


async def test_names_never_collide(app, shelf, bodies):
    """Sandboxes of the same session, made one after the other, and of others at the same moment."""
    for _ in range(3):
        async with served(app(), graceful_timeout_s=1) as url, httpx.AsyncClient(timeout=30) as http:
            for name in ("a", "b"):
                http.cookies.clear()
                await http.post(f"{url}/v1/agent_sessions", json=bodies.seed(name, name))
    assert len(shelf.made) == len(set(shelf.made)) == 6
