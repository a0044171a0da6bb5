"""Calls without a session, over real sockets: the echo harness on the server's own host."""

import contextlib
import json
import os
import stat
from pathlib import Path

import anyio
import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

import inspan_echo
from inspan_core.errors import InstallError, SandboxCreateError
from inspan_core.hookspecs import hookimpl
from inspan_core.plugins import load_plugins
from inspan_runtime.host_calls import HostRequest
from inspan_runtime.providers.local import LocalProvider
from inspan_server.model.capture import Capture
from inspan_server.model.gateway import create_gateway
from inspan_server.model.script import parse_script
from inspan_server.serving import served

pytestmark = pytest.mark.anyio
HOST = "/v1/responses"
SESSION_KEY = "/ng-rollout/r1/v1/responses"
OTHER_KEY = "/ng-rollout/r9/v1/responses"
CAPTURED = "/training-token-capture/v1"
CANARY = "canary-of-the-server-5ea1"


class Watched:
    """The one provider of these servers: says what was asked of it, and may be broken."""

    def __init__(self, *, is_broken=False):
        self.created = []
        self.is_broken = is_broken

    @hookimpl
    def inspan_sandbox_providers(self):
        watched = self

        class Provider(LocalProvider):
            async def create(self, spec, *, key, timeout_s=60.0):
                watched.created.append(key)
                if watched.is_broken:
                    raise SandboxCreateError("no sandbox today")
                return await super().create(spec, key=key, timeout_s=timeout_s)

        return {"local": Provider}


class Installs:
    """Counts installations, which may fail or be held up."""

    def __init__(self, failures=0):
        self.begun = self.under_way = self.most_at_once = self.failed = self.begun_at_first_end = 0
        self.failures = failures
        self.opened = anyio.Event()

    @hookimpl(wrapper=True)
    def inspan_install(self, context):
        return self.around((yield))

    async def around(self, install):
        self.begun += 1
        self.under_way += 1
        self.most_at_once = max(self.most_at_once, self.under_way)
        try:
            if self.begun == 1:
                await self.opened.wait()  # The first is held, so that others come meanwhile.
            if self.failed < self.failures:
                self.failed += 1
                raise InstallError("the disk is full")
            return await install
        finally:
            install.close()  # Where it was not awaited.
            self.under_way -= 1
            self.begun_at_first_end = self.begun_at_first_end or self.begun


@pytest.fixture
def host(agent, tmp_path):
    """A server with the host path: ``async with host(script=...) as server``; `server.folder` is its."""

    @contextlib.asynccontextmanager
    async def started(*, provider=None, plugins=(), script=None, **changes):
        provider = provider or Watched()
        loaded = load_plugins([provider, inspan_echo, *plugins], entry_points=False)
        settings = {"host_execution": True, "state_dir": str(tmp_path / "state"), **changes}
        async with contextlib.AsyncExitStack() as stack:
            if script is not None:
                gateway = create_gateway(parse_script(script), Capture())
                url = await stack.enter_async_context(served(gateway, graceful_timeout_s=1))
                settings |= {"model_server": {"base_url": url}, "harness_options": {}}
            server = await stack.enter_async_context(agent(plugins=loaded, **settings))
            server.created = provider.created
            server.folder = tmp_path / "state" / "host"
            yield server

    return started


def running(command, *, then="done"):
    return {"*": [tool_call(command), {"content": then}]}


def tool_call(command):
    return {"tool_calls": [{"name": "bash", "arguments": {"command": command}}]}


def texts(response):
    return [part["text"] for item in response["output"] for part in item.get("content") or ()]


def outputs(response):
    return [item["output"] for item in response["output"] if item["type"] == "function_call_output"]


def entries(folder):
    return sorted(each.name for each in folder.iterdir()) if folder.exists() else []


async def test_a_call_runs_on_the_host_and_creates_no_sandbox(host, until):
    async with host() as server:
        answer = await server.client.post(HOST, json={"input": "marco"})
        assert (answer.status_code, texts(answer.json())) == (200, ["marco"])
        again = await server.client.post(HOST, json={"input": "polo"})  # With the answer's unbound cookie.
        assert texts(again.json()) == ["polo"]
        assert server.created == [] and await server.provider.list({}) == []
        await until(lambda: entries(server.folder) == [], "the folder's removal")
        assert stat.S_IMODE(server.folder.stat().st_mode) == 0o700
        assert (await server.client.get("/healthz")).json()["sessions"] == 0


