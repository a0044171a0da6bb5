"""Runtimes unpacked on the host, which sandboxes are shown read-only: unpacked once, copied into none.

Layout below the cache's root, beside the archives::

    runtimes/KEY/             a whole runtime or nothing: it comes by a rename
    runtimes/.inspan-host     a random word: a sandbox that reads it sees this very folder
    manifests/KEY.json        what each file was when it was unpacked; no sandbox sees it
    leases/KEY/SANDBOX        until when (seconds since the epoch) a sandbox may use it
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
import shutil
import stat
import tarfile
import time
from collections.abc import Iterator
from contextlib import suppress
from errno import EACCES
from pathlib import Path
from typing import Any

from anyio import to_thread
from attrs import evolve, frozen

from inspan_core.errors import InstallError, MountConflict
from inspan_core.sandbox import Mount, Sandbox, SandboxProvider, SandboxSpec
from inspan_runtime.install_unpacker import MARKER, put, read_marker, sweep

SHARED_PATH = "/opt/inspan/shared"
"""Where a sandbox of ours sees the host's runtimes."""

WORD_FILE = ".inspan-host"
FOLDER_MODE = 0o755
FOREVER_S = 1e12
CHUNK_BYTES = 1024 * 1024

_logger = logging.getLogger(__name__)


@frozen
class SharedRuntimes:
    """The unpacked runtimes of one cache.

    Every method does file I/O: call it in a worker thread.

    Attributes:
        root: The cache's folder.
    """

    root: Path

    @property
    def folder(self) -> Path:
        """What sandboxes are shown: other users may read it, nobody else may write."""
        return self.root / "runtimes"

    def word(self) -> str:
        """The word by which a sandbox that sees the folder is known; folder and word are made if needed.

        Raises:
            OSError: They cannot be made, or the folder is another user's.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        status = require_own(self.folder)
        if stat.S_IMODE(status.st_mode) != FOLDER_MODE and status.st_uid == os.geteuid():
            self.folder.chmod(FOLDER_MODE)
        path = self.folder / WORD_FILE
        if not path.is_file():
            draft = self.folder / f"{WORD_FILE}.{secrets.token_hex(8)}"
            draft.write_text(secrets.token_hex(16) + "\n")
            draft.chmod(0o644)
            try:
                os.link(draft, path)  # Of several at once the first stays.
            except FileExistsError:
                pass
            finally:
                draft.unlink()
        return path.read_text().strip()

    def marker(self, key: str) -> Any:
        """What the runtime of `key` says of itself, or None."""
        return read_marker(str(self.folder / key))

    def is_intact(self, key: str) -> bool:
        """Whether each file of the runtime is as it was unpacked, by its mode, size and time."""
        try:
            manifest = json.loads((self.root / "manifests" / f"{key}.json").read_text())
            marker, entries = manifest["marker"], dict(manifest["entries"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return False
        place = str(self.folder / key)
        if self.marker(key) != marker:
            return False
        return all(_look(f"{place}/{name}") == was for name, was in entries.items())

    def is_of(self, key: str, archive: Path) -> bool:
        """Whether the runtime's contents are the archive's, byte by byte."""
        place = self.folder / key
        try:
            with tarfile.open(archive, "r:") as members:
                return all(_is_same(members, member, place / member.name) for member in members)
        except (OSError, tarfile.TarError):
            return False

    def unpack(self, key: str, archive: Path, sha256: str) -> None:
        """Put the runtime of `key` in place, whatever stood there. The caller holds the key's lock.

        Raises:
            InstallError: The archive is none.
            OSError: The folder cannot be written.
        """
        self.word()
        sweep(str(self.folder))
        nonce = secrets.token_hex(16)
        private, place = self.folder / f".{nonce}", self.folder / key
        marker = {"runtime": key, "sha256": sha256, "installation": nonce}
        try:
            private.mkdir()
            _unpack(archive, private)
            (private / MARKER).write_text(json.dumps(marker))
            (private / MARKER).chmod(0o644)
            private.chmod(0o755)
            self._keep_manifest(key, {"marker": marker, "entries": dict(_entries(private))})
            aside = self.folder / f".{nonce}.old"
            try:
                place.rename(aside)
            except FileNotFoundError:
                pass
            private.rename(place)
            _remove(aside)
        except (tarfile.TarError, ValueError) as error:
            raise InstallError(f"the archive of {key} cannot be unpacked: {error}") from error
        finally:
            _remove(private)

    def _keep_manifest(self, key: str, manifest: Any) -> None:
        folder = self.root / "manifests"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = folder / f".{key}.{secrets.token_hex(8)}"
        draft.write_text(json.dumps(manifest))
        draft.replace(folder / f"{key}.json")

    def remove(self, key: str) -> None:
        """Remove the runtime of `key`, at once for everybody. The caller holds the key's lock."""
        aside = self.folder / f".{secrets.token_hex(16)}.old"
        try:
            (self.folder / key).rename(aside)
        except FileNotFoundError:
            pass
        _remove(aside)
        (self.root / "manifests" / f"{key}.json").unlink(missing_ok=True)
        shutil.rmtree(self.root / "leases" / key, ignore_errors=True)

    def lease(self, key: str, sandbox_id: str, lease_s: float | None) -> None:
        """Say that a sandbox may use the runtime.

        Args:
            lease_s: Seconds that the sandbox can live at most; None: until it is let go.
        """
        folder = self.root / "leases" / key
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        until = FOREVER_S if lease_s is None else time.time() + lease_s
        draft = folder.parent / f".{secrets.token_hex(16)}"
        draft.write_text(str(until))  # Of half a lease nobody would know when it lapses.
        draft.replace(folder / _lease_name(sandbox_id))
        with suppress(FileNotFoundError):
            os.utime(self.root / "manifests" / f"{key}.json")  # When it was used last.

    def let_go(self, sandbox_id: str) -> None:
        """Say that a sandbox is gone."""
        for path in (self.root / "leases").glob(f"*/{_lease_name(sandbox_id)}"):
            path.unlink(missing_ok=True)

    def is_leased(self, key: str) -> bool:
        """Whether some sandbox may still use the runtime; leases that have lapsed go."""
        leases = list((self.root / "leases" / key).glob("*"))
        lapsed = [path for path in leases if _until(path) <= time.time()]
        for path in lapsed:
            path.unlink(missing_ok=True)
        return len(lapsed) < len(leases)

    def keys(self) -> list[str]:
        """Keys of the runtimes that stand unpacked, sorted."""
        if not self.folder.is_dir():
            return []
        return sorted(path.name for path in self.folder.iterdir() if not path.name.startswith("."))


