"""The controller's side of the supervisor, through a real sandbox and real shells."""

from __future__ import annotations

import json
import os
import shutil
import sys

import anyio
import pytest

from inspan_core.errors import (
    EvidenceMissing,
    ExecTimeout,
    HarnessTerminationError,
    SandboxError,
    SandboxTransportError,
    TooLarge,
    UsageError,
)
from inspan_core.harness import SandboxCommand
from inspan_core.receipts import CleanupReceipt
from inspan_core.sandbox import SandboxSpec
from inspan_runtime import supervisor_client as client
from inspan_runtime.providers.local import LocalProvider

pytestmark = pytest.mark.anyio

SHELLS = {name: path for name in ("dash", "bash", "busybox", "mksh", "zsh") if (path := shutil.which(name))}
CONFIRMED = CleanupReceipt(cleanup_confirmed=True, return_code=0, error=None, timed_out=False)
GOOD = {"cleanup_confirmed": True, "return_code": 0, "error": None, "timed_out": False}


@pytest.fixture
def anyio_backend():
    return "asyncio"


BOTH = pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])


class Place:
    """A session's folder in a sandbox, and what a controller does with it."""

    def __init__(self, sandbox, session_dir, workdir):
        self.sandbox = sandbox
        self.dir = session_dir
        self.workdir = workdir

    async def stage(self, script, *, timeout_s=30.0, grace_s=0.3, cleanup_s=5.0, env=None, python=None):
        command = SandboxCommand(
            argv=["/bin/sh", "-c", script], python=python or sys.executable, env=env or {}
        )
        await client.write_command(
            self.sandbox, self.dir, command, cwd=self.workdir, timeout_s=timeout_s, grace_s=grace_s,
            cleanup_timeout_s=cleanup_s)  # fmt: skip

    async def launch(self, python=sys.executable):
        return await self.sandbox.exec(client.supervised_launch_command(python, self.dir), timeout_s=40)

    async def stop(self, timeout_s=15.0):
        return await client.stop_and_confirm_cleanup(self.sandbox, self.dir, timeout_s=timeout_s)

    async def write(self, name, data):
        await self.sandbox.upload(f"{self.dir}/{name}", data)

    async def shell(self, script):
        result = await self.sandbox.exec(["/bin/sh", "-c", script], timeout_s=10)
        return result.stdout.decode().strip()

    async def until(self, script, expected):
        with anyio.fail_after(15):
            while (seen := await self.shell(script)) != expected:
                await anyio.sleep(0.01)
        return seen


@pytest.fixture
async def sandbox(tmp_path):
    provider = LocalProvider({"runtime_dir": str(tmp_path / "run")})
    sandbox = await provider.create(SandboxSpec(workdir=str(tmp_path / "work"), env={"TASK": "x"}), key="k")
    yield sandbox
    await sandbox.stop()
    await provider.aclose()


@pytest.fixture
def place(sandbox, tmp_path):
    return Place(sandbox, str(tmp_path / 'it\'s a "session" $x' / "one"), str(tmp_path / "work"))


@BOTH
async def test_a_run_from_its_command_to_its_receipt(place):
    await place.stage(
        'echo "$TASK $KEY"; pwd; (setsid sleep 60 &); sleep 0.05; exit 3', env={"KEY": "s3cret"}
    )
    assert await place.shell(f"stat -c %a '{quoted(place.dir)}/command.json'") == "600"
    launched = await place.launch()
    assert (launched.exit_code, launched.stdout, launched.stderr) == (3, b"", b"")
    receipt = await client.await_receipt(place.sandbox, place.dir, timeout_s=10, launch_over=True)
    assert receipt == CleanupReceipt(cleanup_confirmed=True, return_code=3, error=None, timed_out=False)
    assert receipt == await client.read_receipt(place.sandbox, place.dir)
    report = await client.read_processes(place.sandbox, place.dir)
    # Which of the two depends on whether the supervisor looked between its adoption and the end.
    assert [entry.name for entry in (*report.unfinished, *report.preserved)] == ["sleep"]
    output = await client.read_text(place.sandbox, path=f"{place.dir}/output.log")
    assert output == f"x s3cret\n{place.workdir}\n"
    left = await place.shell(f"ls '{quoted(place.dir)}'")
    assert left.split() == [
        "cleanup.json", "launch.claim", "output.log", "process_supervisor.py", "processes.json",
        "supervisor.pid"]  # fmt: skip
    assert not any("s3cret" in word for word in client.supervised_launch_command("python", place.dir))


