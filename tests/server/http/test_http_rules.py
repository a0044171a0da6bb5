"""The rules of the session API over real sockets: what is the same, what is refused, what is kept."""

import json

import anyio
import pytest
from attrs import evolve

from inspan_server.agent.cookies import COOKIE_NAME

pytestmark = pytest.mark.anyio
MCP = {
    "kind": "mcp",
    "name": "tools",
    "required": False,
    "connection": {"transport": "streamable_http", "url": "http://127.0.0.1:9/mcp", "headers": {}},
}
HTTP = {"kind": "direct_http", "name": "res", "required": False, "base_url": "http://127.0.0.1:9"}
EPISODE = {"rollout_id": "r1", "attempt": 0}
TASK = {"taskset": "t", "task_id": "x"}


def backwards(value):
    """The same JSON with every object's keys in the other order."""
    if isinstance(value, dict):
        return {key: backwards(item) for key, item in reversed(value.items())}
    return [backwards(item) for item in value] if isinstance(value, list) else value


async def post(client, path, body, **options):
    content = body if isinstance(body, str) else json.dumps(body)
    headers = {"content-type": "application/json", **options.pop("headers", {})}
    return await client.post(path, content=content, headers=headers, **options)


@pytest.mark.parametrize("backend", ["asyncio", "trio"], indirect=True)
async def test_a_seed_is_the_same_whatever_its_spelling(server, paths):
    body = {"agent_session_id": "s1", "episode_id": EPISODE, "task_id": TASK, "tool_accesses": [MCP, HTTP]}
    slashed = {**body, "tool_accesses": [MCP, {**HTTP, "base_url": "http://127.0.0.1:9/"}]}
    full = {**body, "tool_accesses": [MCP, {**HTTP, "cookies": {}, "headers": {}}], "sandbox_access": None}
    short = {**body, "episode_id": {"rollout_id": "r1"}}
    async with server.httpx() as client:
        for same in (
            body,
            backwards(body),
            slashed,
            full,
            short,
            json.dumps(body, indent=4),
            json.dumps(body).replace("/mcp", "\\u002fmcp"),
            {**body, "episode_id": {"rollout_id": "r1", "attempt": "0"}},
        ):
            answer = await post(client, paths.seed, same)
            assert (answer.status_code, answer.json()) == (200, {"agent_session_id": "s1"}), same
        for other in (
            {**body, "tool_accesses": [HTTP, MCP]},
            {**body, "tool_accesses": [MCP]},
            {**body, "tool_accesses": [MCP, {**HTTP, "cookies": {"a": "b"}}]},
            {**body, "tool_accesses": [MCP, {**HTTP, "required": True}]},
            {**body, "episode_id": {"rollout_id": "r1", "attempt": 1}},
            {**body, "task_id": {"taskset": "t", "task_id": "y"}},
        ):
            answer = await post(client, paths.seed, other)
            # A required grant that the harness cannot use is refused for itself where nothing is seeded.
            assert answer.status_code == 409, (other, answer.text)
    assert server.world.done["create"] == 1


async def test_an_activation_is_the_same_whatever_its_spelling(server, bodies, paths):
    async with server.httpx() as client:
        await post(client, paths.seed, bodies.seed())
        texts = set()
        for same in (
            {"input": "hi"},
            {"input": "hi", "tools": [], "tool_choice": "auto", "parallel_tool_calls": True},
            {"parallel_tool_calls": True, "input": "hi", "instructions": None, "stream": False},
            '{ "input" : "\\u0068i" }',
        ):
            answer = await post(client, paths.activate, same)
            assert answer.status_code == 200, answer.text
            texts.add(answer.text)
        assert len(texts) == 1
        for other in ({"input": "Hi"}, {"input": ["hi"]}, {"input": "hi", "metadata": {"a": "b"}}):
            answer = await post(client, paths.activate, other)
            assert answer.status_code in (409, 422), answer.text
        captured = paths.activate.replace("/v1/", "/training-token-capture/v1/")
        assert (await post(client, captured, {"input": "hi"})).status_code == 409
    assert server.world.done["launch"] == 1


