"""`SandboxSession` with real processes: how each ending reads for an adapter."""

from __future__ import annotations

import sys
from contextlib import asynccontextmanager

import anyio
import pytest

from inspan_core.errors import (
    EvidenceMissing,
    HarnessError,
    HarnessTerminationError,
    SandboxTransportError,
    UsageError,
)
from inspan_core.harness import SandboxCommand
from inspan_core.sandbox import SandboxSpec
from inspan_runtime.perform import Supervision
from inspan_runtime.providers.builtin import inspan_sandbox_providers
from inspan_runtime.sandbox_session import SandboxSession

pytestmark = pytest.mark.anyio
QUICK = Supervision(grace_s=0.5, cleanup_timeout_s=3.0)


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


@pytest.fixture(params=["local", pytest.param("bubblewrap", marks=pytest.mark.sandbox)])
def kind(request):
    return request.param


class Harness:
    """A session in a real sandbox whose harness is a shell script."""

    def __init__(self, sandbox, session_dir, workdir, *, owned):
        self.sandbox = sandbox
        self.collected = 0
        self.session = SandboxSession(
            sandbox=sandbox,
            session_dir=session_dir,
            workdir=workdir,
            owns_sandbox=owned,
            harness="script",
            supervision=QUICK,
        )

    async def run(self, script, *, python=None, timeout=20.0, collect=None, stage=None):
        async def stage_script():
            argv = ["/bin/sh", "-c", script]
            return SandboxCommand(argv=argv, python=python or await self.python())

        return await self.session.execute(
            stage_activation=stage or stage_script,
            collect=collect or self.log,
            timeout=timeout,
            close_timeout=10.0,
        )

    async def python(self):
        found = await self.sandbox.exec(
            ["sh", "-c", "ls /opt/inspan/python/bin/python3 /usr/bin/python3 /usr/local/bin/python3; true"],
            timeout_s=5,
        )
        paths = found.stdout.decode().split()
        return paths[0] if paths else sys.executable

    async def log(self):
        self.collected += 1
        content = await self.sandbox.download(
            f"{self.session.session_dir}/output.log", limit_bytes=4096, tail=True
        )
        return content.data.decode()

    async def shell(self, script):
        result = await self.sandbox.exec(["sh", "-c", script], timeout_s=10)
        return result.stdout.decode().strip()


@asynccontextmanager
async def harness(kind, tmp_path, *, owned=False):
    provider = inspan_sandbox_providers()[kind]({})
    workdir = f"{tmp_path}/work" if kind == "local" else "/work"
    sandbox = await provider.create(SandboxSpec(workdir=workdir), key=tmp_path.name)
    folder = f"{tmp_path}/s/1" if kind == "local" else "/tmp/s/1"
    try:
        yield Harness(sandbox, folder, workdir, owned=owned)
    finally:
        with anyio.CancelScope(shield=True), anyio.move_on_after(20):
            await sandbox.stop()
            await provider.aclose()


async def test_artifacts_come_back_and_a_nonzero_exit_is_no_error(kind, tmp_path):
    async with harness(kind, tmp_path) as h:
        assert await h.run("echo done; pwd; exit 3") == f"done\n{h.session.workdir}\n"
        assert h.session.receipt.cleanup_confirmed and h.session.receipt.return_code == 3
        await h.session.close(timeout=10)
        assert await h.sandbox.is_alive()
        assert await h.shell(f"ls {h.session.session_dir} 2>&1 | grep -c cleanup.json") == "0"


async def test_an_owned_sandbox_ends_with_the_session(kind, tmp_path):
    async with harness(kind, tmp_path, owned=True) as h:
        await h.run("true")
        await h.session.close(timeout=10)
        assert not await h.sandbox.is_alive()


async def test_the_deadline_stops_the_harness_before_anything_is_collected(kind, tmp_path):
    async with harness(kind, tmp_path) as h:
        script = "while :; do date >> log; echo tick; sleep 0.05; done"
        await h.run(script, timeout=1.0)
        assert h.session.receipt.timed_out
        before = await h.shell("cat log")
        await anyio.sleep(0.3)  # six ticks of the loop, were it still running
        assert await h.shell("cat log") == before
        await h.session.close(timeout=10)


async def test_a_negative_receipt_raises_collects_nothing_and_releases(kind, tmp_path):
    async with harness(kind, tmp_path) as h:
        # Stands in for an interpreter: a supervisor that could not prove the end.
        liar = f"{h.session.workdir}/unproven"
        receipt = '{"cleanup_confirmed": false, "return_code": null, "error": "alive", "timed_out": false}'
        script = f"for d; do :; done\necho $$ > $d/launch.claim\necho '{receipt}' > $d/cleanup.json\n"
        await h.sandbox.upload(liar, f"#!/bin/sh\n{script}".encode(), mode=0o755)
        with pytest.raises(HarnessTerminationError, match="alive"):
            await h.run("true", python=liar)
        assert h.collected == 0 and h.session.artifacts is None
        await h.session.close(timeout=10)
        assert h.collected == 0


