"""The `Installer` that hooks receive: probe the sandbox, take the archive from the host, have it run inside.

Where the sandbox sees the host's folder of unpacked runtimes (`install_shared`), nothing is copied: the
runtime is unpacked there, once for all sandboxes, and its check runs inside. Elsewhere the archive is
uploaded: the runtime appears in one step (a rename under a lock), after it ran there. Its marker names the
installation, so that of several seeds at once one publishes and the others keep what it published.
"""

from __future__ import annotations

import json
import logging
import posixpath
import shlex
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import resources
from typing import Any

import anyio
from anyio import to_thread

from inspan_core.errors import (
    ExecTimeout,
    InstallError,
    RequestRefused,
    SandboxError,
    TooLarge,
    UnsafePath,
    UnsupportedTarget,
)
from inspan_core.harness import BuildFolder, RuntimeArchive, RuntimeKey, Target
from inspan_core.sandbox import Sandbox
from inspan_runtime.install_cache import RuntimeCache
from inspan_runtime.install_shared import SHARED_PATH
from inspan_runtime.install_unpacker import MARKER
from inspan_runtime.preflight import Facts, Preflight, Wanted, preflight, usual_pythons

DEFAULT_ROOTS = ("/opt/inspan/runtimes", "/var/tmp/inspan-runtimes", "/tmp/inspan-runtimes")
"""Where runtimes may live inside: the first that can be written and run from. All outside task and HOME."""

HEALTH_TIMEOUT_S = 120.0
UNPACK_TIMEOUT_S = 600.0
DISCARD_TIMEOUT_S = 30.0
MARKER_LIMIT_BYTES = 4096
OUTPUT_TAIL_CHARS = 4096
DEFAULT_LEASE_S = 24 * 3600.0
CANNOT_EXECUTE = 126

