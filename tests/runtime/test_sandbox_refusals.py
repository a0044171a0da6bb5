"""What the embedded providers refuse, and in which words."""

import ast
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

import inspan_runtime.providers.exec_agent as exec_agent
from inspan_core.errors import (
    ConfigError,
    ExecTimeout,
    MountConflict,
    ProviderUnavailable,
    SandboxGone,
    SandboxTransportError,
    UsageError,
)
from inspan_core.sandbox import Mount, SandboxSpec
from inspan_runtime.providers import boot, builtin, state_folder
from inspan_runtime.providers.bubblewrap import BubblewrapProvider, check_user_namespaces, explained
from inspan_runtime.providers.docker.provider import DockerProvider
from inspan_runtime.providers.exec_agent.frames import HEAD_LIMIT_BYTES, decode, encode
from inspan_runtime.providers.host_root import view_of_host
from inspan_runtime.providers.kept_sandboxes import KeeperRefused
from inspan_runtime.providers.local import LocalProvider
from inspan_runtime.providers.reach import loopback_addresses
from inspan_runtime.testing.sandbox_check_support import opened

EMBEDDED = ("local", "bubblewrap")
FACTORIES = {
    name: factory for name, factory in builtin.inspan_sandbox_providers().items() if name in EMBEDDED
}


@pytest.fixture
def anyio_backend():
    return "asyncio"


def test_builtin_providers_are_named():
    factories = builtin.inspan_sandbox_providers()
    assert {name: factory({}).name for name, factory in factories.items()} == {
        name: name for name in (*EMBEDDED, "docker")
    }


@pytest.mark.parametrize("name", FACTORIES)
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"runtimedir": "/x"}, "unknown option 'runtimedir'; known: .*runtime_dir"),
        ({"runtime_dir": 7}, "option runtime_dir is 7, expected str"),
        ({"runtime_dir": True}, "option runtime_dir is True, expected str"),
    ],
)
def test_options_that_do_not_fit_are_named(name, options, words):
    with pytest.raises(ConfigError, match=words):
        FACTORIES[name](options)


@pytest.mark.parametrize(
    "options", [{"space_limit_mib": True}, {"hide": ["relative"]}, {"hide": [7]}, {"writable_root": 1}]
)
def test_options_of_bubblewrap_are_checked(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        BubblewrapProvider(options)


@pytest.mark.anyio
@pytest.mark.parametrize("name", FACTORIES)
@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"workdir": "relative"}, "workdir"),
        ({"workdir": "/"}, "workdir"),
        ({"workdir": "/a/../b"}, "workdir"),
        ({"workdir": "/proc/x"}, "workdir"),
        ({"image": "debian:12"}, "image"),
        ({"ttl_s": -1.0}, "ttl_s"),
        ({"env": {"A=B": "x"}}, "env"),
        ({"env": {"A": "x\0y"}}, "env"),
        ({"root": "/no/such/tree"}, "root"),
        ({"reach": ("http://10.0.0.1:80",)}, "reach"),
    ],
)
async def test_specifications_that_do_not_fit_are_named(name, change, field, tmp_path):
    provider = FACTORIES[name]({"runtime_dir": str(tmp_path / "run")})
    with pytest.raises(ConfigError, match=f"^{field}: "):
        await provider.create(SandboxSpec(**{"workdir": "/task", **change}), key="k")
    assert not (tmp_path / "run").exists()


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("Error response from daemon: context deadline exceeded", SandboxTransportError),
        ("Error: No such container: theirs", SandboxGone),
        ("permission denied while trying to connect to the docker daemon socket", ProviderUnavailable),
    ],
)
async def test_what_an_engine_says_of_others_containers_becomes_typed(tmp_path, said, kind):
    """What is not known to be final can be tried again."""
    engine = tmp_path / "engine"
    engine.write_text(f"#!/bin/sh\n[ \"$1\" = --version ] && exit 0\necho '{said}' >&2\nexit 1\n")
    engine.chmod(0o755)
    provider = DockerProvider({"engine": str(engine), "runtime_dir": str(tmp_path / "run")})
    with pytest.raises(kind):
        await provider.connect({"sandbox_id": "theirs"})


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("mounts", "words"),
    [
        ([("/usr", "relative")], "not an absolute"),
        ([("/usr", "/")], "not an absolute"),
        ([("/usr", "/task/inside")], "inside workdir"),
        ([("/usr", "/task")], "inside workdir"),
        ([("/usr", "/proc/x")], "reserved"),
        ([("/usr", "/run")], "reserved"),
        ([("/usr", "/a"), ("/etc", "/a")], "is taken by"),
        ([("/usr", "/a"), ("/etc", "/a/b")], "is taken by"),
        ([("/no/such", "/a")], "cannot be used"),
        ([("usr", "/a")], "source is not an absolute"),
        ([("/dev/null", "/a")], "neither a folder nor"),
    ],
)
async def test_mounts_that_cannot_be_made_are_conflicts(mounts, words, tmp_path):
    declared = tuple(Mount(source=source, target=target) for source, target in mounts)
    spec = SandboxSpec(workdir="/task", mounts=declared)
    with pytest.raises(MountConflict, match=words):
        await BubblewrapProvider({"runtime_dir": str(tmp_path / "run")}).create(spec, key="k")
    with pytest.raises(MountConflict, match="cannot mount"):
        await LocalProvider({"runtime_dir": str(tmp_path / "run")}).create(spec, key="k")