async def test_the_harness_sees_a_private_folder_and_nothing_of_the_servers_environment(host, monkeypatch):
    monkeypatch.setenv("INSPAN_TEST_SECRET", CANARY)
    command = 'pwd; stat -c %a "$PWD" ..; echo "$HOME"; env; cat /proc/$PPID/environ'
    async with host(script=running(command)) as server:
        answer = await server.client.post(OTHER_KEY, json={"input": "look"})
        assert answer.status_code == 200, answer.text
        told = "\n".join(outputs(answer.json()))
        workdir, mode, parent_mode, home = told.splitlines()[:4]
        assert Path(workdir).parent.parent == server.folder
        assert (mode, parent_mode) == ("700", "700")
        assert Path(home) == Path(workdir).parent / "home"
        assert CANARY not in told


async def test_without_the_switch_a_call_is_refused_with_the_way_to_set_it(host):
    async with host(host_execution=False) as server:
        for path in (HOST, OTHER_KEY):
            answer = await server.client.post(path, json={"input": "marco"})
            assert answer.status_code == 422
            assert "host_execution: true" in answer.json()["detail"]
        assert entries(server.folder) == []


async def test_what_belongs_to_a_session_is_never_a_host_call(host, bodies, cookie_of):
    async with host() as server, httpx.AsyncClient(base_url=server.url, timeout=40) as stranger:
        seeded = await server.client.post("/v1/agent_sessions", json=bodies.seed())
        assert seeded.status_code == 200

        async def status(path, headers=None):
            answer = await stranger.post(path, json={"input": "marco"}, headers=headers)
            return answer.status_code

        assert await status(SESSION_KEY) == 409  # Its cookie was not sent.
        assert await status(HOST, cookie_of("s1")) == 409  # Unprefixed inside a session.
        quoted = {name: value.replace("=", '="', 1) + '"' for name, value in cookie_of("s1").items()}
        assert await status(HOST, quoted) == 409
        closed = await server.client.post("/v1/agent_sessions/close", json=bodies.close())
        assert closed.status_code == 200
        assert await status(SESSION_KEY) == 409  # Retained.
        assert await status(SESSION_KEY, cookie_of("s1")) == 409  # Stale.
        assert await status(HOST, cookie_of("s1")) == 409
        assert await status(HOST, cookie_of("never-seeded")) == 409
        garbled = {"cookie": cookie_of("s1")["cookie"][:-3] + "abc"}
        assert await status(HOST, garbled) == 409
        assert entries(server.folder) == []
        stranger.cookies.clear()
        assert await status(OTHER_KEY) == 200


async def test_a_failing_sandbox_never_falls_back_to_the_host(host, bodies, cookie_of):
    descriptor = {"provider": "local", "sandbox_id": "x", "state": "/nowhere/x", "workdir": "/"}
    connection = {"kind": "direct", "provider_config_ref": "box", "descriptor": descriptor}
    borrowed = {"connection": connection, "workdir": "/"}
    async with host(provider=Watched(is_broken=True)) as server:
        for access, status in ((None, 503), (borrowed, 422)):
            server.client.cookies.clear()
            seeded = await server.client.post("/v1/agent_sessions", json=bodies.seed(sandbox_access=access))
            assert seeded.status_code == status, seeded.text
            ran = await server.client.post(SESSION_KEY, json={"input": "x"}, headers=cookie_of("s1"))
            assert ran.status_code == 409
        assert len(server.created) == 1
        assert server.service.host.phases == {} and not server.folder.exists()


async def test_calls_that_come_at_once_install_once(host, until):
    installs = Installs()
    async with host(plugins=[installs]) as server:
        assert (await server.client.get("/healthz")).status_code == 200
        assert installs.begun == 0  # Nothing is installed before somebody needs it.
        answers = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(collect_answers, server, 6, answers)
            host_calls = server.service.host
            await until(lambda: [*host_calls.phases.values()] == ["INSTALLING"] * 6, "six calls that wait")
            await until(lambda: installs.begun > 0, "the installation")
            installs.opened.set()
        assert installs.begun_at_first_end == 1
        assert [answer.status_code for answer in answers] == [200] * 6
    assert installs.begun == 6  # The others looked for themselves at what was there by then.


