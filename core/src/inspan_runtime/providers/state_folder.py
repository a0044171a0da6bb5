"""The folder that stands for a sandbox on the host: made before anything of it exists, gone when it is.

``<runtime folder>/<provider>/<sandbox id>/`` with mode 0700 holds ``meta.json`` (descriptor, key, labels),
``lock`` (held by the keeper as long as it lives, so a dead keeper is told by a free lock), the sockets
``control.sock`` and ``agent.sock``, ``log``, ``ready`` (written when the creation was acknowledged) and
``holders`` (the processes that created it or connected to it).
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import re
import secrets
import stat
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from inspan_core.errors import ConfigError, ProviderUnavailable

ABANDONED_AFTER_S = 60.0
META_LIMIT_BYTES = 1024 * 1024
HOLDERS_LIMIT_BYTES = 256 * 1024
WORDS_LIMIT_CHARS = 2000


def default_runtime_dir() -> Path:
    """Return ``$XDG_RUNTIME_DIR/inspan``, or ``/tmp/inspan-<uid>`` where there is none."""
    given = os.environ.get("XDG_RUNTIME_DIR")
    return Path(given, "inspan") if given else Path(f"/tmp/inspan-{os.getuid()}")


NEW = ".new-"
SANDBOX_ID = re.compile(r"inspan-[0-9a-f]{16}")


def sandbox_id_of(folder: Path, key: str) -> str:
    """Return the one name that a key's sandbox has in a folder; no other folder's has it."""
    name = os.fsencode(folder) + b"\0" + key.encode("utf-8", "surrogatepass")
    return "inspan-" + hashlib.sha256(name).hexdigest()[:16]


def prepare_folder(path: Path) -> Path:
    """Make a private folder, and refuse one that others could write to.

    Raises:
        ProviderUnavailable: It cannot be made, or is not the user's own.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise ProviderUnavailable(f"the runtime folder {path} cannot be made: {error.strerror}") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise ProviderUnavailable(
            f"the runtime folder {path} must be a folder of user {os.geteuid()} that nobody else can "
            f"write to; give another as the option runtime_dir"
        )
    return path


