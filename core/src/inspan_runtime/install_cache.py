"""The host's cache of runtime archives: one build per key, across tasks and processes, verified at use.

Layout below the cache's root (all private to the user)::

    archives/KEY.json        {"archive": file name, "sha256", "size_bytes"}: written last, the commitment
    archives/KEY-DIGEST.tar  uncompressed: a sandbox takes it faster than it could be unpacked
    locks/KEY.lock           held (flock) by the process that builds; the kernel frees it on death
    build/                   private folders of builds in flight
    runtimes/KEY/            unpacked, for sandboxes that see the host's folder (`install_shared`)

Of each harness and kind of target the `KEPT_VERSIONS` used last are kept, and whatever a sandbox may still
use or somebody used within the last hour. The rest goes when a new archive is made.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
import tarfile
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import IO

import anyio
from anyio import to_thread

from inspan_core.errors import InstallError
from inspan_core.harness import BuildFolder, RuntimeArchive, RuntimeKey
from inspan_runtime.install_build import HostBuildFolder
from inspan_runtime.install_shared import SharedRuntimes, require_own

LOCK_POLL_S = 0.1
DEFAULT_LOCK_WAIT_S = 1800.0
KEPT_VERSIONS = 3
IDLE_S = 3600.0
# No build takes so long: its folder belongs to a process that was killed.
STALE_BUILD_S = 24 * 3600.0

Report = Callable[[str], None]
"""Takes a line about work that takes its time."""

_logger = logging.getLogger(__name__)
# Versions begin with a digit, names of harnesses have no part that does.
_KEY = re.compile(r"(?P<harness>[a-z][a-z0-9-]*?)-\d.*-(?P<target>[^-]+-[^-]+-[^-]+)")


def _say_nothing(_line: str) -> None:
    return None


def default_cache_dir(environ: Mapping[str, str]) -> Path:
    """``$XDG_CACHE_HOME/inspan``, or ``~/.cache/inspan``."""
    base = environ.get("XDG_CACHE_HOME", "")
    if base.startswith("/"):
        return Path(base) / "inspan"
    return Path(environ.get("HOME") or "~").expanduser() / ".cache" / "inspan"


class RuntimeCache:
    """Builds, keeps and verifies runtime archives on the host.

    Args:
        root: The cache folder; made when first needed.
        client_env: What package clients may see: `install_build.package_client_env`.
        lock_wait_s: How long to wait for another task or process that builds the same key.
        report: Told what is built, downloaded and unpacked.
        may_build: Whether an archive that is not there is built; else it is an error.

    Attributes:
        shared: The unpacked runtimes.
    """

    def __init__(
        self,
        root: Path,
        *,
        client_env: Mapping[str, str],
        lock_wait_s: float = DEFAULT_LOCK_WAIT_S,
        report: Report = _say_nothing,
        may_build: bool = True,
    ) -> None:
        self.root = root
        self.shared = SharedRuntimes(root)
        self._client_env = dict(client_env)
        self._lock_wait_s = lock_wait_s
        self._report = report
        self._may_build = may_build
        self._digests: dict[tuple[str, int, int, int], str] = {}

    async def archive(
        self, key: RuntimeKey, build: Callable[[BuildFolder], Awaitable[None]]
    ) -> RuntimeArchive:
        """The archive of `key`: the kept one if its digest is right, else a new build.

        Raises:
            InstallError: The build failed, the cache cannot be used, or even a new archive does not have its
                digest.
        """
        try:
            return await self._archive(key, build)
        except OSError as error:
            raise InstallError(f"the cache {self.root} cannot hold {key}: {error}") from error

    async def _archive(
        self, key: RuntimeKey, build: Callable[[BuildFolder], Awaitable[None]]
    ) -> RuntimeArchive:
        kept = await to_thread.run_sync(self._kept, key)
        if kept is not None:
            return kept
        if not self._may_build:
            raise InstallError(f"the cache {self.root} has no archive of {key}")
        async with self._lock(key):
            kept = await to_thread.run_sync(self._kept, key)
            if kept is not None:
                return kept
            await to_thread.run_sync(self._discard, key)
            self._report(f"building {key}")
            await self._build(key, build)
            kept = await to_thread.run_sync(self._kept, key)
            if kept is None:
                raise InstallError(
                    f"the archive of {key} lost its digest while it was written to {self.root}"
                )
        with suppress(OSError):  # What is old may stay.
            await to_thread.run_sync(self.prune)
        return kept

    async def unpacked(self, key: RuntimeKey, archive: RuntimeArchive, *, thorough: bool = False) -> bool:
        """Have the runtime of `key` stand unpacked in `shared`.

        Args:
            thorough: Compare each byte with the archive, where otherwise modes, sizes and times are enough.

        Returns:
            Whether it was unpacked, in place of none or of one that was not right.

        Raises:
            InstallError: The archive is none, or somebody else has been at it for too long.
            OSError: The folder cannot be written.
        """
        if not thorough and await to_thread.run_sync(self.shared.is_intact, str(key)):
            return False
        async with self._lock(key):
            return await to_thread.run_sync(self._unpacked, str(key), archive, thorough)

    def _unpacked(self, key: str, archive: RuntimeArchive, thorough: bool) -> bool:
        if self.shared.is_intact(key) and not (thorough and not self.shared.is_of(key, Path(archive.path))):
            return False
        self._report(f"unpacking {key}")
        self.shared.unpack(key, Path(archive.path), archive.sha256)
        return True

    def prune(self, *, kept: int = KEPT_VERSIONS, idle_s: float = IDLE_S) -> list[str]:
        """Remove archives and unpacked runtimes of old versions, except what may be in use.

        Args:
            kept: How many of each harness and kind of target stay, those used last.
            idle_s: Whatever was used within these seconds stays too.

        Returns:
            The keys that went.
        """
        families: dict[str, list[tuple[float, str]]] = {}
        for key in {*self.known(), *self.shared.keys()}:
            match = _KEY.fullmatch(key)
            family = key if match is None else f"{match['harness']} {match['target']}"
            families.setdefault(family, []).append((self._used_at(key), key))
        gone = []
        for uses in families.values():
            for used_at, key in sorted(uses, reverse=True)[kept:]:
                if time.time() - used_at >= idle_s and self._pruned(key):
                    gone.append(key)
        self._sweep_builds()
        return sorted(gone)

    def _sweep_builds(self) -> None:
        drafts = [
            path for name in ("archives", "manifests", "leases") for path in (self.root / name).glob(".*")
        ]
        for path in [*self._folder("build").iterdir(), *drafts]:
            with suppress(FileNotFoundError):  # A build has just ended.
                if abs(time.time() - path.stat().st_mtime) <= STALE_BUILD_S:
                    continue
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink()

    def _used_at(self, key: str) -> float:
        used_at = 0.0
        for path in (self._folder("archives") / f"{key}.json", self.root / "manifests" / f"{key}.json"):
            with suppress(FileNotFoundError):
                used_at = max(used_at, path.stat().st_mtime)
        # A clock that went wrong must not make it the last one used for years.
        return used_at if used_at <= time.time() + IDLE_S else 0.0

    def _pruned(self, key: str) -> bool:
        with (self._folder("locks") / f"{key}.lock").open("w") as handle:
            if not _try_lock(handle.fileno()) or self.shared.is_leased(key):
                return False
            try:
                self._discard(key)
                self.shared.remove(key)
            except OSError as error:
                _logger.warning("the old runtime %s cannot be removed: %s", key, error)
                return False
        return True

    def known(self) -> list[str]:
        """Keys that have a committed archive, sorted."""
        return sorted(path.stem for path in (self.root / "archives").glob("[!.]*.json"))

    def is_sound(self, key: str) -> bool:
        """Whether the committed archive of `key` has its digest."""
        return self._kept(key) is not None

    def require(self) -> None:
        """See that everything can be written that an installation writes.

        Raises:
            OSError: It cannot; names what.
        """
        self.shared.word()
        for name in ("archives", "locks", "build", "manifests", "leases"):
            with tempfile.TemporaryFile(dir=self._folder(name)):
                pass

    async def _build(self, key: RuntimeKey, build: Callable[[BuildFolder], Awaitable[None]]) -> None:
        private = Path(tempfile.mkdtemp(prefix=f"{key}-", dir=self._folder("build")))
        try:
            folder = HostBuildFolder(private, client_env=self._client_env, report=self._report)
            await build(folder)
            await to_thread.run_sync(self._commit, key, Path(folder.path), private)
        finally:
            with anyio.CancelScope(shield=True):
                await to_thread.run_sync(lambda: shutil.rmtree(private, ignore_errors=True))

    def _commit(self, key: RuntimeKey, content: Path, private: Path) -> None:
        draft = private / "archive.tar"
        write_archive(content, draft)
        digest = sha256_of(draft)
        name = f"{key}-{digest[:16]}.tar"
        archives = self._folder("archives")
        size = draft.stat().st_size
        draft.replace(archives / name)
        record = archives / f".{key}.{digest[:16]}.json"
        record.write_text(json.dumps({"archive": name, "sha256": digest, "size_bytes": size}))
        record.replace(archives / f"{key}.json")

    def _kept(self, key: RuntimeKey | str) -> RuntimeArchive | None:
        archives = self._folder("archives")
        try:
            record = json.loads((archives / f"{key}.json").read_text())
            name, digest = str(record["archive"]), str(record["sha256"])
            path = archives / name
            if path.parent != archives or not path.is_file() or self._digest(path) != digest:
                return None
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None
        with suppress(OSError):  # A cache that cannot be written serves all the same.
            os.utime(archives / f"{key}.json")  # When it was used last.
        return RuntimeArchive(path=str(path), sha256=digest)

    def _digest(self, path: Path) -> str:
        status = path.stat()
        known = (str(path), status.st_size, status.st_mtime_ns, status.st_ino)
        if known not in self._digests:
            self._digests[known] = sha256_of(path)
        return self._digests[known]

    def _discard(self, key: RuntimeKey | str) -> None:
        archives = self._folder("archives")
        (archives / f"{key}.json").unlink(missing_ok=True)
        for path in archives.glob(f"{key}-*.tar"):
            path.unlink(missing_ok=True)

    def _folder(self, name: str) -> Path:
        folder = self.root / name
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        require_own(folder)
        return folder

    @asynccontextmanager
    async def _lock(self, key: RuntimeKey) -> AsyncIterator[None]:
        handle: IO[str] = (self._folder("locks") / f"{key}.lock").open("w")
        try:
            deadline = anyio.current_time() + self._lock_wait_s
            while not _try_lock(handle.fileno()):
                if anyio.current_time() >= deadline:
                    raise InstallError(
                        f"another task or process has been building {key} for more than "
                        f"{self._lock_wait_s:.0f} s (lock {handle.name})"
                    )
                await anyio.sleep(LOCK_POLL_S)
            yield
        finally:
            handle.close()


def sha256_of(path: Path) -> str:
    """The file's digest in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def write_archive(content: Path, target: Path) -> None:
    """Write `content`'s files as a tar that depends on names, bytes and modes only.

    Raises:
        InstallError: There is nothing to archive, or a link dangles or leads out of `content`.
    """
    entries = sorted(path for path in content.rglob("*"))
    if not entries:
        raise InstallError(f"the build left nothing in {content}")
    inside = content.resolve()
    with tarfile.open(target, "w", format=tarfile.GNU_FORMAT) as archive:
        for path in entries:
            if path.is_symlink():
                leads_to = (path.parent / os.readlink(path)).resolve()
                if (
                    os.path.isabs(os.readlink(path))
                    or inside not in leads_to.parents
                    or not leads_to.exists()
                ):
                    raise InstallError(
                        f"the build made a link that does not stay inside: {path} -> {leads_to}"
                    )
            archive.add(path, arcname=str(path.relative_to(content)), recursive=False, filter=_plain)


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = 0
    member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
    return member


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
