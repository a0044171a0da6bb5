"""Ways to URLs of the host that are opened after a sandbox's creation: taken ports, killed holders, ends."""

import json
import os
import secrets
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import pytest

from inspan_core.errors import ReachUnavailable, SandboxGone
from inspan_core.sandbox import SandboxSpec
from inspan_runtime.providers import boot
from inspan_runtime.providers.bubblewrap import BubblewrapProvider, has_mapped_ids
from inspan_runtime.providers.docker.borrowed_ways import open_borrowed_way
from inspan_runtime.providers.docker.engine import Engine
from inspan_runtime.providers.docker.provider import DockerProvider
from inspan_runtime.providers.interpreter import own_interpreter
from inspan_runtime.providers.reach import at_port
from inspan_runtime.testing.sandbox_boundary_checks import GREET, greeting
from inspan_runtime.testing.sandbox_check_support import EXEC_TIMEOUT_S, becomes_true, opened, out

pytestmark = [pytest.mark.anyio]
needs_docker = [pytest.mark.docker, pytest.mark.timeout(240)]
ROOTS = ["writable", "read-only"] if has_mapped_ids() else ["read-only"]
HOLD = """
import anyio, json, sys
from inspan_runtime.providers.bubblewrap import BubblewrapProvider
from inspan_runtime.providers.docker.provider import DockerProvider
async def main():
    kind, options, descriptor, url = json.loads(sys.argv[1])
    provider = {"bubblewrap": BubblewrapProvider, "docker": DockerProvider}[kind](options)
    way = await (await provider.connect(descriptor)).reach(url, holder="killed")
    print(way.url, flush=True)
    await anyio.sleep(120)
anyio.run(main)
"""


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(params=[ROOTS[0], *(pytest.param(one, marks=pytest.mark.full) for one in ROOTS[1:])])
def provider(request, tmp_path):
    writable = request.param == "writable"
    return BubblewrapProvider({"runtime_dir": str(tmp_path / "run"), "writable_root": writable})


def make_spec(**changes):
    return SandboxSpec(**{"workdir": "/task", "ttl_s": 120.0, **changes})


async def greeted(sandbox, url):
    python = str(sandbox.descriptor.get("python") or "python3")
    argv = ["sh", "-c", GREET, "sh", str(urlsplit(url).port), python]
    return (await sandbox.exec(argv, timeout_s=EXEC_TIMEOUT_S)).stdout.strip()


@asynccontextmanager
async def killed_holder(provider, sandbox, url):
    """What a process that was killed had opened."""
    told = json.dumps([provider.name, provider.options, dict(sandbox.descriptor), url])
    process = subprocess.Popen(  # noqa: ASYNC220  # starting it takes no time
        [sys.executable, "-c", HOLD, told], stdout=subprocess.PIPE, text=True
    )
    try:
        found = (await anyio.to_thread.run_sync(process.stdout.readline)).strip()
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
    yield found


TAKE = "import socket, sys, time; s = socket.create_server(('127.0.0.1', int(sys.argv[1]))); time.sleep(60)"


@pytest.mark.sandbox
async def test_a_port_that_is_taken_inside_gives_another_url(provider):
    with greeting() as (url, word):
        async with opened(provider, make_spec) as sandbox:
            port = urlsplit(url).port
            await out(sandbox, f'"{sandbox.descriptor["python"]}" -I -c "{TAKE}" {port} >/dev/null 2>&1 & :')
            await out(sandbox, f"until grep -q ':{port:04X} ' /proc/net/tcp; do sleep 0.01; done")
            way = await sandbox.reach(f"{url}/v1?x=1", holder="one")
            assert way.url != f"{url}/v1?x=1" and way.url == at_port(f"{url}/v1?x=1", urlsplit(way.url).port)
            assert await greeted(sandbox, way.url) == word
            await way.close()
            assert await greeted(sandbox, way.url) == b""


@pytest.mark.sandbox
async def test_a_killed_holders_way_is_taken_over_and_closed(provider):
    with greeting() as (url, word):
        async with opened(provider, make_spec) as sandbox, killed_holder(provider, sandbox, url) as told:
            assert await greeted(sandbox, told) == word
            way = await sandbox.reach(url, holder="killed")
            assert way.url == told
            await way.close()
            await way.close()
            assert await greeted(sandbox, told) == b""


@pytest.mark.sandbox
async def test_a_killed_holders_way_does_not_stay(provider, monkeypatch):
    def hurried(name):
        source = boot._source(name)
        return compile(source.replace("LINGER_S = 300.0", "LINGER_S = 0.3"), name, "exec")

    monkeypatch.setattr(boot, "_code", hurried)
    with greeting() as (url, word):
        async with opened(provider, make_spec) as sandbox, killed_holder(provider, sandbox, url) as told:

            async def is_closed():
                return word not in await greeted(sandbox, told)

            await becomes_true(is_closed, "the way of a killed holder was not closed")


