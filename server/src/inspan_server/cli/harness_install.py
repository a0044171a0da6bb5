"""`inspan harness install` and `prune`: fill this host's cache, and empty it of what is old."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import anyio

from inspan_core.errors import InstallError, SandboxError, UnsupportedTarget, UsageError
from inspan_core.relay import Harness
from inspan_core.sandbox import SandboxProvider
from inspan_runtime.install_cache import RuntimeCache
from inspan_server.cli.exit_codes import DONE, FAILED, INFRASTRUCTURE
from inspan_server.cli.failure import failed
from inspan_server.cli.harness_try import (
    Place,
    Tried,
    all_plugins,
    open_cache,
    provider_of,
    thrown_away,
    try_harness,
)


def install_harness(name: str, place: Place, *, as_json: bool) -> int:
    """Fill the cache with a harness's runtime, and run its check in a sandbox.

    Returns:
        0; 1 when it cannot be installed; 3 when no sandbox can be had, or the cache cannot be written.

    Raises:
        PluginError: There is no such harness or sandbox provider.
    """
    plugins = all_plugins()
    harness, provider = plugins.harness(name), provider_of(plugins, place)
    say: Callable[[str], None] = partial(print, file=sys.stderr if as_json else sys.stdout, flush=True)
    cache = open_cache(place["cache_dir"], report=say)
    fail = partial(failed, "inspan harness install", as_json=as_json)
    try:
        cache.require()
    except OSError as error:
        return fail(f"{cache.root} cannot be written: {error}", INFRASTRUCTURE)
    say(f"installing {name} {harness.spec.version} into {cache.root}")
    try:
        tried = anyio.run(_tried, harness, provider, place, cache)
    except (InstallError, UnsupportedTarget) as error:
        return fail(error, FAILED)
    except SandboxError as error:
        return fail(f"no sandbox to try it in: {error}", INFRASTRUCTURE)
    if as_json:
        print(json.dumps(_told(harness, cache, tried), indent=2))
    else:
        print(f"{name} {harness.spec.version} runs on {_shown(tried.target)}; done in {tried.seconds:.1f} s")
    return DONE


async def _tried(harness: Harness, provider: SandboxProvider, place: Place, cache: RuntimeCache) -> Tried:
    async with thrown_away(provider, place, cache) as sandbox:
        return await try_harness(harness, sandbox, cache)


def _told(harness: Harness, cache: RuntimeCache, tried: Tried) -> dict[str, Any]:
    return {
        "harness": harness.spec.name,
        "version": harness.spec.version,
        "cache": str(cache.root),
        "runtime": dict(tried.runtime),
        "target": dict(tried.target),
        "seconds": round(tried.seconds, 3),
    }


def _shown(target: Any) -> str:
    libc = f"{target['libc']} {target['libc_version'] or ''}".rstrip()
    return f"{target['os']} {target['arch']} with {libc}"


def prune_cache(cache_dir: str | None, *, keep: int, as_json: bool) -> int:
    """Remove runtimes of old versions from the cache.

    Returns:
        0; 3 when the cache cannot be written.

    Raises:
        UsageError: `keep` is below 0.
    """
    if keep < 0:
        raise UsageError(f"--keep is {keep}, expected 0 or more")
    cache = open_cache(cache_dir)
    try:
        gone = cache.prune(kept=keep)
    except OSError as error:
        said = f"{cache.root} cannot be written: {error}"
        return failed("inspan harness prune", said, INFRASTRUCTURE, as_json=as_json)
    left = sorted({*cache.known(), *cache.shared.keys()})
    if as_json:
        print(json.dumps({"cache": str(cache.root), "removed": gone, "kept": left}, indent=2))
    else:
        for key in gone:
            print(f"removed {key}")
        for key in left:
            print(f"kept    {key}{' (a sandbox may use it)' if cache.shared.is_leased(key) else ''}")
    return DONE
