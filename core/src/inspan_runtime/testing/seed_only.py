"""A harness for tests of what comes before a run: it is seeded and never activated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inspan_core.harness import (
    ActivationContext,
    CollectContext,
    HarnessContext,
    HarnessSpec,
    ParsedActivation,
    ParseInput,
    SandboxCommand,
    SandboxNeeds,
)
from inspan_core.hookspecs import hookimpl

NEVER = "a harness that is only seeded was activated"


class SeedOnly:
    """Installs nothing, and fails as soon as it is run. Tests override `inspan_install`.

    Args:
        name: The harness's.
        needs: What it needs of a sandbox; None: nothing.
    """

    def __init__(self, name: str = "seed-only", needs: SandboxNeeds | None = None) -> None:
        self._name = name
        self._needs = needs if needs is not None else SandboxNeeds()

    @hookimpl
    def inspan_harness(self) -> HarnessSpec:
        """See `inspan_core.hookspecs`, as for the others."""
        return HarnessSpec(
            name=self._name,
            version="1",
            model_api="chat_completions",
            level=2,
            request_fields={"input": "applied", "metadata": "applied"},
            needs=self._needs,
        )

    @hookimpl
    async def inspan_install(self, context: HarnessContext) -> Mapping[str, Any]:
        """Nothing is needed."""
        return {}

    @hookimpl
    async def inspan_stage(self, context: ActivationContext) -> SandboxCommand:
        """Never."""
        raise AssertionError(NEVER)

    @hookimpl
    async def inspan_collect(self, context: CollectContext) -> None:
        """Never."""
        raise AssertionError(NEVER)

    @hookimpl
    def inspan_parse(self, run: ParseInput) -> ParsedActivation:
        """Never."""
        raise AssertionError(NEVER)
