"""Requests that come at once: twins a millisecond apart, and closes that race what they close."""

import anyio
import pytest

pytestmark = pytest.mark.anyio
ONCE = {"create": 1, "stage": 1, "launch": 1, "collect": 1, "stop": 1}
OFFSETS_MS = (-5, -2, -1, 0, 0, 1, 2, 5)


async def apart(seconds, *calls):
    """Make calls one after the other's beginning; their answers in that order."""
    answers = [None] * len(calls)

    async def call(number, make):
        answers[number] = await make()

    async with anyio.create_task_group() as tasks:
        for number, make in enumerate(calls):
            tasks.start_soon(call, number, make)
            await anyio.sleep(seconds)
    return answers


@pytest.mark.parametrize("client_kind", ["httpx", "aiohttp"])
async def test_twins_a_millisecond_apart_are_one(server, bodies, paths, cookie_of, client_kind):
    """Each of the three requests, three times a millisecond apart: one effect, one answer."""
    for path, body in (
        (paths.seed, bodies.seed()),
        (paths.activate, {"input": "hi"}),
        (paths.close, bodies.close()),
    ):
        headers = {} if path == paths.seed else {"cookie": cookie_of("s1")}
        async with getattr(server, client_kind)(headers=headers) as client:

            async def post(path=path, body=body, client=client):
                if client_kind == "httpx":
                    answer = await client.post(path, json=body)
                    return answer.status_code, answer.text
                async with client.post(path, json=body) as answer:
                    return answer.status, await answer.text()

            answers = await apart(0.001, post, post, post)
        assert [status for status, _ in answers] == [200] * 3, answers
        assert len({text for _, text in answers}) == 1
    assert server.world.done == ONCE


@pytest.mark.parametrize("backend", ["asyncio", "trio"], indirect=True)
@pytest.mark.parametrize("stage", ["seed", "activate", "close"])
async def test_twins_of_what_is_held_up_join_it(server, bodies, paths, cookie_of, stage):
    gate = server.world.gates[{"seed": "create", "activate": "run", "close": "stop"}[stage]]
    requests = {
        "seed": (paths.seed, bodies.seed()),
        "activate": (paths.activate, {"input": "hi"}),
        "close": (paths.close, bodies.close()),
    }
    names = []
    server.service.follow(lambda before, event, after, effects: names.append(type(event).__name__))
    async with server.httpx() as client:
        for name, (path, body) in requests.items():
            if name != stage:
                assert (await client.post(path, json=body)).status_code == 200
                continue
            gate.shut()
            client.headers["cookie"] = "" if stage == "seed" else cookie_of("s1")

            async def post(path=path, body=body):
                return await client.post(path, json=body)

            async def opened():
                kind = {"seed": "SeedRequested", "activate": "ActivateRequested", "close": "CloseRequested"}
                await server.until(lambda: names.count(kind[stage]) == 5, "five requests")
                gate.open()

            *answers, _ = await apart(0, *[post] * 5, opened)
            assert [answer.status_code for answer in answers] == [200] * 5
            assert len({answer.text for answer in answers}) == 1
            del client.headers["cookie"]
    assert server.world.done == ONCE


@pytest.mark.parametrize("stage", ["seed", "activate"])
async def test_a_twin_with_another_body_is_refused_and_disturbs_nothing(server, bodies, paths, stage):
    path, body, other, gate = {
        "seed": (paths.seed, bodies.seed(), bodies.seed(rollout="r2"), "create"),
        "activate": (paths.activate, {"input": "hi"}, {"input": "ho"}, "run"),
    }[stage]
    async with server.httpx() as client:
        if stage == "activate":
            assert (await client.post(paths.seed, json=bodies.seed())).status_code == 200
        server.world.gates[gate].shut()

        async def refused():
            await server.until_came(gate)
            answer = await client.post(path, json=other)
            server.world.gates[gate].open()
            return answer

        first, second = await apart(0.001, lambda: client.post(path, json=body), refused)
        after = await client.post(path, json=other)
    assert (first.status_code, second.status_code, after.status_code) == (200, 409, 409)
    assert server.world.done["create"] == 1


