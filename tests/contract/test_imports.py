"""Who may import whom: plugins -> core; server -> runtime -> core, supervisor; the sandbox: nobody."""

import ast
import subprocess
import sys

import pytest

STDLIB = set(sys.stdlib_module_names)
OWN_PREFIX = "inspan_"

ALLOWED = {
    "inspan_core": {"attrs", "cattrs", "pluggy"},
    "inspan_core.testing": {"attrs", "cattrs", "pluggy", "hypothesis"},
    "inspan_runtime": {"inspan_core", "inspan_supervisor", "anyio", "attrs"},
    "inspan_runtime.testing": {"inspan_core", "inspan_supervisor", "anyio", "attrs", "hypothesis"},
    "inspan_supervisor": set(),
    "inspan_server": {
        "inspan_core", "inspan_runtime", "anyio", "attrs", "starlette", "hypercorn", "h11", "httpx", "yaml",
        "prometheus_client",
    },
}  # fmt: skip
"""Beyond the standard library and the package itself; the longest prefix counts."""

PLUGIN = {"inspan_core", "attrs", "pluggy"}

IMPURE = {
    "asyncio", "anyio", "trio", "time", "random", "secrets", "uuid", "os", "logging", "pathlib", "subprocess",
    "socket", "select", "selectors", "signal", "threading", "multiprocessing", "concurrent", "tempfile",
    "shutil", "sqlite3", "http", "ssl", "glob", "datetime", "contextvars", "sys", "io",
}  # fmt: skip
"""What reads a clock, the environment, a file or the network, or keeps state for the process."""

COMMANDS = {"inspan_core.__main__", "inspan_core.shim", "inspan_core.tool_bridge"}
"""Programs beside the pure package, some of them for sandboxes: nothing in it imports them."""

IN_SANDBOX = {
    "supervisor/src/inspan_supervisor/process_supervisor.py": (),
    "core/src/inspan_runtime/install_unpacker.py": (),
    "core/src/inspan_runtime/providers/exec_agent/": ("inspan_runtime.providers.exec_agent",),
    "core/src/inspan_runtime/providers/keeper/": (
        "inspan_runtime.providers.exec_agent",
        "inspan_runtime.providers.keeper",
    ),
    "plugins/echo/src/inspan_echo/sandbox_runner.py": (),
    "core/src/inspan_core/shim.py": ("inspan_core.tool_bridge",),
    "core/src/inspan_core/tool_bridge.py": (),
    "core/src/inspan_runtime/grant_probe.py": (),
    "core/src/inspan_runtime/testing/look_inside.py": (),
    "plugins/pi/src/inspan_pi/sandbox_runner.py": ("inspan_core",),
    "plugins/codex/src/inspan_codex/sandbox_runner.py": ("inspan_core",),
    "plugins/hermes/src/inspan_hermes/sandbox_runner.py": ("inspan_core", "inspan_hermes"),
    "plugins/hermes/src/inspan_hermes/agent_run.py": ("inspan_core", "inspan_hermes"),
    "plugins/hermes/src/inspan_hermes/model_calls.py": ("inspan_core",),
}
"""Files that run on whatever Python a sandbox has, and what of ours travels with them."""


