"""`inspan harness doctor`: whether a harness works on this machine, and how to mend what does not."""

from __future__ import annotations

import json
import platform
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
from attrs import asdict, frozen

from inspan_core.errors import InspanError, SandboxError, UnsupportedTarget
from inspan_core.plugins import Plugins
from inspan_runtime.install_cache import RuntimeCache
from inspan_server.cli.exit_codes import DONE, FAILED
from inspan_server.cli.harness_try import (
    Place,
    all_plugins,
    open_cache,
    provider_of,
    thrown_away,
    try_harness,
)

NEEDED_BYTES = 2 * 1024**3
"""Room for the largest runtime known, as an archive and unpacked, while the next version is built."""


@frozen(kw_only=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        what: Its name.
        is_well: Whether it is as it should be.
        detail: What was found.
        fix: What to do about it, when it is not well.
    """

    what: str
    is_well: bool
    detail: str
    fix: str | None = None


def examine_harness(name: str, place: Place, *, as_json: bool) -> int:
    """Look at everything that a session of the harness needs here, and print what was found.

    Returns:
        0; 1 when something is wrong.
    """
    findings: list[Finding] = []
    plugins = all_plugins()

    async def examine() -> None:
        async for finding in _findings(name, place, plugins):
            findings.append(finding)
            if not as_json:
                print(_line(finding), flush=True)

    anyio.run(examine)
    is_well = all(each.is_well for each in findings)
    if as_json:
        print(json.dumps({"harness": name, "is_well": is_well, "findings": _dicts(findings)}, indent=2))
    else:
        print(f"{name} works here" if is_well else f"{name} does not work here yet")
    return DONE if is_well else FAILED


async def _findings(name: str, place: Place, plugins: Plugins) -> AsyncIterator[Finding]:
    yield _machine()
    yield (plugin := _plugin(name, plugins))
    cache = open_cache(place["cache_dir"], may_build=False)
    yield (room := _cache(cache))
    can_try = plugin.is_well and room.is_well
    if can_try:
        for finding in _cached(name, cache):
            yield finding
    async for finding in _in_a_sandbox(name, place, plugins, cache, is_tried=can_try):
        yield finding


def _machine() -> Finding:
    is_well = sys.platform == "linux"
    system = f"{platform.system()} {platform.release()}, {platform.machine()}"
    return Finding(
        what="machine",
        is_well=is_well,
        detail=f"{system}, Python {platform.python_version()}",
        fix=None if is_well else "run on Linux, or reach docker sandboxes from a Linux machine",
    )


def _plugin(name: str, plugins: Plugins) -> Finding:
    try:
        harness = plugins.harness(name)
    except InspanError as error:
        fix = f"pip install inspan-{name}, or uninstall what is broken"
        return Finding(what="plugin", is_well=False, detail=str(error), fix=fix)
    return Finding(
        what="plugin", is_well=True, detail=f"{harness.distribution}: {name} {harness.spec.version}"
    )


def _cache(cache: RuntimeCache) -> Finding:
    fix = "name a folder with room by --cache-dir (runtime_cache_dir of a server)"
    try:
        cache.require()
        free = shutil.disk_usage(cache.root).free
    except OSError as error:
        detail = f"{error.filename or cache.root} cannot be written: {error.strerror or error}"
        return Finding(what="cache", is_well=False, detail=detail, fix=fix)
    is_well = free >= NEEDED_BYTES
    detail = f"{cache.root}, {free / 1024**3:.1f} GiB free"
    return Finding(what="cache", is_well=is_well, detail=detail, fix=None if is_well else fix)


def _cached(name: str, cache: RuntimeCache) -> list[Finding]:
    """The harness's runtimes that are there: a damaged one mends itself at the next seed."""
    unpacked = cache.shared.keys()
    found = [key for key in sorted({*cache.known(), *unpacked}) if key.startswith(f"{name}-")]
    details = []
    for key in found:
        state = "archive only" if key not in unpacked else "unpacked"
        if key in unpacked and not cache.shared.is_intact(key):
            state = "damaged or made by another version: the next seed makes it anew"
        if not cache.is_sound(key):
            state += "; its archive is missing or damaged: a seed that needs it builds it anew"
        details.append(f"{key}: {state}, {_size_mib(cache, key)} MiB")
    return [Finding(what="cached", is_well=True, detail=each) for each in details]


def _size_mib(cache: RuntimeCache, key: str) -> int:
    files = [*(cache.root / "archives").glob(f"{key}-*.tar"), *(cache.shared.folder / key).rglob("*")]
    return sum(_size(path) for path in files) // 1024**2


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except FileNotFoundError:
        return 0


async def _in_a_sandbox(
    name: str, place: Place, plugins: Plugins, cache: RuntimeCache, *, is_tried: bool
) -> AsyncIterator[Finding]:
    kind, what = str(place["sandbox"]), "sandbox"
    try:
        async with thrown_away(provider_of(plugins, place), place, cache) as sandbox:
            result = await sandbox.exec(["uname", "-sm"], timeout_s=30.0)
            yield Finding(what=what, is_well=True, detail=f"{kind}: {result.stdout.decode().strip()}")
            if is_tried:
                what = "runtime"
                tried = await try_harness(plugins.harness(name), sandbox, cache)
                where = tried.runtime.get("prefix", tried.runtime.get("python", "nothing to install"))
                yield Finding(what=what, is_well=True, detail=f"{where}, checked in {tried.seconds:.2f} s")
    except UnsupportedTarget as error:
        fix = "use an image that has what is named as supported"
        yield Finding(what="runtime", is_well=False, detail=str(error), fix=fix)
    except SandboxError as error:
        fix = "do what the message says, or choose another --sandbox"
        yield Finding(what="sandbox", is_well=False, detail=f"{kind}: {error}", fix=fix)
    except InspanError as error:
        fix = f"inspan harness install {name}" if what == "runtime" else "choose another --sandbox"
        yield Finding(what=what, is_well=False, detail=str(error), fix=fix)


def _line(finding: Finding) -> str:
    mark = "ok     " if finding.is_well else "WRONG  "
    line = f"{mark} {finding.what:<8} {finding.detail}"
    return line if finding.fix is None else f"{line}\n        {'':<8} fix: {finding.fix}"


def _dicts(findings: list[Finding]) -> list[dict[str, Any]]:
    return [asdict(each) for each in findings]
