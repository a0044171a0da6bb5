"""A plugin's session with the gateway for its model server: for tests that run the real program."""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import anyio
import anyio.to_thread

from inspan_core.sandbox import SandboxProvider, SandboxSpec
from inspan_core.wire import ToolAccess
from inspan_runtime.install import SandboxInstaller
from inspan_runtime.install_build import package_client_env
from inspan_runtime.install_cache import RuntimeCache, default_cache_dir
from inspan_runtime.install_shared import create_with_runtimes
from inspan_runtime.providers.bubblewrap import BubblewrapProvider
from inspan_runtime.providers.local import LocalProvider
from inspan_runtime.testing.plugin_episode import PluginEpisode
from inspan_server.model.capture import Capture
from inspan_server.model.gateway import create_gateway
from inspan_server.model.script import parse_script
from inspan_server.serving import served
from inspan_server.testing.replies import Reply

ROLLOUT = "r1"
KEY = "sk-canary-4711"
"""The model's key: whoever is shown it has seen a secret."""

SESSION_DIR = "/tmp/inspan-sessions/1"
TTL_S = 600.0


def own_cache() -> RuntimeCache:
    """The user's own cache, so that the registries are asked once and not for every test run."""
    return RuntimeCache(default_cache_dir(os.environ), client_env=package_client_env(os.environ))


@asynccontextmanager
async def plugin_run(
    plugin: Any,
    replies: Sequence[Reply],
    *,
    folder: Path,
    cache: RuntimeCache,
    place: Literal["bubblewrap", "local"] = "bubblewrap",
    shows_runtimes: bool = True,
    reach: Sequence[str] = (),
    tool_accesses: Sequence[ToolAccess] = (),
    options: Mapping[str, Any] | None = None,
) -> AsyncIterator[tuple[PluginEpisode, str, Capture]]:
    """A seeded session in a new sandbox, its model's base URL, and what the gateway records.

    Args:
        plugin: The plugin's module.
        replies: Of the model, call by call.
        folder: Of the test, empty.
        place: ``bubblewrap``, or ``local``: without isolation, everything below `folder`.
        shows_runtimes: Whether an isolated sandbox sees the host's runtimes; else they are uploaded.
        reach: Further URLs of this host that the sandbox reaches.
        options: The harness's, over its defaults.
    """
    is_local = place == "local"
    where = {"runtime_dir": str(folder / "run")}
    provider: SandboxProvider = LocalProvider(where) if is_local else BubblewrapProvider(where)
    workdir = str(folder / "app") if is_local else "/app"
    capture, script = Capture(), parse_script({ROLLOUT: list(replies)})
    async with served(create_gateway(script, capture, keys={ROLLOUT: KEY}), graceful_timeout_s=0.2) as url:
        spec = SandboxSpec(workdir=workdir, ttl_s=TTL_S, reach=(url, *reach))
        key = secrets.token_hex(8)
        if shows_runtimes:
            sandbox = await create_with_runtimes(provider, spec, cache.shared, key=key, timeout_s=60.0)
        else:
            sandbox = await provider.create(spec, key=key)
        try:
            one = PluginEpisode(
                plugin=plugin,
                sandbox=sandbox,
                workdir=workdir,
                session_dir=str(folder / "session") if is_local else SESSION_DIR,
                installer=SandboxInstaller(
                    sandbox,
                    cache,
                    workdir=workdir,
                    roots=[str(folder / "rt")] if is_local else None,
                    lease_s=TTL_S,
                ),
                options=dict(options or {}),
                tool_accesses=tool_accesses,
                model_key=KEY,
            )
            await one.seed()
            yield one, f"{url}/ng-rollout/{ROLLOUT}/v1", capture
        finally:
            with anyio.CancelScope(shield=True):
                await sandbox.stop()
                await provider.aclose()
                await anyio.to_thread.run_sync(cache.shared.let_go, sandbox.sandbox_id)
