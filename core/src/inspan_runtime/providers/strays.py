"""What is left of a sandbox without isolation when nobody keeps it any more: found by the host, and killed.

Commands carry a mark in their environment. A supervisor shows none, since it takes a neutral name before its
harness starts; it is known by the ``supervisor.pid`` of the sandbox's folder that it holds open. Killing only
the harness would have it write a receipt into a folder that is being removed.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

MARKER = "INSPAN_SANDBOX"
SUPERVISOR_PID_FILE = "supervisor.pid"


def end_strays(folder: Path) -> None:
    """Kill what came from a sandbox, until a whole look finds nothing that could start more of it.

    Args:
        folder: The sandbox's own; its name is the sandbox's id.
    """
    while pids := strays_of(folder):
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def strays_of(folder: Path) -> list[int]:
    """The processes that came from a sandbox and are not dead."""
    mark = f"{MARKER}={folder.name}".encode()
    pids = map(int, filter(str.isdigit, os.listdir("/proc")))
    return [pid for pid in pids if _carries(pid, mark) or _supervises(pid, f"{folder}/")]


def _carries(pid: int, mark: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return mark in file.read().split(b"\0")
    except OSError:  # It ended, or is another user's.
        return False


def _supervises(pid: int, below: str) -> bool:
    try:
        with os.scandir(f"/proc/{pid}/fd") as entries:
            open_files = [_target(entry.path) for entry in entries]
    except OSError:
        return False
    return any(
        path.startswith(below) and path.removesuffix(" (deleted)").endswith(f"/{SUPERVISOR_PID_FILE}")
        for path in open_files
    )


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:  # Closed meanwhile.
        return ""
