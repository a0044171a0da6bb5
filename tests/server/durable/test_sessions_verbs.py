"""``inspan sessions`` and ``serve`` on a folder that they may not use, that is damaged, or that is taken."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import anyio
import httpx
import pytest

from inspan_core.sandbox import SandboxSpec
from inspan_runtime.providers.local import LocalProvider

pytestmark = [pytest.mark.timeout(180)]
INSPAN = [sys.executable, "-c", "import sys; from inspan_server.cli.main import main; sys.exit(main())"]
WITHOUT_POWERS = ["bwrap", "--dev-bind", "/", "/", "--cap-drop", "ALL", "--"]
"""For tests that root runs: only the owner's bits count then."""


@pytest.fixture
def script():
    kills = "kill -9 $(cut -d' ' -f4 /proc/$PPID/stat)"
    return {"*": [{"tool_calls": [{"name": "shell", "arguments": {"command": kills}}]}, {"content": "done"}]}


@pytest.fixture
def world(worlds, tmp_path):
    return worlds(
        kind="local",
        sandbox_config={"workdir": str(tmp_path / "work")},
        session_close_timeout_seconds=2,
    )


def inspan(world, *words, through=()):
    """An exit code, and what was said on stderr or is on stdout."""
    ended = subprocess.run(
        [*through, *INSPAN, *words, "--config", str(world.config)],
        capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert "Traceback" not in ended.stderr, ended.stderr
    return ended.returncode, ended.stderr if ended.returncode else ended.stdout


def seed(world, bodies):
    answer = httpx.post(f"{world.url}/v1/agent_sessions", json=bodies.seed("s"), timeout=60)
    assert answer.status_code == 200, answer.text


def contents(world):
    """What the journal's files hold."""
    state = world.folder / "state"
    return {path.name: path.read_bytes() for path in state.iterdir() if path.suffix in (".log", ".sqlite")}


@pytest.mark.sandbox
@pytest.mark.parametrize("mode", [0o000, 0o500])
def test_a_folder_that_may_not_be_used_is_named_and_left_as_it_is(world, bodies, mode):
    seed(world, bodies)
    world.kill()
    before, state = contents(world), world.folder / "state"
    if mode:
        for path in state.iterdir():
            path.chmod(0o400)
    state.chmod(mode)
    try:
        for words in (
            ("sessions", "list"),
            ("sessions", "close", "s", "--abandon"),
            ("serve", "--port", "0"),
        ):
            code, said = inspan(world, *words, through=WITHOUT_POWERS)
            assert code in (2, 3) and str(state) in said and "denied" in said.lower(), (words, code, said)
    finally:
        state.chmod(0o700)
        for path in state.iterdir():
            path.chmod(0o600)
    assert contents(world) == before
    world.start()
    assert json.loads(inspan(world, "sessions", "show", "s", "--json")[1])["phase"] == "READY"


def cut_off(path):
    path.write_bytes(path.read_bytes()[:-20])


def overwrite(path):
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2] + b"\xff" * 16 + data[len(data) // 2 + 16 :])


def be_newer(path):
    data = bytearray(path.read_bytes())
    data[8:12] = (99).to_bytes(4, sys.byteorder)
    path.write_bytes(data)


def be_something_else(path):
    path.write_bytes(b"not a file of ours" * 1000)


@pytest.mark.parametrize(
    "damage", [cut_off, overwrite, be_newer, be_something_else], ids=lambda d: d.__name__
)
def test_a_damaged_log_is_named_by_both_and_left_as_it_is(world, bodies, damage):
    """What a client was told is kept is in it: nobody goes on without it."""
    seed(world, bodies)
    world.kill()
    whole, log = contents(world), world.folder / "state" / "sessions.log"
    damage(log)
    before = contents(world)
    for words in (("sessions", "list"), ("sessions", "show", "s"), ("serve", "--port", "0")):
        code, said = inspan(world, *words)
        assert (code, "sessions.log" in said) == (3, True), (words, said)
        after = contents(world)
        assert (after["sessions.log"], set(after)) == (before["sessions.log"], set(before))
    log.write_bytes(whole["sessions.log"])
    world.start()
    assert json.loads(inspan(world, "sessions", "show", "s", "--json")[1])["phase"] == "READY"


def test_of_two_servers_that_are_started_at_once_one_serves(world, bodies):
    seed(world, bodies)
    world.kill()
    argv = [*INSPAN, "serve", "--port", "0", "--config", str(world.config)]
    started = [
        subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for _ in range(3)
    ]
    try:
        said = [process.stdout.readline() for process in started]
        serving = [process for process, line in zip(started, said, strict=True) if "runs echo" in line]
        assert len(serving) == 1, said
        for process, line in zip(started, said, strict=True):
            if process is not serving[0]:
                assert (process.wait(60), "is in use by another server" in line) == (3, True), line
        assert json.loads(inspan(world, "sessions", "show", "s", "--json")[1])["phase"] == "READY"
        assert inspan(world, "sessions", "close", "s")[0] == 0
    finally:
        for process in started:
            process.terminate()
            process.communicate(timeout=60)
    assert world.sandboxes() == set()


def test_a_copy_of_the_folder_is_read_as_it_was(world, bodies, tmp_path):
    """What a killed server left is whole in its files alone: nothing is in the memory of anybody."""
    seed(world, bodies)
    world.kill()
    shutil.copytree(tmp_path / "state", tmp_path / "copy")
    world.config.write_text(world.config.read_text().replace(str(tmp_path / "state"), str(tmp_path / "copy")))
    assert json.loads(inspan(world, "sessions", "show", "s", "--json")[1])["phase"] == "READY"


async def borrowed(world):
    provider = LocalProvider({"runtime_dir": str(world.folder / "run")})
    spec = SandboxSpec(workdir=str(world.folder / "theirs"), ttl_s=300.0)
    return dict((await provider.create(spec, key="theirs")).descriptor)


def test_a_session_without_evidence_is_abandoned_through_the_running_server(world, bodies):
    """Its supervisor died without a receipt in a sandbox that is not ours to stop: nothing is ever proven."""
    descriptor = anyio.run(borrowed, world)
    connection = {"kind": "direct", "provider_config_ref": "box", "descriptor": descriptor}
    workdir = str(world.folder / "theirs")
    body = {**bodies.seed("s"), "sandbox_access": {"connection": connection, "workdir": workdir}}
    with httpx.Client(base_url=world.url, timeout=100) as http:
        assert http.post("/v1/agent_sessions", json=body).status_code == 200
        ran = http.post("/ng-rollout/r/v1/responses", json={"input": "x"})
        assert ran.status_code >= 500, ran.text
        assert http.post("/v1/agent_sessions/close", json=bodies.close("s")).status_code == 503
        world.kill()
        world.start()
        code, said = inspan(world, "sessions", "close", "s")
        assert code == 1, said
        code, said = inspan(world, "sessions", "close", "s", "--abandon", "--json")
        assert (code, json.loads(said)["phase"], json.loads(said)["gradable"]) == (0, "CLOSED", False)
        for _ in range(2):
            closed = http.post("/v1/agent_sessions/close", json=bodies.close("s"))
            assert (closed.status_code, "abandoned by the operator" in closed.text) == (503, True)
            assert "inspan_sessions_abandoned_total 1" in http.get("/metrics").text
            world.kill()
            world.start()
    assert len(world.sandboxes()) == 1, "it is theirs"