PHASES = {
    "unknown": [],
    "seeding": ["seed"],
    "ready": ["seed"],
    "active": ["seed", "activate"],
    "over": ["seed", "activate"],
    "closing": ["seed", "activate", "close"],
    "close failed": ["seed", "activate", "close"],
    "closed": ["seed", "activate", "close"],
    "fenced": ["close"],
}
HELD = {"seeding": "create", "active": "run", "closing": "stop"}
EXPECTED = {
    # Phase: another seed with the same body, an activation, a close of another episode.
    "unknown": (None, 409, None),
    "seeding": (None, 409, 409),
    "ready": (200, None, 409),
    "active": (200, None, 409),
    "over": (200, 200, 409),
    "closing": (409, 409, 409),
    "close failed": (409, 409, 409),
    "closed": (409, 409, 409),
    "fenced": (409, 409, 409),
}


@pytest.mark.parametrize("phase", PHASES)
async def test_what_is_answered_in_each_phase(server, bodies, paths, cookie_of, phase):
    """With the session's cookie and without: the body's id binds as well."""
    requests = {
        "seed": (paths.seed, bodies.seed()),
        "activate": (paths.activate, {"input": "hi"}),
        "close": (paths.close, bodies.close()),
    }
    same_seed, activation, other_episode = EXPECTED[phase]
    own = {"cookie": cookie_of("s1")}
    async with server.httpx() as client, anyio.create_task_group() as tasks:
        if phase == "close failed":
            server.world.fails["stop"] = ConnectionError("the provider is away")
        if phase in HELD:
            server.world.gates[HELD[phase]].shut()
        for number, name in enumerate(PHASES[phase]):
            path, body = requests[name]
            headers = own if name == "activate" else {}
            if phase in HELD and number == len(PHASES[phase]) - 1:
                tasks.start_soon(lambda path=path, body=body, headers=headers: post(
                    client, path, body, headers=headers
                ))  # fmt: skip
                await server.until_came(HELD[phase])
            else:
                await post(client, path, body, headers=headers)
        client.cookies.clear()
        before = server.phase()
        if same_seed is not None:
            assert (await post(client, paths.seed, bodies.seed())).status_code == same_seed
        if activation is not None:
            got = await post(client, paths.activate, {"input": "hi"}, headers=own)
            assert got.status_code == activation, got.text
        if other_episode is not None:
            for headers in (own, {}):
                body = bodies.close(rollout="r2")
                assert (await post(client, paths.close, body, headers=headers)).status_code == other_episode
        if phase not in ("unknown", "fenced"):
            # Another body for the id, with whatever cookie; another session's cookie, whatever the body.
            seed = await post(client, paths.seed, bodies.seed(rollout="r2"))
            assert seed.status_code == 409, seed.text
            client.cookies.clear()
            # The rollout is a session's: it is never run without its cookie.
            assert (await post(client, paths.activate, {"input": "hi"})).status_code == 409
        theirs = {"cookie": cookie_of("s2")}
        for path, body in ((paths.seed, bodies.seed()), (paths.close, bodies.close())):
            assert (await post(client, path, body, headers=theirs)).status_code == 409, path
        assert server.phase() == before
        for gate in server.world.gates.values():
            gate.open()
        server.world.fails.clear()
    assert server.world.done["launch"] <= 1


