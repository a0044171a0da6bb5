"""The rules over more than one field of a configuration, or over what its types cannot say."""

from __future__ import annotations

from math import inf
from posixpath import normpath
from typing import Any

import attrs

from inspan_core.faults import Fault, Faults, fault
from inspan_server.agent.config import AgentConfig, ResourcesServerConfig, SandboxConfig

LAST_PORT = 65535
LONGEST_S = 1e9
"""What the supervisor takes at most; .inf and .nan, which YAML has, are no times."""


def check_agent(config: AgentConfig, _: Any) -> None:
    """Refuse what does not fit together."""
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
    if config.port > LAST_PORT:
        faults.append(("less_than_equal", ("port",), f"must be at most {LAST_PORT}", config.port))
    names = [grant.name for grant in config.tool_accesses]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        faults.append(("value_error", ("tool_accesses",), "must have names that differ", ", ".join(repeated)))
    if config.num_workers != 1:
        message = "must be 1: the state of sessions lives in one process"
        faults.append(("value_error", ("num_workers",), message, config.num_workers))
    if config.resources_server is not None and not config.host_execution:
        message = "needs host_execution: true, since the compatibility endpoint /run uses the host path"
        faults.append(("value_error", ("resources_server",), message, {}))
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


def check_sandbox(config: SandboxConfig, _: Any) -> None:
    """Refuse what no sandbox can have."""
    if isinstance(config.ttl_s, float | int):
        _check_time(config.ttl_s, "ttl_s")
    if config.cpu is not None and not 0 < config.cpu < inf:
        raise fault("greater_than", "must be above 0", config.cpu, "cpu")
    if not _parts(config.workdir):
        raise fault("value_error", "must be a folder of its own, not /", config.workdir, "workdir")
    for name in config.env:
        if not name or "=" in name or "\0" in name + config.env[name]:
            raise fault("value_error", "is not a variable that a process can have", name, "env", name)
    for number, mount in enumerate(config.mounts):
        if _is_inside(mount.target, config.workdir):
            message = f"must be outside of the workdir {config.workdir}"
            raise fault("value_error", message, mount.target, "mounts", number, "target")


def _is_inside(path: str, folder: str) -> bool:
    parts = _parts(folder)
    return _parts(path)[: len(parts)] == parts


def _parts(path: str) -> list[str]:
    return [part for part in normpath(path).split("/") if part]


def check_resources_server(config: ResourcesServerConfig, _: Any) -> None:
    """Refuse a bound that is no time."""
    _check_time(config.timeout_s, "timeout_s")


def _check_time(value_s: float, name: str) -> None:
    if not 0 < value_s <= LONGEST_S:
        raise fault("greater_than", f"must be above 0 and at most {LONGEST_S:.0f} seconds", value_s, name)
