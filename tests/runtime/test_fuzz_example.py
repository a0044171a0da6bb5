"""The example that plugin authors copy, and the page that explains it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from inspan_runtime.testing.fake_world import FakeWorld
from inspan_runtime.testing.faults import CallKind, FaultKind
from inspan_runtime.testing.fuzz_witness import Witness

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "fuzz_my_plugin.py"
PAGE = (ROOT / "docs" / "testing.md").read_text()


def run(code):
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(command, cwd=EXAMPLE.parent, capture_output=True, text=True, timeout=120)


def test_the_example_is_short_and_finds_nothing_in_the_echo_harness():
    assert len(EXAMPLE.read_text().splitlines()) < 60
    done = run("import fuzz_my_plugin, sys; sys.exit(fuzz_my_plugin.main(seed=3, examples=40))")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no promise was broken (seed 3)" in done.stdout


def test_the_example_needs_no_server():
    code = "import fuzz_my_plugin, sys; fuzz_my_plugin.main(3, 1); print(sorted(sys.modules))"
    done = run(code)
    assert done.returncode == 0, done.stderr
    assert not re.search(r"'(inspan_server|starlette|hypercorn|httpx)'", done.stdout)


BREAKS = """
import fuzz_my_plugin, inspan_echo, sys
from inspan_core.hookspecs import hookimpl

@hookimpl
async def inspan_collect(context):
    await context.sandbox.exec(["true"], timeout_s=5.0)
    await context.upload_text("marker", "collected")  # writes into what is over

inspan_echo.inspan_collect = inspan_collect
sys.exit(fuzz_my_plugin.main(seed=3, examples=40))
"""


def test_a_plugin_that_breaks_a_promise_is_told_a_story():
    done = run(BREAKS)
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("a run's file was uploaded after its receipt (example ")
    assert "What happened:" in done.stdout and "Find it again: fuzz_lifecycle(..., seed=3)" in done.stdout


def rules():
    """Every rule that a world or a witness knows, from where it is broken."""
    folder = Path(sys.modules[Witness.__module__].__file__).parent
    sources = [folder / f"{name}.py" for name in ("fake_world", "fake_sandbox", "fuzz_witness", "fuzz_run")]
    found = set()
    for source in sources:
        found |= set(re.findall(r'breaks\(\s*"([^"]+)"', source.read_text()))
    assert FakeWorld.__name__ and len(found) > 15
    return found | {"a run that could end well did not"}


@pytest.mark.parametrize("rule", sorted(rules()))
def test_the_page_names_every_rule(rule):
    assert f"| {rule} |" in PAGE


@pytest.mark.parametrize("kind", [*CallKind, *FaultKind], ids=lambda kind: kind.value)
def test_the_page_names_every_call_and_fault(kind):
    assert f"`{kind.value}`" in PAGE
