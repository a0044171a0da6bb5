"""Requests that meet while the record of the first is on its way to the disk (``journal_sync: full``)."""

import anyio
import pytest

import inspan_echo
from inspan_core.hookspecs import hookimpl
from inspan_core.plugins import load_plugins
from inspan_runtime.providers.local import LocalProvider

pytestmark = pytest.mark.anyio
ACTIVATE = "/ng-rollout/r1/v1/responses"


class Counted:
    """Brings the provider ``local``, and counts what it creates."""

    def __init__(self):
        self.created = []
        outer = self

        class Counting(LocalProvider):
            async def create(self, spec, **more):
                outer.created.append(more["key"])
                return await super().create(spec, **more)

        self._provider = Counting

    @hookimpl
    def inspan_sandbox_providers(self):
        return {"local": self._provider}


async def test_seeds_that_come_together_open_one_session(agent, bodies, tmp_path):
    counted = Counted()
    plugins = load_plugins([counted, inspan_echo], entry_points=False)
    async with agent(plugins=plugins, state_dir=str(tmp_path / "state"), journal_sync="full") as server:
        statuses = []

        async def seed(**changes):
            answer = await server.client.post("/v1/agent_sessions", json=bodies.seed(**changes))
            statuses.append((answer.status_code, bool(changes)))

        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(seed)
            tasks.start_soon(lambda: seed(rollout="r2"))
        well = [status for status, is_other in statuses if not is_other]
        other = [status for status, is_other in statuses if is_other]
        # Whichever was first is the session's; the others are told so, or join it.
        assert sorted((set(well), set(other)), key=max) == [{200}, {409}]
        assert len(counted.created) == 1
        path = "/v1/agent_sessions/close"
        closed = [await server.client.post(path, json=bodies.close(rollout=one)) for one in ("r1", "r2")]
        assert sorted(answer.status_code for answer in closed) == [200, 409]


async def test_an_activation_that_comes_beside_another_does_not_run_in_its_name(agent, bodies, tmp_path):
    async with agent(state_dir=str(tmp_path / "state"), journal_sync="full") as server:
        for number in range(5):
            session, rollout = f"s{number}", f"r{number}"
            seeded = await server.client.post("/v1/agent_sessions", json=bodies.seed(session, rollout))
            assert seeded.status_code == 200, seeded.text
            server.client.cookies.clear()
            said = {}

            async def activate(text, rollout=rollout, said=said, cookie=seeded.headers["set-cookie"]):
                answer = await server.client.post(
                    f"/ng-rollout/{rollout}/v1/responses",
                    json={"input": text},
                    headers={"cookie": cookie.partition(";")[0]},
                )
                said[text] = answer

            async with anyio.create_task_group() as tasks:
                for text in ("marco", "polo"):
                    tasks.start_soon(activate, text)
            (won,) = [text for text, answer in said.items() if answer.status_code == 200]
            assert said[won].json()["output"][0]["content"][0]["text"] == won
            assert sorted(answer.status_code for answer in said.values()) == [200, 409]
            closed = await server.client.post("/v1/agent_sessions/close", json=bodies.close(session, rollout))
            assert closed.status_code == 200
            server.client.cookies.clear()
