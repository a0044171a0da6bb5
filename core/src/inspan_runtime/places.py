"""Where a session's harness is to run."""

from __future__ import annotations

from collections.abc import Collection

from inspan_core.errors import RequestRefused
from inspan_core.wire import SeedRequest
from inspan_runtime.harness_work import OwnedSandbox


def check_place(seed: SeedRequest, owned: OwnedSandbox | None, providers: Collection[str]) -> None:
    """Refuse a seed that names no sandbox that can be reached here.

    Args:
        owned: What a session without a sandbox gets, or None.
        providers: The names of the configured provider blocks.

    Raises:
        RequestRefused: Naming the field.
    """
    access = seed.sandbox_access
    if access is None:
        if owned is None:
            raise RequestRefused(
                "the seed has no sandbox_access and this server has no sandbox_provider: "
                "there is nowhere to run",
                field="sandbox_access",
            )
        return
    reference = access.connection.provider_config_ref
    if reference not in providers:
        known = ", ".join(sorted(providers)) or "none"
        raise RequestRefused(
            f"sandbox_access.connection.provider_config_ref {reference!r} names no provider block; "
            f"known: {known}",
            field="sandbox_access.connection.provider_config_ref",
        )
