"""Call the engine's command line, and turn what it says into typed errors."""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import anyio
from attrs import field, frozen

from inspan_core.errors import (
    ImageMissing,
    MountConflict,
    ProviderUnavailable,
    SandboxConnectError,
    SandboxError,
    SandboxGone,
    SandboxTransportError,
)

VERSION_LIMIT_S = 20.0
MESSAGE_LIMIT_CHARS = 1000
# The engine's own environment: where it finds its daemon, its configuration and its helpers.
PASSED_NAMES = ("PATH", "HOME", "USER", "TMPDIR", "LANG", "DBUS_SESSION_BUS_ADDRESS", "SSH_AUTH_SOCK")
PASSED_PREFIXES = ("DOCKER_", "CONTAINER", "CONTAINERS_", "XDG_", "PODMAN_", "REGISTRY_")
CAP_SYS_RESOURCE = 24
MOST_PROCESSES = 32768

_KINDS: Sequence[tuple[type[SandboxError], str, str]] = (
    (
        ProviderUnavailable,
        r"permission denied.*(docker daemon|podman|\.sock)|newuidmap|cannot re-exec process",
        "this user may not use the engine: add it to the engine's group, or run as root",
    ),
    (
        ProviderUnavailable,
        r"cannot connect to the docker daemon|unable to connect to podman|error during connect|"
        r"is the docker daemon running|failed to connect to the docker api|connection refused",
        "the engine's daemon does not answer: start it, or set DOCKER_HOST",
    ),
    (
        ImageMissing,
        r"no such image|image not known|pull access denied|manifest unknown|manifest for .* not found|"
        r"unable to find image|short-name .* did not resolve|error pulling image|initializing source",
        "pull, build or import the image first, or set the option pull to missing",
    ),
    (
        SandboxGone,
        r"no such container|no container with name or id|is not running|container state improper|"
        r"can only create exec sessions on running containers|no such object|"
        r"procready not received|container .* has already been removed",
        "the sandbox no longer exists",
    ),
    (
        MountConflict,
        r"bind source path does not exist|duplicate mount (point|destination)|invalid mount|"
        r"error mounting|statfs .*: no such file|read-only file system|must be unique",
        "a mount could not be made",
    ),
)


@frozen(kw_only=True)
class Called:
    """How a call of the engine ended."""

    exit_code: int
    stdout: bytes
    stderr: bytes

    @property
    def said(self) -> str:
        """What it said about a failure, on one line."""
        return " ".join(self.stderr.decode("utf-8", "replace").split())[-MESSAGE_LIMIT_CHARS:]


@frozen(kw_only=True)
class Engine:
    """A docker or podman command line.

    Attributes:
        executable: Absolute path.
        options: Given before the subcommand, for example ``("-H", "unix:///run/other.sock")``.
        is_podman: Which of the two it is, whatever its name.
    """

    executable: str
    options: tuple[str, ...] = ()
    is_podman: bool = False
    env: Mapping[str, str] = field(factory=lambda: engine_environment(os.environ))

    def argv(self, *arguments: str) -> list[str]:
        """Return the whole command line of a subcommand."""
        return [self.executable, *self.options, *arguments]

    async def call(self, *arguments: str, timeout_s: float) -> Called:
        """Run a subcommand to its end; its output is small and text.

        Raises:
            SandboxTransportError: It did not end in time.
        """
        try:
            with anyio.fail_after(timeout_s):
                run = await anyio.run_process(
                    self.argv(*arguments), check=False, stdin=subprocess.DEVNULL, env=dict(self.env)
                )
        except TimeoutError as error:
            what = f"{os.path.basename(self.executable)} {arguments[0]}"
            raise SandboxTransportError(f"{what}: no answer within {timeout_s:g} s") from error
        return Called(exit_code=run.returncode, stdout=run.stdout, stderr=run.stderr)

    async def asked(self, *arguments: str, what: str, timeout_s: float) -> str:
        """Return what a subcommand prints.

        Raises:
            ProviderUnavailable, ImageMissing, SandboxGone, SandboxError: It failed; see `explained`.
        """
        called = await self.call(*arguments, timeout_s=timeout_s)
        if called.exit_code != 0:
            raise explained(called.said, what=what)
        return called.stdout.decode("utf-8", "replace").strip()

    @property
    def is_local(self) -> bool:
        """Whether the daemon is on this host, as far as the command line tells."""
        given = [self.env.get("DOCKER_HOST", ""), self.env.get("CONTAINER_HOST", "")]
        if not self.is_podman:
            given = given[:1]
        for name, value in zip(self.options, (*self.options, "")[1:], strict=True):
            if name in ("-H", "--host", "--url"):
                given = [value]
            elif name.startswith(("--host=", "--url=")):
                given = [name.split("=", 1)[1]]
            elif name in ("-r", "--remote", "-c", "--context", "--connection"):
                return False
        return all(not one or one.startswith("unix://") for one in given)


def find_engine(name: str, options: Sequence[str]) -> Engine:
    """Return the engine of a name or path.

    Raises:
        ProviderUnavailable: It is not there, or does not run.
    """
    path = shutil.which(name)
    if path is None:
        raise ProviderUnavailable(
            f"{name} was not found; install it, for example with: apt-get install docker.io (or podman)"
        )
    env = engine_environment(os.environ)
    try:
        run = subprocess.run(
            [path, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=VERSION_LIMIT_S,
            env=env,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ProviderUnavailable(f"{path} does not run: {error}") from error
    if run.returncode != 0:
        raise ProviderUnavailable(f"{path} does not run: {run.stderr.decode('utf-8', 'replace').strip()}")
    is_podman = b"podman" in run.stdout.lower()
    return Engine(executable=path, options=tuple(options), is_podman=is_podman, env=env)


def engine_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what the engine gets of an environment: nothing of the server's own."""
    return {
        name: value
        for name, value in environ.items()
        if name in PASSED_NAMES or name.startswith(PASSED_PREFIXES)
    }


def explained(said: str, *, what: str) -> SandboxError:
    """Return the error that the engine's words mean.

    Args:
        said: Its standard error.
        what: Of what it speaks, for example ``image debian:12``.
    """
    text = " ".join(said.split())[-MESSAGE_LIMIT_CHARS:]
    for kind, pattern, meaning in _KINDS:
        if re.search(pattern, text, re.IGNORECASE):
            return kind(f"{what}: {meaning} (the engine says: {text})")
    return SandboxConnectError(f"{what}: the engine says: {text or 'nothing'}")


def needed_limits() -> list[str]:
    """Return the engine options without which podman cannot start containers here.

    Its defaults raise limits, which needs a capability that a root in a container or a unit may lack.
    """
    for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith("CapEff:") and int(line.split()[1], 16) >> CAP_SYS_RESOURCE & 1:
            return []
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    processes = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    most = MOST_PROCESSES if processes == resource.RLIM_INFINITY else min(processes, MOST_PROCESSES)
    return [f"--ulimit=nofile={files}:{files}", f"--ulimit=nproc={most}:{most}"]
