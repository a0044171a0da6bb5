"""Build a sandbox's root and start its agent, directly or under bubblewrap."""

from __future__ import annotations

import fcntl
import os
import stat

from inspan_runtime.providers.exec_agent.lean import TYPE_CHECKING
from inspan_runtime.providers.keeper.host import MS_NODEV, MS_NOSUID, enter_private_mounts, mount

CONTROL_FD, LISTEN_FD, INFO_FD, BLOCK_FD, MEMORY_FD = 3, 4, 5, 6, 7
FIRST_FREE_FD = 20
ID_MAP = b"0 0 65536"
SPACE = b"space"
MERGED = SPACE + b"/merged"

if TYPE_CHECKING:
    from typing import Any


class LaunchError(Exception):
    """The sandbox cannot be started; args: kind (``overlay`` or ``create``), message."""


def out_of_the_way(fd: int) -> int:
    """Move a descriptor above all numbers that a child gets."""
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, FIRST_FREE_FD)
    os.close(fd)
    return moved


def spawn(path: str, argv: list[str], fds: dict[int, int]) -> int:
    """Start a program with exactly the given descriptors: {number there: number here}."""
    actions = [(os.POSIX_SPAWN_DUP2, here, there) for there, here in fds.items()]
    return os.posix_spawn(path, argv, {}, file_actions=actions)


def prepare_root(root: dict[str, Any]) -> None:
    """Mount the private writable root at ``space/merged`` of the state folder, the working directory.

    Args:
        root: ``{"lower": path, "inner_mounts": [path], "hidden": [path], "empty": [(path, mode)],
            "files": [(path, mode, bytes)], "size": tmpfs size or ""}``, paths relative to the lower root.
    """
    try:
        enter_private_mounts()
        limit = b",size=" + root["size"] if root["size"] else b""
        mount("tmpfs", SPACE, b"mode=0700" + limit, MS_NOSUID | MS_NODEV)
        _overlay(root["lower"], b"root", MERGED, root)
        for number, inner in enumerate(root["inner_mounts"]):
            _overlay(
                os.path.join(root["lower"], inner), b"inner%d" % number, os.path.join(MERGED, inner), None
            )
    except OSError as error:
        raise LaunchError("overlay", str(error)) from error


def _overlay(lower: bytes, name: bytes, target: bytes, root: dict[str, Any] | None) -> None:
    upper, work = SPACE + b"/" + name, SPACE + b"/" + name + b".work"
    os.mkdir(upper, 0o755)
    os.mkdir(work, 0o755)
    _copy_attributes(lower, upper)
    if root is not None:
        os.mkdir(target, 0o755)
        _prepare_upper(root, upper)
    options = b"lowerdir=" + _escape(lower) + b",upperdir=" + upper + b",workdir=" + work
    mount("overlay", target, options)


def _escape(path: bytes) -> bytes:
    for one in (b"\\", b",", b":"):
        path = path.replace(one, b"\\" + one)
    return path


def _copy_attributes(source: bytes, target: bytes) -> None:
    found = os.stat(source)
    os.chown(target, found.st_uid, found.st_gid)
    os.chmod(target, stat.S_IMODE(found.st_mode))


def _make_parents(root: dict[str, Any], upper: bytes, path: bytes) -> None:
    done = b""
    for part in path.split(b"/")[:-1]:
        done = os.path.join(done, part)
        made = os.path.join(upper, done)
        if not os.path.isdir(made):
            os.mkdir(made)
            if os.path.isdir(os.path.join(root["lower"], done)):
                _copy_attributes(os.path.join(root["lower"], done), made)


def _prepare_upper(root: dict[str, Any], upper: bytes) -> None:
    """Write what hides parts of the lower tree: nothing inside can undo it."""
    for path in root["hidden"]:
        _make_parents(root, upper, path)
        os.mknod(os.path.join(upper, path), stat.S_IFCHR, os.makedev(0, 0))  # An overlay whiteout.
    for path, mode in root["empty"]:
        _make_parents(root, upper, path)
        made = os.path.join(upper, path)
        os.makedirs(made, exist_ok=True)
        os.chmod(made, mode)
        os.setxattr(made, b"trusted.overlay.opaque", b"y")
    for path, mode, data in root["files"]:
        _make_parents(root, upper, path)
        with open(os.path.join(upper, path), "wb") as file:
            file.write(data)
        os.chmod(os.path.join(upper, path), mode)


def start_agent(
    orders: dict[str, Any], control: int, listener: int, log: int, memory: int | None = None
) -> tuple[int, int]:
    """Start the agent.

    Args:
        orders: The keeper's orders.
        control: The agent's end of the lifeline (a descriptor above 20), closed here.
        listener: The agent's listening socket, likewise.
        log: Where bubblewrap and the agent write errors.
        memory: The events of the memory's control group, for the agent; also closed here.

    Returns:
        (pid of the child to wait for, pid of the agent as seen from here).
    """
    script, feeds = os.pipe()
    os.write(feeds, orders["agent_program"])
    os.close(feeds)
    script = out_of_the_way(script)
    fds = {0: script, 1: log, 2: log, CONTROL_FD: control, LISTEN_FD: listener}
    if memory is not None:
        fds[MEMORY_FD] = memory
    try:
        if not orders["bwrap"]:
            pid = spawn(orders["executable"], orders["argv"], fds)
            return pid, pid
        return _start_bubblewrap(orders, fds)
    finally:
        for fd in (script, control, listener, memory):
            if fd is not None:
                os.close(fd)


def _start_bubblewrap(orders: dict[str, Any], fds: dict[int, int]) -> tuple[int, int]:
    info, info_end = os.pipe()
    block, unblock = os.pipe()
    theirs = [out_of_the_way(info_end), out_of_the_way(block)]
    try:
        fds = {**fds, INFO_FD: theirs[0]}
        if orders["map_ids"]:
            fds[BLOCK_FD] = theirs[1]
        pid = spawn(orders["executable"], orders["bwrap"] + orders["argv"], fds)
        while theirs:
            os.close(theirs.pop())
        agent_pid = _agent_pid(info)
        if orders["map_ids"]:
            for name in ("uid_map", "gid_map"):
                with open(f"/proc/{agent_pid}/{name}", "wb") as file:
                    file.write(ID_MAP)
            os.write(unblock, b"1")
        return pid, agent_pid
    except OSError as error:
        raise LaunchError("create", f"bubblewrap did not start: {error}") from error
    finally:
        for fd in (info, unblock, *theirs):
            os.close(fd)


def _agent_pid(info: int) -> int:
    """Read bubblewrap's ``{"child-pid": 123, ...}``."""
    data = b""
    while b"}" not in data:
        part = os.read(info, 4096)
        if not part:
            raise LaunchError("create", "bubblewrap did not start")
        data += part
    return int(data.split(b'"child-pid":')[1].split(b",")[0].split(b"}")[0])
