"""One case of each class with real sandboxes: the echo harness in bubblewrap, over real sockets."""

import json

import anyio
import anyio.from_thread
import pytest

import inspan_echo
from inspan_core.plugins import load_plugins
from inspan_runtime.providers import builtin
from inspan_server.model.capture import Capture
from inspan_server.model.gateway import create_gateway
from inspan_server.model.script import parse_script
from inspan_server.serving import served

pytestmark = [pytest.mark.anyio, pytest.mark.sandbox]


@pytest.fixture
def boxes(start, tmp_path):
    """A server over bubblewrap, whose sandboxes are below a folder of the test."""
    run_dir = tmp_path / "run"
    changes = {
        "harness": "echo",
        "harness_options": {"model": False},
        "sandbox_providers": {"box": {"kind": "bubblewrap", "runtime_dir": str(run_dir)}},
        "session_close_timeout_seconds": 20,
    }
    plugins = load_plugins([builtin, inspan_echo], entry_points=False)
    gateway = create_gateway(parse_script({"*": [{"content": "x"}]}), Capture())
    with anyio.from_thread.start_blocking_portal() as portal:
        with portal.wrap_async_context_manager(served(gateway, graceful_timeout_s=1)) as url:
            changes["model_server"] = {"base_url": url, "name": "policy"}
            yield from serve(start, plugins, run_dir, changes)


def serve(start, plugins, run_dir, changes):
    with start("asyncio", plugins=plugins, **changes) as server:
        server.up = lambda: {path.parent.name for path in run_dir.rglob("ready")}
        yield server


async def test_twins_lost_answers_and_a_racing_close(boxes, bodies, paths, raw, cookie_of):
    async with boxes.aiohttp() as client:

        async def post(path, body):
            async with client.post(path, json=body) as answer:
                return answer.status, await answer.text()

        async def twins(path, body):
            answers = []

            async def one():
                answers.append(await post(path, body))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(one)
                await anyio.sleep(0.001)
                tasks.start_soon(one)
            assert answers[0] == answers[1] and answers[0][0] == 200, answers
            return answers[0]

        with boxes.wire() as connection:  # A seed whose answer nobody reads.
            connection.sendall(raw.request(paths.seed, bodies.seed()))
        await twins(paths.seed, bodies.seed())
        assert len(boxes.up()) == 1
        with boxes.wire() as connection:  # An activation whose client leaves at once.
            cookie = [f"Cookie: {cookie_of('s1')}"]
            connection.sendall(raw.request(paths.activate, {"input": "hi"}, headers=cookie))
        _, ran = await twins(paths.activate, {"input": "hi"})
        assert json.loads(ran)["output"][0]["content"][0]["text"] == "hi"
        await twins(paths.close, bodies.close())
        assert not boxes.up()

        client.cookie_jar.clear()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(post, paths.seed, bodies.seed("s2", "r2"))
            await anyio.sleep(0.001)
            status, closed = await post(paths.close, bodies.close("s2", "r2"))
        assert status == 200, closed
        assert not boxes.up()
