"""Checks that tell the author of a sandbox provider whether it keeps the contract.

Each check is an async function that takes a provider and `make_spec`, a function that returns a fresh
`SandboxSpec` and takes fields to change. It makes its own sandboxes, ends them, and raises `CheckFailed`
with a sentence when the contract is broken::

    for check in checks_for(provider):
        await check(provider, make_spec)

A provider that cannot do something says so by an attribute ``capabilities``, a set of names of
`CAPABILITIES`; `checks_for` leaves out what needs the others, and a check sees that the provider refuses
them. The sandbox needs `sh`, `cat`, `head`, `sleep`, `mkfifo` and `ln`.
"""

from __future__ import annotations

from inspan_core.sandbox import SandboxProvider
from inspan_runtime.testing.sandbox_boundary_checks import BOUNDARY_CHECKS
from inspan_runtime.testing.sandbox_check_support import (
    CAPABILITIES,
    Check,
    CheckFailed,
    MakeSpec,
    capabilities_of,
    needs_of,
)
from inspan_runtime.testing.sandbox_command_checks import COMMAND_CHECKS
from inspan_runtime.testing.sandbox_file_checks import FILE_CHECKS
from inspan_runtime.testing.sandbox_life_checks import LIFE_CHECKS
from inspan_runtime.testing.sandbox_process_checks import PROCESS_CHECKS

SANDBOX_CHECKS: list[Check] = [
    *COMMAND_CHECKS,
    *PROCESS_CHECKS,
    *FILE_CHECKS,
    *LIFE_CHECKS,
    *BOUNDARY_CHECKS,
]

__all__ = [
    "CAPABILITIES",
    "SANDBOX_CHECKS",
    "Check",
    "CheckFailed",
    "MakeSpec",
    "capabilities_of",
    "checks_for",
    "needs_of",
]


def checks_for(provider: SandboxProvider) -> list[Check]:
    """Return the checks that a provider has to pass."""
    able = capabilities_of(provider)
    return [check for check in SANDBOX_CHECKS if needs_of(check) <= able]
