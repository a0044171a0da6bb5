"""Real container engines for tests and benchmarks: a private docker daemon, a private podman storage.

Nothing of the host's own engine is touched, and no image registry is needed: the images are made on the spot
from a static busybox.
"""

from __future__ import annotations

import io
import os
import shutil
import signal
import struct
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attrs import frozen

IMAGE = "inspan-busybox"
EMPTY = "inspan-empty"
START_LIMIT_S = 40.0
CALL_LIMIT_S = 60.0
POLL_S = 0.05
SAID_LIMIT_CHARS = 600
FOLDERS = (("bin", 0o755), ("etc", 0o755), ("usr", 0o755), ("tmp", 0o1777), ("root", 0o700))
PT_INTERP = 3


class NoEngine(Exception):
    """No real engine can run here; the message says why."""


@frozen
class PrivateEngine:
    """The command line of a private engine.

    Attributes:
        name: ``docker`` or ``podman``.
        options: What leads it to the private one.
    """

    name: str
    options: tuple[str, ...]

    def run(
        self, *arguments: str, check: bool = True, input: bytes | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a subcommand to its end."""
        argv = [self.name, *self.options, *arguments]
        return subprocess.run(argv, check=check, capture_output=True, timeout=CALL_LIMIT_S, input=input)

    def said(self, *arguments: str) -> str:
        """Return what a subcommand prints."""
        return self.run(*arguments).stdout.decode().strip()

    def names(self, *arguments: str) -> list[str]:
        """Return the names of all containers, ended ones too; arguments filter them."""
        return self.said("ps", "--all", "--format={{.Names}}", *arguments).split()

    def remove_all(self) -> None:
        """Remove all containers."""
        time_option = ["--time=0"] if self.name == "podman" else []
        for name in self.names():
            self.run("rm", "--force", *time_option, name, check=False)


@contextmanager
def private_docker(hidden: str | None = None) -> Iterator[PrivateEngine]:
    """A private docker daemon with the images `IMAGE` and `EMPTY`; nothing of it is left.

    Args:
        hidden: A folder of the host that the daemon does not see, as one on another host would not.

    Raises:
        NoEngine: It cannot run here.
    """
    _need("docker.io busybox-static", "dockerd", "docker", "busybox")
    if os.geteuid() != 0:
        raise NoEngine("a private docker daemon needs root")
    folder = tempfile.mkdtemp(prefix="inspan-dockerd-", dir="/tmp")
    argv = ["dockerd", "--data-root", f"{folder}/data", "--exec-root", f"{folder}/exec"]
    argv += [
        "--pidfile",
        f"{folder}/pid",
        "--host",
        f"unix://{folder}/sock",
        "--iptables=false",
        "--bridge=none",
    ]
    if hidden is not None:
        hide = 'mount -t tmpfs none "$0" && exec "$@"'
        argv = ["unshare", "--mount", "--propagation", "private", "sh", "-c", hide, hidden, *argv]
    if shutil.which("setpriv") is not None:  # A test process that is killed must not leave its daemon behind.
        argv = ["setpriv", "--pdeathsig", "TERM", "--", *argv]
    engine = PrivateEngine("docker", ("--host", f"unix://{folder}/sock"))
    with open(f"{folder}/log", "wb") as log:
        daemon = subprocess.Popen(argv, stdout=log, stderr=log, start_new_session=True)
    try:
        deadline = time.monotonic() + START_LIMIT_S
        while engine.run("version", check=False).returncode != 0:
            if daemon.poll() is not None or time.monotonic() > deadline:
                said = Path(f"{folder}/log").read_text(errors="replace").strip()
                raise NoEngine(f"the docker daemon does not run here: {said[-SAID_LIMIT_CHARS:]}")
            time.sleep(POLL_S)
        _import_images(engine)
        yield engine
        engine.remove_all()
    finally:
        daemon.terminate()
        try:
            daemon.wait(timeout=CALL_LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(daemon.pid, signal.SIGKILL)
            daemon.wait()
        _remove_tree(folder)


@contextmanager
def private_podman() -> Iterator[PrivateEngine]:
    """A private podman storage, likewise.

    Raises:
        NoEngine: It cannot run here.
    """
    _need("podman busybox-static", "podman", "busybox")
    folder = tempfile.mkdtemp(prefix="inspan-podman-", dir="/tmp")
    engine = PrivateEngine("podman", ("--root", f"{folder}/root", "--runroot", f"{folder}/run"))
    try:
        seen = engine.run("info", check=False)
        if seen.returncode != 0:
            said = seen.stderr.decode(errors="replace").strip()
            raise NoEngine(f"podman does not run here: {said[-SAID_LIMIT_CHARS:]}")
        _import_images(engine)
        yield engine
        engine.remove_all()
    finally:
        _remove_tree(folder)


def _need(packages: str, *programs: str) -> None:
    for name in programs:
        if shutil.which(name) is None:
            raise NoEngine(f"{name} is not installed: apt-get install {packages}")


def _import_images(engine: PrivateEngine) -> None:
    engine.run("import", "-", IMAGE, input=busybox_tree())
    engine.run("import", "-", EMPTY, input=_tree([("tmp", 0o1777)], {}, {}))


def busybox_tree() -> bytes:
    """Return a tar of a root file system with nothing but a static busybox.

    Raises:
        NoEngine: The busybox here needs libraries.
    """
    program = Path(shutil.which("busybox") or "").read_bytes()
    if _needs_loader(program):
        raise NoEngine("busybox is not static: apt-get install busybox-static")
    listed = subprocess.run(["busybox", "--list"], capture_output=True, check=True, timeout=CALL_LIMIT_S)
    links = {f"bin/{one}": "busybox" for one in listed.stdout.decode().split() if one != "busybox"}
    files = {"bin/busybox": (0o755, program), "etc/passwd": (0o644, b"root:x:0:0::/root:/bin/sh\n")}
    return _tree(FOLDERS, files, links)


def _needs_loader(program: bytes) -> bool:
    """Whether an ELF program names a loader (PT_INTERP)."""
    is_wide = program[4] == 2
    (start,) = struct.unpack_from("<Q" if is_wide else "<I", program, 32 if is_wide else 28)
    size, count = struct.unpack_from("<HH", program, 54 if is_wide else 42)
    return any(struct.unpack_from("<I", program, start + n * size)[0] == PT_INTERP for n in range(count))


def _tree(
    folders: tuple[tuple[str, int], ...] | list[tuple[str, int]],
    files: dict[str, tuple[int, bytes]],
    links: dict[str, str],
) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for name, mode in folders:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, mode
            tar.addfile(entry)
        for name, (mode, content) in files.items():
            entry = tarfile.TarInfo(name)
            entry.mode, entry.size = mode, len(content)
            tar.addfile(entry, io.BytesIO(content))
        for name, target in links.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            tar.addfile(entry)
    return data.getvalue()


def _remove_tree(folder: str) -> None:
    """Remove an engine's folder and whatever is still mounted below it."""
    mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    for target in sorted((line.split()[1] for line in mounts), reverse=True):
        if target.startswith(f"{folder}/"):
            subprocess.run(["umount", "--lazy", target], check=False, timeout=CALL_LIMIT_S)
    shutil.rmtree(folder, ignore_errors=True)
