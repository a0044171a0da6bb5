"""The host in the shape of a sandbox: the contract's checks, and what a killed server leaves."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from inspan_core.errors import ExecTimeout
from inspan_core.harness import SandboxCommand
from inspan_core.sandbox import SandboxSpec
from inspan_runtime.host_place import HostPlace, Swept, sweep_host_calls
from inspan_runtime.providers.strays import MARKER
from inspan_runtime.supervisor_client import supervised_launch_command, write_command
from inspan_runtime.testing.processes import lives
from inspan_runtime.testing.sandbox_checks import COMMAND_CHECKS, FILE_CHECKS

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend(request):
    return getattr(request, "param", "asyncio")


class Places:
    """A call's place for each key, as the checks want it."""

    name = "host"
    capabilities = frozenset()

    def __init__(self, root):
        self.root = root
        self.places = {}

    def place(self, key):
        return self.places.setdefault(key, HostPlace(self.root, f"host-{len(self.places)}"))

    async def create(self, spec, *, key, timeout_s=60.0):
        return await self.place(key).create(spec, key=key, timeout_s=timeout_s)

    async def stop(self, key, *, timeout_s=30.0):
        await self.place(key).stop(key)

    async def aclose(self):
        return None


@pytest.mark.parametrize("check", [*COMMAND_CHECKS, *FILE_CHECKS], ids=lambda check: check.__name__)
async def test_it_keeps_the_contract_of_commands_and_files(check, tmp_path):
    places = Places(tmp_path / "host")

    def make_spec(**changes):
        return SandboxSpec(**{"workdir": str(tmp_path / "work"), **changes})

    try:
        await check(places, make_spec)
    finally:
        for key in list(places.places):
            await places.stop(key)
    assert os.listdir(tmp_path / "host") == []


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"], indirect=True)
async def test_commands_and_files_work_on_both_event_loops(tmp_path):
    place = HostPlace(tmp_path / "host", "host-1")
    sandbox = await place.create(SandboxSpec(workdir=place.workdir), key="k")
    try:
        await sandbox.upload(f"{place.workdir}/in", b"given", mode=0o600)
        told = await sandbox.exec(["sh", "-c", "cat in -; pwd >&2; exit 3"], timeout_s=20, stdin=b"!")
        assert (told.exit_code, told.stdout) == (3, b"given!")
        assert told.stderr.decode().strip() == place.workdir
        with pytest.raises(ExecTimeout):
            await sandbox.exec(["sleep", "60"], timeout_s=0.05)
        assert (await sandbox.download(f"{place.workdir}/in", limit_bytes=9)).data == b"given"
    finally:
        await sandbox.stop()
    assert not place.folder.exists()


DYING_SERVER = f"""
import os, subprocess, sys
from pathlib import Path
from inspan_core.harness import SandboxCommand
from inspan_core.sandbox import SandboxSpec
from inspan_runtime.host_place import HostPlace
place = HostPlace(Path(sys.argv[1]), sys.argv[2])
place._make(SandboxSpec(workdir=place.workdir))
env = {{**os.environ, "{MARKER}": sys.argv[2]}}
left = subprocess.Popen(["sleep", "300"], env=env, start_new_session=True, stdout=subprocess.DEVNULL)
print(left.pid, flush=True)
if sys.argv[3] == "killed":
    os.kill(os.getpid(), 9)
sys.stdin.read()
"""


def server(root, call_id, end):
    process = subprocess.Popen(
        [sys.executable, "-c", DYING_SERVER, str(root), call_id, end],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    return process, int(process.stdout.readline())


def test_what_a_killed_server_left_is_ended_and_removed_and_nothing_of_a_living_one(tmp_path):
    dead, dead_sleep = server(tmp_path, "host-dead", "killed")
    living, living_sleep = server(tmp_path, "host-living", "lives")
    with dead, living:
        dead.wait(timeout=20)
        try:
            assert lives(dead_sleep)
            assert sweep_host_calls(tmp_path) == Swept(ended=("host-dead",), left=("host-living",))
            assert not lives(dead_sleep) and lives(living_sleep)
            assert os.listdir(tmp_path) == ["host-living"]
        finally:
            living.stdin.close()
            living.wait(timeout=20)
            assert sweep_host_calls(tmp_path).ended == ("host-living",)
    assert not lives(living_sleep)


def test_a_folder_that_is_not_there_holds_nothing(tmp_path):
    assert sweep_host_calls(tmp_path / "none") == Swept(ended=(), left=())


async def test_a_supervisor_that_a_killed_server_left_writes_into_no_removed_folder(tmp_path):
    place = HostPlace(tmp_path, "host-dead")
    sandbox = await place.create(SandboxSpec(workdir=place.workdir), key="dead")
    session_dir = Path(place.session_dir)
    command = SandboxCommand(argv=["/bin/sleep", "300"], python=sys.executable)
    await write_command(
        sandbox, str(session_dir), command,
        cwd=place.workdir, timeout_s=300.0, grace_s=1.0, cleanup_timeout_s=5.0,
    )  # fmt: skip
    with subprocess.Popen(  # noqa: ASYNC220
        supervised_launch_command(sys.executable, str(session_dir)),
        env={MARKER: sandbox.sandbox_id},
        start_new_session=True,
    ) as supervisor:
        try:
            environment = Path(f"/proc/{supervisor.pid}/environ")
            children = Path(f"/proc/{supervisor.pid}/task/{supervisor.pid}/children")
            with anyio.fail_after(20):
                while not (children.read_text() and MARKER.encode() not in environment.read_bytes()):
                    await anyio.sleep(0.01)
            # Held still, so that it is not over by itself before it is looked at.
            supervisor.send_signal(signal.SIGSTOP)
            os.close(sandbox.lock_fd)
            assert sweep_host_calls(tmp_path) == Swept(ended=("host-dead",), left=())
            assert supervisor.wait(timeout=20) == -signal.SIGKILL
        finally:
            supervisor.kill()
    assert os.listdir(tmp_path) == []


def test_what_a_killed_sweep_has_half_removed_is_removed(tmp_path):
    (tmp_path / "host-half" / "scratch").mkdir(parents=True)
    assert sweep_host_calls(tmp_path) == Swept(ended=("host-half",), left=())
    assert os.listdir(tmp_path) == []
