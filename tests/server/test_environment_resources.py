"""The Resources Server over real HTTP: one sandbox a session, one verdict, and a close that always wins."""

import anyio
import httpx
import pytest

from inspan_core.wire import TaskId
from inspan_server.environment.calls import new_client
from inspan_server.environment.cookies import cookie_header, cookies_set_by
from inspan_server.environment.resources import create_resources_app
from inspan_server.environment.resources_session import Workplace
from inspan_server.environment.task import Task, TaskFile

pytestmark = pytest.mark.anyio
EPISODE = {"rollout_id": "r1", "attempt": 0}
TASK_ID = {"taskset": "local", "task_id": "flag"}
SEED = {"resources_session_id": "res-1", "episode_id": EPISODE, "task_id": TASK_ID, "task_data": {}}
CLOSE = {"resources_session_id": "res-1", "episode_id": EPISODE}
VERIFY = {"responses_create_params": {"input": "do"}, "response": {"id": "resp_1"}}


def flag_task(**changes):
    fields = {
        "task_id": TaskId(taskset="local", task_id="flag"),
        "files": {
            "README": TaskFile(b"make a file called flag\n"),
            "bin/go": TaskFile(b"#!/bin/sh\n", 0o755),
        },
        "instruction": "make a file called flag",
        "verify": ("sh", "-c", "echo tested >> ../count; test -f flag"),
        **changes,
    }
    return Task(**fields)


@pytest.fixture
def resources(folders, tmp_path, serve):
    """Starts a Resources Server over the folder provider; returns a context manager of a client."""

    def start(task=None, **options):
        task = task or flag_task()
        workplace = Workplace(
            workdir=lambda session: str(tmp_path / session / "repo"), provider_config_ref="folders"
        )
        app = create_resources_app(folders, {task.task_id.task_id: task}, workplace=workplace, **options)
        return serve(app)

    return start


async def post(url, path, body, jar=None):
    async with new_client() as client:
        return await client.post(url + path, json=body, headers=cookie_header(jar or {}))


async def seeded(url, **changes):
    answer = await post(url, "/seed_session", {**SEED, **changes})
    assert answer.status_code == 200, answer.text
    return answer.json(), cookies_set_by(answer)


async def test_a_session_from_seed_to_close(resources, folders, tmp_path):
    repo = tmp_path / "res-1" / "repo"
    async with resources() as (url,):
        body, jar = await seeded(url)
        assert body == {
            "resources_session_id": "res-1",
            "sandbox_access": {
                "connection": {
                    "kind": "direct",
                    "provider_config_ref": "folders",
                    "descriptor": {"sandbox_id": "res-1", "workdir": str(repo)},
                },
                "workdir": str(repo),
            },
            "resources_tools": [],
        }
        log = await anyio.run_process(["git", "log", "--format=%s %an"], cwd=repo)
        assert log.stdout == b"The task task\n"
        assert (await anyio.run_process(["git", "status", "--porcelain"], cwd=repo)).stdout == b""
        assert (repo / "bin/go").stat().st_mode & 0o777 == 0o755
        (repo / "flag").touch()
        verdict = await post(url, "/verify", VERIFY, jar)
        assert verdict.json() == {
            "reward": 1.0,
            "verification": {"exit_code": 0, "timed_out": False, "output": ""},
        }
        assert folders.alive == {"res-1"}
        for _ in range(2):
            closed = await post(url, "/close_session", CLOSE, jar)
            assert (closed.status_code, closed.json()) == (200, {"resources_session_id": "res-1"})
        assert (folders.alive, folders.made) == (set(), ["res-1"])


async def test_the_first_verdict_is_the_only_one(resources, tmp_path):
    async with resources() as (url,):
        _, jar = await seeded(url)
        first = await post(url, "/verify", VERIFY, jar)
        assert first.json()["reward"] == 0.0
        (tmp_path / "res-1" / "repo" / "flag").touch()
        assert (await post(url, "/verify", VERIFY, jar)).json() == first.json()
        other = await post(url, "/verify", {**VERIFY, "response": {"id": "resp_2"}}, jar)
        assert other.status_code == 409
    assert (tmp_path / "res-1" / "count").read_text() == "tested\n"