@pytest.mark.parametrize(
    "marker",
    ["x", "", ".", "AAAA." + "0" * 64, "czE." + "f" * 64, '"', "czE", "czE." + "0" * 63, "s1", "é"],
)
async def test_a_malformed_marker_is_refused_everywhere_and_stays(start, backend, bodies, paths, marker):
    """Also where the host path is open: it is never a host call."""
    with start(backend, host_execution=True) as server:
        async with server.httpx() as client:
            await post(client, paths.seed, bodies.seed())
            client.cookies.clear()
            headers = {"cookie": f"{COOKIE_NAME}={marker}".encode()}
            for path, body in (
                (paths.seed, bodies.seed()),
                (paths.seed, bodies.seed("s2", "r2")),
                (paths.close, bodies.close()),
                (paths.activate, {"input": "hi"}),
                ("/v1/responses", {"input": "hi"}),
                ("/ng-rollout/r9/v1/responses", {"input": "hi"}),
            ):
                answer = await post(client, path, body, headers=headers)
                assert (answer.status_code, type(answer.json()["detail"])) == (409, str), path
                assert answer.cookies[COOKIE_NAME] == "invalid"
                client.cookies.clear()
        assert server.phase() == "READY" and server.phase("s2") is None
        assert server.service.host.phases == {}


async def test_the_answer_of_a_close_is_kept_whatever_else_is_closed(
    start, backend, bodies, paths, cookie_of
):
    """Within its window nothing pushes it out."""
    with start(backend, session_close_retry_window_seconds=300) as server:
        async with server.httpx() as client:
            await post(client, paths.seed, bodies.seed())
            closed = await post(client, paths.close, bodies.close())
            for number in range(60):
                name = f"other{number}"
                answer = await post(client, paths.close, bodies.close(name, name), headers={"cookie": ""})
                client.cookies.clear()
                assert answer.json()["agent_observations"] is None
            for headers in ({}, {"cookie": cookie_of("s1")}):
                again = await post(client, paths.close, bodies.close(), headers=headers)
                assert (again.status_code, again.json()) == (200, closed.json())


async def test_after_the_window_the_cookie_is_stale_and_the_id_is_free(
    start, backend, bodies, paths, cookie_of
):
    with start(backend, session_close_retry_window_seconds=0.2) as server:
        async with server.httpx() as client:
            for path, body in ((paths.seed, bodies.seed()), (paths.close, bodies.close())):
                assert (await post(client, path, body)).status_code == 200
            await server.until(lambda: server.phase() is None, "the window's end")
            stale = {"cookie": cookie_of("s1")}
            for path, body in (
                (paths.seed, bodies.seed()),
                (paths.close, bodies.close()),
                (paths.activate, {"input": "hi"}),
            ):
                assert (await post(client, path, body, headers=stale)).status_code == 409, path
            client.cookies.clear()
            assert (await post(client, paths.seed, bodies.seed())).status_code == 200


async def test_fences_of_ids_never_seeded_are_few_and_the_oldest_goes_first(server, bodies, paths):
    """Sessions that were really closed, or are open, are no fences: however many come, these stay."""
    sessions = server.service._sessions
    sessions._settings = evolve(sessions._settings, fence_limit=20)
    async with server.httpx() as client:
        await post(client, paths.seed, bodies.seed("real", "real"))
        closed = await post(client, paths.close, bodies.close("real", "real"))
        client.cookies.clear()
        await post(client, paths.seed, bodies.seed("open", "open"))
        for number in range(50):
            client.cookies.clear()
            name = f"f{number}"
            assert (await post(client, paths.close, bodies.close(name, name))).status_code == 200
        client.cookies.clear()
        phases = server.call(lambda: list(server.service.phases.values()))
        assert sorted(set(phases)) == ["CLOSED", "FENCED", "READY"] and phases.count("FENCED") == 20
        assert (await post(client, paths.seed, bodies.seed("f49", "f49"))).status_code == 409
        assert (await post(client, paths.seed, bodies.seed("f0", "f0"))).status_code == 200
        client.cookies.clear()
        again = await post(client, paths.close, bodies.close("real", "real"))
        assert again.json() == closed.json()


async def test_a_close_of_an_id_never_seeded_fences_it_until_its_window_ends(start, backend, bodies, paths):
    with start(backend, session_close_retry_window_seconds=0.5) as server:
        async with server.httpx() as client:
            closed = await post(client, paths.close, bodies.close())
            nulls = {"agent_session_id": "s1", "agent_observations": None, "resources_cookies": None}
            assert (closed.status_code, closed.json()) == (200, nulls)
            client.cookies.clear()
            seeded = await post(client, paths.seed, bodies.seed())
            fenced = server.phase() == "FENCED"
            assert seeded.status_code == 409 or not fenced
            await server.until(lambda: server.phase() is None, "the window's end")
            client.cookies.clear()
            assert (await post(client, paths.seed, bodies.seed())).status_code == 200