async def test_a_close_joins_a_creation_and_stops_its_result(server, bodies, paths):
    server.world.gates["create"].shut()
    async with server.httpx() as client:

        async def close():
            await server.until_came("create")
            answer = await client.post(paths.close, json=bodies.close())
            assert not server.world.alive
            return answer

        async def seed_again_and_open():
            await server.until_phase("CLOSING")
            late = await client.post(paths.seed, json=bodies.seed())
            active = await client.post(paths.activate, json={"input": "hi"})
            assert (late.status_code, active.status_code) == (409, 409)
            server.world.gates["create"].open()

        seeded, closed, _ = await apart(
            0, lambda: client.post(paths.seed, json=bodies.seed()), close, seed_again_and_open
        )
        assert closed.status_code == 200, closed.text
        assert seeded.status_code in (409, 503), seeded.text
        assert (await client.post(paths.seed, json=bodies.seed())).status_code == 409
    assert server.world.done == {"create": 1, "stop": 1}


async def test_a_close_that_races_a_seed_leaves_nothing(server, bodies, paths):
    """Whichever comes first: the close is answered 200, and the session is never there after it."""
    for number, offset_ms in enumerate(OFFSETS_MS):
        name = f"s{number}"
        async with server.httpx() as one, server.httpx() as other:

            async def seed(one=one, name=name):
                return await one.post(paths.seed, json=bodies.seed(name, name))

            async def close(other=other, name=name):
                return await other.post(paths.close, json=bodies.close(name, name))

            calls = (seed, close) if offset_ms >= 0 else (close, seed)
            answers = await apart(abs(offset_ms) / 1000, *calls)
            seeded, closed = answers if offset_ms >= 0 else reversed(answers)
            assert closed.status_code == 200, closed.text
            assert seeded.status_code in (200, 409, 503), seeded.text
            again = await other.post(paths.close, json=bodies.close(name, name))
            assert again.json() == closed.json()
            late = await other.post(paths.seed, json=bodies.seed(name, name))
            assert late.status_code == 409, late.text
    assert not server.world.alive
    assert server.world.done["create"] == server.world.done["stop"]


async def test_a_close_that_races_an_activation_ends_it_or_comes_after_it(server, bodies, paths):
    for number, offset_ms in enumerate(OFFSETS_MS):
        name = f"s{number}"
        async with server.httpx() as client:
            await client.post(paths.seed, json=bodies.seed(name, name))

            async def activate(client=client, name=name):
                return await client.post(f"/ng-rollout/{name}/v1/responses", json={"input": "hi"})

            async def close(client=client, name=name):
                return await client.post(paths.close, json=bodies.close(name, name))

            calls = (activate, close) if offset_ms >= 0 else (close, activate)
            answers = await apart(abs(offset_ms) / 1000, *calls)
            ran, closed = answers if offset_ms >= 0 else reversed(answers)
            assert closed.status_code == 200, closed.text
            assert ran.status_code in (200, 409, 503), ran.text
            assert (await close()).json() == closed.json()
            assert (await activate()).status_code == 409
    assert not server.world.alive
    assert server.world.done["launch"] <= len(OFFSETS_MS)


async def test_closes_at_once_are_one(server, bodies, paths):
    """Also where the first one fails: all are told so, and the next tries again."""
    async with server.httpx() as client:
        await client.post(paths.seed, json=bodies.seed())
        await client.post(paths.activate, json={"input": "hi"})
        server.world.fails["stop"] = ConnectionError("the provider is away")

        async def close():
            return await client.post(paths.close, json=bodies.close())

        failed = await apart(0, *[close] * 5)
        assert {answer.status_code for answer in failed} == {503}
        del server.world.fails["stop"]
        done = await apart(0, *[close] * 5)
        assert {answer.status_code for answer in done} == {200}
        assert len({answer.text for answer in done}) == 1
    assert server.world.done == ONCE


async def test_sessions_at_once_have_ids_and_folders_of_their_own(server, bodies, paths):
    """Sixty seeds within a moment, with the same task."""
    async with server.httpx() as client:
        names = [f"s{number}" for number in range(60)]

        async def seed(name):
            answer = await client.post(paths.seed, json=bodies.seed(name, name), headers={"cookie": ""})
            assert answer.status_code == 200, answer.text

        async with anyio.create_task_group() as tasks:
            for name in names:
                tasks.start_soon(seed, name)
        rooms = {record.room.session_dir for record in server.call(lambda: list(server.service._sessions))}
    assert len(rooms) == len(server.world.alive) == 60
