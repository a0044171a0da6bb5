"""Values as TOML text: only what a configuration of Codex needs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def to_toml(table: Mapping[str, Any]) -> str:
    """A document; nested mappings become tables, in the order given.

    Args:
        table: Texts, booleans, whole numbers, lists of texts, and mappings of these.
    """
    lines: list[str] = []
    _write(table, (), lines)
    return "\n".join(lines) + "\n"


def _write(table: Mapping[str, Any], path: tuple[str, ...], lines: list[str]) -> None:
    plain = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
    if path and (plain or not table):
        lines.append(f"[{'.'.join(map(_key, path))}]")
    lines += [f"{_key(key)} = {_value(value)}" for key, value in plain.items()]
    for key, value in table.items():
        if isinstance(value, Mapping):
            _write(value, (*path, key), lines)


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _value(key)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return f'"{"".join(map(_escaped, value))}"'
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    raise TypeError(f"{value!r} cannot be written as TOML")


def _escaped(character: str) -> str:
    code = ord(character)
    if character in '"\\':
        return "\\" + character
    if code < 0x20 or code == 0x7F:
        return f"\\u{code:04X}"
    # Half of a surrogate pair is not text.
    return "\N{REPLACEMENT CHARACTER}" if 0xD800 <= code <= 0xDFFF else character