async def test_a_failed_installation_is_told_to_all_who_waited_and_tried_again_by_the_next(host, until):
    installs = Installs(failures=1)
    async with host(plugins=[installs]) as server:
        answers = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(collect_answers, server, 4, answers)
            host_calls = server.service.host
            await until(lambda: [*host_calls.phases.values()] == ["INSTALLING"] * 4, "four calls that wait")
            installs.opened.set()
        assert [answer.status_code for answer in answers] == [503] * 4
        assert all("the disk is full" in answer.json()["detail"] for answer in answers)
        assert (installs.begun, installs.most_at_once) == (1, 1)
        assert (await server.client.post(HOST, json={"input": "again"})).status_code == 200
        assert installs.begun == 2


async def collect_answers(server, count, answers):
    async def call(number):
        answers.append(await server.client.post(HOST, json={"input": f"number {number}"}))

    async with anyio.create_task_group() as tasks:
        for number in range(count):
            tasks.start_soon(call, number)


async def test_without_a_receipt_there_is_no_200(host, until):
    """The harness kills its supervisor: nothing proves any more that it has stopped."""
    command = "kill -9 $(cut -d' ' -f4 /proc/$PPID/stat)"
    async with host(script=running(command), session_close_timeout_seconds=3) as server:
        answer = await server.client.post(OTHER_KEY, json={"input": "kill"})
        assert answer.status_code == 503
        await until(lambda: entries(server.folder) == [], "the folder's removal")
        assert marked_processes(server.folder) == []


async def test_what_the_harness_left_running_ends_with_the_call(host, until):
    async with host(script=running("setsid sleep 300 >/dev/null 2>&1 & echo started")) as server:
        answer = await server.client.post(OTHER_KEY, json={"input": "serve"})
        assert answer.status_code == 200
        await until(lambda: entries(server.folder) == [], "the folder's removal")
        await until(lambda: marked_processes(server.folder) == [], "the service's end")