@pytest.mark.anyio
async def test_mount_that_covers_workdir_is_a_conflict(tmp_path):
    spec = SandboxSpec(workdir="/task/repository", mounts=(Mount(source="/usr", target="/task"),))
    with pytest.raises(MountConflict, match="cover workdir"):
        await BubblewrapProvider({"runtime_dir": str(tmp_path / "run")}).create(spec, key="k")


@pytest.mark.anyio
async def test_missing_bubblewrap_says_how_to_get_it(tmp_path):
    provider = BubblewrapProvider({"runtime_dir": str(tmp_path / "run"), "bwrap": "/no/such/bwrap"})
    with pytest.raises(ProviderUnavailable, match="apt-get install bubblewrap"):
        await provider.create(SandboxSpec(workdir="/task"), key="k")


def test_kernel_that_gives_namespaces_is_no_error():
    check_user_namespaces()


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("bwrap: No permissions to create new namespace, likely because ...", ProviderUnavailable),
        ("bwrap: setting up uid map: Permission denied", ProviderUnavailable),
        ("bwrap: Can't mkdir parents for /x/y: Not a directory", MountConflict),
        ("the agent did not start", KeeperRefused),
    ],
)
def test_words_of_bubblewrap_become_typed(said, kind):
    error = explained(KeeperRefused(said, kind="create"))
    assert type(error) is kind and said in str(error)


@pytest.mark.anyio
async def test_refused_namespaces_are_unavailable(tmp_path):
    """A bubblewrap that says what the real one says where namespaces are off."""
    bwrap = tmp_path / "bwrap"
    bwrap.write_text("#!/bin/sh\necho 'bwrap: Creating new namespace failed: nesting' >&2\nexit 1\n")
    bwrap.chmod(0o755)
    provider = BubblewrapProvider({"runtime_dir": str(tmp_path / "run"), "bwrap": str(bwrap)})
    with pytest.raises(ProviderUnavailable, match=r"user\.max_user_namespaces"):
        await provider.create(SandboxSpec(workdir="/task"), key="k")
    assert list((tmp_path / "run" / "bubblewrap").iterdir()) == []


@pytest.mark.parametrize("make", ["link", "open to others"])
def test_runtime_folder_must_be_private(make, tmp_path):
    folder = tmp_path / "run"
    if make == "link":
        (tmp_path / "elsewhere").mkdir()
        folder.symlink_to(tmp_path / "elsewhere")
    else:
        folder.mkdir()
        folder.chmod(0o777)
    with pytest.raises(ProviderUnavailable, match="nobody else can write to"):
        state_folder.prepare_folder(folder)


def test_reach_is_loopback_once():
    urls = ["http://127.0.0.1:80/a", "http://localhost:80/b", "https://127.0.0.1"]
    urls += ["http://[::1]:9", "http://127.9.9.9:1"]
    assert loopback_addresses(urls) == [("127.0.0.1", 80), ("127.0.0.1", 443), ("::1", 9), ("127.9.9.9", 1)]


@pytest.mark.anyio
@pytest.mark.sandbox
async def test_ports_of_every_loopback_address_are_forwarded(tmp_path):
    """IPv6 too, where the host has it; and a port below 1024 needs nothing more."""
    provider = BubblewrapProvider({"runtime_dir": str(tmp_path / "run")})
    reach = ["http://127.0.0.2:81"]
    if Path("/proc/net/if_inet6").exists():
        reach.append("http://[::1]:8081")
    async with opened(provider, lambda: SandboxSpec(workdir="/task", reach=tuple(reach))) as sandbox:
        listening = await sandbox.exec(["cat", "/proc/net/tcp"], timeout_s=10)
        assert b"0200007F:0051" in listening.stdout


@pytest.mark.anyio
@pytest.mark.parametrize("ttl_s", [None, 1e12, math.inf])
async def test_times_without_end(tmp_path, ttl_s):
    """Longer than any system call's timeout."""
    provider = LocalProvider({"runtime_dir": str(tmp_path / "run")})
    spec = SandboxSpec(workdir=str(tmp_path / "work"), ttl_s=ttl_s)
    async with opened(provider, lambda: spec) as sandbox:
        for timeout_s in (1e12, math.inf):
            assert (await sandbox.exec(["true"], timeout_s=timeout_s)).exit_code == 0
        with pytest.raises(UsageError, match="timeout_s"):
            await sandbox.exec(["true"], timeout_s=math.nan)
        with pytest.raises(ExecTimeout):
            await sandbox.exec(["sleep", "60"], timeout_s=0)
        assert await sandbox.is_alive()


