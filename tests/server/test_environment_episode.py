"""An episode over real HTTP: the order, what is graded, what is closed, and a client's habits."""

from pathlib import Path

import anyio
import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from inspan_core.codec import decode
from inspan_core.wire import RunRequest, TaskId
from inspan_server.environment.admission import Admission
from inspan_server.environment.app import create_environment_app
from inspan_server.environment.calls import Retries, new_client
from inspan_server.environment.cookies import cookie_header
from inspan_server.environment.episode import EpisodeLimits, Servers, StepBegan, StepEnded, run_episode
from inspan_server.environment.resources import create_resources_app
from inspan_server.environment.resources_session import Workplace
from inspan_server.environment.task import Task, TaskFile

pytestmark = pytest.mark.anyio
QUICK = EpisodeLimits(
    episode_timeout_s=20.0, cleanup_timeout_s=10.0, retries=Retries(window_s=5.0, delay_s=0.01)
)
RUN = {
    "episode_id": {"rollout_id": "r1", "attempt": 2},
    "task": {
        "task_id": {"taskset": "local", "task_id": "flag"},
        "task_input": {"responses_create_params": {"input": "make a flag"}, "task_data": {"level": 3}},
    },
}
TASK = Task(
    task_id=TaskId(taskset="local", task_id="flag"),
    files={"README": TaskFile(b"make a file called flag\n")},
    instruction="make a flag",
    verify=("test", "-f", "flag"),
)


async def make_flag(sandbox_access):
    Path(sandbox_access["workdir"], "flag").touch()


@pytest.fixture
def resources(folders, tmp_path):
    workplace = Workplace(workdir=lambda session: str(tmp_path / session), provider_config_ref="folders")
    return create_resources_app(folders, {"flag": TASK}, workplace=workplace)


@pytest.fixture
def episode(resources, tiny_agent, serve):
    """Runs one episode against the real Resources Server and the tiny agent; returns answer and events."""

    async def run(*, limits=QUICK, **servers):
        events = []
        async with serve(resources, tiny_agent.app()) as (resources_url, agent_url), new_client() as client:
            where = Servers(resources_url=resources_url, agent_url=agent_url, **servers)
            ended = await run_episode(
                client, decode(RunRequest, RUN), where, limits=limits, observe=events.append
            )
        return ended, events

    return run


def ended_steps(events):
    return [(event.step, event.failure is None) for event in events if isinstance(event, StepEnded)]


async def test_a_healthy_episode(episode, tiny_agent, folders):
    tiny_agent.work = make_flag
    ended, events = await episode()
    assert ended.failure is None
    assert ended.result["reward"] == 1.0
    assert ended.result["response"]["id"] == "resp_1"
    assert ended.result["agent_observations"]["source"] == "tiny"
    assert "cleanup_failures" not in ended.result
    assert ended_steps(events) == [
        (step, True)
        for step in ("seed_resources", "seed_agent", "activate", "close_agent", "verify", "close_resources")
    ]
    assert [type(event) for event in events] == [StepBegan, StepEnded] * 6
    assert (folders.alive, len(folders.made)) == (set(), 1)
    (_, seed, _, _), (_, params, _, path), (_, close, _, _) = tiny_agent.seen
    assert set(seed) == {"agent_session_id", "episode_id", "task_id", "tool_accesses", "sandbox_access"}
    assert (seed["episode_id"], seed["task_id"]) == (RUN["episode_id"], RUN["task"]["task_id"])
    assert seed["sandbox_access"]["connection"]["provider_config_ref"] == "folders"
    assert params == {"input": "make a flag"}
    assert path == "/ng-rollout/r1-a2/v1/responses"
    assert close == {"agent_session_id": seed["agent_session_id"], "episode_id": RUN["episode_id"]}


async def test_work_that_does_not_pass_is_graded_zero(episode):
    ended, _ = await episode()
    assert (ended.failure, ended.result["reward"]) == (None, 0.0)


async def test_the_token_capture_segment(episode, tiny_agent):
    await episode(token_capture=True)
    assert tiny_agent.seen[1][3] == "/ng-rollout/r1-a2/training-token-capture/v1/responses"


async def test_cookies_are_kept_from_the_seed_and_replaced_by_the_activation(episode, tiny_agent):
    await episode()
    assert [cookie for _, _, cookie, _ in tiny_agent.seen] == [
        None,
        'session="seeded/="',
        "session=activated",
    ]


def test_plain_cookie_values_are_not_quoted():
    assert cookie_header({"a": "x1-_.~", "b": "a b"}) == {"cookie": 'a=x1-_.~; b="a b"'}
    assert cookie_header({}) == {}


