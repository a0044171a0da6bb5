"""Start a Python program from code that comes over a stream: its argv names nothing, no file need exist.

The interpreter reads a short program from its standard input; that reads (modules, entry, orders) from an
inherited stream and calls ``entry.main(fd, orders)``.
"""

from __future__ import annotations

import importlib.util
import marshal
import os
import struct
from collections.abc import Iterable, Mapping
from importlib.machinery import SourceFileLoader
from types import CodeType
from typing import Any

FLAGS = ("-I", "-S", "-E", "-")
_PACKAGE = "inspan_runtime.providers."
AGENT_MODULES = tuple(
    _PACKAGE + "exec_agent." + name
    for name in (
        "lean",
        "frames",
        "descendants",
        "loop",
        "memory",
        "commands",
        "files",
        "connections",
        "listeners",
        "main",
    )
)
KEEPER_MODULES = tuple(
    _PACKAGE + name
    for name in (
        "exec_agent.lean",
        "exec_agent.frames",
        "exec_agent.descendants",
        "exec_agent.loop",
        "exec_agent.listeners",
        "keeper.host",
        "keeper.cgroups",
        "keeper.obituary",
        "keeper.forwards",
        "keeper.namespaces",
        "keeper.requests",
        "keeper.ways",
        "keeper.launch",
        "keeper.main",
    )
)
WAYS_MODULES = tuple(
    _PACKAGE + name
    for name in (
        "exec_agent.lean",
        "exec_agent.frames",
        "exec_agent.loop",
        "exec_agent.listeners",
        "keeper.forwards",
        "keeper.namespaces",
        "keeper.requests",
        "keeper.ways",
        "keeper.ways_main",
    )
)
"""What opens ways into a sandbox that has no keeper."""

# Modules are put where `import` finds them before the file system is looked at.
_PROGRAM = """
import marshal, os, struct, sys
def take(size):
    data = b""
    while len(data) < size:
        part = os.read({fd}, size - len(data))
        if not part:
            os._exit(0)
        data += part
    return data
modules, entry, orders = marshal.loads(take(struct.unpack(">I", take(4))[0]))
for name, code in modules:
    module = sys.modules[name] = type(sys)(name)
    exec(code, module.__dict__)
sys.modules[entry].main({fd}, orders)
"""


def program(fd: int) -> bytes:
    """Return what the interpreter reads from its standard input; `fd` is the inherited stream."""
    return _PROGRAM.format(fd=fd).encode()


def bundle(modules: Iterable[str], orders: Mapping[str, Any], *, same_version: bool = True) -> bytes:
    """Return what is written to the stream: modules in the order of their imports, the last one is the entry.

    Args:
        modules: Full names.
        orders: Given to the entry's `main`; bytes, str, numbers, lists, tuples and dicts only.
        same_version: Whether the interpreter is of this one's version; otherwise sources are sent.
    """
    names = list(modules)
    codes = [(name, _code(name) if same_version else _source(name)) for name in names]
    data = marshal.dumps((codes, names[-1], dict(orders)), 4 if same_version else 2)
    return struct.pack(">I", len(data)) + data


def command(interpreter: str) -> list[str]:
    """Return the argv to run `interpreter` with: the folder finds its library, the name says nothing."""
    return [os.path.join(os.path.dirname(interpreter), "init"), *FLAGS]


def _loader(name: str) -> SourceFileLoader:
    spec = importlib.util.find_spec(name)
    if spec is None or not isinstance(spec.loader, SourceFileLoader):
        raise ImportError(f"{name} is not installed as a source file", name=name)
    return spec.loader


def _code(name: str) -> CodeType:
    code = _loader(name).get_code(name)
    if code is None:
        raise ImportError(f"{name} has no code", name=name)
    return code


def _source(name: str) -> str:
    return _loader(name).get_source(name) or ""
