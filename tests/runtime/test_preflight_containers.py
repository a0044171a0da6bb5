"""A seed into containers that cannot carry a harness: one clear refusal, or an error to be tried again."""

import hashlib
import io
import json
import platform
import tarfile
from functools import partial

import anyio
import pytest

from inspan_core.errors import ConfigError, SandboxCreateError, UnsupportedTarget
from inspan_core.findings import Cookie
from inspan_core.sandbox import SandboxSpec
from inspan_core.session import Settings
from inspan_core.wire import (
    CloseRequest,
    DirectSandboxConnection,
    EpisodeId,
    SandboxAccess,
    SeedRequest,
    TaskId,
)
from inspan_runtime.install_cache import RuntimeCache
from inspan_runtime.preflight import Wanted, judged, preflight, require
from inspan_runtime.service import AgentService, ServiceSettings
from inspan_runtime.testing.private_engine import EMPTY, IMAGE, busybox_tree
from inspan_runtime.testing.sandbox_check_support import opened

pytestmark = [pytest.mark.anyio, pytest.mark.docker, pytest.mark.timeout(240)]
EPISODE = EpisodeId(rollout_id="r")
SPEC = partial(SandboxSpec, workdir="/task", ttl_s=120.0)
LIMIT_S = 120.0
E_MACHINE = 18  # Where an ELF program says for which processor it is.
OTHER = {"x86_64": ("arm64", 183), "aarch64": ("amd64", 62)}


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def make_provider(docker_engine, docker_provider):
    yield partial(docker_provider, docker_engine)
    docker_engine.remove_all()


@pytest.fixture
def theirs(docker_engine):
    """Start somebody else's container with options, and run a script in it."""

    def start(*options, script="true"):
        docker_engine.run(
            "run", "--detach", "--name=theirs", "--network=none", *options, IMAGE, "sleep", "600"
        )
        docker_engine.run("exec", "theirs", "sh", "-c", f"mkdir -p /task; {script}")

    yield start
    docker_engine.run("unpause", "theirs", check=False)
    docker_engine.run("rm", "--force", "theirs", check=False)


@pytest.fixture
def seeded(make_provider, tmp_path, seed_only):
    async def seed(again=None):
        """Seed into the container `theirs`; return the answers, the last after `again`."""
        service = AgentService(
            seed_only()[1],
            {"box": make_provider},
            ServiceSettings(
                model_base_url="http://192.0.2.1:9",
                model_name="none",
                session=Settings(close_step_timeout_s=9.0),
            ),
            cache=RuntimeCache(tmp_path / "cache", client_env={}),
        )
        connection = DirectSandboxConnection(
            kind="direct", provider_config_ref="box", descriptor={"sandbox_id": "theirs", "workdir": "/task"}
        )
        request = SeedRequest(
            agent_session_id="s",
            episode_id=EPISODE,
            task_id=TaskId(taskset="t", task_id="x"),
            sandbox_access=SandboxAccess(connection=connection, workdir="/task"),
        )
        answers = []
        async with service:
            with anyio.fail_after(LIMIT_S):
                answers.append(await service.seed(request, "d", Cookie.ABSENT))
                if again is not None:
                    again()
                    answers.append(await service.seed(request, "d", Cookie.ABSENT))
                close = CloseRequest(agent_session_id="s", episode_id=EPISODE)
                assert (await service.close(close, Cookie.ABSENT)).status == 200
        return answers

    return seed


FILLED = "dd if=/dev/zero of=/tmp/big bs=1k count=99 2>/dev/null; true"


async def test_session_of_a_task_that_removed_its_folder_is_closed(seeded, theirs, docker_engine):
    theirs()
    remove = partial(docker_engine.run, "exec", "theirs", "rm", "-rf", "/task")
    first, second = await seeded(remove)
    assert (first.status, second.status) == (200, 200)


