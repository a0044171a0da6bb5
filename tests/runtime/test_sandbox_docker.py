"""What is the containers' own: missing engines and images, isolation, limits, mounts, reach, ends."""

import functools
import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import anyio
import pytest

from inspan_core.errors import (
    ConfigError,
    ImageMissing,
    MountConflict,
    ProviderUnavailable,
    SandboxConnectError,
    SandboxGone,
)
from inspan_core.sandbox import Mount, SandboxSpec
from inspan_runtime.providers.docker.engine import explained, find_engine
from inspan_runtime.providers.docker.provider import DockerProvider
from inspan_runtime.providers.state_folder import is_held
from inspan_runtime.testing.private_engine import private_docker
from inspan_runtime.testing.sandbox_check_support import opened, out, sh

pytestmark = [pytest.mark.anyio, pytest.mark.docker, pytest.mark.timeout(240)]
PATIENCE_S = 60.0
IMAGE = "inspan-busybox"


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def make_provider(docker_engine, docker_provider):
    yield partial(docker_provider, docker_engine, image=IMAGE)
    docker_engine.remove_all()


def inspected(engine, container):
    return json.loads(engine.said("container", "inspect", container))[0]


def spec(**changes):
    return SandboxSpec(**{"workdir": "/task", "ttl_s": 120.0, **changes})


async def becomes(claim, what):
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if claim():
            return
        await anyio.sleep(0.05)
    raise AssertionError(f"{what}, after {PATIENCE_S} s")


async def test_agent_is_mounted_by_default_and_not_on_a_remote_engine(make_provider, docker_engine):
    async with opened(make_provider(), spec) as sandbox:
        assert sandbox.descriptor["agent"] is True
        assert sandbox.descriptor["isolation"] == "container"
    engine = find_engine("docker", ("--host", "tcp://127.0.0.1:2375"))
    assert not engine.is_local and find_engine("docker", docker_engine.options).is_local


@pytest.mark.full
async def test_engine_that_does_not_see_this_hosts_folders(tmp_path):
    """Like a daemon that is reached by a forwarded socket: the agent cannot be mounted, all works by exec."""
    with private_docker(hidden=str(tmp_path)) as engine:
        provider = DockerProvider(
            {
                "engine_options": list(engine.options),
                "image": IMAGE,
                "runtime_dir": str(tmp_path / "run"),
                "cache_dir": str(tmp_path / "cache"),
            }
        )
        async with opened(provider, spec) as sandbox:
            assert sandbox.descriptor["agent"] is False
            assert await out(sandbox, "pwd") == b"/task\n"
        assert engine.names() == [] and await provider.list({}) == []


async def test_engine_that_is_down_loses_no_container(make_provider, docker_engine, tmp_path):
    """What cannot be removed now stays known."""
    provider = make_provider(agent="never")
    sandbox = await provider.create(spec(), key="k")
    os.kill(keeper_of(sandbox), signal.SIGKILL)
    await becomes(lambda: not is_held(Path(sandbox.descriptor["state"])), "a killed keeper lives")
    with pytest.raises(ProviderUnavailable):
        await make_provider(engine_options=["--host", f"unix://{tmp_path}/none"]).list({})
    assert docker_engine.names() == [sandbox.sandbox_id]
    assert await provider.list({}) == []
    assert docker_engine.names() == []


async def test_image_without_anything_has_an_agent(make_provider):
    """Neither Python nor a shell nor a C library: files come and go, a missing program is missing."""
    async with opened(make_provider(image="inspan-empty"), spec) as sandbox:
        await sandbox.upload("/task/file", b"here")
        assert (await sandbox.download("/task/file", limit_bytes=10)).data == b"here"
        assert (await sandbox.exec(["sh"], timeout_s=10)).exit_code == 127


