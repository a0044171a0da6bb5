"""Which keys of a configuration are secret: filled in from the environment, and never shown.

A field is secret when its class leaves it out of its own text (``repr=False``). Only there ``${NAME}`` stands
for a variable: anywhere else a configuration would mean something different on each machine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import attrs

from inspan_core.faults import Fault, Faults, Place
from inspan_core.wire import DirectHttpAccess, McpAccess, McpConnection
from inspan_server.agent.config import (
    AgentConfig,
    ModelServerConfig,
    MountConfig,
    ResourcesServerConfig,
    SandboxConfig,
    TlsConfig,
)

SECTIONS: Mapping[Place, type] = {
    (): AgentConfig,
    ("model_server",): ModelServerConfig,
    ("resources_server",): ResourcesServerConfig,
    ("sandbox_config",): SandboxConfig,
    ("tls",): TlsConfig,
}
"""Where each class of the configuration stands in it."""

LISTED: tuple[type, ...] = (MountConfig, DirectHttpAccess, McpAccess, McpConnection)
OPAQUE = frozenset({"harness_options", "sandbox_providers", "sandbox_config"})
"""Keys whose contents are somebody else's: what is called a cookie there is none of ours."""

SECRET_NAMES = frozenset(
    attribute.name
    for kind in (*SECTIONS.values(), *LISTED)
    for attribute in attrs.fields(kind)
    if attribute.repr is False
)
MASK = "***"
VARIABLE = re.compile(r"\$\{([^}]*)\}")
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
LOOKS_SECRET = re.compile(r"secret|password|passwd|token|credential|(^|[_-])key$|api_?key", re.IGNORECASE)


def is_secret(place: Place) -> bool:
    """Whether what stands at a place is a secret, or lies in one."""
    return bool(place) and place[0] not in OPAQUE and not SECRET_NAMES.isdisjoint(place)


def fill_in(value: Any, environ: Mapping[str, str], place: Place = ()) -> Any:
    """The parsed configuration with the variables of its secret fields.

    Raises:
        Faults: A variable is not set, or stands where none is allowed.
    """
    if isinstance(value, str):
        return _filled(value, environ, place) if "${" in value else value
    if not isinstance(value, dict | list):
        return value
    faults: list[Fault] = []
    items = value.items() if isinstance(value, dict) else enumerate(value)
    filled: dict[Any, Any] = {}
    for key, item in items:
        try:
            filled[key] = fill_in(item, environ, (*place, key))
        except Faults as error:
            faults += error.faults
    if faults:
        raise Faults(faults)
    return filled if isinstance(value, dict) else list(filled.values())


def _filled(text: str, environ: Mapping[str, str], place: Place) -> str:
    if not is_secret(place):
        message = "must not hold ${: variables are for secret fields only, write the value itself"
        raise Faults([("value_error", place, message, text)])
    faults: list[Fault] = []

    def value_of(match: re.Match[str]) -> str:
        name = match[1]
        if not NAME.fullmatch(name):
            faults.append(("value_error", place, "holds a ${...} that names no variable", None))
        elif not environ.get(name):
            faults.append(
                ("value_error", place, f"needs the environment variable {name}, which is not set", None)
            )
        return environ.get(name, "")

    filled = VARIABLE.sub(value_of, text)
    if "${" in VARIABLE.sub("", text):
        faults.append(("value_error", place, "holds a ${ without its }", None))
    if faults:
        raise Faults(faults)
    return filled


def shown(value: Any, place: Place = ()) -> Any:
    """A value of the configuration as plain data, with `MASK` for every secret in it."""
    if attrs.has(type(value)):
        return {
            attribute.name: shown(getattr(value, attribute.name), (*place, attribute.name))
            for attribute in attrs.fields(type(value))
        }
    if isinstance(value, Mapping):
        return {str(key): shown(item, (*place, str(key))) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [shown(item, (*place, number)) for number, item in enumerate(value)]
    if value is None or isinstance(value, bool):
        return value
    looks_secret = place[:1] != () and place[0] in OPAQUE and _looks_secret(place)
    return MASK if is_secret(place) or looks_secret else value


def _looks_secret(place: Place) -> bool:
    """Whether a name that somebody else chose speaks of a secret."""
    return any(isinstance(name, str) and LOOKS_SECRET.search(name) for name in place[1:])