async def test_verifications_at_once_run_the_tests_once(resources, tmp_path):
    async with resources() as (url,):
        _, jar = await seeded(url)
        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(post, url, "/verify", VERIFY, jar)
    assert (tmp_path / "res-1" / "count").read_text() == "tested\n"


@pytest.mark.parametrize("code", [1, 124, 137, 255])
async def test_any_other_exit_code_is_no_reward(resources, code):
    async with resources(flag_task(verify=("sh", "-c", f"echo no; exit {code}"))) as (url,):
        _, jar = await seeded(url)
        verdict = (await post(url, "/verify", VERIFY, jar)).json()
    assert verdict["reward"] == 0.0
    assert verdict["verification"] == {"exit_code": code, "timed_out": False, "output": "no"}


async def test_tests_that_never_end_are_no_reward(resources):
    async with resources(flag_task(verify=("sleep", "600"), verify_timeout_s=0.2)) as (url,):
        _, jar = await seeded(url)
        verdict = (await post(url, "/verify", VERIFY, jar)).json()
    assert verdict["reward"] == 0.0
    assert verdict["verification"]["timed_out"] is True
    assert verdict["verification"]["exit_code"] is None


async def test_the_verifier_puts_its_own_tests_in_place(resources, tmp_path):
    task = flag_task(verify=("sh", "check.sh"), verify_files={"check.sh": TaskFile(b"exit 1\n")})
    async with resources(task) as (url,):
        _, jar = await seeded(url)
        (tmp_path / "res-1" / "repo" / "check.sh").write_text("exit 0\n")
        assert (await post(url, "/verify", VERIFY, jar)).json()["reward"] == 0.0


async def test_an_agent_that_blocks_the_tests_gets_no_reward(resources, tmp_path):
    task = flag_task(verify=("sh", "check.sh"), verify_files={"check.sh": TaskFile(b"exit 0\n")})
    async with resources(task) as (url,):
        _, jar = await seeded(url)
        (tmp_path / "res-1" / "repo" / "check.sh").symlink_to("/etc/hostname")
        verdict = (await post(url, "/verify", VERIFY, jar)).json()
    assert verdict["reward"] == 0.0
    assert "a link" in verdict["verification"]["output"]


async def test_a_sandbox_that_is_gone_is_an_error_and_no_verdict(resources, folders):
    async with resources() as (url,):
        _, jar = await seeded(url)
        folders.alive.clear()
        verdict = await post(url, "/verify", VERIFY, jar)
    assert verdict.status_code == 503
    assert "is gone" in verdict.json()["detail"]


async def test_a_repeated_seed_is_the_same_session(resources, folders):
    async with resources() as (url,):
        (first, _), (second, _) = await seeded(url), await seeded(url)
        assert first == second
        other = await post(url, "/seed_session", {**SEED, "task_data": {"x": 1}})
        assert other.status_code == 409
    assert folders.made == ["res-1"]


async def test_seeds_at_once_make_one_sandbox(resources, folders):
    folders.create_gate = anyio.Event()
    async with resources() as (url,), anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(seeded, url)
        with anyio.fail_after(10):
            while not folders.made:
                await anyio.sleep(0.01)
        folders.create_gate.set()
    assert folders.made == ["res-1"]


async def test_a_failed_creation_is_undone_and_may_be_tried_again(resources, folders):
    folders.failing_creates = 1
    async with resources() as (url,):
        failed = await post(url, "/seed_session", SEED)
        assert failed.status_code == 503
        assert "no room for a sandbox" in failed.json()["detail"]
        assert folders.alive == set()
        await seeded(url)
        assert folders.alive == {"res-1"}


async def test_a_failed_preparation_tells_the_command_and_leaves_nothing(resources, folders):
    task = flag_task(setup=("sh", "-c", "echo no such package >&2; exit 3"))
    async with resources(task) as (url,):
        failed = await post(url, "/seed_session", SEED)
    assert failed.status_code == 503
    assert "exited with 3: no such package" in failed.json()["detail"]
    assert folders.alive == set()


