"""The real programs keep the rules of `inspan_runtime.testing.harness_checks`."""

from __future__ import annotations

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
# One of each kind in the quick run: parsing, a whole run, a stop, what is kept private.
QUICK = {
    ("codex", "cut_artifacts_are_never_completed"),
    ("codex", "answers_come_from_model_calls"),
    ("codex", "a_stop_ends_it"),
    ("codex", "collecting_is_repeatable_and_bounded"),
    ("pi", "the_caller_is_supervised"),
}
CELLS = [
    pytest.param(
        name,
        check,
        id=f"{name}-{check.__name__}",
        marks=() if (name, check.__name__) in QUICK else pytest.mark.full,
    )
    for name in SHELLS
    for check in HARNESS_CHECKS
]


@pytest.fixture(scope="module")
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    made = {}

    def case_of(name):
        if name not in made:
            module = __import__(f"inspan_{name}")
            assert name in load_plugins().harness_names()
            made[name] = HarnessCase(
                plugin=module,
                folder=tmp_path_factory.mktemp(name),
                options=OPTIONS[name],
                shell_call=SHELLS[name],
                deadline_s=12.0 if name == "hermes" else 6.0,
            )
        return made[name]

    return case_of


@pytest.mark.parametrize(("name", "check"), CELLS)
async def test_the_program_keeps_the_rule(cases, name, check):
    await check(cases(name))
