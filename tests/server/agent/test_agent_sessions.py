"""Agent sessions over real sockets: the echo harness in real processes."""

import json
import socket
from urllib.parse import urlsplit

import anyio
import pytest

import inspan_echo
from inspan_core.hookspecs import hookimpl
from inspan_core.plugins import load_plugins
from inspan_core.sandbox import SandboxSpec
from inspan_runtime.providers.local import LocalProvider
from inspan_server.agent.cookies import COOKIE_NAME

pytestmark = pytest.mark.anyio
ACTIVATE = "/ng-rollout/r1/v1/responses"


async def test_a_session_is_seeded_activated_and_closed(agent, bodies):
    async with agent() as server:
        seeded = await server.client.post("/v1/agent_sessions", json=bodies.seed())
        assert (seeded.status_code, seeded.json()) == (200, {"agent_session_id": "s1"})

        ran = await server.client.post(ACTIVATE, json={"input": "marco"})
        assert ran.status_code == 200, ran.text
        assert ran.json()["output"][0]["content"][0]["text"] == "marco"
        assert ran.json()["object"] == "response"

        closed = await server.client.post("/v1/agent_sessions/close", json=bodies.close())
        assert closed.status_code == 200
        assert closed.json()["agent_observations"]["source"] == "echo"
        again = await server.client.post("/v1/agent_sessions/close", json=bodies.close())
        assert again.json() == closed.json()
        assert await server.provider.list({}) == []


async def test_identical_activations_join_and_replay_and_another_is_refused(agent, bodies):
    async with agent() as server:
        await server.client.post("/v1/agent_sessions", json=bodies.seed())
        answers = []

        async def activate(**body):
            answers.append(await server.client.post(ACTIVATE, json={"input": "hi", **body}))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(activate)
            tasks.start_soon(lambda: activate(tools=[], tool_choice="auto"))
        await activate()
        assert [answer.status_code for answer in answers] == [200] * 3
        assert len({answer.text for answer in answers}) == 1
        other = await server.client.post(ACTIVATE, json={"input": "ho"})
        assert other.status_code == 409


async def test_a_borrowed_sandbox_outlives_its_session(agent, bodies, tmp_path):
    async with agent() as server:
        spec = SandboxSpec(workdir=str(tmp_path / "work"))
        sandbox = await server.provider.create(spec, key="of-the-environment")
        connection = {"kind": "direct", "provider_config_ref": "box", "descriptor": dict(sandbox.descriptor)}
        access = {"connection": connection, "workdir": str(tmp_path / "work")}
        try:
            seeded = await server.client.post("/v1/agent_sessions", json=bodies.seed(sandbox_access=access))
            assert seeded.status_code == 200, seeded.text
            assert (await server.client.post(ACTIVATE, json={"input": "hi"})).status_code == 200
            closed = await server.client.post("/v1/agent_sessions/close", json=bodies.close())
            assert closed.status_code == 200
            assert await sandbox.is_alive()
            assert not (server.root / "sessions").exists()
        finally:
            await sandbox.stop()


async def test_an_unknown_provider_block_is_refused_with_the_known_ones(agent, bodies):
    connection = {"kind": "direct", "provider_config_ref": "elsewhere", "descriptor": {}}
    async with agent() as server:
        body = bodies.seed(sandbox_access={"connection": connection, "workdir": "/app"})
        answer = await server.client.post("/v1/agent_sessions", json=body)
    assert answer.status_code == 422
    assert "'elsewhere' names no provider block; known: box" in answer.json()["detail"]


async def test_a_seed_without_sandbox_and_without_provider_is_refused(agent, bodies):
    async with agent(sandbox_provider=None) as server:
        answer = await server.client.post("/v1/agent_sessions", json=bodies.seed())
    assert (answer.status_code, type(answer.json()["detail"])) == (422, str)


async def test_a_required_grant_that_the_harness_cannot_use_is_refused(agent, bodies):
    grant = {"kind": "direct_http", "name": "res", "base_url": "http://127.0.0.1:9"}
    async with agent() as server:
        answer = await server.client.post("/v1/agent_sessions", json=bodies.seed(tool_accesses=[grant]))
        assert answer.status_code == 422
        assert "'res'" in answer.json()["detail"]
        optional = bodies.seed(tool_accesses=[{**grant, "required": False}])
        assert (await server.client.post("/v1/agent_sessions", json=optional)).status_code == 200


async def test_a_request_field_that_the_harness_does_not_support_is_named(agent, bodies):
    async with agent() as server:
        await server.client.post("/v1/agent_sessions", json=bodies.seed())
        answer = await server.client.post(ACTIVATE, json={"input": "hi", "top_logprobs": 2})
    assert answer.status_code == 422
    assert "'top_logprobs'" in answer.json()["detail"]


