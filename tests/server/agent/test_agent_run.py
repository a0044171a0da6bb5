"""The compatibility endpoint ``/run``: a Resources Server of our own, the harness on the host."""

import contextlib
import re

import anyio
import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

import inspan_echo
from inspan_core.errors import InstallError
from inspan_core.hookspecs import hookimpl
from inspan_core.plugins import load_plugins
from inspan_runtime.providers.local import LocalProvider
from inspan_server.model.capture import Capture
from inspan_server.model.gateway import create_gateway
from inspan_server.model.script import parse_script
from inspan_server.serving import served

pytestmark = pytest.mark.anyio
BODY = {"responses_create_params": {"input": "marco"}, "question": "where?", "task_id": 7}
WORD = "a word=of the session"


class Local:
    @hookimpl
    def inspan_sandbox_providers(self):
        return {"local": LocalProvider}


class FailingInstall:
    @hookimpl(wrapper=True)
    def inspan_install(self, context):
        return self.fail((yield))

    async def fail(self, install):
        install.close()
        raise InstallError("the disk is full")


class Resources:
    """Plays the Resources Server: what it is sent is kept in order."""

    def __init__(self, **answers):
        self.calls = []
        self.answers = answers
        self.seen = anyio.Event()

    async def answer(self, request):
        name = request.path_params["name"]
        self.calls.append((name, await request.json(), dict(request.cookies)))
        self.seen.set()
        status, body = self.answers.get(name, (200, {"reward": 1.0} if name == "verify" else {}))
        answer = JSONResponse(body, status)
        if name == "seed_session":
            answer.set_cookie("resources", WORD)
        return answer

    @property
    def app(self):
        return Starlette(routes=[Route("/{name}", self.answer, methods=["POST"])])

    @property
    def order(self):
        return [name for name, _, _ in self.calls]


@pytest.fixture
def run(agent, tmp_path):
    """Servers of an episode: ``async with run(resources) as server``."""

    @contextlib.asynccontextmanager
    async def started(resources, *, script=None, plugins=(), timeout_s=20, **changes):
        async with contextlib.AsyncExitStack() as stack:
            if script is not None:
                gateway = create_gateway(parse_script(script), Capture())
                url = await stack.enter_async_context(served(gateway, graceful_timeout_s=1))
                changes |= {"model_server": {"base_url": url}, "harness_options": {}}
            url = await stack.enter_async_context(served(resources.app, graceful_timeout_s=1))
            bound = {"base_url": url, "timeout_s": timeout_s}
            settings = {
                "host_execution": True,
                "resources_server": bound,
                "state_dir": str(tmp_path / "state"),
            }
            loaded = load_plugins([Local(), inspan_echo, *plugins], entry_points=False)
            yield await stack.enter_async_context(agent(plugins=loaded, **{**settings, **changes}))

    return started


async def test_an_episode_is_seeded_run_verified_and_closed_and_the_answer_is_the_verdict(run):
    verdict = {"reward": 0.5, "why": ["half", None]}
    resources = Resources(verify=(200, verdict))
    async with run(resources) as server:
        answer = await server.client.post("/run", json=BODY)
        assert (answer.status_code, answer.json()) == (200, verdict)
    assert resources.order == ["seed_session", "verify", "close_session"]
    (_, seed, sent), (_, verified, kept), (_, closed, kept_too) = resources.calls
    assert seed["task_data"] == {"question": "where?", "task_id": 7}
    assert (sent, kept, kept_too) == ({}, {"resources": WORD}, {"resources": WORD})
    assert verified["responses_create_params"] == {"input": "marco"}
    assert verified["question"] == "where?"
    assert verified["response"]["output"][0]["content"][0]["text"] == "marco"
    assert closed == {name: seed[name] for name in ("resources_session_id", "episode_id")}


async def test_an_episode_of_the_contracts_shape_keeps_its_names(run):
    resources = Resources()
    names = {
        "episode_id": {"rollout_id": "r5", "attempt": 2},
        "task_id": {"taskset": "t", "task_id": "x"},
    }
    script = {"r5-a2": [{"content": "under its own rollout"}]}
    async with run(resources, script=script) as server:
        answer = await server.client.post("/run", json={**BODY, **names})
        assert answer.status_code == 200, answer.text
    seed = resources.calls[0][1]
    assert (seed["episode_id"], seed["task_id"]) == (names["episode_id"], names["task_id"])
    assert resources.calls[1][1]["response"]["output"][0]["content"][0]["text"] == "under its own rollout"


async def test_without_a_binding_or_without_the_host_path_it_is_refused(run):
    resources = Resources()
    async with run(resources, resources_server=None) as server:
        answer = await server.client.post("/run", json=BODY)
        assert (answer.status_code, "resources_server" in answer.json()["detail"]) == (422, True)
        assert (await server.client.post("/v1/responses", json={"input": "marco"})).status_code == 200
    assert resources.order == []


@pytest.mark.parametrize("reward", [0.0, 1.0])
@pytest.mark.parametrize("status", [401, 500])
async def test_a_run_that_the_model_failed_is_verified_and_masked(run, status, reward):
    resources = Resources(verify=(200, {"reward": reward}))
    script = {"*": [{"error": {"status": status}}] * 9}
    async with run(resources, script=script) as server:
        answer = await server.client.post("/run", json=BODY)
    assert answer.status_code == 200, answer.text
    assert answer.json() == {
        "reward": reward,
        "mask_sample": True,
        "failure_kind": "agent_request_failed",
    }
    assert resources.order == ["seed_session", "verify", "close_session"]
    assert resources.calls[1][1]["response"]["status"] == "failed"


