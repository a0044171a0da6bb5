"""What a harness plugin sees: its declaration, the context that its hooks receive, and what they return.

A plugin imports only `inspan_core`. `inspan_runtime` implements the Protocols below.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

from attrs import field, frozen

from inspan_core.findings import Outcome
from inspan_core.observations import AgentObservationBundle
from inspan_core.sandbox import Sandbox
from inspan_core.wire import ToolAccess

ModelApi = Literal["chat_completions", "responses"]
FieldUse = Literal["applied", "refused", "ignored"]
ToolSource = Literal["builtin", "direct_http", "mcp"]


@frozen(kw_only=True)
class SandboxNeeds:
    """What a harness needs of a sandbox beside its runtime; looked at when a session is seeded.

    Attributes:
        programs: Utilities that its tools call, found by PATH, for example ``("git", "tar")``.
        certificates: Whether it needs the sandbox's CA certificates.
        free_mib: How much must be free where session files go.
    """

    programs: tuple[str, ...] = ()
    certificates: bool = False
    free_mib: float = 0.0


@frozen(kw_only=True)
class HarnessSpec:
    """A plugin's declaration.

    Attributes:
        name: Unique, lower case, for example ``"pi"``.
        version: The pinned version of the program.
        model_api: The API that the harness speaks to the Model Server.
        level: What the adapter supports: 1 host call, 2 sandboxed session, 3 tool grants,
            4 trajectory evidence, 5 training.
        request_fields: What becomes of each field of a Responses request; a field that is not
            listed is refused. ``input`` and ``metadata`` must be listed.
        tool_sources: Where its tools may come from.
        builtin_tools: Names that a grant must not take.
        options: Defaults of the harness's own options (the configuration's ``harness_options``);
            a key that is not here is refused, a value of another type too.
        check_options: Called with the complete options when a server starts; raises `ConfigError` for a value
            that does not fit. None: types are all there is to check.
        summary: One sentence for listings.
        needs: What a sandbox must have; one that lacks it is refused (422) before anything is installed.
    """

    name: str
    version: str
    model_api: ModelApi
    level: int
    request_fields: Mapping[str, FieldUse]
    tool_sources: frozenset[ToolSource] = frozenset({"builtin"})
    builtin_tools: frozenset[str] = frozenset()
    options: Mapping[str, Any] = field(factory=dict[str, Any])
    check_options: Callable[[Mapping[str, Any]], object] | None = field(default=None, repr=False, eq=False)
    summary: str = ""
    needs: SandboxNeeds = field(factory=SandboxNeeds)


@frozen(kw_only=True)
class SandboxCommand:
    """What the supervisor starts.

    Attributes:
        argv: Absolute program and arguments. Never holds prompts or secrets: any process of the sandbox
            can read it.
        env: The harness's own variables, on top of the sandbox's environment. Travels in a file.
        python: The sandbox's interpreter that runs the supervisor; found at installation.
    """

    argv: Sequence[str]
    python: str
    env: Mapping[str, str] = field(factory=dict[str, str])


@frozen(kw_only=True)
class Target:
    """What runs in a sandbox, as probed there.

    Attributes:
        os: ``"linux"``.
        arch: ``"x86_64"`` or ``"aarch64"``, as ``uname -m`` prints it.
        libc: ``"glibc"``, ``"musl"`` or ``"unknown"``.
        libc_version: For example ``"2.36"``, or None.
        python: Absolute path of a real Python >= 3.8 that loads the supervisor, or None.
        python_version: For example ``"3.11.2"``, or None.
    """

    os: str
    arch: str
    libc: str
    libc_version: str | None = None
    python: str | None = None
    python_version: str | None = None


@frozen(kw_only=True)
class RuntimeArchive:
    """A host-side archive of a harness runtime.

    Attributes:
        path: Absolute path of the tar file on the host.
        sha256: Its digest, verified when it was made and each time it is used.
    """

    path: str
    sha256: str


@frozen(kw_only=True)
class RuntimeKey:
    """Names one archive of the host cache."""

    harness: str
    version: str
    os: str
    arch: str
    libc: str

    def __str__(self) -> str:
        return f"{self.harness}-{self.version}-{self.os}-{self.arch}-{self.libc}"


class BuildFolder(Protocol):
    """A private folder of the host in which a runtime archive is put together."""

    @property
    def path(self) -> str:
        """Absolute path; what lies in it at the end becomes the archive."""
        ...

    async def fetch_wheel(self, requirement: str, *, sha256: Sequence[str], platforms: Sequence[str]) -> str:
        """Download one wheel by ``name==version`` with the ordinary package client, for a platform tag.

        Returns:
            The absolute path of the folder where the wheel was unpacked, outside `path`.

        Raises:
            InstallError: It cannot be had, or its digest is none of `sha256`.
        """
        ...

    async def fetch_npm_package(self, spec: str, *, integrity: str) -> str:
        """Download one npm package by ``name@version`` with the ordinary package client, and nothing else.

        No script of the package is run. The client is that of the pinned Node, see `inspan_core.node_wheels`.

        Args:
            integrity: ``sha512-`` and the archive's digest in base64, as lockfiles hold it.

        Returns:
            The absolute path of the folder where the package was unpacked, outside `path`.

        Raises:
            InstallError: It cannot be had, or its digest is another.
        """
        ...

    async def run(self, argv: Sequence[str], *, cwd: str, env: Mapping[str, str], timeout_s: float) -> str:
        """Run a build command on the host; its combined output (tail).

        The command sees only a minimal environment, `env`, and the proxy and certificate settings that
        package clients need.

        Raises:
            InstallError: It failed; holds command, exit code and output.
        """
        ...


class Installer(Protocol):
    """Installs runtimes into the sandbox of one session, from a verified host cache."""

    async def target(self) -> Target:
        """Probe the sandbox (once)."""
        ...

    async def archive(
        self, key: RuntimeKey, build: Callable[[BuildFolder], Awaitable[None]]
    ) -> RuntimeArchive:
        """The cached archive of `key`; built once, however many sessions ask, and verified at each use."""
        ...

    async def publish(
        self, key: RuntimeKey, archive: RuntimeArchive, *, health: Sequence[str], expect: str
    ) -> str:
        """Unpack the archive into a private folder of the sandbox, check it, and publish it atomically.

        ``{prefix}`` in `health` stands for the folder. A runtime that is already published and healthy is
        reused; a broken one is rebuilt once.

        Args:
            health: Command that must exit 0.
            expect: Text that its output must contain, for example the version.

        Returns:
            The absolute prefix inside the sandbox.

        Raises:
            InstallError: Its health check fails; holds command, exit code and output.
        """
        ...

    async def healthy(self, prefix: str, *, health: Sequence[str], expect: str) -> bool:
        """Whether the runtime at `prefix` carries its ready marker and passes `health`."""
        ...

    def prefix(self, key: RuntimeKey) -> str:
        """Where `publish` puts this runtime inside the sandbox: no need of the archive to know it."""
        ...


class HarnessContext(Protocol):
    """What `inspan_install` receives, and what the other contexts share."""

    @property
    def sandbox(self) -> Sandbox:
        """The session's sandbox."""
        ...

    @property
    def session_dir(self) -> str:
        """Absolute folder inside the sandbox for this session's files; outside workdir, removed by close."""
        ...

    @property
    def workdir(self) -> str:
        """Absolute folder of the task inside the sandbox."""
        ...

    @property
    def installer(self) -> Installer:
        """Installs runtimes."""
        ...

    @property
    def options(self) -> Mapping[str, Any]:
        """The harness's options: its declared defaults with the configuration's over them."""
        ...

    @property
    def tool_accesses(self) -> Sequence[ToolAccess]:
        """The tool grants that the harness has to make usable: only kinds that it declares."""
        ...

    async def upload_text(self, name: str, text: str, *, mode: int = 0o600) -> str:
        """Write ``session_dir/name``; returns the absolute path inside."""
        ...

    async def read_text(self, name: str, *, limit_bytes: int, tail: bool = False) -> str:
        """Read ``session_dir/name``; undecodable bytes are replaced."""
        ...


