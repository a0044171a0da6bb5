"""Real container engines of the tests' own: a private docker daemon and a private podman storage."""

import io
import json
import os
import shutil
import signal
import struct
import subprocess
import tarfile
import tempfile
import time
from pathlib import Path

import pytest
from attrs import frozen

START_LIMIT_S = 40.0
CALL_LIMIT_S = 60.0
IMAGE = "inspan-busybox"
EMPTY = "inspan-empty"
REQUIRED = "INSPAN_REQUIRE_DOCKER"


@frozen
class RealEngine:
    """A command line that reaches a private engine."""

    name: str
    options: tuple[str, ...]

    def run(self, *arguments, check=True, **more):
        argv = [self.name, *self.options, *arguments]
        return subprocess.run(argv, check=check, capture_output=True, timeout=CALL_LIMIT_S, **more)

    def said(self, *arguments):
        return self.run(*arguments).stdout.decode().strip()

    def names(self, *arguments):
        return self.said("ps", "--all", "--format={{.Names}}", *arguments).split()

    def inspect(self, container):
        return json.loads(self.said("container", "inspect", container))[0]


def lacking(reason):
    """Skip, and say why; fail where the engines were promised."""
    if os.environ.get(REQUIRED):
        pytest.fail(f"{REQUIRED} is set, but {reason}")
    pytest.skip(f"NO REAL ENGINE: {reason}")


def missing_program(*names):
    return next((name for name in names if shutil.which(name) is None), None)


def needs_loader(program):
    """Whether an ELF program of 64 bits names a loader (PT_INTERP)."""
    (start,) = struct.unpack_from("<Q", program, 32)
    size, count = struct.unpack_from("<HH", program, 54)
    return any(struct.unpack_from("<I", program, start + n * size)[0] == 3 for n in range(count))


def busybox_tree():
    """Return a tar of a root file system with nothing but a static busybox."""
    program = Path(shutil.which("busybox")).read_bytes()
    if needs_loader(program):
        lacking("busybox is not static: apt-get install busybox-static")
    applets = subprocess.run(["busybox", "--list"], capture_output=True, check=True, timeout=CALL_LIMIT_S)
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for folder, mode in (
            ("bin", 0o755),
            ("etc", 0o755),
            ("usr", 0o755),
            ("tmp", 0o1777),
            ("root", 0o700),
        ):
            add(tar, folder, tarfile.DIRTYPE, mode=mode)
        add(tar, "bin/busybox", tarfile.REGTYPE, program, mode=0o755)
        add(tar, "etc/passwd", tarfile.REGTYPE, b"root:x:0:0::/root:/bin/sh\n")
        for name in applets.stdout.decode().split():
            if name != "busybox":
                add(tar, f"bin/{name}", tarfile.SYMTYPE, target="busybox")
    return data.getvalue()


def empty_tree():
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        add(tar, "tmp", tarfile.DIRTYPE, mode=0o1777)
    return data.getvalue()


def add(tar, name, kind, data=b"", *, mode=0o644, target=""):
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode, entry.size, entry.linkname = kind, mode, len(data), target
    tar.addfile(entry, io.BytesIO(data))


def import_images(engine):
    engine.run("import", "-", IMAGE, input=busybox_tree())
    engine.run("import", "-", EMPTY, input=empty_tree())


def remove_tree(folder):
    """Remove an engine's folder and whatever is still mounted below it."""
    mounted = Path("/proc/self/mounts").read_text().splitlines()
    for target in sorted((line.split()[1] for line in mounted), reverse=True):
        if target.startswith(f"{folder}/"):
            subprocess.run(["umount", "--lazy", target], check=False)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def docker_engine():
    """A private dockerd, with images, and without any image registry."""
    absent = missing_program("dockerd", "docker", "busybox")
    if absent:
        lacking(f"{absent} is not installed: apt-get install docker.io busybox-static")
    if os.geteuid() != 0:
        lacking("a private docker daemon needs root")
    folder = tempfile.mkdtemp(prefix="inspan-dockerd-", dir="/tmp")
    argv = ["dockerd", "--data-root", f"{folder}/data", "--exec-root", f"{folder}/exec"]
    argv += ["--pidfile", f"{folder}/pid", "--host", f"unix://{folder}/sock"]
    argv += ["--iptables=false", "--bridge=none"]
    engine = RealEngine("docker", ("--host", f"unix://{folder}/sock"))
    with open(f"{folder}/log", "wb") as log:
        daemon = subprocess.Popen(argv, stdout=log, stderr=log, start_new_session=True)
    try:
        deadline = time.monotonic() + START_LIMIT_S
        while engine.run("version", check=False).returncode != 0:
            if daemon.poll() is not None or time.monotonic() > deadline:
                said = Path(f"{folder}/log").read_text(errors="replace").strip()[-600:]
                lacking(f"the docker daemon does not run here: {said}")
            time.sleep(0.05)
        import_images(engine)
        yield engine
    finally:
        if daemon.poll() is None:
            for name in engine.names():
                engine.run("rm", "--force", name, check=False)
            daemon.terminate()
        try:
            daemon.wait(timeout=CALL_LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(daemon.pid, signal.SIGKILL)
            daemon.wait()
        remove_tree(folder)


@pytest.fixture(scope="session")
def podman_engine():
    """A private podman storage, with images."""
    absent = missing_program("podman", "busybox")
    if absent:
        lacking(f"{absent} is not installed: apt-get install podman busybox-static")
    folder = tempfile.mkdtemp(prefix="inspan-podman-", dir="/tmp")
    engine = RealEngine("podman", ("--root", f"{folder}/root", "--runroot", f"{folder}/run"))
    try:
        seen = engine.run("info", check=False)
        if seen.returncode != 0:
            lacking(f"podman does not run here: {seen.stderr.decode(errors='replace').strip()[-600:]}")
        import_images(engine)
        yield engine
        for name in engine.names():
            engine.run("rm", "--force", "--time=0", name, check=False)
    finally:
        remove_tree(folder)


@pytest.fixture(scope="session")
def mounted_interpreters(tmp_path_factory):
    """Where the interpreter of mounted agents is made once."""
    return str(tmp_path_factory.mktemp("interpreters"))
