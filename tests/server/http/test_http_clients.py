"""The clients in use, aiohttp as the Gym has it and httpx, over connections that are kept or lost."""

import aiohttp
import anyio
import anyio.abc
import anyio.lowlevel
import anyio.to_thread
import pytest

from inspan_server.agent.cookies import COOKIE_NAME

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("backend", ["asyncio", "trio"], indirect=True)
async def test_an_episode_of_aiohttp(server, bodies, paths):
    async with server.aiohttp() as client:
        async with client.post(paths.seed, json=bodies.seed()) as seeded:
            assert (seeded.status, await seeded.json()) == (200, {"agent_session_id": "s1"})
        async with client.post(paths.activate, json={"input": "hi"}) as ran:
            assert ran.status == 200, await ran.text()
            assert (await ran.json())["output"][0]["content"][0]["text"] == '"hi"'
        closes = []
        for _ in range(2):
            async with client.post(paths.close, json=bodies.close()) as closed:
                closes.append((closed.status, await closed.json()))
    assert closes[0] == closes[1]
    status, answer = closes[0]
    assert status == 200 and answer["agent_observations"]["source"] == "memory"
    assert answer["resources_cookies"] is None
    assert server.world.done == {"create": 1, "launch": 1, "stage": 1, "collect": 1, "stop": 1}


async def test_an_episode_of_httpx(server, bodies, paths):
    async with server.httpx() as client:
        for path, body in (
            (paths.seed, bodies.seed()),
            (paths.activate, {"input": "hi"}),
            (paths.close, bodies.close()),
        ):
            answer = await client.post(path, json=body)
            assert answer.status_code == 200, answer.text
            assert answer.cookies[COOKIE_NAME]
    assert server.world.done["launch"] == 1


async def test_aiohttp_sends_the_cookie_beside_others_that_it_quotes(server, bodies, paths):
    async with server.aiohttp() as client:
        client.cookie_jar.update_cookies({"session": "eyJh/b==", "last": 'with "quotes"; and more'})
        async with client.post(paths.seed, json=bodies.seed()) as seeded:
            assert seeded.status == 200
        async with client.post(paths.activate, json={"input": "hi"}) as ran:
            assert '"eyJh/b=="' in ran.request_info.headers["Cookie"], "nothing was quoted"
            assert ran.status == 200


@pytest.mark.parametrize("form", ['"{}"', ' "{}" ', "{}"])
async def test_a_quoted_cookie_is_the_cookie(server, bodies, paths, cookie_of, form):
    name, _, value = cookie_of("s1").partition("=")
    async with server.aiohttp(cookie_jar=aiohttp.DummyCookieJar()) as client:
        headers = {"Cookie": f"other=1; {name}={form.format(value)}; more=2"}
        for path, body in (
            (paths.seed, bodies.seed()),
            (paths.activate, {"input": "hi"}),
            (paths.close, bodies.close()),
        ):
            asked = {} if path == paths.seed else headers
            async with client.post(path, json=body, headers=asked) as answer:
                assert answer.status == 200, (path, await answer.text())
                assert answer.cookies[COOKIE_NAME].value == value


async def test_a_jar_that_is_replaced_by_each_answers_cookies_keeps_the_session(server, bodies, paths):
    """Refusals and unknown paths set the cookie too, so that the jar never loses it."""
    async with server.aiohttp(cookie_jar=aiohttp.DummyCookieJar()) as client:
        jar = {}
        for method, path, body, status in (
            ("POST", paths.seed, bodies.seed(), 200),
            ("POST", paths.activate, {}, 422),
            ("POST", "/v1/nothing", {}, 404),
            ("PUT", paths.seed, {}, 405),
            ("POST", paths.seed, bodies.seed("s2", "r2"), 409),
            ("POST", paths.activate, {"input": "hi"}, 200),
            ("POST", paths.close, bodies.close(rollout="r2"), 409),
            ("POST", paths.close, bodies.close(), 200),
            ("POST", paths.activate, {"input": "hi"}, 409),
        ):
            async with client.request(method, path, json=body, cookies=jar) as answer:
                assert answer.status == status, (method, path, await answer.text())
                jar = {name: each.value for name, each in answer.cookies.items()}
    assert server.world.done["launch"] == 1


async def test_a_connection_is_kept_for_many_sessions(server, bodies, paths):
    made = []

    async def count(*_):
        made.append(1)

    trace = aiohttp.TraceConfig()
    trace.on_connection_create_end.append(count)
    connector = aiohttp.TCPConnector(limit=1)
    async with server.aiohttp(connector=connector, trace_configs=[trace]) as client:
        for number in range(20):
            client.cookie_jar.clear()
            name = f"s{number}"
            path = f"/ng-rollout/{name}/v1/responses"
            for target, body in (
                (paths.seed, bodies.seed(name, name)),
                (path, {"input": name}),
                (path, {"input": "another"}),
                (paths.close, bodies.close(name, name)),
            ):
                async with client.post(target, json=body) as answer:
                    text = await answer.text()
                    assert answer.status == (409 if "another" in str(body) else 200), text
        assert len(made) == 1