@pytest.mark.parametrize("mode", ["always", "never"])
async def test_isolation(make_provider, docker_engine, mode):
    async with opened(make_provider(agent=mode), spec) as sandbox:
        status = await out(sandbox, "cat /proc/self/status")
        assert b"NoNewPrivs:\t1" in status
        capabilities = int(status.split(b"CapEff:\t")[1].split()[0], 16)
        assert not capabilities >> 21 & 1, "SYS_ADMIN is there"
        assert not capabilities >> 13 & 1, "NET_RAW is there"
        devices = [
            line.split(b":")[0].strip() for line in (await out(sandbox, "cat /proc/net/dev")).splitlines()[2:]
        ]
        assert devices == [b"lo"]
        assert (await sh(sandbox, "mount -t tmpfs none /tmp")).exit_code != 0
        assert (await sh(sandbox, "echo x >/run/inspan/door/x")).exit_code != 0
        assert (await sh(sandbox, "echo x >/run/inspan/base/x")).exit_code != 0
        found = inspected(docker_engine, sandbox.sandbox_id)
        assert found["HostConfig"]["Privileged"] is False
        assert "/var/run/docker.sock" not in json.dumps(found["Mounts"])


async def test_variables_are_not_shown_to_the_engine(make_provider, docker_engine):
    """With the agent they go past it: whoever may list containers does not read secrets."""
    async with opened(make_provider(), functools.partial(spec, env={"TOKEN": "hidden"})) as sandbox:
        assert await out(sandbox, 'echo "$TOKEN"') == b"hidden\n"
        assert "hidden" not in json.dumps(inspected(docker_engine, sandbox.sandbox_id))


async def test_container_is_labelled(make_provider, docker_engine):
    labels = functools.partial(spec, labels={"episode": "seven"})
    async with opened(make_provider(), labels) as sandbox:
        assert docker_engine.names("--filter=label=inspan.label.episode=seven") == [sandbox.sandbox_id]
        assert docker_engine.names("--filter=label=inspan.sandbox") == [sandbox.sandbox_id]


@pytest.mark.parametrize("mode", ["always", pytest.param("never", marks=pytest.mark.full)])
async def test_limits_are_the_engines(make_provider, docker_engine, mode):
    limited = functools.partial(spec, cpu=0.5, memory_mib=64, pids=32)
    async with opened(make_provider(agent=mode), limited) as sandbox:
        found = inspected(docker_engine, sandbox.sandbox_id)["HostConfig"]
        assert (found["NanoCpus"], found["Memory"], found["MemorySwap"], found["PidsLimit"]) == (
            500_000_000,
            64 * 2**20,
            64 * 2**20,
            32,
        )
        assert not (await sh(sandbox, "true")).out_of_memory
        hungry = await sh(sandbox, "head -c 200000000 /dev/zero | tail -c 190000000 | wc -c", timeout_s=60)
        assert hungry.out_of_memory and hungry.stdout == b"0\n"
        result = await sh(sandbox, "for n in $(seq 60); do sleep 5 & done 2>&1; wait", timeout_s=40)
        assert b"fork" in result.stdout or result.exit_code != 0, "60 processes were made with a limit of 32"


async def test_mounts(make_provider, tmp_path):
    """Odd names too; read-only is."""
    shown, written = tmp_path / 'a, "b"', tmp_path / "rw"
    for folder in (shown, written):
        folder.mkdir()
    (shown / "file").write_text("from the host")
    mounts = (
        Mount(source=str(shown), target="/shown, too"),
        Mount(source=str(written), target="/written", read_only=False),
    )
    async with opened(make_provider(), functools.partial(spec, mounts=mounts)) as sandbox:
        assert await out(sandbox, "cat '/shown, too/file'") == b"from the host"
        assert (await sh(sandbox, "echo x >'/shown, too/file'")).exit_code != 0
        await out(sandbox, "echo inside >/written/file")
    assert (written / "file").read_text() == "inside\n"


async def test_mount_over_the_images_own_file_is_a_conflict(make_provider, tmp_path):
    mounts = (Mount(source=str(tmp_path), target="/etc/passwd"),)
    with pytest.raises(MountConflict):
        await make_provider().create(spec(mounts=mounts), key="k")


class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"reached")

    def log_message(self, *_):
        pass


@pytest.fixture
def urls():
    servers = [http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) for _ in range(2)]
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    yield [f"http://127.0.0.1:{server.server_port}" for server in servers]
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("mode", ["always", "never"])
async def test_what_is_reached_and_nothing_else(make_provider, urls, mode):
    async with opened(make_provider(agent=mode), functools.partial(spec, reach=(urls[0],))) as sandbox:
        assert await out(sandbox, f"wget -q -O - {urls[0]}/") == b"reached"
        reached, other = (url.rsplit(":", 1)[1] for url in urls)
        assert (await sh(sandbox, f"nc -w 5 127.0.0.1 {reached} </dev/null")).exit_code == 0
        assert (await sh(sandbox, f"nc -w 5 127.0.0.1 {other} </dev/null")).exit_code == 1


