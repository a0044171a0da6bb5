"""Limit processor, memory and processes of a sandbox by control groups, of version 1 or 2.

The groups are made where this process may: below its own group of each hierarchy in version 1; in version 2
below the nearest group, from its own upwards, that hands the needed controllers to its children. Standard
library only.
"""

from __future__ import annotations

import os
import time

from inspan_runtime.providers.exec_agent.lean import TYPE_CHECKING

CPU_PERIOD_US = 100000
REMOVE_LIMIT_S = 5.0
POLL_S = 0.002
RECORD = "cgroups"  # In the state folder: what is to be removed when the keeper was killed.
NEEDED = {"cpu": "cpu", "memory_mib": "memory", "pids": "pids"}
EVENTS = {1: "memory.oom_control", 2: "memory.events"}

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Limits = Mapping[str, float | int]
    Place = tuple[int, str, list[str]]  # version, folder of the group's parent, its controllers


class NoLimit(Exception):
    """A limit cannot be kept here; args: message."""


def places(limits: Limits, mounts: str, own: str) -> list[Place]:
    """Return where groups must be made.

    Args:
        limits: ``{"cpu": processors, "memory_mib": MiB, "pids": count}``, only those that are wanted.
        mounts: The text of ``/proc/self/mountinfo``.
        own: The text of ``/proc/self/cgroup``.

    Raises:
        NoLimit: No hierarchy has a controller that is needed.
    """
    groups = _own_groups(own)
    found: dict[str, Place] = {}
    unified = None
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = (*after.split(" ", 2), "", "")[:3]
        if kind not in ("cgroup", "cgroup2"):
            continue
        root, target = (_unescaped(one) for one in before.split(" ")[3:5])
        if kind == "cgroup2":
            unified = (root, target)
            continue
        for name in options.split(" ")[-1].split(","):
            if name in NEEDED.values() and name in groups:
                parent = _below(target, root, groups[name])
                found[name] = (1, parent, [name])
    wanted = [NEEDED[limit] for limit in limits]
    missing = [name for name in wanted if name not in found]
    if missing:
        if unified is None or "" not in groups:
            raise NoLimit(f"this host has no control group of {', '.join(missing)}")
        top = unified[1]
        found[""] = (2, _handing_down(top, _below(top, unified[0], groups[""]), missing), missing)
    joined: dict[str, Place] = {}
    for version, parent, names in (found[name] for name in (*wanted, "") if name in found):
        joined.setdefault(parent, (version, parent, []))[2].extend(names)
    return list(joined.values())


def _own_groups(own: str) -> dict[str, str]:
    """Return {controller: path}; "" is the unified hierarchy's."""
    groups: dict[str, str] = {}
    for line in own.splitlines():
        number, names, path = line.split(":", 2)
        for name in names.split(",") if number != "0" else [""]:
            groups[name] = path
    return groups


def _unescaped(path: str) -> str:
    return path.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")


def _below(target: str, root: str, path: str) -> str:
    """Return the folder of a group where its hierarchy is mounted, perhaps only from `root` on."""
    if root != "/" and (path == root or path.startswith(root + "/")):
        path = path[len(root) :]
    return os.path.normpath(target + "/" + path)


def _handing_down(top: str, folder: str, wanted: Sequence[str]) -> str:
    """Return the nearest folder whose children get all wanted controllers."""
    at = folder
    while True:
        if set(wanted) <= set(_words(os.path.join(at, "cgroup.subtree_control"))):
            return at
        if at == top or not at.startswith(top):
            break
        at = os.path.dirname(at)
    if set(wanted) <= set(_words(os.path.join(folder, "cgroup.controllers"))):
        try:  # Only where no process is in it, or it is the root.
            _write(os.path.join(folder, "cgroup.subtree_control"), " ".join("+" + one for one in wanted))
            return folder
        except OSError as error:
            raise NoLimit(f"{folder} cannot hand down {', '.join(wanted)}: {error.strerror}") from error
    raise NoLimit(f"no control group from {folder} up to {top} hands down {', '.join(wanted)}")


