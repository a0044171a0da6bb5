"""Which process of this host holds the other end of a loopback connection, and what all processes show.

Source: ``/proc/net/tcp`` (local and remote address in hexadecimal, inode in the tenth column) and the links
``/proc/PID/fd/*`` to ``socket:[inode]``; proc(5).
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from attrs import frozen


@frozen(kw_only=True)
class Caller:
    """A process that holds a connection.

    Attributes:
        pid: Its process id.
        group: Its process group.
        leader_parent: The parent of the group's leader, or None when that is gone.
    """

    pid: int
    group: int
    leader_parent: int | None


def who_calls(port: int) -> Caller | None:
    """Who called from the local `port`; None when it cannot be told (another network, another user)."""
    inode = _inode(port)
    if inode is None:
        return None
    wanted = f"socket:[{inode}]"
    for pid in pids():
        try:
            if any(_reads(f"/proc/{pid}/fd/{name}") == wanted for name in os.listdir(f"/proc/{pid}/fd")):
                group = _stat(pid)[1]
                return Caller(pid=pid, group=group, leader_parent=parent_of(group))
        except (OSError, LookupError, ValueError):
            continue
    return None


def parent_of(pid: int) -> int | None:
    """The parent of a process, also of a zombie."""
    try:
        return _stat(pid)[0]
    except (OSError, LookupError, ValueError):
        return None


def pids() -> Iterator[int]:
    """All processes of this host that can be seen."""
    yield from (int(name) for name in os.listdir("/proc") if name.isdigit())


def command_lines_with(word: str) -> list[str]:
    """Command lines that hold `word`: any process of a sandbox could read them."""
    found = []
    for pid in pids():
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                line = file.read()
        except OSError:
            continue
        if word.encode() in line:
            found.append(line.replace(b"\0", b" ").decode("utf-8", "replace"))
    return found


def _inode(port: int) -> str | None:
    try:
        with open("/proc/net/tcp", encoding="ascii") as file:
            rows = [line.split() for line in file.readlines()[1:]]
    except OSError:
        return None
    local = f"0100007F:{port:04X}"
    return next((row[9] for row in rows if row[1] == local and row[9] != "0"), None)


def _reads(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _stat(pid: int) -> tuple[int, int]:
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
    return int(fields[1]), int(fields[2])