@pytest.mark.parametrize("backend", ["asyncio", "trio"], indirect=True)
@pytest.mark.parametrize(
    ("said", "fails", "status"),
    [("fail", None, 503), ("refuse", None, 422), ("hi", "collect", 503)],
)
async def test_a_failed_activation_is_told_replayed_and_closed_with_observations(
    server, bodies, paths, said, fails, status
):
    """A retry may cure 503 and not 422; the repeat is told the same, and nothing is run again."""
    if fails is not None:
        server.world.fails[fails] = RuntimeError("it broke")
    async with server.httpx() as client:
        await post(client, paths.seed, bodies.seed())
        first = await post(client, paths.activate, {"input": said})
        again = await post(client, paths.activate, {"input": said})
        assert (first.status_code, first.text) == (status, again.text), first.text
        assert "detail" in first.json()
        closed = await post(client, paths.close, bodies.close())
    assert closed.status_code == 200
    assert isinstance(closed.json()["agent_observations"], dict)
    if fails is not None:
        assert closed.json()["agent_observations"]["gaps"], "what was not collected is no gap"
    assert server.world.done["launch"] == 1


async def test_a_close_without_an_activation_has_observations_too(server, bodies, paths):
    async with server.httpx() as client:
        await post(client, paths.seed, bodies.seed())
        closed = (await post(client, paths.close, bodies.close())).json()
    codes = [gap["code"] for gap in closed["agent_observations"]["gaps"]]
    assert codes == ["never_activated"] and closed["resources_cookies"] is None


async def test_a_provider_that_is_away_may_be_tried_again_and_what_cannot_work_is_final(
    server, bodies, paths
):
    """The same seed again succeeds once the provider is back."""
    async with server.httpx() as client:
        server.world.fails["create"] = ConnectionError("the provider is away")
        failed = await post(client, paths.seed, bodies.seed())
        assert failed.status_code >= 500, failed.text
        del server.world.fails["create"]
        client.cookies.clear()
        assert (await post(client, paths.seed, bodies.seed())).status_code == 200
        client.cookies.clear()
        required = [{**MCP, "required": True}]
        elsewhere = {"kind": "direct", "provider_config_ref": "elsewhere", "descriptor": {}}
        for changes in (
            {"tool_accesses": required},
            {"sandbox_access": {"connection": elsewhere, "workdir": "/w"}},
            {"sandbox_access": {"connection": {**elsewhere, "provider_config_ref": "box"}, "workdir": "w"}},
        ):
            refused = await post(client, paths.seed, bodies.seed("s2", "r2", **changes))
            assert refused.status_code == 422, refused.text
            client.cookies.clear()


async def test_missing_evidence_is_503_within_the_budget_and_the_state_is_kept(
    start, backend, bodies, paths, cookie_of
):
    """The receipt never comes and the sandbox does not end: close may be tried again, and then succeeds."""
    with start(backend, session_close_timeout_seconds=1) as server:
        server.world.fails["receipt"] = True
        server.world.fails["stop"] = ConnectionError("the provider is away")
        async with server.httpx(headers={"cookie": cookie_of("s1")}) as client:
            await post(client, paths.seed, bodies.seed(), headers={"cookie": ""})
            server.world.gates["run"].shut()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(post, client, paths.activate, {"input": "hi"})
                await server.until_came("run")
                with anyio.fail_after(20):
                    failed = await post(client, paths.close, bodies.close())
            assert failed.status_code == 503, failed.text
            assert server.phase() == "CLOSE_FAILED" and server.world.alive
            del server.world.fails["stop"]
            assert (await post(client, paths.close, bodies.close())).status_code == 200
    assert not server.world.alive