_logger = logging.getLogger(__name__)


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
        lease_s: Seconds that the sandbox lives at most, for which the host keeps what it uses; None: until
            it is let go.

    Attributes:
        has_lease: Whether the host keeps something for this sandbox.
        checking_s: Seconds that all runs of health checks took together.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        cache: RuntimeCache,
        *,
        workdir: str,
        roots: Sequence[str] | None = None,
        pythons: Sequence[str] | None = None,
        lease_s: float | None = DEFAULT_LEASE_S,
    ) -> None:
        self._sandbox = sandbox
        self._cache = cache
        self._workdir = workdir
        self._lease_s = lease_s
        is_host = sandbox.descriptor.get("isolation") == "none"
        hosts = str(cache.shared.folder.absolute()) if is_host else ""
        # Without isolation a sandbox sees the host's folder where it is; `roots` says that it shall not.
        self._shared = hosts if is_host and roots is None else None
        places = (hosts, *DEFAULT_ROOTS) if is_host else DEFAULT_ROOTS
        self._roots = places if roots is None else tuple(roots)
        self._pythons = usual_pythons(sandbox) if pythons is None else tuple(pythons)
        self.has_lease = False
        self.checking_s = 0.0
        self._facts: Facts | None = None
        self._lock = anyio.Lock(fast_acquire=True)

    async def look(self, wanted: Wanted) -> Preflight:
        """Look at the sandbox, for what a harness wants of it and for where runtimes can live.

        Raises:
            UnsupportedTarget, SandboxError: As for `inspan_runtime.preflight.preflight`.
        """
        async with self._lock:
            return await self._look(wanted)

    async def _look(self, wanted: Wanted) -> Preflight:
        found = await preflight(
            self._sandbox, wanted, roots=self._roots, workdir=self._workdir, pythons=self._pythons
        )
        self._facts = found.facts
        await self._recognise(found.facts.word)
        return found

    async def target(self) -> Target:
        """Say what the sandbox is, by the one look at it."""
        return (await self._known()).target

    async def archive(
        self, key: RuntimeKey, build: Callable[[BuildFolder], Awaitable[None]]
    ) -> RuntimeArchive:
        """The cached archive of `key`; see `Installer`."""
        return await self._cache.archive(key, build)

    def prefix(self, key: RuntimeKey) -> str:
        """Where this runtime is, or where `publish` puts it: known for certain once `target` was awaited."""
        found = () if self._facts is None else self._facts.ready
        for place in found:
            if posixpath.basename(place) == str(key):
                return place
        if self._shared is not None:
            return f"{self._shared}/{key}"
        root = None if self._facts is None else self._facts.root
        return f"{root or self._roots[0]}/{key}"

    async def healthy(self, prefix: str, *, health: Sequence[str], expect: str) -> bool:
        """Whether the runtime at `prefix` carries its ready marker and passes `health`."""
        if self._shared is not None and posixpath.dirname(prefix) == self._shared:
            if not await to_thread.run_sync(self._leased, posixpath.basename(prefix)):
                return False
        elif await self._marker(prefix) is None:
            return False
        return await self._fault(prefix, health, expect) is None

    def _leased(self, key: str) -> bool:
        """Keep the host's runtime from being pruned; whether it is there as it was unpacked."""
        if not self._cache.shared.is_intact(key):
            return False
        self._lease(key)
        return True

    def _lease(self, key: str) -> None:
        self.has_lease = True
        with suppress(OSError):  # From a cache that cannot be written nobody removes anything.
            self._cache.shared.lease(key, self._sandbox.sandbox_id, self._lease_s)

    async def publish(
        self, key: RuntimeKey, archive: RuntimeArchive, *, health: Sequence[str], expect: str
    ) -> str:
        """Unpack, check and publish a runtime atomically; see `Installer`."""
        facts = await self._known()
        if self._shared is not None:
            shown = await self._publish_shown(key, archive, health, expect)
            if shown is not None:
                return shown
        if facts.root is None:
            raise UnsupportedTarget(
                f"no folder of the sandbox can hold a runtime that runs ({facts.tried}); "
                f"supported: one of {', '.join(self._roots)}, writable and not noexec"
            )
        if facts.python is None:
            raise UnsupportedTarget(_no_python(facts.target))
        prefix = f"{facts.root}/{key}"
        seen = await self._marker(prefix)
        if seen is not None and await self._fault(prefix, health, expect) is None:
            return prefix
        nonce = uuid.uuid4().hex
        private, upload = f"{facts.root}/.{nonce}", f"{facts.root}/.{nonce}.tar"
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

    async def _publish_shown(
        self, key: RuntimeKey, archive: RuntimeArchive, health: Sequence[str], expect: str
    ) -> str | None:
        """Have the runtime stand in the host's folder; None when the sandbox cannot use it from there."""
        shared, name = self._cache.shared, str(key)
        prefix = f"{self._shared}/{name}"
        try:
            await self._cache.unpacked(key, archive)
            await to_thread.run_sync(self._lease, name)
        except OSError as error:
            _logger.warning("%s cannot be unpacked in %s: %s; it is uploaded", key, shared.folder, error)
            return None
        if await self._marker(prefix) != await to_thread.run_sync(shared.marker, name):
            return None
        fault = await self._fault(prefix, health, expect)
        if fault is None:
            return prefix
        if fault.exit_code == CANNOT_EXECUTE:
            return None  # The host's folder may be mounted noexec.
        # What a sandbox lacks must not undo a good runtime that others use: only a damaged one is made anew.
        if await self._cache.unpacked(key, archive, thorough=True):
            fault = await self._fault(prefix, health, expect)
        if fault is not None:
            raise fault
        return prefix

    async def _discard(self, private: str, upload: str) -> None:
        """Remove what a failed installation left; its own failure must not hide the first."""
        with anyio.move_on_after(DISCARD_TIMEOUT_S, shield=True), suppress(InstallError, SandboxError):
            await self._order({"do": "discard", "private": private, "archive": upload})

    async def _known(self) -> Facts:
        async with self._lock:
            facts = self._facts or (await self._look(Wanted())).facts
        _refuse_unknown(facts)
        _refuse_workdir(self._workdir, facts.workdir)
        return facts

    async def _recognise(self, word: str | None) -> None:
        """Whether the folder that the sandbox sees is this host's."""
        if word is None or self._shared is not None:
            return
        with suppress(OSError):
            if word == await to_thread.run_sync(self._cache.shared.word):
                self._shared = SHARED_PATH

    async def _marker(self, prefix: str) -> Mapping[str, Any] | None:
        try:
            content = await self._sandbox.download(f"{prefix}/{MARKER}", limit_bytes=MARKER_LIMIT_BYTES)
            marker = json.loads(content.data)
        except (FileNotFoundError, NotADirectoryError, UnsafePath, TooLarge, ValueError, RecursionError):
            return None
        return marker if isinstance(marker, dict) else None

    async def _fault(self, prefix: str, health: Sequence[str], expect: str) -> InstallError | None:
        """What is wrong with the runtime at `prefix`, by running it."""
        argv = [word.replace("{prefix}", prefix) for word in health]
        shown = " ".join(shlex.quote(word) for word in argv)[:500]
        started = anyio.current_time()
        try:
            result = await self._sandbox.exec(
                argv, timeout_s=HEALTH_TIMEOUT_S, cwd="/", output_limit_bytes=64 * 1024
            )
        except ExecTimeout:
            return InstallError(
                f"the runtime's check took longer than {HEALTH_TIMEOUT_S:.0f} s", command=shown
            )
        finally:
            self.checking_s += anyio.current_time() - started
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
        facts = await self._known()
        if facts.python is None:
            raise UnsupportedTarget(_no_python(facts.target))
        result = await self._sandbox.exec(
            [facts.python, "-I", "-S", "-", json.dumps(order)],
            timeout_s=UNPACK_TIMEOUT_S,
            cwd="/",
            stdin=_unpacker_source(),
            output_limit_bytes=64 * 1024,
        )
        shown = f"{facts.python} -I -S - ({order['do']})"
        try:
            answer = json.loads(result.stdout)
        except (ValueError, RecursionError):
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


def _refuse_unknown(facts: Facts) -> None:
    if not facts.os or not facts.arch:
        raise UnsupportedTarget("the sandbox does not say what it runs on: it has no `uname`")


def _refuse_workdir(workdir: str, found: str) -> None:
    """A workdir that is no folder makes every run fail: that is for the seed to say."""
    if found != "folder":
        what = "does not exist in the sandbox" if found == "missing" else "is no folder of the sandbox"
        raise RequestRefused(f"workdir {workdir!r} {what}", field="sandbox_access.workdir")


@cache
def _unpacker_source() -> bytes:
    return resources.files("inspan_runtime").joinpath("install_unpacker.py").read_bytes()


def _no_python(target: Target) -> str:
    return (
        f"the sandbox ({target.os} {target.arch} {target.libc}) has no Python 3.8 or newer with its standard "
        "library; supported: any such interpreter in PATH, or one at /opt/inspan/python/bin/python3"
    )