def quoted(path):
    return path.replace("'", "'\\''")


@BOTH
async def test_a_stop_ends_the_run_and_gives_the_receipt(place):
    await place.stage("touch up; setsid sleep 60 & wait")
    async with anyio.create_task_group() as group:
        group.start_soon(place.launch)
        await place.until("ls up 2> /dev/null", "up")
        receipt = await place.stop()
    assert receipt == CleanupReceipt(cleanup_confirmed=True, return_code=-15, error=None, timed_out=False)
    assert await place.stop() == receipt  # A close may ask again.


async def test_a_deadline_is_in_the_receipt(place):
    await place.stage("sleep 60", timeout_s=0.1)
    await place.launch()
    receipt = await client.await_receipt(place.sandbox, place.dir, timeout_s=10, launch_over=True)
    assert receipt.timed_out and receipt.cleanup_confirmed


@pytest.mark.parametrize("staged", [False, True])
async def test_a_stop_before_the_launch_fences_it_for_good(place, staged):
    if staged:
        await place.stage("touch ran")
    assert await place.stop() == client.NeverLaunched()
    if not staged:
        await place.stage("touch ran")
    launched = await place.launch()
    assert launched.exit_code == 125 and b"a stop came before the launch" in launched.stderr
    assert await place.stop() == client.NeverLaunched()
    assert await place.shell("ls") == ""


async def test_waiting_for_a_launch_that_never_claimed_fences_it(place):
    await place.stage("touch ran")
    found = await client.await_receipt(place.sandbox, place.dir, timeout_s=10, launch_over=True)
    assert found == client.NeverLaunched()
    assert (await place.launch()).exit_code == 125
    assert await place.shell("ls") == ""


@BOTH
async def test_waiting_does_not_disturb_a_run(place):
    await place.stage("while [ ! -e go ]; do sleep 0.01; done")
    async with anyio.create_task_group() as group:
        group.start_soon(place.launch)
        await place.until(f"ls '{quoted(place.dir)}/launch.claim' 2> /dev/null | wc -l", "1")
        with pytest.raises(EvidenceMissing, match="has not written one yet"):
            await client.await_receipt(place.sandbox, place.dir, timeout_s=0.3, launch_over=False)
        await place.shell("touch go")
        found = await client.await_receipt(place.sandbox, place.dir, timeout_s=10, launch_over=False)
    assert found == CONFIRMED


@BOTH
async def test_a_stop_that_did_not_end_in_time_is_unknown_and_a_later_one_learns_it(place):
    await place.stage("trap '' TERM; touch up; while :; do sleep 60; done", grace_s=1.5)
    async with anyio.create_task_group() as group:
        group.start_soon(place.launch)
        await place.until("ls up 2> /dev/null", "up")
        with pytest.raises(EvidenceMissing, match="no receipt within"):
            await place.stop(timeout_s=0.2)
        receipt = await place.stop()
    assert receipt.cleanup_confirmed and receipt.return_code == -9


async def test_a_supervisor_that_was_killed_is_unknown_evidence_at_once(place):
    await place.stage("touch up; exec sleep 60")
    async with anyio.create_task_group() as group:
        group.start_soon(place.launch)
        await place.until("ls up 2> /dev/null", "up")
        await place.shell(f"kill -KILL $(cat '{quoted(place.dir)}/supervisor.pid')")
        with anyio.fail_after(10), pytest.raises(EvidenceMissing, match="died without a receipt"):
            await place.stop(timeout_s=60)