@pytest.mark.parametrize(
    ("options", "script", "words"),
    [
        (["--tmpfs=/tmp:noexec"], "true", "session files: programs do not run from /tmp/"),
        (["--tmpfs=/tmp:exec,size=64k"], FILLED, "cannot be written to: no space is left"),
        (["--read-only", "--tmpfs=/task"], "true", "cannot be written to"),
        ([], "rm -rf /tmp; echo x >/tmp", "lies below /tmp, which is no folder"),
        ([], "rm -rf /task", "workdir '/task' does not exist"),
    ],
    ids=["noexec", "full", "read-only", "file", "workdir"],
)
async def test_container_that_cannot_carry_it_is_refused(seeded, theirs, options, script, words):
    theirs(*options, script=script)
    (answer,) = await seeded()
    assert answer.status == 422 and words in answer.body["detail"], answer


async def test_paused_container_is_an_error_to_be_tried_again(seeded, theirs, docker_engine):
    theirs()
    docker_engine.run("pause", "theirs")
    go_on = partial(docker_engine.run, "unpause", "theirs")
    first, second = await seeded(go_on)
    assert first.status == 503 and "theirs is paused" in first.body["detail"], first
    assert second.status == 200, second


@pytest.mark.parametrize("mode", ["always", "never"])
async def test_image_with_busybox_alone(make_provider, mode):
    async with opened(make_provider(image=IMAGE, agent=mode), SPEC) as sandbox:
        found = await preflight(sandbox, Wanted(session_dir="/tmp/s"), roots=("/opt/inspan/runtimes",))
        assert found.problems == () and (found.facts.libc, found.facts.python) == ("none", None)
        assert (found.facts.arch, found.facts.root) == (platform.machine(), "/opt/inspan/runtimes")
        (problem,) = judged(found.facts, Wanted(session_dir="/tmp/s", python=True))[0]
        assert problem.startswith("it has no Python 3.8")


async def test_image_without_a_shell(make_provider):
    async with opened(make_provider(image=EMPTY, agent="always"), SPEC) as sandbox:
        with pytest.raises(UnsupportedTarget, match="no usable POSIX shell"):
            await preflight(sandbox, Wanted(session_dir="/tmp/s"))
    with pytest.raises(SandboxCreateError, match="/bin/sh"):
        await make_provider(image=EMPTY, agent="never").create(SPEC(), key="k")


def load_other(engine, name, layer):
    """Load an image that says that it is of another architecture than this machine."""
    says, _ = OTHER[platform.machine()]
    layers = {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]}
    config = {"architecture": says, "os": "linux", "config": {}, "rootfs": layers}
    manifest = [{"Config": "config.json", "RepoTags": [f"{name}:latest"], "Layers": ["layer.tar"]}]
    files = {"manifest.json": json.dumps(manifest).encode(), "config.json": json.dumps(config).encode()}
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for path, content in {**files, "layer.tar": layer}.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    engine.run("load", input=data.getvalue())


async def test_image_that_says_another_architecture(make_provider, docker_engine):
    """What it is made of counts: programs of this machine run, and the look tells which they are."""
    load_other(docker_engine, "says-other", busybox_tree())
    async with opened(make_provider(image="says-other"), SPEC) as sandbox:
        found = await preflight(sandbox, Wanted(session_dir="/tmp/s", architectures=("other",)))
        assert sandbox.descriptor["agent"] is False
        with pytest.raises(UnsupportedTarget, match=f"{platform.machine()}; supported: other"):
            require(found)


async def test_image_of_another_architecture(make_provider, docker_engine):
    _, machine = OTHER[platform.machine()]
    tree = bytearray(busybox_tree())
    at = tree.index(b"\x7fELF") + E_MACHINE
    tree[at : at + 2] = machine.to_bytes(2, "little")
    load_other(docker_engine, "is-other", bytes(tree))
    with pytest.raises(
        ConfigError, match=f"is-other is for {OTHER[platform.machine()][0]}, and its programs"
    ):
        await make_provider(image="is-other").create(SPEC(), key="k")
    assert docker_engine.names() == []
