"""The bubblewrap command lines: a writable private root, or the host's root read-only."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from inspan_core.errors import SandboxCreateError
from inspan_core.sandbox import Mount
from inspan_runtime.providers.host_root import SHOWN, HostView

# What a process needs to be root over its own files and users, and to bind low ports.
CAPABILITIES = (
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_SETUID",
    "CAP_SETGID",
    "CAP_KILL",
    "CAP_SETPCAP",
    "CAP_NET_BIND_SERVICE",
)
# What would show the host's secrets to a user id 0, without any capability.
HIDDEN_PROC_FILES = ("kcore", "keys", "kmsg", "timer_list", "sched_debug", "latency_stats")
HIDDEN_PROC_FOLDERS = ("acpi", "asound", "scsi")
SPLIT_LIMIT = 256


def isolation(hostname: str) -> list[str]:
    """Return the namespaces, and that the sandbox ends with its keeper."""
    return [
        "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net",
        "--unshare-cgroup-try", "--as-pid-1", "--die-with-parent", "--hostname", hostname, "--clearenv",
        "--info-fd", "5",
    ]  # fmt: skip


def mapped_ids() -> list[str]:
    """Return what lets the keeper map 65536 ids, and the capabilities that are left."""
    kept = [part for one in CAPABILITIES for part in ("--cap-add", one)]
    return ["--userns-block-fd", "6", "--cap-drop", "ALL", *kept]


def own_id() -> list[str]:
    """Return what makes the ordinary user root inside, over the user's own files only."""
    return ["--uid", "0", "--gid", "0", "--cap-drop", "ALL"]


def folder_in_memory(path: str, size_bytes: int | None, *, mode: int = 0o755) -> list[str]:
    """Return an empty writable folder, of limited size when one is given."""
    size = [] if size_bytes is None else ["--size", str(size_bytes)]
    return [*size, "--perms", f"{mode:04o}", "--tmpfs", path]


def kernel_file_systems(size_bytes: int | None) -> list[str]:
    """Return fresh /proc, /dev, /sys, /run and /tmp; /proc without what would show or change the host."""
    made = ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/sys", "--remount-ro", "/sys"]
    made += folder_in_memory("/dev/shm", size_bytes, mode=0o1777)
    if size_bytes is not None:  # bubblewrap gives /dev itself no size.
        made += ["--remount-ro", "/dev"]
    made += folder_in_memory("/run", size_bytes) + folder_in_memory("/tmp", size_bytes, mode=0o1777)
    for entry in sorted(os.scandir("/proc"), key=lambda entry: entry.name):
        if not entry.name.isdigit() and not entry.is_symlink():
            made += _covered(entry)
    return made


def _covered(entry: os.DirEntry[str]) -> list[str]:
    # The kernel lets user id 0 of the host, which is the sandbox's, write to /proc/sys and others by
    # their mode alone; bubblewrap covers only some of them, and only sometimes.
    if entry.name in HIDDEN_PROC_FILES:
        return ["--ro-bind", "/dev/null", entry.path]
    if entry.name in HIDDEN_PROC_FOLDERS:
        return ["--tmpfs", entry.path, "--remount-ro", entry.path]
    if entry.is_dir() or entry.stat().st_mode & 0o222:
        return ["--ro-bind", entry.path, entry.path]
    return []


def writable_root(merged: str) -> list[str]:
    """Return the bind of the keeper's overlay."""
    return ["--bind", merged, "/"]


def read_only_root(view: HostView, needed: Sequence[str], size_bytes: int | None) -> list[str]:
    """Return the host's shown folders read-only, with room for paths that do not exist there.

    Args:
        view: What of it is hidden.
        needed: Absolute paths that something will be mounted at.
        size_bytes: How much each of its writable folders may hold; None: half of the memory.
    """
    made = [] if size_bytes is None else folder_in_memory("/", size_bytes)
    for name in SHOWN:
        path = f"/{name}"
        if os.path.islink(path):
            made += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            made += ["--ro-bind", path, path]
    for path, mode in view.empty:
        made += folder_in_memory(f"/{path}", size_bytes, mode=mode)
    split: set[str] = set()
    for path in needed:
        if path.split("/")[1] in SHOWN and not os.path.exists(path):
            split.add(_existing_ancestor(path))
    for folder in sorted(split):
        made += _split(folder, size_bytes)
    for path in [*view.hidden, *(path for path, _, _ in view.files)]:
        if path.split("/")[0] in SHOWN:
            covers = ["--ro-bind", "/dev/null", f"/{path}"]
            made += folder_in_memory(f"/{path}", size_bytes) if os.path.isdir(f"/{path}") else covers
    return made


def _existing_ancestor(path: str) -> str:
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return path


def _split(folder: str, size_bytes: int | None) -> Iterator[str]:
    """Yield a writable folder whose entries are the host's, one bind each."""
    names = os.listdir(folder)
    if len(names) > SPLIT_LIMIT:
        raise SandboxCreateError(
            f"nothing can be made in {folder}: the root is read-only for an ordinary user; "
            f"use a path outside of {', '.join('/' + one for one in SHOWN)}"
        )
    yield from folder_in_memory(folder, size_bytes)
    for name in names:
        path = f"{folder}/{name}"
        if os.path.islink(path):
            yield from ("--symlink", os.readlink(path), path)
        elif os.access(path, os.R_OK):
            yield from ("--ro-bind", path, path)


def mounts(declared: Sequence[Mount]) -> list[str]:
    """Return the specification's mounts."""
    return [
        part
        for one in declared
        for part in ("--ro-bind" if one.read_only else "--bind", one.source, one.target)
    ]
