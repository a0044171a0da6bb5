"""The preflight answers rightly for real trees: the host's, busybox alone, musl, a bare shell, no shell."""

import io
import json
import os
import platform
import shutil
import subprocess
import tarfile

import attrs
import pytest

from inspan_core.errors import UnsupportedTarget
from inspan_core.sandbox import SandboxSpec
from inspan_runtime.preflight import (
    CERTIFICATES,
    SHELLS,
    Wanted,
    judged,
    preflight,
    read_facts,
    require,
)
from inspan_runtime.preflight_script import preflight_script
from inspan_runtime.providers.bubblewrap import BubblewrapProvider, has_mapped_ids
from inspan_runtime.testing.private_engine import NoEngine, busybox_tree
from inspan_runtime.testing.sandbox_check_support import opened, out

pytestmark = [pytest.mark.anyio, pytest.mark.sandbox]
WANTED = Wanted(session_dir="/tmp/inspan/s", python=True)
ROOTS = ("/opt/inspan/runtimes", "/var/tmp/runtimes")
APT_LIMIT_S = 60.0


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def provider(tmp_path):
    options = {"runtime_dir": str(tmp_path / "run"), "cache_dir": str(tmp_path / "cache")}
    return BubblewrapProvider(options)


def needs_writable_root():
    if not has_mapped_ids():
        pytest.skip("NO WRITABLE ROOT: only root makes sandboxes over trees")


@pytest.fixture
def busybox(tmp_path):
    """A tar with nothing but a static busybox."""
    needs_writable_root()
    try:
        (tmp_path / "busybox.tar").write_bytes(busybox_tree())
    except (NoEngine, OSError) as error:
        pytest.skip(f"NO BUSYBOX: {error}: apt-get install busybox-static")
    return tmp_path / "busybox.tar"