@pytest.mark.parametrize("step", ["seed", "activate", "close"])
async def test_a_lost_answer_is_asked_for_again(episode, tiny_agent, step):
    tiny_agent.work, tiny_agent.lose = make_flag, {step: 3}
    ended, _ = await episode()
    assert ended.result["reward"] == 1.0
    assert tiny_agent.steps.count(step) == 4
    bodies = [body for name, body, *_ in tiny_agent.seen if name == step]
    assert all(body == bodies[0] for body in bodies)


async def test_a_connection_that_stays_lost_is_given_up(episode, tiny_agent, folders):
    tiny_agent.lose = {"activate": 10**6}
    limits = EpisodeLimits(retries=Retries(window_s=0.1, delay_s=0.01))
    ended, events = await episode(limits=limits)
    assert (ended.failure.stage, ended.failure.terminal) == ("agent", False)
    assert "connection to" in ended.failure.failure_reason
    assert ("verify", True) not in ended_steps(events)
    assert tiny_agent.steps[-1] == "close"
    assert folders.alive == set()


@pytest.mark.parametrize(
    ("step", "status", "stage", "terminal"),
    [
        ("seed", 422, "seed", True),
        ("seed", 409, "seed", True),
        ("seed", 503, "seed", False),
        ("activate", 408, "agent", False),
        ("activate", 425, "agent", False),
        ("activate", 429, "agent", False),
        ("activate", 422, "agent", True),
        ("activate", 500, "agent", False),
        ("activate", 302, "agent", False),
        ("close", 503, "cleanup", False),
        ("close", 409, "cleanup", True),
    ],
)
async def test_only_good_statuses_are_graded(episode, tiny_agent, folders, step, status, stage, terminal):
    tiny_agent.work, tiny_agent.status = make_flag, {step: [status]}
    ended, events = await episode()
    assert ended.result is None
    assert (ended.failure.stage, ended.failure.terminal) == (stage, terminal)
    assert f"answered {status}" in ended.failure.failure_reason
    assert f"{step} says no" in ended.failure.failure_reason
    assert "verify" not in [name for name, _ in ended_steps(events)]
    # An interrupted seed is closed too, and before the sandbox is stopped.
    assert tiny_agent.steps[-1] == "close"
    assert ended_steps(events)[-2:] == [("close_agent", True), ("close_resources", True)]
    assert folders.alive == set()
    assert (ended.failure.partial_response is not None) == (step == "close")


@pytest.mark.parametrize("raw", [b"", b"[]", b"{", b'{"a": NaN}'])
async def test_an_activation_that_does_not_parse_is_final(episode, tiny_agent, raw):
    tiny_agent.raw_answer = raw
    ended, _ = await episode()
    assert (ended.failure.stage, ended.failure.terminal) == ("agent", True)


async def test_a_failed_resources_seed_is_closed_and_the_agent_never_seeded(episode, tiny_agent, folders):
    folders.failing_creates = 1
    ended, events = await episode()
    assert (ended.failure.stage, ended.failure.terminal) == ("seed", False)
    assert "no room for a sandbox" in ended.failure.failure_reason
    assert tiny_agent.seen == []
    assert ended_steps(events) == [("seed_resources", False), ("close_resources", True)]


async def test_a_lost_sandbox_at_verification_is_a_failure_and_no_zero(episode, tiny_agent, folders):
    async def lose_it(access):
        folders.alive.clear()

    tiny_agent.work = lose_it
    ended, _ = await episode()
    assert (ended.result, ended.failure.stage, ended.failure.terminal) == (None, "verification", False)
    assert ended.failure.partial_response["id"] == "resp_1"


async def test_a_failing_teardown_is_insisted_on(episode, tiny_agent, folders):
    tiny_agent.work, folders.failing_stops = make_flag, 2
    ended, events = await episode()
    assert ended.result["reward"] == 1.0
    assert "cleanup_failures" not in ended.result
    assert ended_steps(events)[-3:] == [("close_resources", False)] * 2 + [("close_resources", True)]
    assert folders.alive == set()


async def test_a_teardown_that_keeps_failing_does_not_replace_the_grade(episode, tiny_agent, folders):
    tiny_agent.work, folders.failing_stops = make_flag, 10**6
    ended, _ = await episode()
    assert ended.result["reward"] == 1.0
    (problem,) = ended.result["cleanup_failures"]
    assert "the stop was not confirmed" in problem


async def test_the_deadline_closes_everything(episode, tiny_agent, folders):
    tiny_agent.gate = anyio.Event()
    limits = EpisodeLimits(episode_timeout_s=0.5, cleanup_timeout_s=10.0)
    ended, events = await episode(limits=limits)
    assert (ended.failure.stage, ended.failure.terminal) == ("agent", False)
    assert "longer than 0.5 s" in ended.failure.failure_reason
    assert ended_steps(events)[-2:] == [("close_agent", True), ("close_resources", True)]
    assert folders.alive == set()


