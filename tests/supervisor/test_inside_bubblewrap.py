"""Self-defence inside a real sandbox: what tools do there to names, folders, ports and memory."""

import shlex

import anyio
import pytest

from inspan_core.errors import EvidenceMissing
from inspan_core.harness import SandboxCommand
from inspan_core.sandbox import SandboxSpec
from inspan_runtime import supervisor_client as client
from inspan_runtime.providers.bubblewrap import BubblewrapProvider
from inspan_runtime.testing.sandbox_check_support import opened, out

pytestmark = [pytest.mark.anyio, pytest.mark.sandbox]
HOME, WORK = "/tmp/session/one", "/task"
PROMPT = "Compute the fibonacci numbers"


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def provider(tmp_path):
    return BubblewrapProvider({"runtime_dir": str(tmp_path / "run")})


def make_spec(**changes):
    return SandboxSpec(**{"workdir": WORK, "ttl_s": 120.0, **changes})


class Session:
    """One supervised run in a sandbox."""

    def __init__(self, sandbox):
        self.sandbox = sandbox
        self.result = None

    async def stage(self, script, **budgets):
        self.python = (await out(self.sandbox, "command -v python3")).decode().strip()
        await client.upload_text(self.sandbox, path=f"{WORK}/h", text=script)
        command = SandboxCommand(argv=["/bin/sh", f"{WORK}/h"], python=self.python, env={"PROMPT": PROMPT})
        budgets = {"timeout_s": 60.0, "grace_s": 0.2, "cleanup_timeout_s": 8.0, **budgets}
        await client.write_command(self.sandbox, HOME, command, cwd="/", **budgets)

    async def launch(self):
        argv = client.supervised_launch_command(self.python, HOME)
        self.result = await self.sandbox.exec(argv, timeout_s=60)

    async def until(self, name):
        with anyio.fail_after(40):
            while (await self.sandbox.exec(["test", "-e", f"{WORK}/{name}"], timeout_s=5)).exit_code != 0:
                await anyio.sleep(0.02)

    async def stop(self, timeout_s=20.0):
        return await client.stop_and_confirm_cleanup(self.sandbox, HOME, timeout_s=timeout_s)


WORDS = ("python", "supervisor", "session", "inspan", "json", "fibonacci", "Compute", "bwrap", "one")
BY_NAME = [f"pkill {flag} -f {word}" for word in WORDS for flag in ("-TERM", "-KILL")]
BY_NAME += [
    f"{program} {flag} python3"
    for program in ("pkill", "killall")
    for flag in ("-TERM", "-KILL", "-HUP", "-INT")
]
BY_PLACE = [f"fuser -k {flag} {target}" for target in (WORK, "8123/tcp") for flag in ("-TERM", "-KILL")]
DECOYS = f"""
(setsid python3 -I -S -c 'import time; time.sleep(1000)' > /dev/null 2>&1 & echo $! > {WORK}/decoy)
(cd {WORK} && exec setsid sleep 1000 > /dev/null 2>&1 & echo $! > {WORK}/squatter)
cat > {WORK}/serve <<'END'
import socket
s = socket.create_server(("127.0.0.1", 8123))
open("{WORK}/serves", "w").close()
s.accept()
END
(setsid python3 -I -S {WORK}/serve > /dev/null 2>&1 & echo $! > {WORK}/server)
while [ ! -e {WORK}/serves ]; do sleep 0.01; done
"""
IS_GONE = f'gone() {{ read -r p < {WORK}/$1; [ ! -d /proc/$p ] || grep -q "State:.Z" /proc/$p/status; }}\n'


