"""Reads a configuration from YAML or from a mapping, strictly.

A key that is not known is refused, with the nearest one that is.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import yaml

from inspan_core.errors import ConfigError
from inspan_core.faults import Fault, Faults
from inspan_core.structuring import build_converter
from inspan_server.agent.config import AgentConfig, ResourcesServerConfig, SandboxConfig
from inspan_server.agent.config_check import check_agent, check_resources_server, check_sandbox
from inspan_server.agent.config_secrets import SECTIONS, fill_in, is_secret
from inspan_server.agent.config_yaml import RepeatedKey, load_yaml

CONFIG_LIMIT_BYTES = 4 * 1024 * 1024


def read_config(path: Path, environ: Mapping[str, str] = os.environ) -> AgentConfig:
    """The configuration in a YAML file.

    Args:
        environ: Where ``${NAME}`` in secret fields comes from.

    Raises:
        ConfigError: Names the file, the key, the value and what was expected.
    """
    try:
        with path.open("rb") as file:
            data = file.read(CONFIG_LIMIT_BYTES + 1)
        if len(data) > CONFIG_LIMIT_BYTES:
            raise ConfigError(f"{path} is larger than {CONFIG_LIMIT_BYTES} bytes")
        value = load_yaml(data)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except RepeatedKey as error:
        raise ConfigError(f"{path}: {error}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # a date or number that is none
        raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    try:
        filled = fill_in(value, environ)
    except Faults as error:
        raise _error(str(path), error) from error
    except RecursionError as error:
        raise ConfigError(f"{path}: an alias refers to what it stands in") from error
    return parse_config(filled, name=str(path))


def parse_config(value: Any, *, name: str = "configuration") -> AgentConfig:
    """The configuration in a mapping.

    Raises:
        ConfigError: As for `read_config`.
    """
    try:
        config: AgentConfig = _CONVERTER.structure(value, AgentConfig)
    except Faults as error:
        raise _error(name, error) from error
    return config


def _error(name: str, error: Faults) -> ConfigError:
    return ConfigError(f"{name}: {'; '.join(_sentence(each) for each in error.faults)}")


_CONVERTER = build_converter(
    {
        AgentConfig: check_agent,
        ResourcesServerConfig: check_resources_server,
        SandboxConfig: check_sandbox,
    }
)


def _sentence(fault: Fault) -> str:
    kind, place, message, value = fault
    key = ".".join(str(part) for part in place) or "the whole"
    if kind == "missing":
        return f"{key} is required"
    if kind == "extra_forbidden":
        section = SECTIONS.get(place[:-1])
        names = [] if section is None else [attribute.name for attribute in attrs.fields(section)]
        near = difflib.get_close_matches(str(place[-1]), names, n=1)
        return f"{key} is not a known key" + (f"; did you mean {near[0]}?" if near else "")
    if isinstance(value, dict | list) or is_secret(place):
        return f"{key} {message}"  # Whatever lies in there may be a secret.
    return f"{key} is {repr(value)[:100]}, {message}"
