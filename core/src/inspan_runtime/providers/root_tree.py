"""A root file system that is given as a tar, unpacked once into the cache folder."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import tarfile
from collections.abc import Iterable
from pathlib import Path

from inspan_core.errors import ConfigError, MountConflict, SandboxCreateError

MOST_MEMBERS = 1_000_000
MADE_INSIDE = ("/proc", "/dev", "/sys", "/run", "/tmp")


def is_tar(path: str) -> bool:
    """Whether a path names a tar, compressed or not."""
    return os.path.isfile(path) and tarfile.is_tarfile(path)


def check_root(root: str) -> None:
    """Refuse a root that is nothing of which a sandbox can be made.

    Raises:
        ConfigError: Naming it.
    """
    if os.path.realpath(root) == "/":
        raise ConfigError(f'root: {root!r} would show all of the host; "host" hides what it keeps to itself')
    if root == "host" or (os.path.isabs(root) and (os.path.isdir(root) or is_tar(root))):
        return
    raise ConfigError(f'root: {root!r} is neither "host" nor the absolute path of a folder or a tar')


def tree_of(root: str, cache: Path) -> str:
    """Return the folder of a root: itself, or where its tar is unpacked.

    A tar that changed is another one; what is unpacked is shared by all sandboxes and never written to.

    Args:
        root: Absolute path of a folder or a tar.
        cache: Folder for unpacked trees, made if needed.

    Raises:
        SandboxCreateError: It cannot be unpacked; nothing of it is left.
    """
    if os.path.isdir(root):
        return root
    found = os.stat(root)
    facts = f"{os.path.realpath(root)}\0{found.st_size}\0{found.st_mtime_ns}\0{found.st_ino}"
    made = cache / hashlib.sha256(os.fsencode(facts)).hexdigest()[:24]
    if made.is_dir():
        return str(made)
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = cache / f".new-{secrets.token_hex(8)}"
    try:
        part.mkdir(mode=0o755)
        _unpack(root, part)
        part.rename(made)
    except (OSError, tarfile.TarError) as error:
        if not made.is_dir():  # Another process may have been first.
            raise SandboxCreateError(f"root: {root} cannot be unpacked: {error}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return str(made)


def check_targets(tree: str, targets: Iterable[str]) -> None:
    """Refuse a tree whose links lead a mount elsewhere: bubblewrap would make its target on the host.

    Args:
        tree: The folder of the root.
        targets: Absolute paths inside that something is mounted at.

    Raises:
        MountConflict: Naming the target.
    """
    top = os.path.realpath(tree)
    for target in (*MADE_INSIDE, *targets):
        led = os.path.realpath(top + target)
        if not led.startswith(top.rstrip("/") + "/"):
            raise MountConflict(f"root: {tree}: a link leads {target} out of it, to {led}")


def _unpack(root: str, part: Path) -> None:
    with tarfile.open(root) as tar:
        for number, member in enumerate(tar):
            if number >= MOST_MEMBERS:
                raise tarfile.TarError(f"it has more than {MOST_MEMBERS} members")
            if member.isdev():  # Sandboxes have a /dev of their own.
                continue
            tar.extract(member, part, filter=_kept_inside, numeric_owner=True)


def _kept_inside(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo:
    """Refuse what leads out of the tree, and keep modes and owners as they are."""
    mode = member.mode
    checked = tarfile.tar_filter(member, folder)
    return checked.replace(mode=mode, deep=False)