@pytest.mark.parametrize("gate", ["create_gate", "upload_gate"])
async def test_a_close_during_the_set_up_wins(resources, folders, gate):
    held = anyio.Event()
    setattr(folders, gate, held)
    answers = {}
    with anyio.fail_after(20):
        async with resources() as (url,), anyio.create_task_group() as tasks:

            async def send(name, path, body):
                answers[name] = await post(url, path, body)

            tasks.start_soon(send, "seed", "/seed_session", SEED)
            with anyio.fail_after(10):
                while not folders.made:
                    await anyio.sleep(0.01)
            tasks.start_soon(send, "close", "/close_session", CLOSE)
            if gate == "create_gate":
                # The creation is joined: the close is answered only after it.
                with pytest.raises(httpx.ReadTimeout):
                    async with httpx.AsyncClient(trust_env=False, timeout=0.3) as client:
                        await client.post(url + "/close_session", json=CLOSE)
                assert "close" not in answers
                held.set()
    assert answers["close"].status_code == 200
    assert answers["seed"].status_code == 409
    assert (folders.alive, folders.made) == (set(), ["res-1"])


async def test_a_stop_that_fails_is_tried_again_by_the_next_close(resources, folders):
    async with resources() as (url,):
        _, jar = await seeded(url)
        folders.failing_stops = 1
        failed = await post(url, "/close_session", CLOSE)
        assert (failed.status_code, folders.alive) == (503, {"res-1"})
        assert (await post(url, "/verify", VERIFY, jar)).status_code == 409
        assert (await post(url, "/seed_session", SEED)).status_code == 409
        assert (await post(url, "/close_session", CLOSE)).status_code == 200
    assert folders.alive == set()


async def test_a_close_before_the_seed_fences_it(resources, folders):
    async with resources() as (url,):
        assert (await post(url, "/close_session", CLOSE)).status_code == 200
        assert (await post(url, "/seed_session", SEED)).status_code == 409
        other = {**CLOSE, "episode_id": {"rollout_id": "r2", "attempt": 0}}
        assert (await post(url, "/close_session", other)).status_code == 409
    assert folders.made == []


async def test_the_window_s_end_forgets_a_closed_session(resources, folders):
    async with resources(close_retry_window_s=0.0) as (url,):
        await seeded(url)
        await post(url, "/close_session", CLOSE)
        await seeded(url)
    assert folders.made == ["res-1", "res-1"]


async def test_another_episode_cannot_close_it(resources, folders):
    async with resources() as (url,):
        await seeded(url)
        other = await post(url, "/close_session", {**CLOSE, "episode_id": {"rollout_id": "r1", "attempt": 1}})
        assert (other.status_code, folders.alive) == (409, {"res-1"})


async def test_a_verification_needs_its_session_s_own_cookie(resources):
    async with resources() as (url,):
        _, jar = await seeded(url)
        ((name, value),) = jar.items()
        for wrong in (
            None,
            {name: "res-1"},
            {name: value[:-1] + "_"},
            {name: value.replace("res-1", "res-2")},
        ):
            assert (await post(url, "/verify", VERIFY, wrong)).status_code == 409
        assert (await post(url, "/verify", VERIFY, {name: f'"{value}"'})).status_code == 200


async def test_an_unknown_task_is_final_and_lists_the_known(resources):
    async with resources() as (url,):
        answer = await post(
            url, "/seed_session", {**SEED, "task_id": {"taskset": "local", "task_id": "none"}}
        )
    assert answer.status_code == 422
    assert answer.json()["detail"] == "no task local/none; known: local/flag"


@pytest.mark.parametrize(
    ("body", "loc"),
    [
        ({**SEED, "extra": 1}, ["body", "extra"]),
        ({**SEED, "resources_session_id": "../x"}, ["body", "resources_session_id"]),
        ({**SEED, "episode_id": {"rollout_id": "r", "attempt": -1}}, ["body", "episode_id", "attempt"]),
        ({}, ["body", "resources_session_id"]),
    ],
)
async def test_a_body_that_does_not_fit_names_the_field(resources, folders, body, loc):
    async with resources() as (url,):
        answer = await post(url, "/seed_session", body)
    assert answer.status_code == 422
    assert loc in [fault["loc"] for fault in answer.json()["detail"]]
    assert folders.made == []


async def test_shutdown_stops_what_is_left(resources, folders):
    async with resources() as (url,):
        await seeded(url)
        await seeded(url, resources_session_id="res-2")
        assert folders.alive == {"res-1", "res-2"}
    assert folders.alive == set()