async def test_a_connection_that_idles_is_closed_and_one_that_waits_for_an_answer_is_not(
    start, backend, bodies, paths, raw
):
    with start(backend, idle_timeout_s=0.2) as server:
        gate = server.world.gates["run"]
        gate.shut()
        async with server.aiohttp() as client:
            async with client.post(paths.seed, json=bodies.seed()) as seeded:
                assert seeded.status == 200
            async with anyio.create_task_group() as tasks:
                answers = []

                async def activate():
                    async with client.post(paths.activate, json={"input": "hi"}) as answer:
                        answers.append((answer.status, await answer.text()))

                tasks.start_soon(activate)
                await server.until_came("run")
                with server.wire() as connection:
                    for _ in range(3):
                        connection.sendall(raw.request("/healthz", method="GET"))
                        assert (await anyio.to_thread.run_sync(raw.answer, connection)).status == 200
                    assert await anyio.to_thread.run_sync(raw.answer, connection) is None
                gate.open()
            assert answers[0][0] == 200, answers
            # The client's connection has idled by now, or will; it makes another.
            status, answer = await as_the_gym_does(client, paths.close, bodies.close())
        assert status == 200, answer


async def test_clients_at_once_over_few_connections_are_never_mixed(server, bodies, paths):
    """Thirty episodes with a jar each share four connections."""
    connector = aiohttp.TCPConnector(limit=4)

    async def episode(name):
        jar, said = aiohttp.CookieJar(unsafe=True), []
        async with server.aiohttp(connector=connector, connector_owner=False, cookie_jar=jar) as client:
            for path, body in (
                (paths.seed, bodies.seed(name, name)),
                (f"/ng-rollout/{name}/v1/responses", {"input": f"of {name}"}),
                (paths.close, bodies.close(name, name)),
            ):
                async with client.post(path, json=body) as answer:
                    assert answer.status == 200, await answer.text()
                    said.append(await answer.text())
        assert f'\\"of {name}\\"' in said[1] and name in said[2]
        seen.append(name)

    seen = []
    async with connector, anyio.create_task_group() as tasks:
        for number in range(30):
            tasks.start_soon(episode, f"s{number}")
    assert len(seen) == 30
    assert server.world.done["launch"] == server.world.done["stop"] == 30


class LosingProxy:
    """Passes requests on, and loses the first answers: none of it, half of it or all of it is passed back."""

    def __init__(self, port, moment, losses):
        self._port, self._moment, self._losses = port, moment, losses
        self.requests = 0

    async def __aenter__(self):
        self._listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
        self._tasks = await anyio.create_task_group().__aenter__()
        self._tasks.start_soon(self._listener.serve, self._pass)
        return f"http://127.0.0.1:{self._listener.extra(anyio.abc.SocketAttribute.local_port)}"

    async def __aexit__(self, *error):
        self._tasks.cancel_scope.cancel()
        await self._tasks.__aexit__(*error)
        await self._listener.aclose()

    async def _pass(self, client):
        """One request of one connection."""
        async with client, await anyio.connect_tcp("127.0.0.1", self._port) as server:
            await server.send(await whole_message(client))
            self.requests += 1
            loses = self._losses > 0
            self._losses -= loses
            if loses and self._moment == "before":
                return
            answer = await whole_message(server)
            if not loses:
                await client.send(answer)
            elif self._moment == "half":
                await client.send(answer[: len(answer) // 2])


async def whole_message(stream):
    received = b""
    while b"\r\n\r\n" not in received:
        received += await stream.receive()
    head, _, body = received.partition(b"\r\n\r\n")
    fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
    while len(body) < int(fields.get(b"content-length", 0)):
        body += await stream.receive()
    return head + b"\r\n\r\n" + body


async def as_the_gym_does(client, path, body):
    """A lost connection is tried again; here within a bound, and without a pause."""
    with anyio.fail_after(20):
        while True:
            try:
                async with client.post(path, json=body) as answer:
                    return answer.status, await answer.json()
            except (aiohttp.ClientError, ConnectionError):
                await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("backend", ["asyncio", "trio"], indirect=True)
@pytest.mark.parametrize("moment", ["before", "half", "after"])
async def test_answers_that_are_lost_are_given_again_and_nothing_is_done_twice(server, bodies, paths, moment):
    for number, lost in enumerate((paths.seed, paths.activate, paths.close)):
        name = f"s{number}"
        async with server.aiohttp() as client:
            for path, body in (
                (paths.seed, bodies.seed(name, name)),
                (paths.activate.replace("r1", name), {"input": name}),
                (paths.close, bodies.close(name, name)),
            ):
                is_lost = path == lost or (path.endswith("responses") and lost == paths.activate)
                async with LosingProxy(server.port, moment, 3 if is_lost else 0) as url:
                    status, answer = await as_the_gym_does(client, f"{url}{path}", body)
                assert status == 200, answer
    done = server.world.done
    assert done == dict.fromkeys(("create", "stage", "launch", "collect", "stop"), 3)