@pytest.mark.full
async def test_named_network(make_provider, docker_engine):
    """Two containers of one network of the engine's see each other."""
    docker_engine.run("network", "create", "--internal", "inspan-test")
    try:
        provider = make_provider(network="inspan-test")
        async with opened(provider, spec) as first, opened(provider, spec) as second:
            await out(first, "mkdir -p /www; echo other >/www/x; httpd -p 8000 -h /www")
            address = inspected(docker_engine, first.sandbox_id)["NetworkSettings"]["Networks"][
                "inspan-test"
            ]["IPAddress"]
            assert await out(second, f"wget -q -O - http://{address}:8000/x") == b"other\n"
    finally:
        docker_engine.run("network", "rm", "inspan-test", check=False)


async def test_image_is_what_its_name_means_now(make_provider, docker_engine):
    """By id, and recorded by id: a tag that moves later changes nothing."""
    image_id = docker_engine.said("image", "inspect", "--format={{.Id}}", IMAGE)
    async with opened(make_provider(), functools.partial(spec, image=image_id)) as sandbox:
        assert sandbox.descriptor["image"] == image_id
        assert inspected(docker_engine, sandbox.sandbox_id)["Image"] == image_id


async def test_missing_image_is_named(make_provider):
    with pytest.raises(ImageMissing, match=r"no-such-image:7.*pull"):
        await make_provider().create(spec(image="no-such-image:7"), key="k")
    with pytest.raises(ImageMissing):
        await make_provider().create(spec(image=f"sha256:{'0' * 64}"), key="k")


async def test_daemon_that_is_down_is_unavailable(make_provider, tmp_path):
    provider = make_provider(engine_options=["--host", f"unix://{tmp_path}/none"])
    for call in (
        lambda: provider.create(spec(), key="k"),
        lambda: provider.connect({"sandbox_id": "some-container"}),
    ):
        with pytest.raises(ProviderUnavailable, match="daemon does not answer"):
            await call()


async def test_engine_that_is_absent_is_unavailable(tmp_path):
    provider = DockerProvider({"engine": "/no/such/docker", "runtime_dir": str(tmp_path / "run")})
    with pytest.raises(ProviderUnavailable, match="apt-get install"):
        await provider.create(spec(image=IMAGE), key="k")


def test_missing_permission_is_told(docker_engine):
    """The real client's words, as a user who may not use the daemon."""
    run = subprocess.run(
        ["docker", *docker_engine.options, "ps"],
        user=65534,
        group=65534,
        extra_groups=[],
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent"},
        cwd="/",
        capture_output=True,
        timeout=60,
    )
    assert run.returncode != 0
    error = explained(run.stderr.decode(), what="list")
    assert isinstance(error, ProviderUnavailable) and "group" in str(error)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"agent": "sometimes"}, "option agent"),
        ({"pull": "always"}, "option pull"),
        ({"run_options": [7]}, "option run_options"),
        ({"engine": 7}, "option engine"),
        ({"surprise": 1}, "unknown option 'surprise'"),
    ],
)
def test_options_that_do_not_fit_are_named(options, words):
    with pytest.raises(ConfigError, match=words):
        DockerProvider(options)


@pytest.mark.parametrize(
    "change",
    [
        {"image": ""},
        {"image": "--privileged"},
        {"root": "/tree"},
        {"memory_mib": 0},
        {"cpu": -1.0},
        {"pids": 0},
    ],
)
async def test_specifications_that_do_not_fit_are_named(tmp_path, change):
    provider = DockerProvider({"runtime_dir": str(tmp_path / "run")})
    with pytest.raises(ConfigError, match=f"^{next(iter(change))}: "):
        await provider.create(spec(**{"image": IMAGE, **change}), key="k")


def keeper_of(sandbox):
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if os.readlink(entry / "cwd") == sandbox.descriptor["state"]:
                    return int(entry.name)
            except OSError:
                continue
    raise AssertionError("no keeper")


