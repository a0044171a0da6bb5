"""A sandbox that is thrown away, in which a harness's runtime is installed and its check is run."""

from __future__ import annotations

import os
import secrets
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from attrs import frozen

from inspan_core.errors import UsageError
from inspan_core.plugins import Plugins, load_plugins
from inspan_core.relay import Harness
from inspan_core.sandbox import Sandbox, SandboxProvider, SandboxSpec
from inspan_runtime.contexts import SessionContext
from inspan_runtime.install import SandboxInstaller
from inspan_runtime.install_build import package_client_env
from inspan_runtime.install_cache import RuntimeCache, default_cache_dir
from inspan_runtime.install_shared import create_with_runtimes
from inspan_runtime.preflight import Wanted, require
from inspan_runtime.providers import builtin

TTL_S = 1800.0
STOP_TIMEOUT_S = 30.0
Place = Mapping[str, str | None]
"""``{"sandbox", "image", "cache_dir"}`` of the command line."""


@frozen(kw_only=True)
class Tried:
    """What came of an installation.

    Attributes:
        runtime: What the plugin's installation returned.
        target: What was found in the sandbox.
        seconds: How long the installation took, check included.
    """

    runtime: Mapping[str, Any]
    target: Mapping[str, Any]
    seconds: float


def all_plugins() -> Plugins:
    """The installed plugins and the built-in providers."""
    return load_plugins([builtin])


def open_cache(
    cache_dir: str | None, *, report: Callable[[str], None] = lambda _line: None, may_build: bool = True
) -> RuntimeCache:
    """The host's cache that a server with that ``runtime_cache_dir`` uses.

    Raises:
        UsageError: It is no folder's name.
    """
    if cache_dir is not None and not cache_dir.strip():
        raise UsageError("--cache-dir is empty, expected a folder")
    root = default_cache_dir(os.environ) if cache_dir is None else Path(cache_dir).absolute()
    return RuntimeCache(root, client_env=package_client_env(os.environ), report=report, may_build=may_build)


def provider_of(plugins: Plugins, place: Place) -> SandboxProvider:
    """The sandbox provider that the command line names.

    Raises:
        PluginError: There is none of that name.
        UsageError: It needs an image.
    """
    kind = str(place["sandbox"])
    if kind == "docker" and not place["image"]:
        raise UsageError("--sandbox docker needs --image")
    return plugins.provider_factory(kind)({})


@asynccontextmanager
async def thrown_away(provider: SandboxProvider, place: Place, cache: RuntimeCache) -> AsyncIterator[Sandbox]:
    """A sandbox that sees the cache's runtimes, stopped at the end.

    Raises:
        SandboxError: It cannot be had; the message says what is missing.
    """
    with tempfile.TemporaryDirectory(prefix="inspan-try-") as folder:
        # Where the host's files are shared, the workdir is the host's own.
        workdir = f"{folder}/work" if place["sandbox"] == "local" else "/workspace"
        spec = SandboxSpec(workdir=workdir, ttl_s=TTL_S, image=place["image"])
        key = f"try-{secrets.token_hex(8)}"
        sandbox = await create_with_runtimes(provider, spec, cache.shared, key=key, timeout_s=120.0)
        try:
            yield sandbox
        finally:
            with anyio.CancelScope(shield=True):
                await sandbox.stop()
                await anyio.to_thread.run_sync(cache.shared.let_go, sandbox.sandbox_id)
                await provider.aclose()


async def try_harness(harness: Harness, sandbox: Sandbox, cache: RuntimeCache) -> Tried:
    """Install the harness in the sandbox as a seed does.

    Raises:
        UnsupportedTarget: The sandbox cannot run it, or lacks what the harness declares as its needs.
        InstallError: It failed.
    """
    workdir = str(sandbox.descriptor.get("workdir", "/"))
    installer = SandboxInstaller(sandbox, cache, workdir=workdir, lease_s=TTL_S)
    scratch = sandbox.descriptor.get("scratch")
    session_dir = f"{scratch if isinstance(scratch, str) else '/tmp/inspan'}/try"
    needs = harness.spec.needs
    wanted = Wanted(
        session_dir=session_dir,
        programs=needs.programs,
        certificates=needs.certificates,
        free_mib=needs.free_mib,
    )
    require(await installer.look(wanted))
    context = SessionContext(
        sandbox=sandbox,
        session_dir=session_dir,
        workdir=workdir,
        installer=installer,
        options=harness.spec.options,
    )
    started = time.monotonic()
    runtime = await harness.install(context)
    seconds = time.monotonic() - started
    found = await installer.target()
    target = {name: getattr(found, name) for name in ("os", "arch", "libc", "libc_version", "python")}
    return Tried(runtime=runtime, target=target, seconds=seconds)
