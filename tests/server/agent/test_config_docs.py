"""docs/configuration.md tells every key, with its type and default, as the classes have them."""

import re
from collections.abc import Mapping
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import attrs
import pytest
import yaml

from inspan_core.constraints import HttpUrl, Text
from inspan_core.wire import DirectHttpAccess, McpAccess, McpConnection
from inspan_server.agent.config import (
    AgentConfig,
    ModelServerConfig,
    MountConfig,
    ResourcesServerConfig,
    SandboxConfig,
    TlsConfig,
)
from inspan_server.agent.config_reading import parse_config
from inspan_server.agent.config_secrets import SECRET_NAMES

PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"
SECTIONS = {
    "The server": AgentConfig,
    "`model_server`": ModelServerConfig,
    "`resources_server`": ResourcesServerConfig,
    "`tls`": TlsConfig,
    "`sandbox_config`": SandboxConfig,
    "`sandbox_config.mounts[]`": MountConfig,
    "`tool_accesses[]` of kind `direct_http`": DirectHttpAccess,
    "`tool_accesses[]` of kind `mcp`": McpAccess,
    "`connection` of kind `mcp`": McpConnection,
}
PLAIN = {str: "text", bool: "true/false", int: "whole number", float: "number"}


def tables():
    """``{heading: {key: (type, default, meaning)}}``"""
    found, heading = {}, None
    for line in PAGE.read_text().splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        row = re.fullmatch(r"\| `(\w+)` \| (.+?) \| (.+?) \| (.+) \|", line)
        if row:
            found.setdefault(heading, {})[row[1]] = row.groups()[1:]
    return found


def type_text(kind):
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        notes = arguments[1:]
        if any(isinstance(note, HttpUrl) for note in notes):
            return "URL"
        if any(isinstance(note, Text) and (note.pattern or "").startswith("^/") for note in notes):
            return "absolute path"
        return type_text(arguments[0])
    if origin in (Union, UnionType):
        return " or ".join("null" if each is type(None) else type_text(each) for each in arguments)
    if origin is Literal:
        return " or ".join(f"`{each}`" for each in arguments)
    if origin is tuple:
        return "list"
    if origin is Mapping or attrs.has(kind):
        return "mapping"
    return "anything" if kind is Any else PLAIN[kind]


def default_text(attribute):
    default = attribute.default
    if default is attrs.NOTHING:
        return "required"
    if isinstance(default, attrs.Factory):
        return "`{}`"
    if isinstance(default, float) and default.is_integer():
        default = int(default)
    text = yaml.safe_dump(list(default) if default == () else default)
    return f"`{text.removesuffix('...' + chr(10)).strip()}`"


@pytest.mark.parametrize("heading", SECTIONS)
def test_every_key_is_told_with_its_type_and_default(heading):
    fields = attrs.fields(attrs.resolve_types(SECTIONS[heading], include_extras=True))
    told = {key: row[:2] for key, row in tables()[heading].items()}
    assert told == {each.name: (type_text(each.type), default_text(each)) for each in fields}


def test_no_table_is_of_something_else():
    assert set(tables()) == set(SECTIONS)


def test_the_secret_keys_are_told_and_no_other():
    for heading, rows in tables().items():
        for key, (_, _, meaning) in rows.items():
            assert ("Secret." in meaning) == (key in SECRET_NAMES), (heading, key)


def test_the_examples_are_configurations():
    examples = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(examples) >= 2
    for text in examples:
        text = re.sub(r"\$\{\w+\}", "a-secret-of-sixteen-and-more", text)
        parse_config(
            {"harness": "x", "model_server": {"base_url": "http://h"}, **yaml.safe_load(text)}, name=text
        )