@pytest.mark.anyio
async def test_arguments_that_no_process_can_have_are_refused(tmp_path):
    provider = LocalProvider({"runtime_dir": str(tmp_path / "run")})
    async with opened(provider, lambda: SandboxSpec(workdir=str(tmp_path / "work"))) as sandbox:
        for argv, env in (([], {}), (["true", "a\0b"], {}), (["true"], {"A=B": ""}), (["true"], {"A": "\0"})):
            with pytest.raises(UsageError):
                await sandbox.exec(argv, env=env, timeout_s=5)
        assert (await sandbox.exec(["true"], timeout_s=5)).exit_code == 0


def test_view_hides_what_others_may_not_read(tmp_path):
    def make(path, mode=0o644, folder=False):
        made = tmp_path / path
        made.parent.mkdir(parents=True, exist_ok=True)
        made.mkdir() if folder else made.write_text("root:x:0:0::/root:/bin/sh\n")
        made.chmod(mode)

    make("usr/bin/tool", 0o755)
    make("etc/passwd")
    make("etc/shadow", 0o640)
    make("etc/ssl/private", 0o710, folder=True)
    make("etc/ssl/private/key", 0o600)
    make("etc/app/token", 0o600)
    make("opt/app/secret", 0o640)
    make("opt/named/by-option")
    make("home/user/file")
    make("data/of/the/host")
    make("var/lib/docker/layer")
    view = view_of_host(("/opt/named", "/no/such"), root=str(tmp_path))
    assert view.hidden == (
        "data",
        "etc/app/token",
        "etc/ssl/private",
        "opt/app/secret",
        "opt/named",
        "var/lib/docker",
    )
    assert ("home", 0o755) in view.empty and ("root", 0o700) in view.empty
    assert view.files == (("etc/shadow", 0o640, b"root:*:19000:0:99999:7:::\n"),)


def test_agent_is_old_and_plain_python():
    """What runs inside has Python 3.8's syntax and imports the standard library and itself only."""
    for path in Path(exec_agent.__path__[0]).glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 8))
        for node in ast.walk(tree):
            names = []
            if isinstance(node, ast.Import):
                names = [one.name for one in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                own = name.startswith("inspan_runtime.providers.exec_agent.")
                assert own or name.split(".")[0] in sys.stdlib_module_names, f"{path}: {name}"


@pytest.mark.parametrize("modules", [boot.AGENT_MODULES, boot.KEEPER_MODULES])
def test_bundles_import_nothing_slow(modules):
    """Each of these costs a sandbox's start milliseconds."""
    program = (
        boot.program(0).decode().replace("sys.modules[entry].main(0, orders)", "print(sorted(sys.modules))")
    )
    assert "print" in program
    run = subprocess.run(
        [sys.executable, "-I", "-S", "-E", "-c", program],
        input=boot.bundle(modules, {}),
        capture_output=True,
        timeout=20,
    )
    assert run.returncode == 0, run.stderr.decode()
    loaded = set(ast.literal_eval(run.stdout.decode()))
    assert loaded.isdisjoint(
        {"enum", "typing", "re", "json", "socket", "selectors", "subprocess", "functools"}
    )


def test_bundle_of_sources_is_the_same_program():
    """For an interpreter of another version the sources are sent."""
    program = boot.program(0).decode().replace("sys.modules[entry].main(0, orders)", "print(entry, orders)")
    run = subprocess.run(
        [sys.executable, "-I", "-S", "-E", "-c", program],
        input=boot.bundle(boot.AGENT_MODULES, {"a": b"b"}, same_version=False),
        capture_output=True,
        timeout=20,
    )
    assert run.stdout.decode().split() == [boot.AGENT_MODULES[-1], "{'a':", "b'b'}"], run.stderr.decode()


def test_frames_come_whole_or_not_at_all():
    fields = [b"", b"one", bytes(range(256)), b"x" * 70000]
    whole = encode(fields)
    assert decode(whole + b"rest") == (fields, len(whole))
    assert all(decode(whole[:size]) is None for size in (0, 3, 4, 7, 100, len(whole) - 1))
    with pytest.raises(ValueError, match="too"):
        decode(b"\xff\xff\xff\xff")
    with pytest.raises(ValueError, match="too"):
        decode(b"\0\0\0\1" + (HEAD_LIMIT_BYTES + 1).to_bytes(4, "big"))


def test_default_runtime_folder_is_the_users_own(monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    assert state_folder.default_runtime_dir() == Path("/run/user/7/inspan")
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert state_folder.default_runtime_dir() == Path(f"/tmp/inspan-{os.getuid()}")