class ActivationContext(HarnessContext, Protocol):
    """What `inspan_stage` receives."""

    @property
    def request(self) -> Mapping[str, Any]:
        """The Responses request, checked against the declaration."""
        ...

    @property
    def runtime(self) -> Mapping[str, Any]:
        """What `inspan_install` returned."""
        ...

    @property
    def model_base_url(self) -> str:
        """The rollout-prefixed model URL, ends with ``/v1``, reachable from inside."""
        ...

    @property
    def model_name(self) -> str:
        """The model to ask for."""
        ...

    @property
    def model_key(self) -> str:
        """The episode's own key for the Model Server; never put it in argv or logs."""
        ...

    @property
    def run_timeout_s(self) -> float:
        """The run's time budget in seconds."""
        ...


class CollectContext(HarnessContext, Protocol):
    """What `inspan_collect` receives, after confirmed termination."""

    async def download(
        self, name: str, *, limit_bytes: int, tail: bool = False, optional: bool = False
    ) -> bool:
        """Copy ``session_dir/name`` into the artifacts under `name`.

        A missing, unsafe or oversized file is recorded as an artifact problem (it becomes a gap), not
        raised; a broken connection raises.

        Args:
            optional: Whether the file may be missing without being missed.

        Returns:
            Whether the file was copied.
        """
        ...