@pytest.fixture
def musl(tmp_path, busybox):
    """The same with the C library of Debian's package musl."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        pytest.skip("NO MUSL: it is taken from Debian's package")
    get = subprocess.run(
        ["apt-get", "download", "musl"], cwd=tmp_path, capture_output=True, timeout=APT_LIMIT_S
    )
    packages = list(tmp_path.glob("musl_*.deb"))
    if not packages:
        pytest.skip(f"NO MUSL: apt-get download musl: {get.stderr.decode()[-200:]}")
    subprocess.run(["dpkg-deb", "-x", packages[0], tmp_path / "musl"], check=True, timeout=APT_LIMIT_S)
    with tarfile.open(busybox, "a") as tar:
        tar.add(tmp_path / "musl/lib", "lib")
    return busybox


async def found_in(provider, wanted=WANTED, **changes):
    async with opened(provider, lambda: SandboxSpec(workdir="/task", ttl_s=120.0, **changes)) as sandbox:
        before = await out(sandbox, "ls -A / /tmp /opt /var/tmp 2>/dev/null; true")
        found = await preflight(sandbox, wanted, roots=ROOTS, workdir="/task")
        assert await out(sandbox, "ls -A / /tmp /opt /var/tmp 2>/dev/null; true") == before, (
            "it left something"
        )
        return found


async def test_hosts_root_is_fit(provider):
    found = await found_in(provider, attrs.evolve(WANTED, programs=("sh", "cat"), libcs=("glibc", "musl")))
    facts = found.facts
    assert found.problems == () and facts.os == "linux" and facts.user == 0
    assert facts.arch == platform.machine()
    libc, version = platform.libc_ver()
    assert (facts.libc, facts.libc_version) == (libc, version)
    assert facts.python_version.startswith("3.") and facts.python.startswith("/")
    assert facts.programs["cat"].endswith("/cat") and "sh" in facts.shells
    assert abs(facts.clock_skew_s) < 60
    assert [place.path for place in facts.places] == [WANTED.session_dir]
    assert all(place.writes and place.runs and place.free_mib > 0 for place in (*facts.places, *facts.roots))
    assert (facts.root, facts.ready, facts.workdir) == (ROOTS[0], (), "folder")
    require(found)


async def test_wants_that_are_not_there_are_all_named(provider):
    wanted = Wanted(
        session_dir="/proc/session",
        programs=("no-such-program", "cat", "another one"),
        architectures=("sparc",),
        libcs=("bionic",),
        image="sha256:" + "0" * 64,
    )
    found = await found_in(provider, wanted)
    with pytest.raises(UnsupportedTarget) as raised:
        require(found)
    for words in (
        "no no-such-program, another one",
        f"architecture is {platform.machine()}; supported: sparc",
        "supported: bionic",
        "session files: /proc/session cannot be written to",
        "its image is not known",
    ):
        assert words in str(raised.value)


async def test_space_is_counted(tmp_path):
    provider = BubblewrapProvider({"runtime_dir": str(tmp_path / "run"), "space_limit_mib": 16})
    assert (await found_in(provider, attrs.evolve(WANTED, free_mib=8))).problems == ()
    (problem,) = (await found_in(provider, attrs.evolve(WANTED, free_mib=64))).problems
    assert "MiB free, 64 are needed" in problem


async def test_busybox_alone(provider, busybox):
    """No Python, no C library, no certificates; all else is told by what a small tree has."""
    found = await found_in(provider, attrs.evolve(WANTED, programs=("tar", "git")), root=str(busybox))
    facts = found.facts
    assert (facts.libc, facts.libc_version, facts.python, facts.certificates) == ("none", None, None, None)
    assert facts.arch == platform.machine() and "ash" in facts.shells and "bash" not in facts.shells
    # This shell knows its applets before it looks for files.
    assert facts.programs in ({"tar": "tar", "git": None}, {"tar": "/bin/tar", "git": None})
    assert all(place.writes and place.runs and place.free_mib > 0 for place in facts.places)
    assert [problem.split(" which")[0] for problem in found.problems] == [
        "it has no Python 3.8 or newer with its standard library,",
        "it has no git",
    ]
    assert "no CA certificates" in found.warnings[0]


@pytest.mark.registry
async def test_musl(provider, musl):
    found = await found_in(provider, attrs.evolve(WANTED, libcs=("glibc",), python=False), root=str(musl))
    assert found.facts.libc == "musl" and found.facts.libc_version.startswith("1.")
    assert found.problems == (f"its C library is musl {found.facts.libc_version}; supported: glibc",)


async def test_shell_without_any_program(provider, tmp_path, busybox):
    """Even `uname` and `df` are missing: unknown is said, not guessed."""
    bare = tmp_path / "bare.tar"
    with tarfile.open(busybox) as tar, tarfile.open(bare, "w") as kept:
        for member in tar:
            if member.name in ("bin", "tmp", "root", "etc", "bin/busybox", "bin/cat", "bin/ls", "bin/sh"):
                kept.addfile(member, tar.extractfile(member) if member.isfile() else None)
    script = preflight_script(
        places=[WANTED.session_dir],
        roots=ROOTS,
        workdir="/task",
        programs=(),
        shells=SHELLS,
        certificates=CERTIFICATES,
        pythons=["python3"],
    )
    spec = SandboxSpec(workdir="/task", ttl_s=120.0, root=str(bare))
    async with opened(provider, lambda: spec) as sandbox:
        # As an image with a plain shell: busybox itself runs its applets by name.
        argv = ["sh", "-c", f"uname() {{ :; }}; df() {{ :; }}; date() {{ :; }}; id() {{ :; }}; {script}"]
        result = await sandbox.exec(argv, timeout_s=30)
    facts = read_facts(result.stdout, 0.0, ())
    assert (facts.os, facts.arch, facts.user, facts.clock_skew_s) == ("", "", None, None)
    assert "its architecture is unknown: it has no `uname`" in judged(facts, WANTED)[0]
    assert facts.places[0].free_mib is None and facts.places[0].writes


async def test_no_shell_at_all(provider, tmp_path):
    needs_writable_root()
    with tarfile.open(tmp_path / "empty.tar", "w") as tar:
        tar.addfile(tarfile.TarInfo("file"), io.BytesIO(b""))
    spec = SandboxSpec(workdir="/task", ttl_s=120.0, root=str(tmp_path / "empty.tar"))
    async with opened(provider, lambda: spec) as sandbox:
        with pytest.raises(UnsupportedTarget, match="no usable POSIX shell"):
            await preflight(sandbox, WANTED)


async def test_clock_of_a_sandbox_that_is_far_off_is_told(provider):
    needs_writable_root()
    async with opened(provider, lambda: SandboxSpec(workdir="/task", ttl_s=120.0)) as sandbox:
        for said, warns in (("1000", True), ("9999999999", True), ("no date", False)):
            await sandbox.upload("/usr/local/bin/date", f"#!/bin/sh\necho {said}\n".encode(), mode=0o755)
            found = await preflight(sandbox, WANTED)
            assert found.problems == ()
            assert [one for one in found.warnings if "clock" in one] == [
                one for one in found.warnings if "s from this host's: TLS may fail" in one
            ]
            assert any("its clock is" in one for one in found.warnings) is warns, said


@pytest.mark.parametrize(
    "output", [b"", b"[]", b"{}", b'{"os": "Linux"}', b"hello", b'{"places": [7]}', b"\xff"]
)
def test_other_answers_are_refused(output):
    with pytest.raises(UnsupportedTarget, match="usable POSIX shell"):
        read_facts(output, 0.0, ())


PLACE = {"path": "/s", "tried": "/", "writes": True, "runs": True, "free_kib": "2048", "barred": None}


def answer(**changes):
    facts = {"os": "Linux", "arch": "x86_64", "libc": "glibc", "libc_version": "2.36", "user": "0"}
    facts |= {"clock": "1000", "python": "/usr/bin/python3", "python_version": "3.11.2"}
    facts |= {"certificates": "/etc/ssl/cert.pem", "shells": {"sh": "/bin/sh", "": None}}
    facts |= {"programs": {"": None}, "places": [PLACE, None], "roots": [None], "ready": [None]}
    facts |= {"word": None, "workdir": "folder"}
    return json.dumps({**facts, **changes}).encode()


@pytest.mark.parametrize(
    "output",
    [
        b"[" * 60_000,
        answer(clock=float("inf")),
        answer(places=[{**PLACE, "free_kib": float("inf")}]),
        answer(places=[{**PLACE, "path": []}]),
        answer(roots=[{**PLACE, "barred": 7}]),
        answer(roots=7),
        answer(ready=[7]),
        answer(ready=None),
        answer(word={}),
        answer(python=["/usr/bin/python3"]),
        answer(libc_version={}),
        answer(programs={"git": 7}),
    ],
    ids=lambda output: ascii(output[-40:]),
)
def test_answers_that_only_look_like_one_are_refused(output):
    """A task's own `sh` may print anything."""
    with pytest.raises(UnsupportedTarget, match="usable POSIX shell"):
        read_facts(output, 0.0, ())


