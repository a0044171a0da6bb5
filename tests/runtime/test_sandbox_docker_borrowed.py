"""Containers that somebody else made: no label, no agent, only their names."""

import os
import secrets
import signal
import subprocess
import time
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inspan_core.errors import (
    ExecTimeout,
    SandboxConnectError,
    SandboxError,
    SandboxGone,
    SandboxTransportError,
    UsageError,
)
from inspan_runtime.providers.docker import plain_scripts as scripts
from inspan_runtime.providers.docker.marked import MarkedStream
from inspan_runtime.providers.docker.provider import DockerProvider
from inspan_runtime.testing.sandbox_check_support import EXEC_TIMEOUT_S, is_running, out, sh

docker = [pytest.mark.anyio, pytest.mark.docker, pytest.mark.timeout(240)]
PATIENCE_S = 60.0


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def container(start_theirs):
    name = f"theirs-{secrets.token_hex(4)}"
    start_theirs(name, "--workdir=/root", "--env=THEIRS=yes")
    return name


@pytest.fixture
def provider(any_engine, tmp_path):
    options = {"engine": any_engine.name, "engine_options": list(any_engine.options)}
    return DockerProvider({**options, "runtime_dir": str(tmp_path / "run")})


async def becomes(claim, what):
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if await claim():
            return
        await anyio.sleep(0.05)
    raise AssertionError(f"{what}, after {PATIENCE_S} s")


class TestContainer:
    pytestmark = docker

    async def test_is_reached_by_its_name(self, provider, container):
        sandbox = await provider.connect({"sandbox_id": container, "ports": [8080]})
        assert sandbox.sandbox_id == container and sandbox.descriptor["ports"] == [8080]
        assert await out(sandbox, 'pwd; echo "$THEIRS"') == b"/root\nyes\n"
        await sandbox.upload("/app/deep/file", b"\0\xff", mode=0o755)
        assert (await sandbox.download("/app/deep/file", limit_bytes=10)).data == b"\0\xff"
        other = await provider.connect({"sandbox_id": container, "workdir": "/tmp"})
        assert await out(other, "pwd") == b"/tmp\n"
        again = await provider.connect(sandbox.descriptor)
        assert again.descriptor == sandbox.descriptor

    async def test_is_left_alone(self, provider, container, any_engine, tmp_path):
        sandbox = await provider.connect({"sandbox_id": container})
        await sandbox.disconnect()
        await provider.aclose()
        assert any_engine.names() == [container]
        assert await provider.list({}) == []
        assert not list((tmp_path / "run").rglob("meta.json"))

    async def test_is_stopped_when_told(self, provider, container, any_engine):
        sandbox = await provider.connect({"sandbox_id": container})
        await sandbox.stop()
        await sandbox.stop()
        assert any_engine.names() == [] and not await sandbox.is_alive()

    async def test_that_is_no_more_is_gone(self, provider, container, any_engine):
        with pytest.raises(SandboxGone):
            await provider.connect({"sandbox_id": "no-such-container"})
        sandbox = await provider.connect({"sandbox_id": container})
        any_engine.run("kill", container)
        with pytest.raises(SandboxGone):
            await sandbox.exec(["true"], timeout_s=20)
        with pytest.raises(SandboxGone):
            await sandbox.download("/etc/passwd", limit_bytes=1000)
        with pytest.raises(SandboxGone):
            await provider.connect({"sandbox_id": container})

    async def test_another_of_its_name_is_another(self, provider, container, any_engine, start_theirs):
        sandbox = await provider.connect({"sandbox_id": container})
        any_engine.run("rm", "--force", container)
        start_theirs(container)
        with pytest.raises(SandboxGone):
            await sandbox.exec(["true"], timeout_s=20)
        assert not await sandbox.is_alive()

    async def test_clients_death_is_not_the_commands(self, provider, container, any_engine):
        """Its deadline is kept inside, whoever watches."""
        sandbox = await provider.connect({"sandbox_id": container})
        mark = f"1{int.from_bytes(os.urandom(4), 'big')}"
        failures = []

        async def run():
            try:
                await sh(sandbox, f"echo $$ >/tmp/pid; exec sleep {mark}", timeout_s=20.0)
            except SandboxError as error:
                failures.append(error)

        async with anyio.create_task_group() as group:
            group.start_soon(run)

            async def started():
                return (await sh(sandbox, "test -s /tmp/pid")).exit_code == 0

            await becomes(started, "the command did not start")
            pid = await out(sandbox, "cat /tmp/pid")
            for client in clients_with(any_engine, mark):
                os.kill(client, signal.SIGKILL)
        assert [type(error) for error in failures] == [SandboxTransportError]
        assert await is_running(sandbox, pid), "the command died with its client"

        async def dead():
            return not await is_running(sandbox, pid)

        await becomes(dead, "the command outlived its deadline")

    async def test_deadline_leaves_no_watcher(self, provider, container):
        """Neither the deadline's own sleep nor a process of the command's group stays.

        What lists the processes also prints the command lines that this provider made.
        """
        sandbox = await provider.connect({"sandbox_id": container})
        with pytest.raises(ExecTimeout):
            await sh(sandbox, "sleep 500 & sleep 501", timeout_s=1.0)
        for _ in range(3):
            await sh(sandbox, "true", timeout_s=333.0)
        show = "for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline; echo; done"

        async def only_theirs():
            running = (await out(sandbox, show)).split(b"\n")
            sleeps = {line for line in running if line.startswith(b"sleep ")}
            return sleeps - {b"sleep %.3f " % EXEC_TIMEOUT_S} == {
                b"sleep 600 "
            }  # The look has a deadline too.

        await becomes(only_theirs, "beside the first process another sleep is left")

    async def test_forged_mark_ends_nothing(self, provider, container):
        """What a command prints is its output, however much it looks like the script's words."""
        sandbox = await provider.connect({"sandbox_id": container})
        said = b"0123456789abcdef0123456789abcdef0\n" * 3
        result = await sandbox.exec(["cat"], stdin=said, timeout_s=20)
        assert (result.exit_code, result.stdout) == (0, said)

    async def test_without_a_shell_is_told(self, provider, container):
        sandbox = await provider.connect({"sandbox_id": container})
        await out(sandbox, "rm /bin/sh")
        with pytest.raises(SandboxError, match="has no sh"):
            await sandbox.exec(["true"], timeout_s=20)
        assert await sandbox.is_alive()

    async def test_program_names_that_env_would_misread_are_refused(self, provider, container):
        sandbox = await provider.connect({"sandbox_id": container})
        for name in ("A=B", "-i"):
            with pytest.raises(UsageError):
                await sandbox.exec([name], timeout_s=20)

    async def test_of_another_provider_is_refused(self, provider, container):
        with pytest.raises(SandboxConnectError):
            await provider.connect({"sandbox_id": container, "provider": "local"})