def settings(version: int, controller: str, limits: Limits) -> list[tuple[str, str, bool]]:
    """Return (file, content, whether it must exist) that make a controller keep its limit."""
    if controller == "pids":
        return [("pids.max", str(limits["pids"]), True)]
    if controller == "cpu":
        quota = max(1000, int(limits["cpu"] * CPU_PERIOD_US))
        if version == 2:
            return [("cpu.max", f"{quota} {CPU_PERIOD_US}", True)]
        return [("cpu.cfs_period_us", str(CPU_PERIOD_US), True), ("cpu.cfs_quota_us", str(quota), True)]
    size = str(int(limits["memory_mib"]) * 1024 * 1024)
    if version == 2:
        return [("memory.max", size, True), ("memory.swap.max", "0", False)]
    return [("memory.limit_in_bytes", size, True), ("memory.memsw.limit_in_bytes", size, False)]


class Group:
    """The groups of one sandbox."""

    def __init__(self, name: str, limits: Limits, where: Sequence[Place]) -> None:
        self._limits = limits
        self._where = [(version, os.path.join(parent, name), names) for version, parent, names in where]
        self.folders = [folder for _, folder, _ in self._where]

    def make(self) -> None:
        """Make them and set the limits.

        Raises:
            NoLimit: It is not permitted.
        """
        for version, folder, names in self._where:
            try:
                os.mkdir(folder)
                for name in names:
                    for file, content, must in settings(version, name, self._limits):
                        if must or os.path.exists(os.path.join(folder, file)):
                            _write(os.path.join(folder, file), content)
            except OSError as error:
                raise NoLimit(
                    f"{', '.join(names)}: the control group {folder} cannot be made: {error.strerror}"
                ) from error

    def add(self, pid: int) -> None:
        """Put a process, and all that it will start, into them."""
        for _, folder, _ in self._where:
            _write(os.path.join(folder, "cgroup.procs"), str(pid))

    def open_events(self) -> int | None:
        """Return a descriptor of the file that counts what memory's limit killed."""
        for version, folder, names in self._where:
            if "memory" in names:
                return os.open(os.path.join(folder, EVENTS[version]), os.O_RDONLY | os.O_CLOEXEC)
        return None


def limited(name: str, limits: Limits) -> Group:
    """Return made groups for a sandbox; the working directory gets their record first.

    Raises:
        NoLimit: A limit cannot be kept here.
    """
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        mounts = file.read()
    with open("/proc/self/cgroup", encoding="utf-8", errors="surrogateescape") as file:
        own = file.read()
    group = Group(name, limits, places(limits, mounts, own))
    with open(RECORD, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write("\n".join(group.folders))
    group.make()
    return group


def remove_groups(folders: Sequence[str]) -> None:
    """Remove groups whose processes are dead or dying; bounded."""
    deadline = time.monotonic() + REMOVE_LIMIT_S
    for folder in folders:
        while True:
            try:
                os.rmdir(folder)
                break
            except FileNotFoundError:
                break
            except OSError:
                if time.monotonic() > deadline:
                    break
                time.sleep(POLL_S)


def remove_recorded(state: str) -> None:
    """Remove the groups that a killed keeper recorded in its state folder."""
    try:
        with open(os.path.join(state, RECORD), encoding="utf-8", errors="surrogateescape") as file:
            folders = file.read().splitlines()
    except OSError:
        return
    name = os.path.basename(state)
    remove_groups([one for one in folders if os.path.basename(one) == name])


def _words(path: str) -> list[str]:
    try:
        with open(path, encoding="ascii") as file:
            return file.read().split()
    except OSError:
        return []


def _write(path: str, content: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, content.encode())
    finally:
        os.close(fd)