@pytest.mark.parametrize("quote", ["{}", '"{}"'])
async def test_a_quoted_cookie_binds_as_well(agent, bodies, quote):
    async with agent() as server:
        await server.client.post("/v1/agent_sessions", json=bodies.seed())
        value = server.client.cookies[COOKIE_NAME]
        server.client.cookies.clear()
        headers = {"cookie": f"{COOKIE_NAME}={quote.format(value)}"}
        assert (await server.client.post(ACTIVATE, json={"input": "hi"}, headers=headers)).status_code == 200


async def test_every_answer_of_a_session_sets_its_cookie_again(agent, bodies):
    async with agent() as server:
        seeded = await server.client.post("/v1/agent_sessions", json=bodies.seed())
        value = seeded.cookies[COOKIE_NAME]
        for path, body in (
            (ACTIVATE, {"input": "hi"}),
            (ACTIVATE, {"input": "another"}),
            (ACTIVATE, {}),
            ("/v1/agent_sessions", bodies.seed("s2", "r2")),
            ("/v1/nothing", {}),
            ("/v1/agent_sessions/close", bodies.close()),
            (ACTIVATE, {"input": "hi"}),
        ):
            answer = await server.client.post(path, json=body)
            assert answer.cookies[COOKIE_NAME] == value, (path, body)
        assert answer.status_code == 409


@pytest.mark.parametrize("path", [ACTIVATE, "/v1/responses", "/ng-rollout/other/v1/responses"])
@pytest.mark.parametrize("cookie", [f"{COOKIE_NAME}=forged", f"{COOKIE_NAME}=", None])
async def test_no_marker_and_no_session_is_never_a_host_call(agent, bodies, path, cookie):
    async with agent() as server:
        await server.client.post("/v1/agent_sessions", json=bodies.seed())
        server.client.cookies.clear()
        headers = {} if cookie is None else {"cookie": cookie}
        answer = await server.client.post(path, json={"input": "hi"}, headers=headers)
    expected = 409 if cookie is not None or path == ACTIVATE else 422
    assert (answer.status_code, type(answer.json()["detail"])) == (expected, str)


async def test_a_stale_cookie_is_refused_everywhere(agent, bodies, cookie_of):
    async with agent() as server:
        headers = cookie_of("s-of-yesterday")
        seed = bodies.seed("s-of-yesterday", "r9")
        for path, body in (
            ("/v1/agent_sessions", seed),
            ("/v1/agent_sessions/close", bodies.close("s-of-yesterday", "r9")),
            ("/ng-rollout/r9/v1/responses", {"input": "hi"}),
            ("/v1/responses", {"input": "hi"}),
        ):
            assert (await server.client.post(path, json=body, headers=headers)).status_code == 409, path


async def test_an_activation_path_of_another_episode_or_none_is_refused(agent, bodies):
    async with agent() as server:
        await server.client.post("/v1/agent_sessions", json=bodies.seed())
        for path in ("/ng-rollout/r1-a1/v1/responses", "/v1/responses"):
            assert (await server.client.post(path, json={"input": "hi"})).status_code == 409, path


async def test_the_token_capture_segment_makes_it_another_activation(agent, bodies):
    async with agent() as server:
        await server.client.post("/v1/agent_sessions", json=bodies.seed())
        captured = "/ng-rollout/r1/training-token-capture/v1/responses"
        assert (await server.client.post(captured, json={"input": "hi"})).status_code == 200
        assert (await server.client.post(ACTIVATE, json={"input": "hi"})).status_code == 409


async def test_a_client_that_goes_away_is_forgotten_and_the_run_goes_on(agent, bodies, until):
    """The model holds its answer back until the client has gone."""
    seen = Seen()
    plugins = load_plugins([inspan_echo, seen], entry_points=False)
    async with silent_model() as model:
        options = {"model_server": {"base_url": model.url, "name": "policy"}, "harness_options": {}}
        async with agent(plugins=plugins, **options) as server:
            await server.client.post("/v1/agent_sessions", json=bodies.seed())
            with socket.create_connection(urlsplit(server.url).netloc.split(":")) as connection:
                connection.sendall(raw_activation(server.client.cookies[COOKIE_NAME], {"input": "hi"}))
                with anyio.fail_after(20):
                    await model.asked.wait()
            await until(lambda: "ClientGone" in seen.events, "the client's leaving")
            assert server.service.phases["s1"] == "ACTIVE"
            model.answer.set()
            answer = await server.client.post(ACTIVATE, json={"input": "hi"})
            assert answer.status_code == 200, answer.text
            assert answer.json()["output"][0]["content"][0]["text"] == "at last"
    assert seen.events.count("Staged") == 1


class Seen:
    """Brings the local provider, and keeps the names of all events."""

    def __init__(self):
        self.events = []

    @hookimpl
    def inspan_observe(self, transition):
        self.events.append(transition["event"])

    @hookimpl
    def inspan_sandbox_providers(self):
        return {"local": LocalProvider}