async def test_a_cancelled_episode_is_closed(resources, tiny_agent, folders, serve):
    tiny_agent.gate = anyio.Event()
    async with serve(resources, tiny_agent.app()) as urls, new_client() as client:
        servers = Servers(resources_url=urls[0], agent_url=urls[1])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run_episode, client, decode(RunRequest, RUN), servers)
            with anyio.fail_after(10):
                await tiny_agent.reached.wait()
            tasks.cancel_scope.cancel()
        assert tiny_agent.steps[-1] == "close"
        assert folders.alive == set()


async def test_the_resources_jar_that_tools_changed_is_sent_to_verification(tiny_agent, serve):
    """Against a Resources Server of another make, whose cookies the agent's tools may change."""
    seen = []

    async def handle(request):
        seen.append((request.url.path, request.headers.get("cookie"), await request.json()))
        body = {"sandbox_access": None, "reward": 0.5, "note": "kept"}
        return JSONResponse(body, headers={"set-cookie": "state=old; Path=/"})

    other = Starlette(
        routes=[
            Route(f"/{name}", handle, methods=["POST"])
            for name in ("seed_session", "verify", "close_session")
        ]
    )
    for jar, expected in ((None, "state=old"), ({}, "state=old"), ({"state": "new"}, "state=new")):
        seen.clear()
        tiny_agent.resources_cookies = jar
        async with serve(other, tiny_agent.app()) as urls, new_client() as client:
            servers = Servers(resources_url=urls[0], agent_url=urls[1])
            ended = await run_episode(client, decode(RunRequest, RUN), servers, limits=QUICK)
        assert (ended.result["reward"], ended.result["note"]) == (0.5, "kept")
        assert [(path, cookie) for path, cookie, _ in seen][1:] == [
            ("/verify", expected),
            ("/close_session", expected),
        ]
        assert seen[1][2] == {
            "level": 3,
            "responses_create_params": {"input": "make a flag"},
            "response": ended.result["response"],
        }


async def test_the_environment_server(resources, tiny_agent, serve):
    tiny_agent.work = make_flag
    async with serve(resources, tiny_agent.app()) as urls:
        servers = Servers(resources_url=urls[0], agent_url=urls[1])
        async with serve(create_environment_app(servers, limits=QUICK)) as (url,), new_client() as client:
            answer = await client.post(url + "/run", json=RUN)
            assert answer.status_code == 200
            body = answer.json()
            assert (body["episode_id"], body["task_id"]) == (RUN["episode_id"], RUN["task"]["task_id"])
            assert (body["result"]["reward"], body["failure"]) == (1.0, None)
            tiny_agent.status = {"activate": [503]}
            body = (await client.post(url + "/run", json=RUN)).json()
            assert body["result"] is None
            assert set(body["failure"]) == {"failure_reason", "terminal", "stage", "partial_response"}
            refused = await client.post(url + "/run", json={**RUN, "extra": 1})
            assert refused.status_code == 422
            assert refused.json()["detail"][0]["loc"] == ["body", "extra"]
            assert (await client.get(url + "/run")).status_code == 405
            assert (await client.get(url + "/other")).json() == {"detail": "Not Found"}


async def test_an_environment_s_end_closes_its_episodes(resources, tiny_agent, folders, serve):
    tiny_agent.gate = anyio.Event()
    async with serve(resources, tiny_agent.app()) as urls, new_client() as client:
        servers = Servers(resources_url=urls[0], agent_url=urls[1])
        async with anyio.create_task_group() as tasks:
            async with serve(create_environment_app(servers, limits=QUICK)) as (url,):

                async def ask():
                    # What the client gets depends on how far the server's end has come.
                    try:
                        answer = await client.post(url + "/run", json=RUN)
                        assert answer.status_code >= 500
                    except httpx.RemoteProtocolError:
                        return

                tasks.start_soon(ask)
                with anyio.fail_after(10):
                    await tiny_agent.reached.wait()
        assert tiny_agent.steps[-1] == "close"
        assert folders.alive == set()


async def test_places_are_bounded_and_waiting_for_one_too(resources, tiny_agent, serve):
    tiny_agent.gate = anyio.Event()
    async with serve(resources, tiny_agent.app()) as urls:
        servers = Servers(resources_url=urls[0], agent_url=urls[1])
        admission = Admission(max_concurrent_episodes=1, queue_timeout_s=0.1)
        app = create_environment_app(servers, limits=QUICK, admission=admission)
        async with serve(app) as (url,), new_client() as client, anyio.create_task_group() as tasks:
            answers = []

            async def ask():
                answers.append(await client.post(url + "/run", json=RUN))

            tasks.start_soon(ask)
            with anyio.fail_after(10):
                await tiny_agent.reached.wait()
            queued = await client.post(url + "/run", json=RUN)
            assert queued.status_code == 503
            assert "all 1 places were taken for 0.1 s" in queued.json()["detail"]
            tiny_agent.gate.set()
        assert answers[0].json()["failure"] is None
        assert tiny_agent.steps.count("seed") == 1