async def test_what_is_not_proven_stopped_is_not_verified(run):
    command = "kill -9 $(cut -d' ' -f4 /proc/$PPID/stat)"
    calls = [{"name": "bash", "arguments": {"command": command}}]
    script = {"*": [{"tool_calls": calls}, {"content": "done"}]}
    resources = Resources()
    async with run(resources, script=script, session_close_timeout_seconds=3) as server:
        answer = await server.client.post("/run", json=BODY)
    assert answer.status_code == 503
    assert resources.order == ["seed_session", "close_session"]


async def test_an_installation_that_fails_is_no_verdict(run):
    resources = Resources()
    async with run(resources, plugins=[FailingInstall()]) as server:
        answer = await server.client.post("/run", json=BODY)
    assert (answer.status_code, "the disk is full" in answer.json()["detail"]) == (503, True)
    assert resources.order == ["seed_session", "close_session"]


@pytest.mark.parametrize(
    ("answers", "status", "said", "order"),
    [
        ({"seed_session": (503, {"detail": "full"})}, 503, "seed: .*503: full", ["seed_session"]),
        ({"seed_session": (422, {"detail": "no such task"})}, 422, "no such task", ["seed_session"]),
        (
            {"seed_session": (200, {"sandbox_access": {"workdir": "/x"}})},
            422,
            "supplies a sandbox",
            ["seed_session"],
        ),
        ({"verify": (500, {})}, 503, "verification: .*500", ["seed_session", "verify"]),
        ({"verify": (200, {"reward": None})}, 503, "expected a number", ["seed_session", "verify"]),
        ({"close_session": (422, {})}, 200, "reward", ["seed_session", "verify"]),
    ],
)
async def test_a_step_that_fails_is_named_and_the_resources_are_closed(run, answers, status, said, order):
    resources = Resources(**answers)
    async with run(resources) as server:
        answer = await server.client.post("/run", json=BODY)
    assert answer.status_code == status
    assert re.search(said, answer.text)
    assert resources.order == [*order, "close_session"]


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ([], ["body"]),
        ({}, ["body", "responses_create_params"]),
        ({"responses_create_params": {"input": 3}}, ["body", "responses_create_params", "input"]),
        ({**BODY, "episode_id": {"rollout_id": "r-a1"}}, ["body", "episode_id", "rollout_id"]),
        ({**BODY, "task_id": {"taskset": "t"}}, ["body", "task_id", "task_id"]),
    ],
)
async def test_a_body_that_does_not_fit_is_refused_before_anything_is_seeded(run, body, place):
    resources = Resources()
    async with run(resources) as server:
        answer = await server.client.post("/run", json=body)
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"] == place
    assert resources.order == []


async def test_a_request_field_that_the_harness_does_not_apply_is_refused_and_the_resources_closed(run):
    resources = Resources()
    params = {"input": "x", "tools": [{"type": "function", "name": "f", "parameters": {}}]}
    async with run(resources) as server:
        answer = await server.client.post("/run", json={"responses_create_params": params})
    assert (answer.status_code, "'tools'" in answer.json()["detail"]) == (422, True)
    assert resources.order == ["seed_session", "close_session"]


async def test_a_rollout_that_belongs_to_a_session_is_not_run(run, bodies):
    resources = Resources()
    async with run(resources) as server:
        assert (await server.client.post("/v1/agent_sessions", json=bodies.seed())).status_code == 200
        answer = await server.client.post("/run", json={**BODY, "episode_id": bodies.episode()})
    assert answer.status_code == 409
    assert resources.order == ["seed_session", "close_session"]


async def test_a_client_that_goes_away_leaves_the_episode_to_its_end(run, until):
    resources = Resources()
    script = {"*": [{"content": "late", "delay_s": 0.5}]}
    async with run(resources, script=script) as server:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: server.client.post("/run", json=BODY))
            await resources.seen.wait()
            tasks.cancel_scope.cancel()
        await until(lambda: "close_session" in resources.order, "the episode's end")
    assert resources.order == ["seed_session", "verify", "close_session"]


NAMED = {**BODY, "episode_id": {"rollout_id": "r7", "attempt": 0}}


async def test_the_same_named_episode_is_joined_and_replayed(run, tmp_path, until):
    """It is run and verified once, however often it is asked for; another body is another episode."""
    resources, answers = Resources(), []
    script = {"*": [{"content": "late", "delay_s": 0.3}, {"content": "late"}]}
    async with run(resources, script=script) as server:

        async def ask(body):
            answers.append(await server.client.post("/run", json=body))

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(ask, NAMED)
        await ask(dict(reversed(NAMED.items())))
        assert {answer.text for answer in answers} == {answers[0].text}
        assert (answers[0].status_code, resources.order) == (
            200,
            ["seed_session", "verify", "close_session"],
        )
        await ask({**NAMED, "question": "when?"})
        assert resources.order == ["seed_session", "verify", "close_session"] * 2
        await until(lambda: list((tmp_path / "state" / "resources").iterdir()) == [], "that nothing is owed")


async def test_an_episode_that_got_no_verdict_is_run_anew_when_it_is_asked_for_again(run):
    resources = Resources(verify=(503, {}))
    async with run(resources) as server:
        assert (await server.client.post("/run", json=NAMED)).status_code == 503
        resources.answers = {}
        assert (await server.client.post("/run", json=NAMED)).json() == {"reward": 1.0}


async def test_without_a_place_to_owe_a_close_nothing_is_seeded(run, tmp_path):
    resources = Resources()
    async with run(resources) as server:
        (tmp_path / "state" / "resources").write_text("no folder")
        answer = await server.client.post("/run", json=NAMED)
    assert (answer.status_code, "cannot be written" in answer.json()["detail"]) == (503, True)
    assert resources.order == []