def require_own(folder: Path) -> os.stat_result:
    """See that nobody else put in the folder what is run from it.

    Raises:
        OSError: It belongs to another user.
    """
    status = folder.stat()
    if status.st_uid not in (0, os.geteuid()):
        raise PermissionError(EACCES, "the folder belongs to another user", str(folder))
    return status


async def create_with_runtimes(
    provider: SandboxProvider, spec: SandboxSpec, runtimes: SharedRuntimes, *, key: str, timeout_s: float
) -> Sandbox:
    """Create a sandbox that sees the host's runtimes, where its provider can show them.

    A mount that cannot be made is left out: the runtime is then uploaded.
    """
    shown = spec
    if "mounts" in getattr(provider, "capabilities", ()):
        shown = await to_thread.run_sync(shown_in, spec, runtimes)
    try:
        return await provider.create(shown, key=key, timeout_s=timeout_s)
    except MountConflict as error:
        if shown is spec:
            raise
        _logger.info("sandbox %s does not see the host's runtimes: %s", key, error)
        return await provider.create(spec, key=key, timeout_s=timeout_s)


def shown_in(spec: SandboxSpec, runtimes: SharedRuntimes) -> SandboxSpec:
    """`spec` with the runtimes' mount; as it is when its own mounts, or the host, leave no room for it."""
    if any(f"{each.target}/".startswith(f"{SHARED_PATH}/") for each in spec.mounts):
        return spec
    try:
        runtimes.word()
    except OSError:
        return spec
    mount = Mount(source=str(runtimes.folder.absolute()), target=SHARED_PATH)
    return evolve(spec, mounts=(*spec.mounts, mount))


def _unpack(archive: Path, private: Path) -> None:
    with tarfile.open(archive, "r:") as members:
        for member in members:
            target = os.path.normpath(private / member.name)
            if not target.startswith(f"{private}{os.sep}"):
                raise ValueError(f"it holds a name that leads out: {member.name!r}")
            put(members, member, target)
            if not member.issym():
                os.chmod(target, member.mode & 0o755)  # Whatever this process's umask is.


def _entries(private: Path) -> Iterator[tuple[str, list[Any] | str]]:
    for path in private.rglob("*"):
        seen = _look(str(path))
        if seen is not None and path.name != MARKER:
            yield str(path.relative_to(private)), seen


def _look(path: str) -> list[Any] | str | None:
    """A file's mode, size and time, or a link's target; None for folders and whatever cannot be read."""
    try:
        status = os.lstat(path)
        if stat.S_ISLNK(status.st_mode):
            return os.readlink(path)
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return [stat.S_IMODE(status.st_mode), status.st_size, status.st_mtime_ns]


def _is_same(members: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> bool:
    if member.issym():
        return path.is_symlink() and os.readlink(path) == member.linkname
    if not member.isfile():
        return path.is_dir()
    source = members.extractfile(member)
    if source is None or path.is_symlink() or path.lstat().st_size != member.size:
        return False
    with path.open("rb") as file:
        while chunk := source.read(CHUNK_BYTES):
            if file.read(len(chunk)) != chunk:
                return False
    return True


def _remove(path: Path) -> None:
    if path.is_symlink() or path.is_file():
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)


def _lease_name(sandbox_id: str) -> str:
    return hashlib.sha256(sandbox_id.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _until(path: Path) -> float:
    try:
        return float(path.read_text())
    except FileNotFoundError:
        return 0.0
    except (OSError, ValueError):
        return FOREVER_S