@pytest.mark.sandbox
async def test_open_connections_end_with_the_way(provider):
    with greeting() as (url, _):
        async with opened(provider, make_spec) as sandbox:
            way = await sandbox.reach(url, holder="one")
            waits = (
                "import socket, sys; s = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); "
                "s.recv(100); open('/tmp/up', 'w').close(); sys.exit(len(s.recv(1)))"
            )
            argv = [sandbox.descriptor["python"], "-I", "-c", waits, str(urlsplit(way.url).port)]
            async with anyio.create_task_group() as group:

                async def stay():
                    assert (await sandbox.exec(argv, timeout_s=EXEC_TIMEOUT_S)).exit_code == 0

                group.start_soon(stay)
                await out(sandbox, "until [ -e /tmp/up ]; do sleep 0.01; done")
                await way.close()


@pytest.mark.sandbox
async def test_what_is_no_loopback_needs_no_way_and_a_gone_sandbox_has_none(provider):
    async with opened(provider, make_spec) as sandbox:
        for url in ("http://192.0.2.1:80", "https://example.org", "http://127.example.org"):
            assert await sandbox.reach(url, holder="one") is None
    with pytest.raises(SandboxGone):
        await sandbox.reach("http://127.0.0.1:80", holder="one")


@pytest.mark.parametrize(
    ("options", "env", "is_local"),
    [
        ((), {}, True),
        ((), {"DOCKER_HOST": "unix:///run/other.sock"}, True),
        ((), {"DOCKER_HOST": "ssh://elsewhere"}, False),
        (("--host=unix:///run/other.sock",), {"DOCKER_HOST": "ssh://elsewhere"}, True),
        (("--debug", "-H", "tcp://192.0.2.1:2375"), {}, False),
        (("--context", "elsewhere"), {}, False),
        (("-H",), {}, True),
    ],
)
def test_an_engine_is_on_this_host_unless_its_command_line_says_otherwise(options, env, is_local):
    assert Engine(executable="/bin/false", options=options, env=env).is_local is is_local


async def test_an_engine_elsewhere_can_open_none(tmp_path):
    engine = Engine(executable="/bin/false", options=("--host", "tcp://192.0.2.1:2375"))
    with pytest.raises(
        ReachUnavailable, match=r"http://127[.]0[.]0[.]1:80 cannot be opened: the engine is not on this host"
    ):
        await open_borrowed_way(
            engine,
            "some",
            "http://127.0.0.1:80",
            what="way into it",
            holder="one",
            runtime_dir=tmp_path,
            interpreter=own_interpreter(),
            timeout_s=10.0,
        )


class TestContainer:
    """One that somebody else made, without a network."""

    pytestmark = needs_docker

    @pytest.fixture
    def container(self, docker_engine):
        name = f"theirs-{secrets.token_hex(4)}"
        argv = ["run", "--detach", f"--name={name}", "--network=none"]
        docker_engine.run(*argv, "inspan-busybox", "sleep", "600")
        yield name
        docker_engine.run("rm", "--force", name, check=False)

    @pytest.fixture
    def provider(self, docker_engine, tmp_path):
        return DockerProvider(
            {"engine_options": list(docker_engine.options), "runtime_dir": str(tmp_path / "run")}
        )

    async def test_is_reached_and_left(self, provider, container, tmp_path):
        with greeting() as (url, word), greeting() as (other, secret):
            sandbox = await provider.connect({"sandbox_id": container})
            first = await sandbox.reach(url, holder="first")
            second = await sandbox.reach(url, holder="second")
            neighbour = await sandbox.reach(other, holder="second")
            assert first.url == url and second.url != url
            assert [await greeted(sandbox, one.url) for one in (first, second)] == [word, word]
            await second.close()
            assert [await greeted(sandbox, one) for one in (second.url, first.url)] == [b"", word]
            assert await greeted(sandbox, neighbour.url) == secret
            await neighbour.close()
            assert await greeted(sandbox, other) == b""
            await first.close()
            assert await greeted(sandbox, url) == b""
            await becomes_true(self.nobody_serves(tmp_path), "who opened the ways did not end")

    async def test_killed_holders_way_is_taken_over(self, provider, container, tmp_path):
        with greeting() as (url, word):
            sandbox = await provider.connect({"sandbox_id": container})
            async with killed_holder(provider, sandbox, url) as told:
                assert await greeted(sandbox, told) == word
                way = await sandbox.reach(url, holder="killed")
                assert way.url == told
                await way.close()
                assert await greeted(sandbox, told) == b""

    async def test_ways_end_with_it(self, provider, container, docker_engine, tmp_path):
        sandbox = await provider.connect({"sandbox_id": container})
        way = await sandbox.reach("http://127.0.0.1:7", holder="one")
        docker_engine.run("kill", container)
        await becomes_true(self.nobody_serves(tmp_path), "who opened the ways outlived the container")
        await way.close()
        with pytest.raises(SandboxGone):
            await sandbox.reach("http://127.0.0.1:7", holder="one")

    @staticmethod
    def nobody_serves(tmp_path):
        async def nobody():
            return os.listdir(tmp_path / "run" / "ways") == []

        return nobody
