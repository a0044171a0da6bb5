"""What a task sandbox and its provider must do: the small Protocols that every provider keeps.

One behaviour per operation, the same on every provider:

* every operation is bounded, in time by ``timeout_s`` and in size by ``*_limit_bytes``;
* a command's deadline is enforced inside the sandbox, and cancelling the `exec` call kills the
  command's process group there: the client's death is never mistaken for the command's, and a client that
  dies without cancelling leaves the command to run until its deadline;
* no file operation follows a symbolic link in its last component or reads anything but a regular file;
* `disconnect` never stops the sandbox, `stop` is idempotent ("no such sandbox" is success).

A descriptor is a plain JSON object, enough to reach the sandbox from another process. Beside what its
provider needs it may name ``workdir``, ``python`` (an interpreter inside) and ``scratch`` (an absolute folder
inside, apart from workdir, that goes when the sandbox goes).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeGuard, runtime_checkable

from attrs import field, frozen

DEFAULT_OUTPUT_LIMIT_BYTES = 1024 * 1024
DEFAULT_FILE_LIMIT_BYTES = 64 * 1024 * 1024

Descriptor = Mapping[str, Any]


@frozen(kw_only=True)
class Mount:
    """A host folder or file shown inside the sandbox.

    Attributes:
        source: Absolute path on the host.
        target: Absolute path inside, outside of workdir.
        read_only: Whether writes inside are refused.
    """

    source: str
    target: str
    read_only: bool = True


@frozen(kw_only=True)
class SandboxSpec:
    """What to create.

    Attributes:
        workdir: Absolute path of the task's folder inside; made if it does not exist.
        root: What the root file system is made of: ``"host"`` (the host's, secrets hidden), or an
            absolute host path of a root file system: a folder, or a tar of one. Providers of images
            take ``image`` instead.
        image: An image reference, for providers that have images.
        env: The environment of every command, on top of a minimal PATH, HOME and LANG.
        ttl_s: The sandbox ends by itself after this many seconds, whatever became of its creator;
            None: never.
        labels: Free labels to find it by (`SandboxProvider.list`).
        mounts: Host paths shown inside.
        reach: URLs of the host's loopback that are reached inside under the same address,
            for example ``("http://127.0.0.1:8080",)``. Nothing else of the host's network is.
        cpu: How many processors' time all of it gets at most, greater than 0; None: no limit.
        memory_mib: How much memory all of it uses at most, in MiB; None: no limit.
        pids: How many processes and threads it has at most; None: no limit.

    A provider that cannot keep a limit refuses it.
    """

    workdir: str
    root: str = "host"
    image: str | None = None
    env: Mapping[str, str] = field(factory=dict[str, str])
    ttl_s: float | None = 24 * 3600.0
    labels: Mapping[str, str] = field(factory=dict[str, str])
    mounts: tuple[Mount, ...] = ()
    reach: tuple[str, ...] = ()
    cpu: float | None = None
    memory_mib: int | None = None
    pids: int | None = None


@frozen(kw_only=True)
class ExecResult:
    """How a command ended.

    Attributes:
        exit_code: Its exit code, 128 + n when it died by signal n, 127 when it was not found.
        stdout: At most the requested number of bytes: the tail when it was longer.
        stderr: Likewise.
        stdout_truncated: Whether bytes were dropped from stdout.
        stderr_truncated: Likewise.
        out_of_memory: Whether the sandbox's memory limit killed something while the command ran.
    """

    exit_code: int
    stdout: bytes = b""
    stderr: bytes = b""
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    out_of_memory: bool = False


@frozen(kw_only=True)
class FileContent:
    """A bounded read.

    Attributes:
        data: The bytes, the tail of the file when `truncated`.
        size_bytes: The file's size when it was opened.
        truncated: Whether `data` is only the tail.
    """

    data: bytes
    size_bytes: int
    truncated: bool = False


@frozen(kw_only=True)
class ResourceUsage:
    """What a sandbox has used so far; for the observations' record of it.

    Attributes:
        cpu_time_s: Seconds of processor time of all its commands that have ended; None: unknown.
        peak_memory_mib: The most memory at a time, in MiB; None: unknown.
        source: Where the figures come from: ``"processes"``: of those that have ended, the memory is the
            largest one's.
    """

    cpu_time_s: float | None = None
    peak_memory_mib: float | None = None
    source: str


@runtime_checkable
class Sandbox(Protocol):
    """A running sandbox."""

    @property
    def descriptor(self) -> Descriptor:
        """A JSON object that `SandboxProvider.connect` takes."""
        ...

    @property
    def sandbox_id(self) -> str:
        """The provider's name for it, for observations and messages."""
        ...

    async def exec(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: bytes = b"",
        output_limit_bytes: int = DEFAULT_OUTPUT_LIMIT_BYTES,
    ) -> ExecResult:
        """Run a command to its end, in a new session of its own.

        It ends when the command's own process has ended, although a child may hold its output open.

        Args:
            argv: Program and arguments; the program is looked up in the sandbox's PATH.
            timeout_s: Seconds until the command's process group is killed.
            env: Added to the sandbox's environment for this command.
            cwd: Absolute folder inside; the sandbox's workdir by default.
            stdin: Given to the command, then closed.
            output_limit_bytes: How much of stdout and of stderr is kept, each (the tail).

        Raises:
            ExecTimeout: The deadline passed and the command's process group was killed.
            SandboxGone: The sandbox no longer exists.
            SandboxTransportError: The connection broke; what the command did is unknown.
        """
        ...

    async def upload(self, path: str, data: bytes, *, mode: int = 0o644, timeout_s: float = 60.0) -> None:
        """Write a file atomically (temporary name beside it, then rename); parents are made.

        Raises:
            UnsafePath: `path` is not absolute, or its last component is a link or a folder.
            SandboxGone, SandboxTransportError: As for `exec`.
        """
        ...

    async def upload_file(
        self, path: str, source: str, *, mode: int = 0o644, timeout_s: float = 600.0
    ) -> None:
        """Like `upload`, from a file of the host, streamed: for files of hundreds of megabytes."""
        ...

    async def download(
        self, path: str, *, limit_bytes: int, tail: bool = False, timeout_s: float = 60.0
    ) -> FileContent:
        """Read a regular file, without following a link in its last component.

        Args:
            limit_bytes: The most that is read.
            tail: A longer file gives its tail; otherwise it is an error.

        Raises:
            FileNotFoundError: There is no such file.
            UnsafePath: It is a link, FIFO, device or folder.
            TooLarge: It is longer than `limit_bytes` and `tail` is false.
            SandboxGone, SandboxTransportError: As for `exec`.
        """
        ...

    async def is_alive(self) -> bool:
        """Whether the provider says that the sandbox exists. Raises SandboxTransportError when unknown."""
        ...

    async def disconnect(self) -> None:
        """Drop the connection; the sandbox lives on."""
        ...

    async def stop(self) -> None:
        """End the sandbox and all in it, and confirm it. A sandbox that is gone is success."""
        ...


@runtime_checkable
class MeteredSandbox(Protocol):
    """A sandbox that also tells what it has used; not every provider's does."""

    async def usage(self) -> ResourceUsage:
        """Return what was used since the sandbox was created.

        Raises:
            SandboxGone, SandboxTransportError: As for `Sandbox.exec`.
        """
        ...


class Reached(Protocol):
    """A way from inside to one URL of the host, held until it is closed."""

    @property
    def url(self) -> str:
        """The URL to use inside: the host's own, or with another port where that is taken inside."""
        ...

    async def close(self) -> None:
        """Let go of it; when nobody else holds it, nothing inside reaches the URL any more.

        A way that is gone is success. A holder that dies without closing keeps it for some minutes, in which
        another process can take it over (`ReachingSandbox.reach`).
        """
        ...


@runtime_checkable
class ReachingSandbox(Protocol):
    """A sandbox into which ways can be opened after its creation, also by who borrows it."""

    async def reach(self, url: str, *, holder: str, timeout_s: float = 30.0) -> Reached | None:
        """Let one URL of this host's loopback be reached from inside, and nothing else.

        Args:
            url: Whose host and port are meant.
            holder: Who holds it: several may hold a way to one URL, each lets go of its own. Whoever asks
                again under a holder's name takes that one's place.
            timeout_s: Seconds until it is given up.

        Returns:
            The way; None where nothing has to be opened: the URL names no address of the loopback, the
            sandbox has the host's network, or its owner declared the URL (`SandboxSpec.reach`).

        Raises:
            ReachUnavailable: The provider cannot open a way here.
            SandboxGone, SandboxTransportError: As for `Sandbox.exec`.
        """
        ...


def is_metered(sandbox: object) -> TypeGuard[MeteredSandbox]:
    """What ``isinstance`` tells of the protocol, for a tenth of its time: each session asks."""
    return callable(getattr(sandbox, "usage", None))


def is_reaching(sandbox: object) -> TypeGuard[ReachingSandbox]:
    """As `is_metered`, of `ReachingSandbox`."""
    return callable(getattr(sandbox, "reach", None))


@runtime_checkable
class SandboxProvider(Protocol):
    """Makes and finds sandboxes of one kind.

    It may have an attribute ``capabilities``, a set of names out of
    `inspan_runtime.testing.sandbox_checks.CAPABILITIES`, and ``options``, what its factory was called with.
    """

    @property
    def name(self) -> str:
        """The kind, for example ``"bubblewrap"``."""
        ...

    async def create(self, spec: SandboxSpec, *, key: str, timeout_s: float = 60.0) -> Sandbox:
        """Create a sandbox labelled with `key` before anything of it exists.

        A second create with a key that is alive connects to that one: one sandbox per key.

        Raises:
            SandboxCreateError: It could not be made; nothing of it is left.
            MountConflict: A mount cannot be made.
            ProviderUnavailable: The host lacks something; the message says what.
            ImageMissing: The provider has images, and not this one.
        """
        ...

    async def connect(self, descriptor: Descriptor, *, timeout_s: float = 30.0) -> Sandbox:
        """Reach a running sandbox, also one that another process made.

        Raises:
            SandboxConnectError: The descriptor is not of this provider or malformed.
            SandboxGone: The sandbox no longer exists.
            SandboxTransportError: It did not answer; it may later.
        """
        ...

    async def stop(self, key: str, *, timeout_s: float = 30.0) -> None:
        """Stop the sandbox created with `key`; none is success."""
        ...

    async def list(self, labels: Mapping[str, str]) -> list[Descriptor]:
        """Descriptors of the running sandboxes that carry all of `labels`."""
        ...

    async def aclose(self) -> None:
        """Release what the provider holds in this process; its sandboxes live on."""
        ...
