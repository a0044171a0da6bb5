"""The Agent Server's configuration: one frozen value, with the contract's names.

`inspan_server.agent.config_reading` reads it, `inspan_server.agent.config_check` holds the rules over more
than one field. `docs/configuration.md` describes each key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from attrs import field, frozen

from inspan_core.constraints import HttpUrl, Text, Whole
from inspan_core.wire import AbsolutePath, ToolAccess

SECRET_LENGTH = 16
KEY_PATTERN = r"^[\x21-\x7e]+$"
"""It travels in a header, and a client that refuses it would repeat it in its error."""


@frozen(kw_only=True)
class ModelServerConfig:
    """Where the Model Server is.

    Attributes:
        base_url: Without rollout prefix and ``/v1``. On this host's loopback, sandboxes reach it under the
            same address, or at another port where that one is taken inside; the harness is told which.
        name: The model to ask for.
        api_key: The key for every episode, or None where the server asks for none.
    """

    base_url: Annotated[str, HttpUrl()]
    name: Annotated[str, Text(min_length=1)] = "policy"
    api_key: Annotated[str, Text(pattern=KEY_PATTERN)] | None = field(default=None, repr=False)


@frozen(kw_only=True)
class ResourcesServerConfig:
    """The Resources Server of the compatibility endpoint ``/run``.

    Attributes:
        base_url: Where it is, without a final path.
        timeout_s: Most seconds of each call to it.
    """

    base_url: Annotated[str, HttpUrl()]
    timeout_s: float = 600.0


@frozen(kw_only=True)
class TlsConfig:
    """The server's certificate, as PEM files.

    Attributes:
        certfile: The certificate with its chain.
        keyfile: Its private key.
        keyfile_password: Of an encrypted key.
        ca_certs: Only clients with a certificate by these authorities are let in.
    """

    certfile: AbsolutePath
    keyfile: AbsolutePath
    keyfile_password: str | None = field(default=None, repr=False)
    ca_certs: AbsolutePath | None = None


@frozen(kw_only=True)
class MountConfig:
    """A host path shown inside a sandbox of ours."""

    source: AbsolutePath
    target: AbsolutePath
    read_only: bool = True


@frozen(kw_only=True)
class SandboxConfig:
    """What to create for a session that brings no sandbox.

    Attributes:
        workdir: Absolute folder of the task inside.
        ttl_s: The sandbox ends by itself after so many seconds; "auto": after installation, run and ten
            minutes; null: never.
        cpu: Most processors' time of all of it; null: no limit.
        memory_mib: Most memory of all of it, in MiB; null: no limit.
        pids: Most processes and threads in it; null: no limit.
    """

    workdir: AbsolutePath = "/workspace"
    root: str = "host"
    image: str | None = None
    env: Mapping[str, str] = field(factory=dict)
    ttl_s: float | Literal["auto"] | None = "auto"
    labels: Mapping[str, str] = field(factory=dict)
    mounts: tuple[MountConfig, ...] = ()
    reach: tuple[Annotated[str, HttpUrl()], ...] = ()
    cpu: float | None = None
    memory_mib: Annotated[int, Whole(minimum=1)] | None = None
    pids: Annotated[int, Whole(minimum=1)] | None = None


@frozen(kw_only=True)
class AgentConfig:
    """The Agent Server.

    Attributes:
        harness: Name of an installed harness.
        host: Interface to listen on.
        port: 0: any free port.
        timeout: Most seconds of a run; a request may ask for less.
        concurrency: How many runs may be under way at once.
        host_execution: Whether ``/v1/responses`` without a session runs the harness on this server's own
            host, which isolates nothing.
        resources_server: For the compatibility endpoint ``/run``; null: it is refused.
        token_id_capture: Whether training tokens are captured; needs a harness of level 5.
        tool_accesses: Grants for every episode, under those of the episode with the same name.
        sandbox_provider: The block of `sandbox_providers` for sessions that bring no sandbox; null: they
            are refused.
        sandbox_config: What to create there.
        sandbox_providers: Provider blocks by name, which seeds refer to: ``kind`` and the kind's options.
        session_close_timeout_seconds: For each step of a close, by itself.
        sandbox_runner_timeout_seconds: Upper bound of `timeout`.
        session_close_retry_window_seconds: How long the answer of a close is kept.
        num_workers: Session state lives in one process.
        session_dir_root: Absolute folder inside sandboxes for session files; null: a folder that goes with
            the sandbox where it has one, else ``/tmp/inspan``.
        state_dir: Folder of the journal, which lets a restarted server take its sessions over; null: they
            end with the process.
        runtime_cache_dir: The host's cache of harness runtimes; null: the user's cache folder.
        harness_options: The harness's own options.
        cookie_secret: Signs session cookies; null: made at first start and kept in `state_dir`.
        journal_sync: ``normal``: the journal survives the death of the server; ``full``: of the machine too.
        process_drain: What a harness's end does to processes outside of its group: ``seed``: services that
            it left live on, as the specification has it; ``all``: everything that it started is killed.
        drain_timeout_seconds: At SIGTERM, how long runs under way may go on before they are left to the next
            server; with a journal only.
        recovery_timeout_seconds: How long new seeds wait for what a dead server left, at most.
        bearer_token: What clients must send as ``Authorization: Bearer ...``; null: they need not.
        allow_unauthenticated: Whether to listen beyond loopback without a `bearer_token`.
        tls: Serve HTTPS; null: plain HTTP.
        body_limit_bytes: Of a request.
        header_limit_bytes: Of a request's line and headers together.
        body_timeout_seconds: How long a client may take to send a request's body.
        answer_timeout_seconds: How long a client may take to receive an answer.
    """

    harness: Annotated[str, Text(min_length=1)]
    model_server: ModelServerConfig
    host: Annotated[str, Text(min_length=1)] = "127.0.0.1"
    port: Annotated[int, Whole(minimum=0)] = 8700
    timeout: float = 21600.0
    concurrency: Annotated[int, Whole(minimum=1)] = 64
    host_execution: bool = False
    resources_server: ResourcesServerConfig | None = None
    token_id_capture: bool = False
    tool_accesses: tuple[ToolAccess, ...] = ()
    sandbox_provider: str | None = None
    sandbox_config: SandboxConfig = field(factory=SandboxConfig)
    sandbox_providers: Mapping[str, Mapping[str, Any]] = field(factory=dict)
    session_close_timeout_seconds: float = 30.0
    sandbox_install_timeout_seconds: float = 900.0
    sandbox_runner_timeout_seconds: float = 21600.0
    session_close_retry_window_seconds: float = 300.0
    num_workers: Annotated[int, Whole(minimum=1)] = 1
    session_dir_root: AbsolutePath | None = None
    state_dir: AbsolutePath | None = None
    runtime_cache_dir: AbsolutePath | None = None
    harness_options: Mapping[str, Any] = field(factory=dict)
    cookie_secret: Annotated[str, Text(min_length=SECRET_LENGTH)] | None = field(default=None, repr=False)
    journal_sync: Literal["normal", "full"] = "normal"
    process_drain: Literal["seed", "all"] = "seed"
    drain_timeout_seconds: float = 30.0
    recovery_timeout_seconds: float = 120.0
    bearer_token: Annotated[str, Text(min_length=SECRET_LENGTH, pattern=KEY_PATTERN)] | None = field(
        default=None, repr=False
    )
    allow_unauthenticated: bool = False
    tls: TlsConfig | None = None
    body_limit_bytes: Annotated[int, Whole(minimum=1024)] = 32 * 1024 * 1024
    header_limit_bytes: Annotated[int, Whole(minimum=1024)] = 16 * 1024
    body_timeout_seconds: float = 60.0
    answer_timeout_seconds: float = 60.0
