"""How long a provider's sandboxes take: a report beside the checks, which judge no time."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

from inspan_core.sandbox import Sandbox, SandboxProvider
from inspan_runtime.testing.sandbox_check_support import MakeSpec, fresh_key

LIVES = 5
EXECS = 10
TRANSFER_BYTES = 10_000_000
LIMIT_S = 120.0


async def latency_report(
    provider: SandboxProvider, make_spec: MakeSpec, *, lives: int = LIVES
) -> dict[str, float]:
    """Return the medians of some lives, one after the other.

    Returns:
        Milliseconds: ``create_to_first_exec``, ``exec``, ``upload_10_mb``, ``download_10_mb``, ``connect``,
        ``stop``.
    """
    seen: list[dict[str, float]] = [await _one_life(provider, make_spec) for _ in range(lives)]
    return {step: round(statistics.median(one[step] for one in seen), 2) for step in seen[0]}


async def _one_life(provider: SandboxProvider, make_spec: MakeSpec) -> dict[str, float]:
    key, spec, data = fresh_key(), make_spec(), os.urandom(TRANSFER_BYTES)

    async def born() -> Sandbox:
        sandbox = await provider.create(spec, key=key, timeout_s=LIMIT_S)
        await sandbox.exec(["true"], timeout_s=LIMIT_S)
        return sandbox

    try:
        create_ms, sandbox = await _timed(born)
        path = f"{spec.workdir}/transfer"
        execs = [(await _timed(lambda: sandbox.exec(["true"], timeout_s=LIMIT_S)))[0] for _ in range(EXECS)]
        upload_ms, _ = await _timed(lambda: sandbox.upload(path, data, timeout_s=LIMIT_S))
        download_ms, _ = await _timed(
            lambda: sandbox.download(path, limit_bytes=TRANSFER_BYTES, timeout_s=LIMIT_S)
        )
        connect_ms, _ = await _timed(lambda: provider.connect(sandbox.descriptor))
        stop_ms, _ = await _timed(sandbox.stop)
    finally:
        await provider.stop(key)
    return {
        "create_to_first_exec": create_ms,
        "exec": statistics.median(execs),
        "upload_10_mb": upload_ms,
        "download_10_mb": download_ms,
        "connect": connect_ms,
        "stop": stop_ms,
    }


async def _timed(action: Callable[[], Awaitable[Any]]) -> tuple[float, Any]:
    started = time.perf_counter()
    result = await action()
    return (time.perf_counter() - started) * 1000, result