def marked_processes(folder):
    """Processes with a working directory below the server's folder for host calls."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{name}/cwd").startswith(str(folder)):
                found.append(int(name))
    return found


async def test_a_client_that_goes_away_cancels_nothing_and_its_repeat_joins(host, tmp_path, until):
    launches = tmp_path / "launches"
    command = f"echo launched >> {launches}; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; echo ok"
    async with host(script=running(command)) as server:
        with anyio.move_on_after(0.2):
            await server.client.post(OTHER_KEY, json={"input": "work"})
        await until(launches.exists, "the launch")
        answers = []

        async def again():
            answers.append(await server.client.post(OTHER_KEY, json={"input": "work", "tools": []}))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(again)
            tasks.start_soon(again)
            (tmp_path / "go").touch()
        await again()  # Replayed: the call is over.
        assert [answer.status_code for answer in answers] == [200] * 3
        assert len({answer.text for answer in answers}) == 1
        assert launches.read_text().splitlines() == ["launched"]


async def test_a_call_without_a_prefix_has_no_identity_and_asks_the_model_without_one(host, tmp_path):
    launches, asked = tmp_path / "launches", []

    async def answer(request):
        """A model server as others have it: it takes calls without a rollout too."""
        asked.append((request.url.path, request.headers["authorization"]))
        messages = (await request.json())["messages"]
        told = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": "{}"}}
        told["function"]["arguments"] = json.dumps({"command": f"echo launched >> {launches}"})
        message = {"role": "assistant", "content": "plain"}
        if messages[-1]["role"] == "user":
            message = {"role": "assistant", "content": None, "tool_calls": [told]}
        return JSONResponse({"id": "m1", "choices": [{"message": message, "finish_reason": "stop"}]})

    app = Starlette(routes=[Route("/{path:path}", answer, methods=["POST"])])
    async with served(app, graceful_timeout_s=1) as url:
        model = {"base_url": url, "api_key": "sk-host-1"}
        async with host(model_server=model, harness_options={}) as server:
            for _ in range(2):
                ran = await server.client.post(HOST, json={"input": "work"})
                assert texts(ran.json())[-1] == "plain"
                assert "sk-host-1" not in ran.text
    assert launches.read_text().splitlines() == ["launched"] * 2
    assert set(asked) == {("/v1/chat/completions", "Bearer sk-host-1")}


async def test_runs_of_sessions_and_of_host_calls_share_the_limit(host, bodies, tmp_path):
    log = tmp_path / "log"
    command = f"echo begin >> {log}; sleep 0.2; echo end >> {log}"
    async with host(script=running(command), concurrency=1) as server:
        assert (await server.client.post("/v1/agent_sessions", json=bodies.seed())).status_code == 200

        async def session():
            answer = await server.client.post(SESSION_KEY, json={"input": "x"})
            assert answer.status_code == 200, answer.text

        async def call(number):
            async with httpx.AsyncClient(base_url=server.url, timeout=40) as stranger:
                answer = await stranger.post(f"/ng-rollout/h{number}{HOST}", json={"input": "x"})
                assert answer.status_code == 200, answer.text

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(session)
            tasks.start_soon(call, 1)
            tasks.start_soon(call, 2)
    assert log.read_text().split() == ["begin", "end"] * 3


async def test_fields_and_the_time_budget_are_those_of_a_session(host):
    async with host(script=running("sleep 60")) as server:
        for body, named in (
            ({"input": "x", "truncation": "auto"}, "truncation"),
            ({"input": "x", "metadata": {"agent_timeout_sec": "soon"}}, "metadata.agent_timeout_sec"),
            ({"input": [{"type": "function_call", "name": "f"}]}, "input[0]"),
        ):
            answer = await server.client.post(HOST, json=body)
            assert (answer.status_code, named in answer.text) == (422, True), answer.text
        answer = await server.client.post("/ng-rollout/..x/v1/responses", json={"input": "x"})
        assert answer.status_code == 422
        timed = {"input": "x", "metadata": {"agent_timeout_sec": "1"}}
        answer = await server.client.post(OTHER_KEY, json=timed)
        assert (answer.status_code, answer.json()["status"]) == (200, "incomplete")
        assert answer.json()["metadata"]["stop_reason"] == "timeout"


async def test_a_server_that_stops_ends_its_host_calls_first(host, tmp_path, until):
    launched = tmp_path / "launched"
    answers = []
    async with host(script=running(f"touch {launched}; sleep 300")) as server:
        async with anyio.create_task_group() as tasks:

            async def call():
                answers.append(await server.client.post(OTHER_KEY, json={"input": "x"}))

            tasks.start_soon(call)
            await until(launched.exists, "the launch")
            assert await server.service.close_all(timeout_s=20) == []
        assert answers[0].status_code >= 500
        assert entries(server.folder) == [] and marked_processes(server.folder) == []
        late = await server.client.post(HOST, json={"input": "x"})
        assert late.status_code == 503


async def test_a_call_that_is_being_set_up_when_the_server_stops_may_be_tried_elsewhere(host, until):
    installs, answers = Installs(), []
    async with host(plugins=[installs]) as server:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(collect_answers, server, 2, answers)
            await until(lambda: [*server.service.host.phases.values()] == ["INSTALLING"] * 2, "two calls")
            await until(lambda: installs.begun > 0, "the installation")
            assert await server.service.close_all(timeout_s=20) == []
        assert [answer.status_code for answer in answers] == [503] * 2, answers[0].text
        assert entries(server.folder) == []


async def test_a_call_that_has_hardly_begun_when_the_server_stops_runs_nothing(host):
    body = {"input": "x"}
    async with host() as server:
        assert (await server.client.get("/healthz")).status_code == 200
        call = server.service.start_host_call(
            HostRequest(capture_key=None, token_capture=False, body=body, digest="d")
        )
        assert await server.service.close_all(timeout_s=20) == []
        assert (await call.wait()).status == 503
        assert not server.folder.exists()


async def test_a_server_that_drains_lets_sessions_run_and_takes_no_host_call(host, bodies):
    async with host() as server, httpx.AsyncClient(base_url=server.url, timeout=40) as stranger:
        assert (await server.client.post("/v1/agent_sessions", json=bodies.seed())).status_code == 200
        server.app.state.routes.is_draining = True
        for path in (HOST, OTHER_KEY):
            assert (await stranger.post(path, json={"input": "x"})).status_code == 503
        assert (await server.client.post(SESSION_KEY, json={"input": "x"})).status_code == 200


async def test_the_model_is_asked_under_the_rollout_of_the_path(host):
    async with host(script={"r9": [{"content": "first"}, {"content": "second"}]}) as server:
        for path, said in ((OTHER_KEY, "first"), (OTHER_KEY.replace("/v1", CAPTURED), "second")):
            answer = await server.client.post(path, json={"input": "x"})
            assert texts(answer.json())[-1] == said
