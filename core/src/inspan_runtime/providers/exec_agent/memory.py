"""Tell whether the sandbox's memory limit has killed something."""

from __future__ import annotations

import os

from inspan_runtime.providers.exec_agent.lean import TYPE_CHECKING

READ_BYTES = 4096
FIRST_TO_GO = b"500"

if TYPE_CHECKING:
    from collections.abc import Sequence


class MemoryWatch:
    """Reads the count of kills out of a control group's file; without one, nothing is ever killed."""

    def __init__(self, fd: int | None) -> None:
        self._fd = fd

    def kills(self) -> int:
        """Return how many processes the limit has killed so far."""
        if self._fd is None:
            return 0
        try:
            words = os.pread(self._fd, READ_BYTES, 0).split()
        except OSError:
            return 0
        return int(words[words.index(b"oom_kill") + 1]) if b"oom_kill" in words else 0

    def offer_self(self) -> None:
        """In a command's process: let the limit kill it before the agent."""
        if self._fd is None:
            return
        try:
            fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
            os.write(fd, FIRST_TO_GO)
            os.close(fd)
        except OSError:
            return


def open_watch(paths: Sequence[bytes]) -> MemoryWatch:
    """Return a watch of the first of some files that can be read."""
    for path in paths:
        try:
            return MemoryWatch(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        except OSError:
            continue
    return MemoryWatch(None)
