"""`inspan serve` as a real process: it starts, refuses what does not fit, and ends in order."""

import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager

import anyio
import anyio.to_thread
import httpx
import pytest
import yaml

from inspan_runtime.providers.local import LocalProvider
from inspan_server.model.capture import Capture
from inspan_server.model.gateway import create_gateway
from inspan_server.model.script import parse_script
from inspan_server.serving import served

COMMAND = [
    sys.executable,
    "-c",
    "import sys; from inspan_server.cli.main import main; sys.exit(main())",
    "serve",
]


@pytest.fixture
def config_file(tmp_path):
    def write(**changes):
        path = tmp_path / "agent.yaml"
        values = {
            "harness": "echo",
            "harness_options": {"model": False},
            "port": 0,
            "model_server": {"base_url": "http://127.0.0.1:9"},
            "sandbox_provider": "box",
            "sandbox_config": {"workdir": str(tmp_path / "work")},
            "sandbox_providers": {"box": {"kind": "local", "runtime_dir": str(tmp_path / "run")}},
            "runtime_cache_dir": str(tmp_path / "cache"),
            **changes,
        }
        path.write_text(yaml.safe_dump(values))
        return str(path)

    return write


def refused(*arguments):
    ended = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=40)
    assert "Traceback" not in ended.stderr
    return ended.returncode, ended.stderr


@contextmanager
def serving(config, *arguments):
    command = [*COMMAND, "--config", config, *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        assert line.startswith("inspan serve: http://127.0.0.1:"), process.stderr.read()
        yield process, line.split()[2]
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=20)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_closes_every_session_and_ends_the_server(config_file, tmp_path, anyio_sync, bodies, number):
    with serving(config_file()) as (process, url):
        with httpx.Client(base_url=url, timeout=30) as client:
            seeded = client.post("/v1/agent_sessions", json=bodies.seed())
            assert seeded.status_code == 200, seeded.text
            assert client.post("/ng-rollout/r1/v1/responses", json={"input": "hi"}).status_code == 200
            provider = LocalProvider({"runtime_dir": str(tmp_path / "run")})
            assert len(anyio_sync(provider.list, {})) == 1
        process.send_signal(number)
        code, log = process.wait(40), process.stderr.read()
        assert (code, "Traceback" in log) == (0, False), log
    assert anyio_sync(provider.list, {}) == []


@pytest.mark.anyio
async def test_a_second_signal_does_not_wait_and_names_what_is_open(config_file, tmp_path, bodies, until):
    """The supervisor is held still, so that no stop can be confirmed and the close has to wait."""
    hold = "read -r _ _ _ parent _ < /proc/$PPID/stat; kill -STOP $parent; sleep 60"
    script = parse_script({"*": [{"tool_calls": [{"name": "shell", "arguments": {"command": hold}}]}]})
    async with served(create_gateway(script, Capture()), graceful_timeout_s=1) as model:
        config = config_file(model_server={"base_url": model}, harness_options={})
        with serving(config) as (process, url):
            async with (
                httpx.AsyncClient(base_url=url, timeout=30) as client,
                anyio.create_task_group() as tasks,
            ):
                await client.post("/v1/agent_sessions", json=bodies.seed())
                tasks.start_soon(activate, client)
                await until(lambda: state_of_supervisor(tmp_path) == "T", "the hold of the supervisor")
                process.send_signal(signal.SIGTERM)
                with anyio.fail_after(20):
                    while (await client.get("/healthz")).json()["status"] != "draining":
                        pass
                process.send_signal(signal.SIGTERM)
                assert await anyio.to_thread.run_sync(process.wait, 10) == 1
            assert process.stderr.read().splitlines()[-1] == "inspan serve: ended without closing: s1"


async def activate(client):
    answer = await client.post("/ng-rollout/r1/v1/responses", json={"input": "hi"})
    assert answer.status_code == 503, "cut off by close"


def state_of_supervisor(tmp_path):
    pids = [path.read_text() for path in tmp_path.glob("run/local/*/scratch/*/supervisor.pid")]
    if not pids or not pids[0]:  # Made, and not written yet.
        return None
    with open(f"/proc/{int(pids[0])}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0]


def test_a_port_in_use_is_named(config_file):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        code, complaint = refused("--config", config_file(), "--port", str(port))
    assert (code, complaint.splitlines()[-1]) == (
        3,
        f"inspan serve: port {port} of 127.0.0.1 is in use: stop what listens there, "
        "or choose another with --port",
    )


def test_an_address_that_is_not_ours_is_named(config_file):
    config = config_file(allow_unauthenticated=True)
    code, complaint = refused("--config", config, "--host", "192.0.2.1")
    assert (code, "cannot listen on 192.0.2.1" in complaint) == (3, True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"concurency": 3}, "concurency is not a known key; did you mean concurrency?"),
        ({"harness": "nope"}, "no harness is called 'nope' (installed:"),
        (
            {"sandbox_providers": {"box": {"kind": "nope"}}},
            "no sandbox provider is called 'nope' (",
        ),
        ({"harness_options": {"nope": 1}}, "harness_options.nope is not an option of harness 'echo'"),
    ],
)
def test_a_configuration_that_does_not_fit_is_wrong_usage(config_file, changes, message):
    code, complaint = refused("--config", config_file(**changes))
    assert (code, message in complaint) == (2, True), complaint


def test_a_configuration_that_is_not_there_is_wrong_usage(tmp_path):
    code, complaint = refused("--config", str(tmp_path / "none.yaml"))
    assert (code, "none.yaml cannot be read" in complaint) == (2, True)


def test_a_folder_that_another_server_uses_is_named(config_file, tmp_path):
    config = config_file(state_dir=str(tmp_path / "state"))
    with serving(config):
        code, complaint = refused("--config", config)
    assert (code, complaint.splitlines()[-1]) == (
        3,
        f"inspan serve: state_dir: {tmp_path}/state is in use by another server",
    )


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("state", b""),
        ("state/lock/below", b""),
        ("state/sessions.sqlite", b"no database" * 100),
        ("state/secrets.sqlite/below", b""),
    ],
)
def test_a_folder_that_cannot_hold_a_journal_is_named(config_file, tmp_path, name, content):
    broken = tmp_path / name
    broken.parent.mkdir(parents=True, exist_ok=True)
    broken.write_bytes(content)
    code, complaint = refused("--config", config_file(state_dir=str(tmp_path / "state")))
    assert (code, "state_dir: " in complaint, "Traceback" in complaint) == (3, True, False), complaint


def test_a_key_that_a_killed_server_did_not_finish_is_made_anew(config_file, tmp_path):
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "cookie.part").write_bytes(b"half of it")
    with serving(config_file(state_dir=str(tmp_path / "state"), cookie_secret=None)):
        assert len((tmp_path / "state" / "cookie.key").read_bytes()) == 32
    assert not (tmp_path / "state" / "cookie.part").exists()


def test_it_listens_on_loopback_only(config_file):
    with serving(config_file()) as (process, url):
        port = int(url.rpartition(":")[2])
        listening = open_listeners(process.pid)
    assert listening == {("0100007F", port)}


def open_listeners(pid):
    inodes = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        target = os.readlink(f"/proc/{pid}/fd/{name}")
        inodes.add(target.removeprefix("socket:[").rstrip("]"))
    with open(f"/proc/{pid}/net/tcp") as table:
        rows = [line.split() for line in table.readlines()[1:]]
    return {
        (address, int(port, 16))
        for row in rows
        if row[3] == "0A" and row[9] in inodes
        for address, port in [row[1].split(":")]
    }
