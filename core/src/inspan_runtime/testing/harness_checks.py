"""Checks that tell the author of a harness plugin whether it keeps the rules.

Each check is an async function of a `HarnessCase`; its docstring is the rule, and it raises `CheckFailed`
with a sentence when the rule is broken. They use real processes in real sandboxes of this host (by default
without isolation), the real supervisor and a scripted model, and need Linux::

    @pytest.fixture(scope="module")
    def case(tmp_path_factory):
        folder = tmp_path_factory.mktemp("checks")
        return HarnessCase(plugin=my_plugin, folder=folder, shell_call=json_call("bash", "command"))

    @pytest.mark.anyio
    @pytest.mark.parametrize("check", HARNESS_CHECKS, ids=lambda check: check.__name__)
    async def test_the_plugin_keeps_the_rule(case, check):
        await check(case)
"""

from __future__ import annotations

from inspan_runtime.testing.harness_case import Check, HarnessCase, ShellCall, json_call
from inspan_runtime.testing.harness_parse_checks import PARSE_CHECKS
from inspan_runtime.testing.harness_run_checks import RUN_CHECKS, SHELL_CHECKS
from inspan_runtime.testing.sandbox_check_support import CheckFailed

HARNESS_CHECKS: list[Check] = [*PARSE_CHECKS, *RUN_CHECKS]

__all__ = ["HARNESS_CHECKS", "SHELL_CHECKS", "Check", "CheckFailed", "HarnessCase", "ShellCall", "json_call"]