@pytest.mark.parametrize("places", [[], [None]])
def test_place_of_which_nothing_is_told_is_a_problem(places):
    facts = read_facts(answer(places=places), 1000.0, ())
    assert judged(facts, Wanted(session_dir="/s"))[0] == ("session files: nothing was told of /s",)


def test_hosts_word_is_told():
    assert read_facts(answer(word="abc"), 0.0, ()).word == "abc"


@pytest.mark.parametrize(
    ("found", "meant"), [("amd64", "x86_64"), ("arm64", "aarch64"), ("riscv64", "riscv64")]
)
def test_other_names_of_an_architecture(found, meant):
    assert read_facts(answer(arch=found), 0.0, ()).target.arch == meant


PINNED = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("pinned", "images", "words"),
    [
        (PINNED, (PINNED,), None),
        (f"name@{PINNED}", ("sha256:" + "b" * 64, PINNED), None),
        (PINNED, ("sha256:" + "b" * 64,), f"pinned is {PINNED}"),
        (PINNED, (), "its image is not known"),
        ("debian:12", (PINNED,), "is no digest"),
    ],
)
def test_image_is_compared_with_the_pinned_one(pinned, images, words):
    facts = read_facts(answer(), 1000.0, images)
    problems, _ = judged(facts, Wanted(session_dir="/s", image=pinned))
    assert problems == () if words is None else words in problems[0]


def test_clock_that_is_far_off_is_a_warning():
    for host_s, is_told in ((1000.0, False), (1299.0, False), (1400.0, True), (600.0, True)):
        facts = read_facts(answer(), host_s, ())
        problems, warnings = judged(facts, Wanted(session_dir="/s"))
        assert problems == () and any("clock" in one for one in warnings) is is_told


def test_place_that_does_not_run_programs_is_a_problem():
    place = {**PLACE, "runs": False, "free_kib": None}
    facts = read_facts(answer(places=[place, None]), 1000.0, ())
    assert judged(facts, Wanted(session_dir="/s"))[0] == ("session files: programs do not run from /s",)
    assert os.path.isabs(facts.places[0].path)
