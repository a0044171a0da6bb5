"""`inspan sandbox`: real sandboxes, the real command line, and a runtime folder of the test's own."""

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import anyio
import pytest

from inspan_core.sandbox import SandboxSpec
from inspan_runtime.providers.bubblewrap import BubblewrapProvider
from inspan_runtime.providers.local import LocalProvider
from inspan_runtime.testing.sandbox_check_support import opened, out
from inspan_runtime.testing.sandbox_wrappers import WrappedSandbox, of
from inspan_server.cli import sandbox_check
from inspan_server.cli.sandbox_blocks import Blocks

LIMIT_S = 60.0
SERVER = """
import anyio, sys
from inspan_core.sandbox import SandboxSpec
from inspan_runtime.providers.local import LocalProvider
async def main():
    provider = LocalProvider({})
    spec = SandboxSpec(workdir=sys.argv[1], ttl_s=300.0, labels={"run": "dead"})
    await provider.create(spec, key="of a server")
    print("made", flush=True)
    await anyio.sleep(600)
anyio.run(main)
"""


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def runtime(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "inspan"


def inspan(*arguments, stdin=""):
    argv = [str(Path(sys.executable).parent / "inspan"), "sandbox", *arguments]
    return subprocess.run(argv, input=stdin, capture_output=True, text=True, timeout=LIMIT_S)


async def called(*arguments, **options):
    return await anyio.to_thread.run_sync(partial(inspan, *arguments, **options))


@pytest.mark.anyio
async def test_list_shows_providers_and_sandboxes_with_their_holders(runtime, tmp_path):
    labels = {"episode": "seven", "odd": "\033[2J"}
    spec = SandboxSpec(workdir=str(tmp_path / "work"), ttl_s=60.0, labels=labels)
    async with opened(LocalProvider({}), lambda: spec) as sandbox:
        run = await called("list", "--json")
        assert run.returncode == 0, run.stderr
        listed = json.loads(run.stdout)
        kinds = {one["name"]: one["can"] for one in listed["providers"]}
        assert {"bubblewrap", "docker", "local"} <= set(kinds)
        assert "mounts" in kinds["bubblewrap"] and "isolation" not in kinds["local"]
        (held,) = listed["sandboxes"]
        assert (held["sandbox_id"], held["holders"]) == (sandbox.sandbox_id, [os.getpid()])
        assert held["labels"] == labels
        text = (await called("list")).stdout
        assert f"{sandbox.sandbox_id}  local  runs" in text and f"holders {os.getpid()}" in text
        assert "odd=\N{REPLACEMENT CHARACTER}[2J" in text and "\033" not in text
    assert "no sandbox is there" in (await called("list")).stdout


def test_check_tells_what_passed_and_how_long_it_takes(runtime):
    run = inspan("check", "local", "--only", "exit_codes", "--only", "mounts_are_shown", "--json")
    assert run.returncode == 0, run.stderr
    told = json.loads(run.stdout)
    assert [(one["name"], one["status"]) for one in told["checks"]] == [
        ("exit_codes_are_the_commands_own", "passed"),
        ("mounts_are_shown", "left out"),
    ]
    steps = {"create_to_first_exec", "exec", "upload_10_mb", "download_10_mb", "connect", "stop"}
    assert set(told["latency_ms"]) == steps and all(one > 0 for one in told["latency_ms"].values())
    assert list((runtime / "local").iterdir()) == []


@pytest.mark.sandbox
def test_check_of_an_isolating_provider(runtime):
    run = inspan("check", "bubblewrap", "--no-latency", "--only", "hosts_", "--only", "mounts_are_shown")
    assert run.returncode == 0, run.stdout + run.stderr
    assert "passed      hosts files are not there" in run.stdout
    assert run.stdout.splitlines()[-1] == "bubblewrap: 4 passed, 0 failed, 0 left out or unavailable"


class NeverFails(WrappedSandbox):
    async def exec(self, argv, **options):
        from attrs import evolve

        return evolve(await self.inner.exec(argv, **options), exit_code=0)


def test_check_fails_for_a_broken_provider(runtime, monkeypatch, capsys):
    make = Blocks.provider
    monkeypatch.setattr(Blocks, "provider", lambda blocks, block: of(NeverFails)(make(blocks, block)))
    check = partial(sandbox_check.check_provider, config=None, image=None, measures=False, as_json=False)
    code = check("local", only=("exit_codes", "missing_program"))
    said = capsys.readouterr().out
    assert code == 1
    assert "FAILED      exit codes are the commands own: exit 3 was reported as 0" in said
    assert "local: 0 passed, 2 failed" in said


def test_what_there_is_not_is_told(runtime, tmp_path):
    run = inspan("check", "no-such-provider")
    assert run.returncode == 2 and "there are: bubblewrap, docker, local" in run.stderr
    run = inspan("check", "local", "--only", "no-such-check")
    assert run.returncode == 2 and "no check has" in run.stderr
    config = tmp_path / "agent.yaml"
    config.write_text(
        "harness: pi\nmodel_server: {base_url: 'http://127.0.0.1:9'}\n"
        "sandbox_providers: {images: {kind: docker, engine: /no/such/engine, image: none}}\n"
    )
    run = inspan("check", "images", "--config", str(config))
    assert run.returncode == 3 and "was not found" in run.stderr


@pytest.mark.sandbox
def test_shell_goes_where_its_lines_lead_and_leaves_nothing(runtime):
    lines = "echo here >file\ncat file\ncd /etc\npwd\nfalse\nprintf 'a\\033[2Jb'\nexit\nnever\n"
    run = inspan("shell", stdin=lines)
    assert run.returncode == 0, run.stderr
    said = run.stdout.splitlines()
    assert said[2:] == ["here", "/etc", "[exit 1]", "a\N{REPLACEMENT CHARACTER}[2Jb"]
    assert list((runtime / "bubblewrap").iterdir()) == []


@pytest.mark.anyio
async def test_shell_in_a_sandbox_that_is_there_leaves_it_there(runtime, tmp_path):
    spec = SandboxSpec(workdir=str(tmp_path / "work"), ttl_s=60.0)
    async with opened(LocalProvider({}), lambda: spec) as sandbox:
        run = await called("shell", sandbox.sandbox_id, stdin="echo seen >mark\n")
        assert run.returncode == 0, run.stderr
        assert await out(sandbox, "cat mark") == b"seen\n"
    run = await called("shell", sandbox.sandbox_id, stdin="")
    assert run.returncode == 2 and "there is no provider" in run.stderr


def start_server(tmp_path):
    """A process that makes a sandbox and holds it."""
    argv = [sys.executable, "-c", SERVER, str(tmp_path / "work")]
    server = subprocess.Popen(argv, stdout=subprocess.PIPE)
    assert server.stdout.readline() == b"made\n"
    return server


def kill(server):
    server.kill()
    server.wait()
    server.stdout.close()


def test_reap_spares_what_a_living_server_holds_and_takes_the_rest(runtime, tmp_path):
    server = start_server(tmp_path)
    try:
        run = inspan("reap", "--older-than", "0")
        assert run.returncode == 0 and "0 left of dead runs, 1 spared" in run.stdout
    finally:
        kill(server)
    holders = runtime.joinpath("local").glob("*/holders")
    (file,) = list(holders)
    dead = file.read_text()
    file.write_text(dead + "7 1234 pid:[1]\n")  # A server in a container: it cannot be asked after.
    assert "1 spared" in inspan("reap", "--older-than", "0").stdout
    file.write_text(dead)
    for spared in (["--dry-run", "--older-than", "0"], ["--older-than", "0", "--label", "run=other"], []):
        inspan("reap", *spared)
        assert len(list((runtime / "local").iterdir())) == 1, spared
    told = json.loads(inspan("reap", "--older-than", "0", "--label", "run=dead", "--json").stdout)
    assert [one["error"] for one in told["left"]] == [None] and told["dry_run"] is False
    assert list((runtime / "local").iterdir()) == []


@pytest.mark.sandbox
@pytest.mark.anyio
async def test_reap_takes_what_a_killed_keeper_left(runtime):
    provider = BubblewrapProvider({})
    sandbox = await provider.create(SandboxSpec(workdir="/task", ttl_s=60.0), key="k")
    state = Path(sandbox.descriptor["state"])
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and os.readlink(entry / "cwd") == str(state):
                os.kill(int(entry.name), signal.SIGKILL)
        except OSError:
            continue
    with anyio.fail_after(20):
        while "its keeper is dead" not in (await called("reap", "--dry-run", "--older-than", "0")).stdout:
            await anyio.sleep(0.05)
    assert state.exists()
    run = await called("reap", "--older-than", "0")
    assert run.returncode == 0 and "1 left of dead runs" in run.stdout and not state.exists()


def test_reap_refuses_what_is_no_label_and_no_age():
    assert inspan("reap", "--label", "nonsense").returncode == 2
    assert inspan("reap", "--older-than", "-1").returncode == 2