async def test_a_supervisor_that_died_without_a_receipt_is_unknown_until_the_sandbox_goes(kind, tmp_path):
    async with harness(kind, tmp_path) as h:
        dead = f"{h.session.workdir}/dies"
        await h.sandbox.upload(
            dead,
            b"#!/bin/sh\nfor d; do :; done\necho $$ > $d/launch.claim\necho $$ > $d/supervisor.pid\n",
            mode=0o755,
        )
        with pytest.raises(EvidenceMissing):
            await h.run("true", python=dead)
        with pytest.raises(EvidenceMissing):
            await h.session.close(timeout=2)
        assert h.collected == 0
        await h.sandbox.stop()
        await h.session.close(timeout=5)


async def test_an_interpreter_that_cannot_load_the_supervisor_is_told_with_its_words(kind, tmp_path):
    async with harness(kind, tmp_path) as h:
        broken = f"{h.session.workdir}/broken"
        await h.sandbox.upload(broken, b"#!/bin/sh\necho no such module >&2\nexit 1\n", mode=0o755)
        with pytest.raises(HarnessError, match="no such module"):
            await h.run("true", python=broken)
        await h.session.close(timeout=10)


async def test_a_staging_error_is_raised_as_it_is(kind, tmp_path):
    async with harness(kind, tmp_path) as h:

        async def stage():
            raise KeyError("no such option")

        with pytest.raises(KeyError, match="no such option"):
            await h.run("true", stage=stage)
        await h.session.close(timeout=10)


async def test_a_capture_error_keeps_the_receipt_and_the_release(kind, tmp_path):
    async with harness(kind, tmp_path) as h:

        async def collect():
            raise SandboxTransportError("the copy broke")

        with pytest.raises(SandboxTransportError, match="the copy broke"):
            await h.run("true", collect=collect)
        assert h.session.receipt.cleanup_confirmed
        await h.session.close(timeout=10)


async def test_close_during_the_run_stops_it_and_keeps_the_artifacts(kind, tmp_path):
    async with harness(kind, tmp_path) as h:
        outcomes = []

        async def run():
            try:
                outcomes.append(await h.run("echo started; touch started; sleep 60"))
            except HarnessError as error:
                outcomes.append(str(error))

        async with anyio.create_task_group() as group:
            group.start_soon(run)
            with anyio.fail_after(10):
                while await h.shell("ls started 2>/dev/null") != "started":
                    await anyio.sleep(0.02)
            await h.session.close(timeout=10)
        assert "closed" in outcomes[0]
        assert h.session.artifacts == "started\n" and h.collected == 1
        assert h.session.receipt.cleanup_confirmed and not h.session.receipt.timed_out


async def test_cancelling_execute_finalizes_before_it_goes_on(kind, tmp_path):
    async with harness(kind, tmp_path) as h:
        async with anyio.create_task_group() as group:
            group.start_soon(h.run, "touch started; sleep 60")
            with anyio.fail_after(10):
                while await h.shell("ls started 2>/dev/null") != "started":
                    await anyio.sleep(0.02)
            group.cancel_scope.cancel()
        assert h.session.receipt.cleanup_confirmed and h.collected == 1
        await h.session.close(timeout=10)


async def test_close_before_execute_only_releases_and_a_second_execute_is_refused(kind, tmp_path):
    async with harness(kind, tmp_path) as h:
        await h.session.close(timeout=10)
        await h.session.close(timeout=10)
        with pytest.raises(HarnessError):
            await h.run("true")
        with pytest.raises(UsageError, match="one activation"):
            await h.run("true")


@pytest.mark.sandbox
@pytest.mark.parametrize("harm", ["rm -f /usr/bin/sh /bin/sh", "cp /bin/false /usr/local/bin/sh"])
async def test_a_shell_that_the_task_broke_does_not_cost_the_receipt(tmp_path, harm):
    async with harness("bubblewrap", tmp_path, owned=True) as h:
        assert await h.run(f"echo done; {harm}") == "done\n"
        await h.session.close(timeout=10)
        assert not await h.sandbox.is_alive()


@pytest.mark.sandbox
async def test_a_borrowed_sandbox_is_released_past_a_shell_in_front_of_the_systems(tmp_path):
    async with harness("bubblewrap", tmp_path) as h:
        await h.run("echo done; cp /bin/false /usr/local/bin/sh")
        await h.session.close(timeout=10)
        gone = await h.sandbox.exec(["ls", h.session.session_dir], timeout_s=5)
        assert gone.exit_code != 0