@frozen(kw_only=True)
class ArtifactProblem:
    """An artifact that could not be had, in words for an `ObservationGap`.

    Attributes:
        name: The artifact's name.
        code: ``artifact_missing``, ``artifact_unsafe``, ``artifact_too_large`` or ``artifact_truncated``.
        detail: One sentence.
    """

    name: str
    code: str
    detail: str


@frozen(kw_only=True)
class Artifacts:
    """What was collected, on the host.

    Attributes:
        files: Name below session_dir to bytes.
        problems: What could not be had, or only in part.
    """

    files: Mapping[str, bytes] = field(factory=dict[str, bytes])
    problems: Sequence[ArtifactProblem] = ()


@frozen(kw_only=True)
class ParseInput:
    """All that a parser may look at.

    Attributes:
        artifacts: The collected files.
        request: The Responses request.
        return_code: The harness's exit code by the receipt, negative for a signal, or None.
        timed_out: Whether the run's deadline fired.
        interrupted: Whether close cut the run off.
        model_name: The model that was asked for.
        sandbox_id: For tool call records.
        options: As in the contexts.
    """

    artifacts: Artifacts
    request: Mapping[str, Any]
    return_code: int | None
    timed_out: bool
    interrupted: bool
    model_name: str
    sandbox_id: str | None = None
    options: Mapping[str, Any] = field(factory=dict[str, Any])


@frozen(kw_only=True)
class ParsedActivation:
    """What a parser returns.

    Attributes:
        outcome: COMPLETED (the harness finished by itself) and INCOMPLETE (a model or configured limit;
            partial work may be graded) are answered 200, FAILED (provider, launch, harness or model failure
            that a retry may cure) 503, UNPROCESSABLE (what a retry cannot fix: 401, an overflow with nothing
            to grade) 422.
        response: A Responses API object; None when there is none to answer with.
        observations: Records and gaps.
        detail: For FAILED and UNPROCESSABLE: the sentence or object for ``detail``.
    """

    outcome: Outcome
    response: Mapping[str, Any] | None
    observations: AgentObservationBundle
    detail: Any = None