async def test_keepers_death_ends_the_container(make_provider, docker_engine, tmp_path):
    provider = make_provider()
    sandbox = await provider.create(spec(), key="k")
    os.kill(keeper_of(sandbox), signal.SIGKILL)
    await becomes(lambda: docker_engine.names() == [], "a container outlived its keeper")
    assert not await sandbox.is_alive()
    with pytest.raises(SandboxGone):
        await sandbox.exec(["true"], timeout_s=5)
    assert await provider.list({}) == []
    assert list((tmp_path / "run" / "docker").iterdir()) == []


async def test_container_of_a_killed_keeper_is_swept(make_provider, docker_engine):
    """Without the agent it lives on: whoever looks next removes it."""
    provider = make_provider(agent="never")
    sandbox = await provider.create(spec(), key="k")
    os.kill(keeper_of(sandbox), signal.SIGKILL)
    await becomes(lambda: not is_held(Path(sandbox.descriptor["state"])), "a killed keeper lives")
    with pytest.raises(SandboxGone):
        await provider.connect(sandbox.descriptor)
    assert await provider.list({}) == []
    assert docker_engine.names() == []


@pytest.mark.parametrize("mode", ["always", "never"])
async def test_container_removed_by_somebody_else_is_gone(make_provider, docker_engine, mode, tmp_path):
    sandbox = await make_provider(agent=mode).create(spec(), key="k")
    docker_engine.run("rm", "--force", sandbox.sandbox_id)
    with pytest.raises(SandboxGone):
        await sandbox.exec(["true"], timeout_s=20)
    assert not await sandbox.is_alive()
    await sandbox.stop()
    await becomes(
        lambda: list((tmp_path / "run" / "docker").iterdir()) == [], "the folder outlived the container"
    )


SERVER = """
import anyio, json, sys
from inspan_core.sandbox import SandboxSpec
from inspan_runtime.providers.docker.provider import DockerProvider
async def main():
    provider = DockerProvider(json.loads(sys.argv[1]))
    spec = SandboxSpec(workdir="/task", ttl_s=float(sys.argv[2]))
    sandbox = await provider.create(spec, key="k")
    await sandbox.exec(["sh", "-c", "echo mark >made"], timeout_s=20)
    print(json.dumps(dict(sandbox.descriptor)), flush=True)
    await anyio.sleep(600)
anyio.run(main)
"""


@pytest.mark.parametrize("mode", ["always", pytest.param("never", marks=pytest.mark.full)])
async def test_container_outlives_its_killed_server_and_ends_in_time(
    make_provider, docker_engine, mode, tmp_path, mounted_interpreters
):
    options = {
        "engine_options": list(docker_engine.options),
        "image": IMAGE,
        "runtime_dir": str(tmp_path / "run"),
        "cache_dir": mounted_interpreters,
        "agent": mode,
    }
    argv = [sys.executable, "-c", SERVER, json.dumps(options), "10"]
    start = functools.partial(subprocess.Popen, argv, stdout=subprocess.PIPE, start_new_session=True)
    server = start()
    try:
        descriptor = json.loads(await anyio.to_thread.run_sync(server.stdout.readline))
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
        server.stdout.close()
    sandbox = await make_provider().connect(descriptor)
    assert await out(sandbox, "cat made") == b"mark\n"
    await becomes(lambda: docker_engine.names() == [], "the container outlived its time")
    assert not await sandbox.is_alive()


@pytest.mark.parametrize(
    "descriptor",
    [
        {"sandbox_id": "--privileged"},
        {"sandbox_id": "a/b"},
        {"sandbox_id": ""},
        {"sandbox_id": "x", "workdir": "relative"},
        {"sandbox_id": "x", "workdir": 7},
        {"sandbox_id": "x", "provider": "bubblewrap"},
    ],
)
async def test_descriptors_that_do_not_fit_are_refused(descriptor, make_provider):
    with pytest.raises(SandboxConnectError):
        await make_provider().connect(descriptor)


async def test_state_folder_of_elsewhere_is_refused(make_provider, tmp_path):
    async with opened(make_provider(), spec) as sandbox:
        other = make_provider(runtime_dir=str(tmp_path / "other"))
        with pytest.raises(SandboxConnectError, match="state folder"):
            await other.connect(sandbox.descriptor)
