"""A client that gives up while its sandbox is created: the creation is the session's, and close joins it."""

from __future__ import annotations

import anyio
import httpx
import pytest
import trio.testing

import inspan_echo
from inspan_core.hookspecs import hookimpl
from inspan_core.plugins import load_plugins
from inspan_runtime.providers.local import LocalProvider

pytestmark = pytest.mark.anyio
TAKES_S = 5.0


@pytest.fixture
def clock():
    """Goes on as it should, and jumps where the test wants."""
    return trio.testing.MockClock(rate=1.0)


@pytest.fixture
def anyio_backend(clock):
    return "trio", {"clock": clock}


@pytest.fixture
def slow(tmp_path):
    class Slow(LocalProvider):
        began, made, keys = anyio.Event(), anyio.Event(), []

        async def create(self, spec, *, key, timeout_s=60.0):
            self.keys.append(key)
            self.began.set()
            await anyio.sleep(TAKES_S)
            sandbox = await super().create(spec, key=key, timeout_s=timeout_s)
            self.made.set()
            return sandbox

    return Slow


@pytest.fixture
def plugins(slow):
    class SlowOnly:
        @hookimpl
        def inspan_sandbox_providers(self):
            return {"local": slow}

    return load_plugins([SlowOnly(), inspan_echo], entry_points=False)


@pytest.mark.parametrize("gives_up_at_s", [1.0, 4.9, 5.1])
async def test_a_seed_that_is_given_up_leaves_no_sandbox(agent, bodies, clock, slow, plugins, gives_up_at_s):
    async with agent(plugins=plugins) as server, anyio.create_task_group() as tasks:
        scope, given_up = anyio.CancelScope(), anyio.Event()

        async def seed():
            with scope, anyio.fail_after(30):
                async with httpx.AsyncClient(base_url=server.url, timeout=None) as http:
                    await http.post("/v1/agent_sessions", json=bodies.seed())
            given_up.set()

        tasks.start_soon(seed)
        await slow.began.wait()
        clock.jump(gives_up_at_s)
        if gives_up_at_s > TAKES_S:
            await slow.made.wait()
        scope.cancel()
        await given_up.wait()
        closed = await server.client.post("/v1/agent_sessions/close", json=bodies.close())
        assert (closed.status_code, slow.made.is_set(), len(slow.keys)) == (200, True, 1)
        assert await server.provider.list({}) == []
