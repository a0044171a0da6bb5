"""The Agent Server's configuration: one frozen value, read from YAML or from a mapping, and strict.

Names are those of the contract. A key that is not known is refused, with the nearest one that is.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import attrs
import yaml
from attrs import field, frozen

from inspan_core.constraints import HttpUrl, Text, Whole
from inspan_core.errors import ConfigError
from inspan_core.faults import Fault, Faults, fault
from inspan_core.structuring import build_converter
from inspan_core.wire import AbsolutePath, ToolAccess

CONFIG_LIMIT_BYTES = 4 * 1024 * 1024
SECRET_LENGTH = 16
LONGEST_S = 1e9
"""What the supervisor takes at most; .inf and .nan, which YAML has, are no times."""

KEY_PATTERN = r"^[\x21-\x7e]+$"
"""It travels in a header, and a client that refuses it would repeat it in its error."""


@frozen(kw_only=True)
class ModelServerConfig:
    """Where the Model Server is.

    Attributes:
        base_url: Without rollout prefix and ``/v1``; sandboxes reach it under the same address.
        name: The model to ask for.
        api_key: The key for every episode, or None where the server asks for none.
    """

    base_url: Annotated[str, HttpUrl()]
    name: Annotated[str, Text(min_length=1)] = "policy"
    api_key: Annotated[str, Text(pattern=KEY_PATTERN)] | None = field(default=None, repr=False)


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
        resources_server: For the compatibility ``/run``, which is not served: must be null.
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
    """

    harness: Annotated[str, Text(min_length=1)]
    model_server: ModelServerConfig
    host: Annotated[str, Text(min_length=1)] = "127.0.0.1"
    port: Annotated[int, Whole(minimum=0)] = 8700
    timeout: float = 21600.0
    concurrency: Annotated[int, Whole(minimum=1)] = 64
    resources_server: Mapping[str, Any] | None = None
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


def read_config(path: Path) -> AgentConfig:
    """The configuration in a YAML file.

    Raises:
        ConfigError: Names the file, the key, the value and what was expected.
    """
    try:
        with path.open("rb") as file:
            data = file.read(CONFIG_LIMIT_BYTES + 1)
        if len(data) > CONFIG_LIMIT_BYTES:
            raise ConfigError(f"{path} is larger than {CONFIG_LIMIT_BYTES} bytes")
        value = yaml.safe_load(data)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    return parse_config(value, name=str(path))


def parse_config(value: Any, *, name: str = "configuration") -> AgentConfig:
    """The configuration in a mapping.

    Raises:
        ConfigError: As for `read_config`.
    """
    try:
        config: AgentConfig = _CONVERTER.structure(value, AgentConfig)
    except Faults as error:
        raise ConfigError(f"{name}: {'; '.join(_sentence(each) for each in error.faults)}") from error
    return config


def _check(config: AgentConfig, _: Any) -> None:
    faults: list[Fault] = []
    seconds = {
        attribute.name
        for attribute in attrs.fields(AgentConfig)
        if attribute.name.endswith("_seconds") or attribute.name == "timeout"
    }
    faults += [
        (
            "greater_than",
            (name,),
            f"must be above 0 and at most {LONGEST_S:.0f} seconds",
            getattr(config, name),
        )
        for name in sorted(seconds)
        if not 0 < getattr(config, name) <= LONGEST_S
    ]
    names = [grant.name for grant in config.tool_accesses]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        faults.append(("value_error", ("tool_accesses",), "must have names that differ", ", ".join(repeated)))
    if config.num_workers != 1:
        message = "must be 1: the state of sessions lives in one process"
        faults.append(("value_error", ("num_workers",), message, config.num_workers))
    if config.resources_server is not None:
        message = "must be null: the compatibility endpoint /run is not served"
        faults.append(("value_error", ("resources_server",), message, "..."))
    for name, block in config.sandbox_providers.items():
        if not isinstance(block.get("kind"), str):
            message = "needs 'kind', the name of an installed sandbox provider"
            faults.append(("value_error", ("sandbox_providers", name), message, block))
    known = ", ".join(sorted(config.sandbox_providers)) or "none"
    if config.sandbox_provider is not None and config.sandbox_provider not in config.sandbox_providers:
        message = f"must name a block of sandbox_providers (there: {known})"
        faults.append(("value_error", ("sandbox_provider",), message, config.sandbox_provider))
    if faults:
        raise Faults(faults)


def _check_sandbox(config: SandboxConfig, _: Any) -> None:
    if isinstance(config.ttl_s, float | int) and not 0 < config.ttl_s <= LONGEST_S:
        message = f"must be above 0 and at most {LONGEST_S:.0f} seconds"
        raise fault("greater_than", message, config.ttl_s, "ttl_s")


_SECTIONS: Mapping[tuple[str | int, ...], type] = {
    (): AgentConfig,
    ("model_server",): ModelServerConfig,
    ("sandbox_config",): SandboxConfig,
}
_SECRETS = frozenset({"api_key", "cookie_secret", "headers", "cookies"})
_CONVERTER = build_converter({AgentConfig: _check, SandboxConfig: _check_sandbox})


def _sentence(fault: Fault) -> str:
    kind, place, message, value = fault
    key = ".".join(str(part) for part in place) or "the whole"
    if kind == "missing":
        return f"{key} is required"
    if kind == "extra_forbidden":
        section = _SECTIONS.get(place[:-1])
        names = [] if section is None else [attribute.name for attribute in attrs.fields(section)]
        near = difflib.get_close_matches(str(place[-1]), names, n=1)
        return f"{key} is not a known key" + (f"; did you mean {near[0]}?" if near else "")
    if isinstance(value, dict | list) or _SECRETS.intersection(place):
        return f"{key} {message}"  # Whatever lies in there may be a secret.
    return f"{key} is {repr(value)[:100]}, {message}"
