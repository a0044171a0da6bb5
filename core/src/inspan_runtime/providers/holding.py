"""Which sandboxes of a provider there are, and whose: what remains of dead runs can be told from the rest."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

from attrs import field, frozen

from inspan_core.sandbox import Descriptor
from inspan_runtime.providers import state_folder


@frozen(kw_only=True)
class HeldSandbox:
    """A sandbox, or what is left of one.

    Attributes:
        sandbox_id: The provider's name for it.
        key: What it was created under; None where that is not known.
        labels: Its labels.
        descriptor: What `SandboxProvider.connect` takes; None where nothing of it runs, empty where it
            runs and what is written of it cannot be read.
        age_s: How long ago it was created; None where that is not known.
        holders: The living processes that created it or connected to it.
        what: One clause on its state.
    """

    sandbox_id: str
    key: str | None = None
    labels: Mapping[str, str] = field(factory=dict)
    descriptor: Descriptor | None = None
    age_s: float | None = None
    holders: tuple[int, ...] = ()
    what: str = "runs"


@runtime_checkable
class HoldingProvider(Protocol):
    """A provider that knows who has to do with its sandboxes."""

    async def held(self) -> tuple[HeldSandbox, ...]:
        """Return all sandboxes, and what is left of dead ones; nothing is changed."""
        ...

    async def remove(self, held: HeldSandbox) -> None:
        """End a sandbox, or remove what is left of it.

        Raises:
            SandboxTransportError: That could not be confirmed.
        """
        ...


def held_in(folder: Path) -> tuple[HeldSandbox, ...]:
    """Look at the state folders of one kind."""
    if not folder.is_dir():
        return ()
    found = []
    for state in sorted(folder.iterdir()):
        if not state_folder.SANDBOX_ID.fullmatch(state.name):
            continue
        meta = state_folder.read_meta(state) or {}
        is_held = state_folder.is_held(state)
        created_at = meta.get("created_at")
        found.append(
            HeldSandbox(
                sandbox_id=state.name,
                key=meta.get("key"),
                labels=meta.get("labels") or {},
                descriptor=meta.get("descriptor", {}) if is_held else None,
                age_s=None if created_at is None else max(0.0, time.time() - created_at),
                holders=tuple(state_folder.living_holders(state)),
                what="runs" if is_held else "its keeper is dead",
            )
        )
    return tuple(found)