async def test_a_supervisor_killed_before_it_wrote_its_pid_is_known_by_its_claim(place):
    gone = await place.shell("sh -c 'echo $$'")
    await place.write("launch.claim", gone.encode() + b"\n")
    with anyio.fail_after(10), pytest.raises(EvidenceMissing, match="died without a receipt"):
        await place.stop(timeout_s=60)


async def test_a_negative_receipt_is_final_and_raised(place):
    await place.write("launch.claim", f"{os.getpid()}\n".encode())
    await place.write("cleanup.json", json.dumps({**GOOD, "cleanup_confirmed": False, "error": "E"}).encode())
    with pytest.raises(HarnessTerminationError, match="not proven stopped: E") as caught:
        await place.stop()
    assert caught.value.receipt.error == "E"
    found = await client.await_receipt(place.sandbox, place.dir, timeout_s=10, launch_over=True)
    assert found == caught.value.receipt  # Waiting only reports.


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"null", b"\xff", b"{}", json.dumps({**GOOD, "more": 1}).encode(), b"x" * 200_000],
)
async def test_a_malformed_receipt_is_unknown_evidence(place, data):
    await place.write("launch.claim", f"{os.getpid()}\n".encode())
    await place.write("cleanup.json", data)
    with pytest.raises(EvidenceMissing):
        await place.stop()


@pytest.mark.parametrize("make", ["mkfifo {}", "mkdir {}", "ln -s /etc/passwd {}", "ln -s elsewhere {}"])
async def test_a_receipt_that_is_no_plain_file_is_unknown_evidence(place, make):
    await place.write("launch.claim", f"{os.getpid()}\n".encode())
    await place.shell(make.format(f"'{quoted(place.dir)}/cleanup.json'"))
    with pytest.raises(EvidenceMissing):
        await place.stop(timeout_s=1)


async def test_a_report_that_is_missing_or_malformed_costs_nothing(place):
    assert await client.read_processes(place.sandbox, place.dir) is None
    await place.write("processes.json", b"{")
    assert await client.read_processes(place.sandbox, place.dir) is None
    await place.shell(f"cd '{quoted(place.dir)}' && rm processes.json && mkfifo processes.json")
    assert await client.read_processes(place.sandbox, place.dir) is None


@pytest.mark.parametrize("fault", ["absent", "broken", "too old"])
async def test_an_interpreter_that_cannot_load_the_supervisor_leaves_the_folder_unclaimed(
    place, fault, tmp_path
):
    python = str(tmp_path / "python")
    if fault != "absent":
        text = "echo boom >&2; exit 9" if fault == "broken" else "echo SyntaxError >&2; exit 1"
        await place.sandbox.upload(python, f"#!/bin/sh\n{text}\n".encode(), mode=0o755)
    await place.stage("touch ran", python=python)
    launched = await place.launch(python)
    assert launched.exit_code in (127, 9, 1) and launched.exit_code != 0
    assert fault == "absent" or launched.stderr.strip() in (b"boom", b"SyntaxError")
    found = await client.await_receipt(place.sandbox, place.dir, timeout_s=10, launch_over=True)
    assert found == client.NeverLaunched()
    assert await place.shell("ls") == ""


@BOTH
async def test_of_two_launches_at_once_one_runs(place):
    await place.stage("echo ran >> runs")
    codes = []

    async def launch():
        codes.append((await place.launch()).exit_code)

    async with anyio.create_task_group() as group:
        for _ in range(4):
            group.start_soon(launch)
    assert sorted(codes) == [0, 125, 125, 125]
    assert await place.shell("cat runs") == "ran"


