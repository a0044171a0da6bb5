"""What the hooks of every plugin with a shim do alike: upload it, stage its order, copy what it left.

`inspan_core.shim` says what a shim reads and writes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from inspan_core.function_tools import READY, READY_LIMIT_BYTES
from inspan_core.harness import ActivationContext, CollectContext, HarnessContext, SandboxCommand
from inspan_core.shim_files import shim_files

RUNNER = "sandbox_runner.py"
MIB = 1024 * 1024
# Each artifact and the most that is taken of it; of the last ones only the tail matters.
WHOLE_FILES: Mapping[str, int] = {"output.json": 8 * MIB, "runtime_info.json": 64 * 1024}
TAIL_FILES: Mapping[str, int] = {"events.jsonl": 64 * MIB, "stderr.log": MIB, "output.log": MIB}


async def upload_shim(context: HarnessContext, runner_source: str) -> None:
    """Put the plugin's runner and its library into the session folder."""
    for name, text in {RUNNER: runner_source, **shim_files()}.items():
        await context.upload_text(name, text, mode=0o600)


async def stage_shim(context: ActivationContext, order: Mapping[str, Any]) -> SandboxCommand:
    """Upload the shim's order; the command names only the shim.

    Args:
        order: The content of ``input.json``, which the shim deletes when it has read it.
    """
    await context.upload_text("input.json", json.dumps(order), mode=0o600)
    python = str(context.runtime["python"])
    return SandboxCommand(argv=[python, "-I", "-S", f"{context.session_dir}/{RUNNER}"], python=python)


async def collect_shim(context: CollectContext, tails: Mapping[str, int] | None = None) -> None:
    """Copy what every shim leaves.

    Args:
        tails: The program's own files, each with the most that is taken of its end, in bytes.
    """
    for name, limit_bytes in WHOLE_FILES.items():
        await context.download(name, limit_bytes=limit_bytes)
    await context.download(READY, limit_bytes=READY_LIMIT_BYTES, optional=True)
    for name, limit_bytes in {**TAIL_FILES, **(tails or {})}.items():
        await context.download(name, limit_bytes=limit_bytes, tail=True)
