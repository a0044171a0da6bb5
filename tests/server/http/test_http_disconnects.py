"""Clients that go away at every stage of every request: what they asked for goes on; only close cancels."""

import socket
import struct

import anyio
import pytest
from starlette.middleware.base import BaseHTTPMiddleware

pytestmark = pytest.mark.anyio
RESET = struct.pack("ii", 1, 0)
STAGES = {
    "seed": ("create", "SEEDING"),
    "activate": ("run", "ACTIVE"),
    "close": ("stop", "CLOSING"),
}
ORDER = list(STAGES)


@pytest.fixture
def requests(bodies, paths):
    return {
        "seed": (paths.seed, bodies.seed()),
        "activate": (paths.activate, {"input": "hi"}),
        "close": (paths.close, bodies.close()),
    }


@pytest.fixture
def events(server):
    """The names of all events, as they were committed."""
    return follow(server)


def follow(server):
    names = []
    server.service.follow(lambda before, event, after, effects: names.append(type(event).__name__))
    return names


async def play(server, requests, until):
    """All requests before one."""
    async with server.httpx() as client:
        for name in ORDER[: ORDER.index(until)]:
            path, body = requests[name]
            answer = await client.post(path, json=body)
            assert answer.status_code == 200, answer.text


async def play_on(server, requests, stage, cookie_of):
    """A request once more and all that follow; the last answer."""
    # A seed that brings the cookie of a session that is not there yet would be refused.
    headers = {} if stage == "seed" else {"cookie": cookie_of("s1")}
    async with server.httpx(headers=headers) as client:
        for name in ORDER[ORDER.index(stage) :]:
            path, body = requests[name]
            answer = await client.post(path, json=body)
            assert answer.status_code == 200, (name, answer.text)
    return answer


def leave(connection, how):
    match how:
        case "end":
            connection.shutdown(socket.SHUT_WR)
        case "reset":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            connection.close()
        case "close":
            connection.close()


def sent(raw, cookie, requests, stage):
    path, body = requests[stage]
    cookies = () if stage == "seed" else (f"Cookie: {cookie}",)
    return raw.request(path, body, headers=cookies)


@pytest.mark.parametrize(
    "how",
    ["close", pytest.param("reset", marks=pytest.mark.full), pytest.param("end", marks=pytest.mark.full)],
)
@pytest.mark.parametrize("stage", ORDER)
async def test_a_client_that_leaves_while_it_is_served_changes_nothing(
    server, events, requests, raw, cookie_of, stage, how
):
    await leaves_while_served(server, events, requests, raw, cookie_of, stage, how)


@pytest.mark.parametrize("stage", ORDER)
async def test_behind_a_middleware_it_is_the_same(start, backend, requests, raw, cookie_of, stage):
    async def passes(request, call_next):
        return await call_next(request)

    with start(backend, wrap=lambda app: app.add_middleware(BaseHTTPMiddleware, dispatch=passes)) as server:
        await leaves_while_served(server, follow(server), requests, raw, cookie_of, stage, "close")


async def leaves_while_served(server, events, requests, raw, cookie_of, stage, how):
    gate, phase = STAGES[stage]
    await play(server, requests, stage)
    server.world.gates[gate].shut()
    with server.wire() as connection:
        connection.sendall(sent(raw, cookie_of("s1"), requests, stage))
        await server.until_came(gate)
        assert server.phase() == phase
        leave(connection, how)
        await server.until(lambda: "ClientGone" in events, "the client's leaving")
    assert server.phase() == phase
    server.world.gates[gate].open()
    closed = await play_on(server, requests, stage, cookie_of)
    assert closed.json()["agent_observations"]["source"] == "memory"
    assert server.world.done == {"create": 1, "stage": 1, "launch": 1, "collect": 1, "stop": 1}
    assert not server.world.alive


@pytest.mark.parametrize("stage", ORDER)
async def test_a_client_that_leaves_before_its_request_is_whole_asked_for_nothing(
    server, events, requests, raw, cookie_of, stage
):
    await play(server, requests, stage)
    before, seen = dict(server.world.done), len(events)
    whole = sent(raw, cookie_of("s1"), requests, stage)
    head = whole.index(b"\r\n\r\n") + 4
    for cut in (10, head - 3, head, head + 1, len(whole) - 1):
        for how in ("close", "reset", "end"):
            with server.wire() as connection:
                connection.sendall(whole[:cut])
                leave(connection, how)
    async with server.httpx() as client:
        # The server has read the ends of those connections before it answers so many requests after them.
        for _ in range(20):
            assert (await client.get("/healthz")).status_code == 200
    assert (server.world.done, len(events)) == (before, seen)
    await play_on(server, requests, stage, cookie_of)


@pytest.mark.parametrize("stage", ORDER)
async def test_a_client_that_leaves_as_soon_as_it_has_asked_is_served_once(
    server, requests, raw, cookie_of, stage
):
    await play(server, requests, stage)
    for _ in range(5):
        with server.wire() as connection:
            connection.sendall(sent(raw, cookie_of("s1"), requests, stage))
    await play_on(server, requests, stage, cookie_of)
    assert server.world.done == {"create": 1, "stage": 1, "launch": 1, "collect": 1, "stop": 1}


@pytest.mark.parametrize("backend", ["asyncio", "trio"], indirect=True)
async def test_the_one_of_two_waiters_that_stays_gets_the_answer(server, events, requests, raw, cookie_of):
    await play(server, requests, "activate")
    gate = server.world.gates["run"]
    gate.shut()
    path, body = requests["activate"]
    async with (
        server.httpx(headers={"cookie": cookie_of("s1")}) as client,
        anyio.create_task_group() as tasks,
    ):
        answers = []
        with server.wire() as connection:
            connection.sendall(sent(raw, cookie_of("s1"), requests, "activate"))
            await server.until_came("run")

            async def stays():
                answers.append(await client.post(path, json=body))

            tasks.start_soon(stays)
            await server.until(lambda: events.count("ActivateRequested") == 2, "a second one")
        await server.until(lambda: "ClientGone" in events, "the first one's leaving")
        gate.open()
    assert answers[0].status_code == 200, answers[0].text
    assert server.world.done["launch"] == 1


@pytest.mark.parametrize("backend", ["asyncio", "trio"], indirect=True)
async def test_only_a_close_cuts_a_run_off(server, requests, paths, bodies, cookie_of):
    await play(server, requests, "activate")
    server.world.gates["run"].shut()
    async with (
        server.httpx(headers={"cookie": cookie_of("s1")}) as client,
        anyio.create_task_group() as tasks,
    ):
        answers = []

        async def activate():
            answers.append(await client.post(paths.activate, json={"input": "hi"}))

        tasks.start_soon(activate)
        await server.until_came("run")
        for path, body, status in (
            (paths.activate, {"input": "another"}, 409),
            (paths.close, bodies.close(rollout="r2"), 409),
            (paths.seed, bodies.seed(rollout="r2"), 409),
            (paths.seed, bodies.seed(), 200),
            (paths.close, {}, 422),
        ):
            answer = await client.post(path, json=body)
            assert answer.status_code == status, (path, answer.text)
            assert server.phase() == "ACTIVE"
        closed = await client.post(paths.close, json=bodies.close())
    assert (answers[0].status_code, closed.status_code) == (503, 200)
    assert closed.json()["agent_observations"]["source"] == "memory"
