"""Containers of ours whose state folder is gone: keeper and folder were taken away, the container not."""

from __future__ import annotations

from pathlib import Path

from inspan_runtime.providers.docker.engine import Engine
from inspan_runtime.providers.docker.run_command import LABEL
from inspan_runtime.providers.holding import HeldSandbox

LIST_LIMIT_S = 30.0


async def strays(engine: Engine, folder: Path, known: set[str]) -> tuple[HeldSandbox, ...]:
    """Return the containers that say that their state folder is one of `folder`, and that have none.

    Args:
        engine: The engine.
        folder: Where the state folders are.
        known: The ids that have one.

    Raises:
        SandboxError: The engine does not answer.
    """
    said = await engine.asked(
        "ps",
        "--all",
        f"--filter=label={LABEL}",
        f'--format={{{{.Names}}}} {{{{.Label "{LABEL}"}}}}',
        what="list of containers",
        timeout_s=LIST_LIMIT_S,
    )
    rows = [line.split(" ", 1) for line in said.splitlines() if " " in line]
    return tuple(
        HeldSandbox(sandbox_id=name, what="its container has no state folder")
        for name, state in rows
        if Path(state).parent == folder and name not in known
    )
