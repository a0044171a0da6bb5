"""YAML as configurations have it: plain data, and no key twice."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml

MERGE_TAG = "tag:yaml.org,2002:merge"


class RepeatedKey(yaml.YAMLError):
    """A mapping has a key twice: one of the two values would be lost without a word."""


class NoText(yaml.YAMLError):
    """A text that cannot be written anywhere: it has half of a surrogate pair."""


class _Loader(yaml.SafeLoader):
    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        if isinstance(node, yaml.ScalarNode) and any("\ud800" <= sign <= "\udfff" for sign in node.value):
            line = node.start_mark.line + 1
            raise NoText(f"line {line} has a text with half of a surrogate pair")
        return super().construct_scalar(node)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: dict[Any, int] = {}
        for key_node, _ in node.value:
            if key_node.tag == MERGE_TAG or not isinstance(key_node, yaml.ScalarNode):
                continue
            key, line = (key_node.tag, key_node.value), key_node.start_mark.line + 1
            if key in seen:
                raise RepeatedKey(
                    f"the key {key_node.value!r} is given twice, in line {seen[key]} and in line {line}"
                )
            seen[key] = line
        return super().construct_mapping(node, deep)


def load_yaml(data: bytes) -> Any:
    """The data of a YAML document.

    Raises:
        RepeatedKey: Names the key and its lines.
        yaml.YAMLError, ValueError, RecursionError: It is no YAML, or not plain data.
    """
    return yaml.load(data, _Loader)  # A safe loader.
