"""What a sandbox sees of the host's root: programs and libraries, nothing that the host keeps to itself.

Of the top level only `SHOWN` is; below that, what other users of the host may not read is hidden, and so are
folders that hold data rather than programs. The rest of the top level does not exist inside.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence

from attrs import frozen

SHOWN = ("bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr", "etc", "opt", "var", "nix")
HOME = "root"
EMPTY = (
    (HOME, 0o700),
    ("home", 0o755),
    ("mnt", 0o755),
    ("media", 0o755),
    ("srv", 0o755),
    ("var/log", 0o755),
    ("var/tmp", 0o1777),
    ("var/mail", 0o775),
    ("var/spool", 0o755),
    ("var/backups", 0o755),
    ("var/crash", 0o755),
)
HIDDEN = (
    "etc/shadow-",
    "etc/gshadow-",
    "var/lib/docker",
    "var/lib/containerd",
    "var/lib/containers",
    "var/lib/kubelet",
    "var/lib/cloud",
)
# How deep below a folder unreadable things are looked for: /etc is small, the others hold programs' trees.
SEARCHED = (("etc", 8), ("opt", 2), ("var", 3), ("usr/local", 2))
MOUNT_POINTS_SHOWN = ("usr", "usr/local", "etc", "opt", "var", "nix")
ACCOUNT_LINE = ":*:19000:0:99999:7:::\n"


@frozen(kw_only=True)
class HostView:
    """Paths relative to the root.

    Attributes:
        hidden: What does not exist inside.
        empty: Folders that are there, empty and writable, with their modes.
        files: Files that are there with another content: path, mode, content.
        inner_mounts: File systems below the root that are shown too.
    """

    hidden: tuple[str, ...]
    empty: tuple[tuple[str, int], ...]
    files: tuple[tuple[str, int, bytes], ...]
    inner_mounts: tuple[str, ...]


def view_of_host(also_hidden: Sequence[str] = (), root: str = "/") -> HostView:
    """Look at the host's root.

    Args:
        also_hidden: Absolute paths that are hidden as well.
        root: Another root to look at, for tests.
    """
    empty = [one for one in EMPTY if one[0] == HOME or os.path.isdir(os.path.join(root, one[0]))]
    empty_paths = [path for path, _ in empty]
    hidden = [
        name for name in os.listdir(root) if name not in SHOWN and name not in empty_paths and not _made(name)
    ]
    hidden += [path for path in HIDDEN if os.path.lexists(os.path.join(root, path))]
    for folder, depth in SEARCHED:
        hidden += _unreadable(root, folder, depth)
    hidden += [
        path.strip("/") for path in also_hidden if os.path.lexists(os.path.join(root, path.strip("/")))
    ]
    accounts = [("etc/shadow", 0o640, _accounts(root, "etc/passwd", ACCOUNT_LINE))]
    accounts += [("etc/gshadow", 0o640, _accounts(root, "etc/group", ":*::\n"))]
    files = [one for one in accounts if os.path.lexists(os.path.join(root, one[0]))]
    replaced = [*empty_paths, *(path for path, _, _ in files)]
    return HostView(
        hidden=tuple(_outermost(hidden, replaced)),
        empty=tuple(empty),
        files=tuple(files),
        inner_mounts=tuple(one for one in MOUNT_POINTS_SHOWN if os.path.ismount(os.path.join(root, one))),
    )


def _made(name: str) -> bool:
    """Whether bubblewrap mounts over it anyway; the mount points must exist."""
    return name in ("proc", "dev", "sys", "run", "tmp")


def _unreadable(root: str, folder: str, depth: int) -> Iterator[str]:
    """Yield what others may not read, or are not let into."""
    try:
        entries = list(os.scandir(os.path.join(root, folder)))
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    for entry in entries:
        path = f"{folder}/{entry.name}"
        if entry.is_symlink():
            continue
        mode = entry.stat(follow_symlinks=False).st_mode
        needed = stat.S_IROTH | stat.S_IXOTH if stat.S_ISDIR(mode) else stat.S_IROTH
        if mode & needed != needed:
            yield path
        elif stat.S_ISDIR(mode) and depth > 1:
            yield from _unreadable(root, path, depth - 1)


def _accounts(root: str, path: str, line: str) -> bytes:
    """Return the shadow of an account file without any password."""
    try:
        with open(os.path.join(root, path), encoding="utf-8", errors="surrogateescape") as file:
            names = [one.split(":")[0] for one in file if ":" in one]
    except OSError:
        return b""
    return "".join(name + line for name in names).encode("utf-8", "surrogateescape")


def _outermost(paths: Sequence[str], replaced: Sequence[str]) -> Iterator[str]:
    """Yield each path once, without those inside another one or inside (or equal to) a replaced one."""
    kept = set(paths) - set(replaced)
    for path in sorted(kept):
        parts = path.split("/")
        parents = ["/".join(parts[:length]) for length in range(1, len(parts))]
        if not any(one in kept or one in replaced for one in parents):
            yield path
