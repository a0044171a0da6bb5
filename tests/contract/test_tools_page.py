"""The page about tools speaks of what there is."""

import importlib
import re

import pytest

from inspan_core import plugins as core_plugins


@pytest.fixture
def page(root):
    return (root / "docs/tools.md").read_text()


def test_its_table_says_what_each_harness_declares(page):
    rows = {cells[0]: cells[1:] for cells in map(cells_of, page.splitlines()) if len(cells) == 3}
    found = core_plugins.load_plugins()
    for label, name in (("Codex", "codex"), ("Hermes", "hermes"), ("Pi", "pi"), ("Echo", "echo")):
        sources = found.harness(name).spec.tool_sources
        told = [cell.startswith("yes") for cell in rows[label]]
        assert told == ["mcp" in sources, "direct_http" in sources], label


def cells_of(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_modules_and_functions_that_it_names_exist(page):
    (names,) = re.findall(r"from inspan_core.function_tools import (.*)", page)
    module = importlib.import_module("inspan_core.function_tools")
    assert [name for name in names.split(", ") if not hasattr(module, name)] == []
    table = page[page.index("| module of `inspan_core`") :]
    modules = re.findall(r"`(\w+)`", "".join(line.split("|")[1] for line in table.splitlines()[2:]))
    assert len(modules) >= 12
    for name in modules:
        assert importlib.import_module(f"inspan_core.{name}").__doc__
    shared = importlib.import_module("inspan_core.shim_run")
    assert all(hasattr(shared, name) for name in ("upload_shim", "stage_shim", "collect_shim"))


@pytest.mark.parametrize(
    ("code", "file"),
    [
        ("tool_grant_skipped", "core/src/inspan_runtime/grants.py"),
        ("tool_grant_unreachable", "core/src/inspan_runtime/grant_reach.py"),
        ("resources_cookies_unavailable", "core/src/inspan_runtime/jar.py"),
    ],
)
def test_the_gaps_that_it_names_are_made(page, root, code, file):
    assert f"`{code}`" in page
    assert f'"{code}"' in (root / file).read_text()


def test_the_bounds_that_it_names_are_those_that_hold(page):
    reach = importlib.import_module("inspan_runtime.grant_reach")
    assert f"hangs ({reach.REQUIRED_LIMIT_S:g} seconds)" in page
    assert f"Optional ones are given {reach.OPTIONAL_LIMIT_S:g} seconds" in page