class Faulty:
    """A sandbox whose first looks fail: the connection breaks, the command is killed, it hangs."""

    def __init__(self, sandbox, faults):
        self.sandbox = sandbox
        self.faults = list(faults)

    async def exec(self, argv, **options):
        if self.faults:
            fault = self.faults.pop(0)
            if isinstance(fault, Exception):
                raise fault
            return await self.sandbox.exec(fault, timeout_s=5)
        return await self.sandbox.exec(argv, **options)

    async def upload(self, path, data, **options):
        await self.sandbox.upload(path, data, **options)

    async def download(self, path, **options):
        if self.faults:
            raise SandboxTransportError("cut")
        return await self.sandbox.download(path, **options)


@BOTH
async def test_a_failed_look_is_not_a_failed_run(place):
    await place.stage("exit 0")
    await place.launch()
    faults = [
        SandboxTransportError("cut"),
        ["sh", "-c", "kill -KILL $$"],
        ExecTimeout("slow"),
        ["sh", "-c", "exit 3"],
    ]
    faulty = Faulty(place.sandbox, faults)
    assert await client.stop_and_confirm_cleanup(faulty, place.dir, timeout_s=20) == CONFIRMED
    assert not faulty.faults


async def test_a_receipt_is_read_where_no_look_succeeds(place):
    await place.stage("exit 0")
    await place.launch()

    class NoShell(Faulty):
        async def exec(self, argv, **options):
            return await self.sandbox.exec(["false"], timeout_s=5)

    assert (
        await client.stop_and_confirm_cleanup(NoShell(place.sandbox, []), place.dir, timeout_s=20)
        == CONFIRMED
    )


async def test_looks_that_fail_until_the_end_are_unknown_evidence_and_say_why(place):
    faulty = Faulty(place.sandbox, [SandboxTransportError("the wire is cut")] * 1000)
    with pytest.raises(EvidenceMissing, match="the wire is cut"):
        await client.stop_and_confirm_cleanup(faulty, place.dir, timeout_s=0.3)


@pytest.mark.parametrize("shell", sorted(SHELLS))
async def test_every_shell_here_stops_fences_and_removes(tmp_path, shell):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sh").symlink_to(SHELLS[shell])
    provider = LocalProvider({"runtime_dir": str(tmp_path / "run")})
    path = f"{tmp_path}/bin:{os.environ['PATH']}"
    sandbox = await provider.create(SandboxSpec(workdir=str(tmp_path / "work"), env={"PATH": path}), key="k")
    try:
        place = Place(sandbox, str(tmp_path / "a b" / "one"), str(tmp_path / "work"))
        running = await sandbox.exec(["sh", "-c", "readlink /proc/$$/exe; :"], timeout_s=5)
        assert running.stdout.decode().strip() == os.path.realpath(SHELLS[shell])
        await place.stage("touch up; exec sleep 60")
        async with anyio.create_task_group() as group:
            group.start_soon(place.launch)
            await place.until("ls up 2> /dev/null", "up")
            assert (await place.stop()).return_code == -15
        await client.remove_session_directory(sandbox, place.dir)
        other = Place(sandbox, str(tmp_path / "a b" / "two"), place.workdir)
        assert await other.stop() == client.NeverLaunched()
        dead = Place(sandbox, str(tmp_path / "a b" / "three"), place.workdir)
        await dead.write("launch.claim", b"4194305\n")
        with pytest.raises(EvidenceMissing, match="died without"):
            await dead.stop()
        waiting = Place(sandbox, str(tmp_path / "a b" / "four"), place.workdir)
        await waiting.write("launch.claim", f"{os.getpid()}\n".encode())
        with pytest.raises(EvidenceMissing, match="has not written one yet"):
            await waiting.stop(timeout_s=0.5)
        assert sorted(os.listdir(tmp_path / "a b")) == ["four", "one.retired", "three", "two"]
    finally:
        await sandbox.stop()
        await provider.aclose()


