"""The `Installer` that hooks receive: probe the sandbox, take the archive from the host, publish it inside.

A runtime appears in a sandbox in one step (a rename under a lock), after it ran there. Its marker names the
installation, so that of several seeds at once one publishes and the others keep what it published.
"""

from __future__ import annotations

import json
import shlex
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import resources
from typing import Any

import anyio

from inspan_core.errors import (
    ExecTimeout,
    InstallError,
    SandboxError,
    TooLarge,
    UnsafePath,
    UnsupportedTarget,
)
from inspan_core.harness import BuildFolder, RuntimeArchive, RuntimeKey, Target
from inspan_core.sandbox import Sandbox
from inspan_runtime.install_cache import RuntimeCache
from inspan_runtime.install_target import DEFAULT_ROOTS, PYTHON_CANDIDATES, Probe, probe_script, read_probe
from inspan_runtime.install_unpacker import MARKER

PROBE_TIMEOUT_S = 60.0
HEALTH_TIMEOUT_S = 120.0
UNPACK_TIMEOUT_S = 600.0
DISCARD_TIMEOUT_S = 30.0
MARKER_LIMIT_BYTES = 4096
OUTPUT_TAIL_CHARS = 4096


class SandboxInstaller:
    """Installs runtimes into one sandbox from the host's cache.

    Args:
        sandbox: Where to install.
        cache: The host's archives.
        workdir: The task's folder inside; runtimes never go there.
        roots: Candidate folders for runtimes inside, best first; all absolute. By default the usual
            places; without isolation, the host's cache folder first, so that nothing is left elsewhere.
        pythons: Candidate interpreters inside, best first; by default the one that the provider's
            descriptor names as ``python``, then the usual places.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        cache: RuntimeCache,
        *,
        workdir: str,
        roots: Sequence[str] | None = None,
        pythons: Sequence[str] | None = None,
    ) -> None:
        self._sandbox = sandbox
        self._cache = cache
        self._workdir = workdir
        is_host = sandbox.descriptor.get("isolation") == "none"
        places = (str(cache.root.absolute() / "runtimes"), *DEFAULT_ROOTS) if is_host else DEFAULT_ROOTS
        self._roots = places if roots is None else tuple(roots)
        named = sandbox.descriptor.get("python")
        usual = (named, *PYTHON_CANDIDATES) if isinstance(named, str) else PYTHON_CANDIDATES
        self._pythons = usual if pythons is None else tuple(pythons)
        self._probe: Probe | None = None
        self._lock = anyio.Lock()

    async def target(self) -> Target:
        """Probe the sandbox (once)."""
        return (await self._probed()).target

    async def archive(
        self, key: RuntimeKey, build: Callable[[BuildFolder], Awaitable[None]]
    ) -> RuntimeArchive:
        """The cached archive of `key`; see `Installer`."""
        return await self._cache.archive(key, build)

    def prefix(self, key: RuntimeKey) -> str:
        """Where `publish` puts this runtime: known for certain once `target` was awaited."""
        root = self._probe.root if self._probe is not None else None
        return f"{root or self._roots[0]}/{key}"

    async def healthy(self, prefix: str, *, health: Sequence[str], expect: str) -> bool:
        """Whether the runtime at `prefix` carries its ready marker and passes `health`."""
        if await self._marker(prefix) is None:
            return False
        return await self._fault(prefix, health, expect) is None

    async def publish(
        self, key: RuntimeKey, archive: RuntimeArchive, *, health: Sequence[str], expect: str
    ) -> str:
        """Unpack, check and publish a runtime atomically; see `Installer`."""
        probe = await self._probed()
        if probe.root is None:
            raise UnsupportedTarget(
                f"no folder of the sandbox can hold a runtime that runs ({probe.tried}); "
                f"supported: one of {', '.join(self._roots)}, writable and not noexec"
            )
        if probe.target.python is None:
            raise UnsupportedTarget(_no_python(probe.target))
        prefix = self.prefix(key)
        seen = await self._marker(prefix)
        if seen is not None and await self._fault(prefix, health, expect) is None:
            return prefix
        nonce = uuid.uuid4().hex
        private, upload = f"{probe.root}/.{nonce}", f"{probe.root}/.{nonce}.tar"
        marker = {"runtime": str(key), "sha256": archive.sha256, "installation": nonce}
        try:
            await self._sandbox.upload_file(upload, archive.path, mode=0o600)
            await self._order({"do": "unpack", "private": private, "archive": upload})
            fault = await self._fault(private, health, expect)
            if fault is not None:
                raise fault
            order = {"do": "publish", "private": private, "prefix": prefix, "marker": marker, "seen": seen}
            answer = await self._order(order)
        except BaseException:
            await self._discard(private, upload)
            raise
        if "kept" in answer:
            fault = await self._fault(prefix, health, expect)
            if fault is not None:
                raise fault
        return prefix

    async def _discard(self, private: str, upload: str) -> None:
        """Remove what a failed installation left; its own failure must not hide the first."""
        with anyio.move_on_after(DISCARD_TIMEOUT_S, shield=True), suppress(InstallError, SandboxError):
            await self._order({"do": "discard", "private": private, "archive": upload})

    async def _probed(self) -> Probe:
        async with self._lock:
            if self._probe is None:
                result = await self._sandbox.exec(
                    ["sh", "-c", probe_script(self._roots, self._workdir, self._pythons)],
                    timeout_s=PROBE_TIMEOUT_S,
                    cwd="/",
                    output_limit_bytes=64 * 1024,
                )
                self._probe = read_probe(result.stdout.decode("utf-8", "replace"))
            return self._probe

    async def _marker(self, prefix: str) -> Mapping[str, Any] | None:
        try:
            content = await self._sandbox.download(f"{prefix}/{MARKER}", limit_bytes=MARKER_LIMIT_BYTES)
            marker = json.loads(content.data)
        except (FileNotFoundError, NotADirectoryError, UnsafePath, TooLarge, ValueError):
            return None
        return marker if isinstance(marker, dict) else None

    async def _fault(self, prefix: str, health: Sequence[str], expect: str) -> InstallError | None:
        """What is wrong with the runtime at `prefix`, by running it."""
        argv = [word.replace("{prefix}", prefix) for word in health]
        shown = " ".join(shlex.quote(word) for word in argv)[:500]
        try:
            result = await self._sandbox.exec(
                argv, timeout_s=HEALTH_TIMEOUT_S, cwd="/", output_limit_bytes=64 * 1024
            )
        except ExecTimeout:
            return InstallError(
                f"the runtime's check took longer than {HEALTH_TIMEOUT_S:.0f} s", command=shown
            )
        output = (result.stdout + result.stderr).decode("utf-8", "replace")
        if result.exit_code == 0 and expect in output:
            return None
        what = f"did not print {expect!r}" if result.exit_code == 0 else "failed"
        return InstallError(
            f"the runtime's check {what}",
            command=shown,
            exit_code=result.exit_code,
            output=output[-OUTPUT_TAIL_CHARS:],
        )

    async def _order(self, order: Mapping[str, Any]) -> dict[str, Any]:
        probe = await self._probed()
        if probe.target.python is None:
            raise UnsupportedTarget(_no_python(probe.target))
        result = await self._sandbox.exec(
            [probe.target.python, "-I", "-S", "-", json.dumps(order)],
            timeout_s=UNPACK_TIMEOUT_S,
            cwd="/",
            stdin=_unpacker_source(),
            output_limit_bytes=64 * 1024,
        )
        shown = f"{probe.target.python} -I -S - ({order['do']})"
        try:
            answer = json.loads(result.stdout)
        except ValueError:
            answer = {"error": "no answer"}
        if result.exit_code != 0 or not isinstance(answer, dict) or "error" in answer:
            fault = answer.get("error", "") if isinstance(answer, dict) else ""
            raise InstallError(
                f"the runtime could not be unpacked into the sandbox: {fault}",
                command=shown,
                exit_code=result.exit_code,
                output=result.stderr.decode("utf-8", "replace")[-OUTPUT_TAIL_CHARS:],
            )
        return answer


@cache
def _unpacker_source() -> bytes:
    return resources.files("inspan_runtime").joinpath("install_unpacker.py").read_bytes()


def _no_python(target: Target) -> str:
    return (
        f"the sandbox ({target.os} {target.arch} {target.libc}) has no Python 3.8 or newer with its standard "
        "library; supported: any such interpreter in PATH, or one at /opt/inspan/python/bin/python3"
    )