@pytest.mark.parametrize("attacks", [BY_NAME, BY_PLACE], ids=["by name", "by folder and port"])
async def test_a_tool_that_kills_by_word_folder_or_port_finds_neither_supervisor_nor_run(provider, attacks):
    """Each attack ends the decoy that it is meant for: without hiding, it would have ended us too."""
    async with opened(provider, make_spec) as sandbox:
        session = Session(sandbox)
        lines = "".join(
            f"(cd / && setsid sh -c {shlex.quote(each)} > /dev/null 2>&1 < /dev/null)\n" for each in attacks
        )
        harness = f"trap '' TERM INT HUP\ncd /\n{DECOYS}\n: > {WORK}/up\n{lines}: > {WORK}/attacked\n"
        await session.stage(harness + "while :; do read -r x < /dev/zero; done")
        async with anyio.create_task_group() as group:
            group.start_soon(session.launch)
            await session.until("attacked")
            gone = "decoy server" if attacks is BY_NAME else "squatter server"
            checks = "".join(f"gone {name} || exit 7\n" for name in gone.split())
            assert (await sandbox.exec(["sh", "-c", IS_GONE + checks], timeout_s=10)).exit_code == 0
            assert await client.read_receipt(sandbox, HOME) is None
            receipt = await session.stop()
        assert (receipt.cleanup_confirmed, receipt.timed_out) == (True, False)


@pytest.mark.parametrize("whom", ["everybody", "only the supervisor"])
async def test_a_harness_that_kills_everybody_leaves_unknown_evidence_in_good_time(provider, whom):
    """Not to be survived, so not proven; and said well within the budget."""
    who = "-1" if whom == "everybody" else f"$(cat {HOME}/supervisor.pid)"
    async with opened(provider, make_spec) as sandbox:
        session = Session(sandbox)
        await session.stage(
            f"trap '' TERM\nkill -KILL {who}\n: > {WORK}/done\nwhile :; do read -r x < /dev/zero; done"
        )
        async with anyio.create_task_group() as group:
            group.start_soon(session.launch)
            await session.until("done")
            for _ in range(2):  # A close may ask again, and learns the same.
                with (
                    anyio.fail_after(15),
                    pytest.raises(EvidenceMissing, match="died without a receipt") as caught,
                ):
                    await session.stop(timeout_s=60)
                assert caught.value.failure_kind == "infrastructure"


async def test_more_orphans_than_the_process_limit_allows_end_while_the_harness_runs(provider, may_limit):
    """300 orphaning commands under a limit of 60: their zombies would fill it."""
    async with opened(provider, make_spec, pids=60) as sandbox:
        session = Session(sandbox)
        loop = "n=0; while [ $n -lt 300 ]; do (setsid true &) || exit 8; n=$((n + 1)); done"
        await session.stage(f"{loop}\nexit 5")
        await session.launch()
        receipt = await client.await_receipt(sandbox, HOME, timeout_s=10, launch_over=True)
    assert (receipt.cleanup_confirmed, receipt.return_code, receipt.error) == (True, 5, None)


HUNGRY = "import sys\nheld = []\nwhile True: held.append(bytearray(b'x') * (1 << 20))"


@pytest.mark.parametrize("hungry", ["the harness", "a tool"])
async def test_when_memory_runs_out_the_hungry_one_dies_and_the_supervisor_tells(provider, may_limit, hungry):
    async with opened(provider, make_spec, memory_mib=64) as sandbox:
        session = Session(sandbox)
        eat = f"python3 -I -S -c {shlex.quote(HUNGRY)}"
        await session.stage(f"exec {eat}" if hungry == "the harness" else f"setsid {eat}\nexit 6")
        await session.launch()
        receipt = await client.await_receipt(sandbox, HOME, timeout_s=10, launch_over=True)
    assert receipt.cleanup_confirmed and not receipt.timed_out
    assert receipt.return_code == (-9 if hungry == "the harness" else 6)
    assert session.result.out_of_memory


async def test_any_provider_that_can_exec_upload_and_download_will_do(provider):
    class Plain:
        """Nothing but the three calls."""

        def __init__(self, sandbox):
            self.exec, self.upload, self.download = sandbox.exec, sandbox.upload, sandbox.download

    async with opened(provider, make_spec) as sandbox:
        session = Session(Plain(sandbox))
        await session.stage(f": > {WORK}/up\nsetsid sleep 1000 & wait")
        async with anyio.create_task_group() as group:
            group.start_soon(session.launch)
            await session.until("up")
            receipt = await session.stop()
        assert (receipt.cleanup_confirmed, receipt.return_code) == (True, -15)
        await client.remove_session_directory(session.sandbox, HOME)
        assert (await out(sandbox, f"ls -A {HOME.rpartition('/')[0]}")) == b"one.retired\n"