async def test_a_removed_session_leaves_only_a_fence_that_holds(place):
    await place.stage("exit 0")
    await place.launch()
    await client.remove_session_directory(place.sandbox, place.dir)
    await client.remove_session_directory(place.sandbox, place.dir)  # It may be asked again.
    parent = os.path.dirname(place.dir)
    assert os.listdir(parent) == ["one.retired"]
    with pytest.raises(EvidenceMissing, match="removed"):
        await place.stop(timeout_s=5)
    assert os.listdir(parent) == ["one.retired"]
    await place.stage("touch ran")  # An upload that was on its way makes the folder again.
    launched = await place.launch()
    assert launched.exit_code == 125 and b"retired" in launched.stderr
    await client.remove_session_directory(place.sandbox, place.dir)
    assert os.listdir(parent) == ["one.retired"]
    assert await place.shell("ls") == ""


async def test_a_session_is_removed_also_when_its_task_has_removed_its_own_folder(place):
    await place.stage("rm -rf ../work")
    await place.launch()
    assert not os.path.exists(place.workdir)
    await client.remove_session_directory(place.sandbox, place.dir, keep_fence=False)
    assert not os.path.lexists(os.path.dirname(place.dir))


async def test_where_nothing_can_be_written_a_session_that_left_nothing_is_removed(place):
    """A fence is needed only where a launch may still come; then it has to be there."""
    await place.shell(f"cd / && : >'{quoted(os.path.dirname(place.dir))}'")
    await client.remove_session_directory(place.sandbox, place.dir, keep_fence=False)
    with pytest.raises(SandboxError, match="could not be removed"):
        await client.remove_session_directory(place.sandbox, place.dir, keep_fence=True)


async def test_removing_a_session_follows_no_link(place, tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").touch()
    os.makedirs(os.path.dirname(place.dir))
    os.symlink(tmp_path / "precious", place.dir)
    await client.remove_session_directory(place.sandbox, place.dir)
    assert (tmp_path / "precious" / "file").exists() and not os.path.lexists(place.dir)


class Untouchable:
    """A sandbox in which nothing may be run: refusing must come before anything happens inside."""

    async def exec(self, argv, **options):
        raise AssertionError(f"it was run: {argv}")


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "//",
        "///",
        "//a/b",
        "/tmp",
        "relative/one",
        "/tmp/../etc/x",
        "/a/b/",
        "/a//b",
        "/a/./b",
        "/a/b\0",
    ],
)
async def test_what_does_not_look_like_a_sessions_folder_is_not_removed(path):
    with pytest.raises(UsageError, match="session folder"):
        await client.remove_session_directory(Untouchable(), path)


async def test_text_goes_in_and_comes_out_bounded(place):
    path = f"{place.dir}/text"
    await client.upload_text(place.sandbox, path=path, text="\u00e4b\n")
    assert await client.read_text(place.sandbox, path=path) == "\u00e4b\n"
    with pytest.raises(TooLarge):
        await client.read_text(place.sandbox, path=path, limit_bytes=2)
    assert await client.read_text(place.sandbox, path=path, limit_bytes=3, tail=True) == "\ufffdb\n"
    with pytest.raises(FileNotFoundError):
        await client.read_text(place.sandbox, path=path + "2")


def test_each_budget_is_larger_than_what_it_contains():
    for run_s, grace_s, cleanup_s in ((0.1, 0, 0.1), (60, 5, 15), (21600, 30, 31)):
        budgets = client.supervision_timeouts(run_s, grace_s=grace_s, cleanup_s=cleanup_s)
        assert budgets.grace_s < budgets.cleanup_s
        assert budgets.run_s + budgets.cleanup_s < budgets.exec_s


@pytest.mark.parametrize(
    ("run_s", "grace_s", "cleanup_s"), [(0, 1, 2), (-1, 1, 2), (1, -1, 2), (1, 2, 2), (1, 3, 2)]
)
def test_budgets_that_do_not_nest_are_refused(run_s, grace_s, cleanup_s):
    with pytest.raises(UsageError, match="expected run_s > 0"):
        client.supervision_timeouts(run_s, grace_s=grace_s, cleanup_s=cleanup_s)