def imports_of(tree, package):
    """Every module that is imported anywhere in a file, with its line, also inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            name = node.module or ""
            yield (f"{package}.{name}" if node.level else name), node.lineno


def top(name):
    return name.partition(".")[0]


def allowed_for(dotted):
    matches = [prefix for prefix in ALLOWED if dotted == prefix or dotted.startswith(prefix + ".")]
    return ALLOWED[max(matches, key=len)] if matches else PLUGIN


def arrows_broken(dotted, tree):
    """The imports of a module that its distribution may not have."""
    permitted = allowed_for(dotted) | STDLIB | {top(dotted)}
    return [
        f"{dotted}:{line} imports {name}"
        for name, line in imports_of(tree, top(dotted))
        if top(name) not in permitted
    ]


def impurities(dotted, tree):
    return [
        f"{dotted}:{line} imports {name}"
        for name, line in imports_of(tree, top(dotted))
        if top(name) in IMPURE or name == "urllib.request"
    ]


def not_of_the_sandbox(dotted, tree, companions):
    return [
        f"{dotted}:{line} imports {name}"
        for name, line in imports_of(tree, top(dotted))
        if top(name) not in STDLIB and not name.startswith(companions or ("\0",))
    ]


def test_every_import_follows_the_arrows(modules):
    assert {top(dotted) for dotted, _ in modules.values()} >= {*map(top, ALLOWED), "inspan_echo", "inspan_pi"}
    assert [broken for module in modules.values() for broken in arrows_broken(*module)] == []


def test_the_core_is_pure(modules):
    core = [
        module for module in modules.values() if top(module[0]) == "inspan_core" and module[0] not in COMMANDS
    ]
    assert len(core) > 20
    assert [broken for module in core for broken in impurities(*module)] == []


def test_nothing_in_the_core_imports_a_program(modules):
    assert [
        f"{dotted}:{line}"
        for dotted, tree in modules.values()
        for name, line in imports_of(tree, top(dotted))
        if name in COMMANDS and top(dotted) == "inspan_core" and dotted not in COMMANDS
    ] == []


@pytest.mark.parametrize("place", IN_SANDBOX)
def test_what_runs_in_a_sandbox_needs_only_an_old_python(modules, root, place):
    files = [name for name in modules if name == place or (place.endswith("/") and name.startswith(place))]
    assert files
    for name in files:
        assert not_of_the_sandbox(*modules[name], IN_SANDBOX[place]) == []
        ast.parse((root / name).read_bytes(), name, feature_version=(3, 8))


def test_every_in_sandbox_file_of_a_plugin_is_listed(modules):
    runners = {name for name in modules if name.endswith("/sandbox_runner.py")}
    assert runners <= set(IN_SANDBOX)


@pytest.mark.parametrize(
    ("dotted", "source"),
    [
        ("inspan_core.x", "import anyio"),
        ("inspan_core.x", "from inspan_runtime import service"),
        ("inspan_core.x", "def f():\n    import hypothesis"),
        ("inspan_runtime.x", "import httpx"),
        ("inspan_runtime.x", "from inspan_server.agent import app"),
        ("inspan_server.x", "import inspan_echo"),
        ("inspan_server.x", "from inspan_supervisor import supervisor_source"),
        ("inspan_supervisor.x", "import attrs"),
        ("inspan_echo", "import inspan_runtime"),
        ("inspan_anybody", "if True:\n    from inspan_server import serving"),
    ],
)
def test_a_broken_arrow_is_seen(dotted, source):
    assert len(arrows_broken(dotted, ast.parse(source))) == 1


@pytest.mark.parametrize(
    "source",
    ["import time", "from os import environ", "import urllib.request", "def f():\n    import logging"],
)
def test_an_impurity_is_seen(source):
    assert len(impurities("inspan_core.x", ast.parse(source))) == 1


def test_a_stranger_in_the_sandbox_is_seen():
    assert len(not_of_the_sandbox("x", ast.parse("import attrs"), ())) == 1
    assert len(not_of_the_sandbox("x", ast.parse("import inspan_core"), ("inspan_runtime.providers",))) == 1


def test_importing_the_core_starts_nothing():
    """Neither an event loop nor a web framework comes in with it, and nothing is printed or warned about."""
    script = (
        "import sys, inspan_core\n"
        "heavy = {'asyncio', 'anyio', 'starlette', 'httpx', 'hypothesis', 'inspan_runtime'}\n"
        "sys.exit(str(heavy & set(sys.modules)) if heavy & set(sys.modules) else 0)"
    )
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, timeout=30
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
