"""The real programs keep the rules of `inspan_runtime.testing.harness_checks`."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from itertools import product

import pytest

from inspan_core.plugins import load_plugins
from inspan_runtime.testing.harness_checks import HARNESS_CHECKS, HarnessCase, json_call

pytestmark = [pytest.mark.anyio, pytest.mark.registry, pytest.mark.timeout(300)]

SHELLS = {
    "pi": json_call("bash", "command"),
    "codex": json_call("exec_command", "cmd"),
    "hermes": json_call("terminal", "command"),
}
OPTIONS = {"pi": {"max_retries": 0}, "codex": {}, "hermes": {}}
SANDBOXES = {"local": (), "bubblewrap": (pytest.mark.sandbox,)}
QUICK = {
    ("codex", "local", "cut_artifacts_are_never_completed"),
    ("codex", "local", "answers_come_from_model_calls"),
    ("codex", "local", "a_stop_ends_it"),
    ("codex", "bubblewrap", "collecting_is_repeatable_and_bounded"),
    ("pi", "bubblewrap", "the_caller_is_supervised"),
}
"""One of each kind: parsing, a whole run, a stop, what is kept private."""


def cells():
    for name, (sandbox, needs), check in product(SHELLS, SANDBOXES.items(), HARNESS_CHECKS):
        cell = (name, sandbox, check.__name__)
        marks = needs if cell in QUICK else (*needs, pytest.mark.full)
        yield pytest.param(name, sandbox, check, id="-".join(cell), marks=marks)


@pytest.fixture(scope="module")
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    @cache
    def case_of(name, sandbox):
        assert name in load_plugins().harness_names()
        return HarnessCase(
            plugin=import_module(f"inspan_{name}"),
            folder=tmp_path_factory.mktemp(name),
            sandbox=sandbox,
            options=OPTIONS[name],
            shell_call=SHELLS[name],
            deadline_s=12.0 if name == "hermes" else 6.0,
        )

    return case_of


@pytest.mark.parametrize(("name", "sandbox", "check"), [*cells()])
async def test_the_program_keeps_the_rule(cases, name, sandbox, check):
    await check(cases(name, sandbox))