def claim(folder: Path, sandbox_id: str, meta: Mapping[str, Any]) -> tuple[Path, int] | None:
    """Make a sandbox's folder, whole and locked, in one step.

    Returns:
        Its path and the descriptor that holds its lock; None when the sandbox id is taken.

    Raises:
        ConfigError: What is written of it would be too long to be read again.
    """
    text = json.dumps(meta)
    if len(text) > META_LIMIT_BYTES:
        raise ConfigError(
            f"labels and key of {sandbox_id}: {len(text)} bytes with the descriptor, "
            f"at most {META_LIMIT_BYTES} are kept"
        )
    made = folder / f"{NEW}{secrets.token_hex(8)}"
    made.mkdir(mode=0o700)
    try:
        lock_fd = os.open(made / "lock", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError:
        remove(made)
        raise
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for name in ("space", "home"):
            (made / name).mkdir(mode=0o700)
        with open(made / "meta.json", "x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        add_holder(made)
        (folder.parent / "ended" / sandbox_id).unlink(missing_ok=True)
        final = folder / sandbox_id
        try:
            made.rename(final)
        except (FileExistsError, OSError) as error:
            if not os.path.lexists(final):
                raise
            del error
            remove(made)
            os.close(lock_fd)
            return None
        _sync(folder)
        return final, lock_fd
    except BaseException:
        remove(made)
        os.close(lock_fd)
        raise


def add_holder(path: Path) -> None:
    """Note that this process has to do with a sandbox."""
    line = f"{os.getpid()} {_started(os.getpid())} {_numbering()}\n".encode()
    try:
        fd = os.open(path / "holders", os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except (FileNotFoundError, NotADirectoryError):  # It is gone.
        return
    try:
        if line not in os.pread(fd, HOLDERS_LIMIT_BYTES, 0):
            os.write(fd, line)
    finally:
        os.close(fd)


def living_holders(path: Path) -> list[int]:
    """Return the processes that live of those that created a sandbox or connected to it.

    One of another pid namespace (a server in a container) cannot be asked after, and counts as living.
    """
    try:
        with open(path / "holders", encoding="ascii", errors="replace") as file:
            rows = [line.split() for line in file.read(HOLDERS_LIMIT_BYTES).splitlines()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    own = _numbering()
    found = {(int(row[0]), row[1], row[2]) for row in rows if len(row) == 3 and row[0].isdigit()}
    return sorted(pid for pid, started, numbering in found if numbering != own or _started(pid) == started)


def _numbering() -> str:
    """Return the pid namespace of this process: numbers of another one mean others."""
    return os.readlink("/proc/self/ns/pid")


def _started(pid: int) -> str:
    """Return when a process was started: a later one of its number is another; "" when it is dead."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rsplit(b")", 1)[1].split()
    except OSError:
        return ""
    return "" if fields[0] in (b"Z", b"X") else fields[19].decode()


def ending_of(path: Path) -> str:
    """Return what is known about the end of a sandbox that nobody stopped, as a clause; "" for nothing."""
    try:
        with open(path.parent.parent / "ended" / path.name, encoding="utf-8", errors="replace") as file:
            return ": " + file.read(WORDS_LIMIT_CHARS)
    except (FileNotFoundError, NotADirectoryError):
        return ""


def remove(path: Path) -> None:
    """Remove a folder of a dead sandbox; no mount of it is visible here."""
    # Not by a recursive function: what a sandbox without isolation left may be nested deeper than its stack.
    subprocess.run(["/bin/rm", "-rf", "--one-file-system", "--", path], check=False, capture_output=True)


def is_held(path: Path) -> bool:
    """Whether a keeper (or a creator) of this folder lives."""
    try:
        fd = os.open(path / "lock", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def take_dead(path: Path) -> int | None:
    """Lock a folder whose keeper is dead; None when it lives, is gone, or somebody else removes it."""
    try:
        fd = os.open(path / "lock", os.O_RDWR | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(fd), os.stat(path / "lock")):
            return fd
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(fd)
    return None


def read_meta(path: Path) -> dict[str, Any] | None:
    """Return what `claim` wrote; None when the folder is gone, or holds something else."""
    try:
        with open(path / "meta.json", "rb", opener=_open_at_once) as file:
            loaded = json.loads(file.read(META_LIMIT_BYTES))
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, ValueError, RecursionError):
        return None
    return loaded if isinstance(loaded, dict) and _is_whole(loaded) else None


def _is_whole(meta: dict[str, Any]) -> bool:
    labels, created_at = meta.get("labels"), meta.get("created_at")
    return (
        isinstance(meta.get("descriptor"), dict)
        and isinstance(meta.get("key"), str)
        and isinstance(labels, dict)
        and all(isinstance(one, str) for one in labels.values())
        and isinstance(created_at, int | float)
        and math.isfinite(created_at)
    )


def _open_at_once(path: str, flags: int) -> int:
    """Open without waiting, which a FIFO of the file's name would want."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def folders_in(folder: Path, names: re.Pattern[str] = SANDBOX_ID) -> Iterator[Path]:
    """Yield the sandboxes' folders, dead ones too, and remove what a killed creator left unfinished.

    What has another name than `names` is not ours, and is left alone.
    """
    with os.scandir(folder) as found:
        entries = list(found)
    for entry in entries:
        if names.fullmatch(entry.name):
            yield Path(entry.path)
        elif entry.name.startswith(NEW):
            is_old = time.time() - entry.stat(follow_symlinks=False).st_mtime > ABANDONED_AFTER_S
            if is_old and not is_held(Path(entry.path)):
                remove(Path(entry.path))


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