def clients_with(engine, mark):
    """The engine's clients on this host whose command line names a mark."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                argv = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if os.path.basename(argv[0]) == engine.name.encode() and any(
                mark.encode() in one for one in argv
            ):
                found.append(int(entry.name))
    assert found
    return found


MARK = b"0f" * 16


@given(
    st.binary(max_size=200),
    st.binary(max_size=200),
    st.integers(0, 300),
    st.lists(st.integers(1, 50), min_size=1),
    st.integers(0, 255),
)
def test_marks_are_told_from_output_however_it_is_cut(before, after, limit, sizes, code):
    """Announcement, output and end arrive in pieces of any size; what follows the end is dropped."""
    whole = before + MARK + b"p77\n" + after + MARK + b"%d\n" % code + b"late output"
    stream = MarkedStream(MARK, limit)
    at = index = 0
    while at < len(whole):
        size = sizes[index % len(sizes)]
        stream.add(whole[at : at + size])
        at, index = at + size, index + 1
    kept, cut = stream.take()
    said = before + after
    assert (stream.pid, stream.word) == (77, b"%d" % code)
    assert kept == said[max(0, len(said) - limit) :] and cut == (len(said) > limit)


def test_container_without_setsid_is_told(tmp_path):
    """The script itself, by this host's shell, where no program is found."""
    argv = scripts.arguments(scripts.RUN, scripts.new_mark(), scripts.run_values([b"true"], [], b"/", 5.0))
    run = subprocess.run(["/bin/sh", *argv[1:]], env={"PATH": str(tmp_path)}, capture_output=True, timeout=20)
    assert run.stdout == run.stderr == "".join(argv[4:6]).encode() + scripts.NO_SETSID + b"\n"


@given(st.binary(max_size=300), st.integers(1, 40))
def test_output_without_an_end_has_no_word(data, size):
    stream = MarkedStream(MARK, 1000)
    for at in range(0, len(data), size):
        stream.add(data[at : at + size])
    assert stream.word is None and stream.take() == (data, False)