def raw_activation(cookie, body):
    data = json.dumps(body).encode()
    head = (
        f"POST {ACTIVATE} HTTP/1.1\r\nHost: x\r\nCookie: {COOKIE_NAME}={cookie}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


async def test_a_close_cuts_a_run_off_and_says_so(agent, bodies, until):
    """The model never answers, so only the close ends the run."""
    async with silent_model() as model:
        async with agent(
            model_server={"base_url": model.url, "name": "policy"}, harness_options={}
        ) as server:
            await server.client.post("/v1/agent_sessions", json=bodies.seed())
            answers = []

            async def activate():
                answers.append(await server.client.post(ACTIVATE, json={"input": "hi"}))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(activate)
                with anyio.fail_after(20):
                    await model.asked.wait()
                closed = await server.client.post("/v1/agent_sessions/close", json=bodies.close())
            assert (answers[0].status_code, closed.status_code) == (503, 200)
            records = closed.json()["agent_observations"]["records"]
            (invocation,) = [each for each in records if each["kind"] == "agent_invocation"]
            assert invocation["status"] == "failed"
            assert await server.provider.list({}) == []


async def test_a_refused_close_leaves_the_run_alone(agent, bodies):
    async with silent_model() as model:
        async with agent(
            model_server={"base_url": model.url, "name": "policy"}, harness_options={}
        ) as server:
            await server.client.post("/v1/agent_sessions", json=bodies.seed())
            answers = []

            async def activate():
                answers.append(await server.client.post(ACTIVATE, json={"input": "hi"}))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(activate)
                with anyio.fail_after(20):
                    await model.asked.wait()
                refused = await server.client.post(
                    "/v1/agent_sessions/close", json=bodies.close(rollout="of-another-episode")
                )
                model.answer.set()
            assert (refused.status_code, answers[0].status_code) == (409, 200), answers[0].text
            assert answers[0].json()["status"] == "completed"


class silent_model:
    """A model server that takes a call and does not answer until it is told to."""

    async def __aenter__(self):
        self.asked, self.answer = anyio.Event(), anyio.Event()
        self._listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
        self._tasks = await anyio.create_task_group().__aenter__()
        self._tasks.start_soon(self._listener.serve, self._hold)
        port = self._listener.extra(anyio.abc.SocketAttribute.local_port)
        self.url = f"http://127.0.0.1:{port}"
        return self

    async def _hold(self, stream):
        async with stream:
            # All of it: a client that still sends when the connection ends does not see the answer.
            received = b""
            while b"\r\n\r\n" not in received:
                received += await stream.receive()
            top, _, body = received.lower().partition(b"\r\n\r\n")
            length = int(top.partition(b"content-length: ")[2].partition(b"\r\n")[0])
            while len(body) < length:
                body += await stream.receive()
            self.asked.set()
            await self.answer.wait()
            message = {"role": "assistant", "content": "at last"}
            data = json.dumps({"id": "c1", "choices": [{"message": message, "finish_reason": "stop"}]})
            head = f"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {len(data)}\r\n\r\n"
            await stream.send(f"{head}{data}".encode())

    async def __aexit__(self, *error):
        self._tasks.cancel_scope.cancel()
        await self._tasks.__aexit__(*error)
        await self._listener.aclose()


async def test_healthz_says_what_runs(agent, bodies):
    async with agent() as server:
        assert (await server.client.get("/healthz")).json() == {
            "status": "ok",
            "harness": {"name": "echo", "version": "1"},
            "sessions": 0,
        }


async def test_a_draining_server_takes_no_new_session(agent, bodies):
    async with agent() as server:
        await server.client.post("/v1/agent_sessions", json=bodies.seed())
        server.app.state.routes.is_draining = True
        other = bodies.seed("s2", "r2")
        assert (await server.client.post("/v1/agent_sessions", json=other)).status_code == 503
        assert (await server.client.post(ACTIVATE, json={"input": "hi"})).status_code == 200


async def test_the_end_of_the_server_closes_what_is_open(agent, bodies):
    async with agent() as server:
        await server.client.post("/v1/agent_sessions", json=bodies.seed())
        assert len(await server.provider.list({})) == 1
    assert await server.provider.list({}) == []


@pytest.mark.parametrize("workdir", ["a-file", "a-file/inside", "not-there"])
@pytest.mark.parametrize("is_borrowed", [True, False])
async def test_a_workdir_that_is_no_folder_is_refused_at_seed(agent, bodies, tmp_path, workdir, is_borrowed):
    (tmp_path / "a-file").write_text("x")
    path = str(tmp_path / workdir)
    async with agent(sandbox_config={"workdir": path}) as server:
        sandbox, access = None, None
        if is_borrowed:
            sandbox = await server.provider.create(SandboxSpec(workdir=str(tmp_path / "work")), key="theirs")
            descriptor = dict(sandbox.descriptor)
            connection = {"kind": "direct", "provider_config_ref": "box", "descriptor": descriptor}
            access = {"connection": connection, "workdir": path}
        seeded = await server.client.post("/v1/agent_sessions", json=bodies.seed(sandbox_access=access))
        if workdir == "not-there" and not is_borrowed:
            assert seeded.status_code == 200  # Ours is made.
        else:
            assert (seeded.status_code, path in seeded.json()["detail"]) == (422, True), seeded.text
        if sandbox is not None:
            await sandbox.stop()
