"""What is said about a sandbox that ended without being stopped, for whoever asks for it later.

A small file of the sandbox's id in the folder ``ended`` of the runtime folder: the newest `KEPT` stay.
Standard library only.
"""

from __future__ import annotations

import os

FOLDER = b"ended"
KEPT = 256
WORDS_LIMIT_BYTES = 2000


def write_obituary(state: bytes, words: str) -> None:
    """Say why a sandbox ended; where that cannot be written, it is not said."""
    folder = os.path.join(os.path.dirname(os.path.dirname(state)), FOLDER)
    name = os.path.basename(state)
    data = words.encode("utf-8", "replace")[:WORDS_LIMIT_BYTES]
    part = os.path.join(folder, b"." + name)
    try:
        os.makedirs(folder, 0o700, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(part, flags, 0o600)
        try:
            os.write(fd, data)
        finally:
            os.close(fd)
        os.rename(part, os.path.join(folder, name))
        _forget_oldest(folder)
    except OSError:
        return


def _forget_oldest(folder: bytes) -> None:
    with os.scandir(folder) as found:
        entries = list(found)
    if len(entries) <= KEPT:
        return
    for entry in sorted(entries, key=_age)[: len(entries) - KEPT]:
        try:
            os.unlink(entry.path)
        except FileNotFoundError:
            continue


def _age(entry: os.DirEntry[bytes]) -> float:
    try:
        return entry.stat(follow_symlinks=False).st_mtime
    except FileNotFoundError:
        return 0.0


def exit_words(status: int) -> str:
    """Return how a process ended, from its wait status."""
    if os.WIFSIGNALED(status):
        return f"was killed by signal {os.WTERMSIG(status)}"
    return f"exited with {os.WEXITSTATUS(status)}"
