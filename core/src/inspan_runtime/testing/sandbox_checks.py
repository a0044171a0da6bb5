"""Checks that tell the author of a sandbox provider whether it keeps the contract.

Each check is an async function that takes a provider and `make_spec`, a function that returns a fresh
`SandboxSpec` and takes fields to change. It makes its own sandboxes, ends them, and raises `CheckFailed`
with a sentence when the contract is broken::

    for check in SANDBOX_CHECKS:
        await check(provider, make_spec)

The sandbox needs `sh`, `cat`, `head`, `sleep`, `mkfifo` and `ln`.
"""

from __future__ import annotations

from inspan_runtime.testing.sandbox_check_support import Check, CheckFailed, MakeSpec
from inspan_runtime.testing.sandbox_command_checks import COMMAND_CHECKS
from inspan_runtime.testing.sandbox_file_checks import FILE_CHECKS
from inspan_runtime.testing.sandbox_life_checks import LIFE_CHECKS

SANDBOX_CHECKS: list[Check] = [*COMMAND_CHECKS, *FILE_CHECKS, *LIFE_CHECKS]

__all__ = ["SANDBOX_CHECKS", "Check", "CheckFailed", "MakeSpec"]
