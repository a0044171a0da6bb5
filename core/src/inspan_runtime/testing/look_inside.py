"""What a sandbox shows of a harness under check; runs inside, on the Python that the harness's target has.

Standard input is one JSON object: ``what`` names a function of `ASKED`, the rest are its arguments, so that
no word that is looked for stands in a command line. Standard output is its answer. Source: proc(5): the local
and remote address in hexadecimal and the inode, in the second, third and tenth column of ``/proc/net/tcp``.
"""

from __future__ import annotations

import glob
import json
import os
import stat
import sys
from typing import Any, Iterator

GROUP_OR_OTHERS_ENTER = stat.S_IXGRP | stat.S_IXOTH
GROUP_OR_OTHERS_READ = stat.S_IRGRP | stat.S_IROTH
HUGE_BYTES = 1024**4


def pids() -> list[int]:
    """All processes but this one."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]


def read(path: str) -> bytes:
    """A file's bytes; none where it went or may not be read."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def status(pid: int) -> tuple[str, int, int] | None:
    """State, parent and process group; None when it is gone."""
    fields = read("/proc/%d/stat" % pid).rpartition(b")")[2].split()
    return (fields[0].decode(), int(fields[1]), int(fields[2])) if fields else None


def processes(mark: str | None) -> list[int]:
    """Who lives: all, or those with `mark` in their environment."""
    found = []
    for pid in pids():
        now = status(pid)
        if now is None or now[0] in "ZX" or not read("/proc/%d/cmdline" % pid):
            continue
        if mark is None or mark.encode() in read("/proc/%d/environ" % pid).split(b"\0"):
            found.append(pid)
    return found


def callers(port: int) -> list[dict[str, int | None]]:
    """Who holds a connection to `port`, its group, and the parent of the group's leader (a zombie's too)."""
    rows = [line.split() for line in read("/proc/net/tcp").decode().splitlines()[1:]]
    wanted = {"socket:[%s]" % row[9] for row in rows if int(row[2].rpartition(":")[2], 16) == port}
    wanted.discard("socket:[0]")
    found = []
    for pid in pids():
        now = status(pid)
        if now is not None and wanted & {link(path) for path in glob.glob("/proc/%d/fd/*" % pid)}:
            leader = status(now[2])
            found.append({"pid": pid, "group": now[2], "leader_parent": leader and leader[1]})
    return found


def link(path: str) -> str:
    """Where a link leads; nowhere when it went."""
    try:
        return os.readlink(path)
    except OSError:
        return ""


def shown(word: str, folder: str) -> dict[str, list[str]]:
    """Command lines that hold `word`, and files below `folder` that do and that other users may read."""
    lines = [read("/proc/%d/cmdline" % pid) for pid in pids()]
    told = [line.replace(b"\0", b" ").decode("utf-8", "replace") for line in lines if word.encode() in line]
    files = [path for path in readable(folder) if word.encode() in read(path)]
    return {"lines": told, "files": files}


def readable(folder: str) -> Iterator[str]:
    """Regular files which another user who has come to `folder` can read."""
    for here, folders, names in os.walk(folder):
        if not os.stat(here).st_mode & GROUP_OR_OTHERS_ENTER:
            folders.clear()
            continue
        for name in names:
            mode = os.lstat(os.path.join(here, name)).st_mode
            if stat.S_ISREG(mode) and mode & GROUP_OR_OTHERS_READ:
                yield os.path.join(here, name)


def tree(folders: list[str]) -> list[str]:
    """Every path below some folders."""
    walks = [walk for folder in folders for walk in os.walk(folder)]
    return sorted(os.path.join(here, name) for here, inner, names in walks for name in inner + names)


def spoil(how: str, paths: list[str], outside: str) -> None:
    """Put in the place of files what nobody shall follow, wait for or copy."""
    for path in paths:
        if how == "huge":
            os.truncate(path, HUGE_BYTES)
            continue
        os.unlink(path)
        if how == "link":
            os.symlink(outside, path)
        else:
            os.mkfifo(path)


ASKED: dict[str, Any] = {each.__name__: each for each in (processes, callers, shown, tree, spoil)}


def main() -> None:
    asked = json.load(sys.stdin)
    json.dump(ASKED[asked.pop("what")](**asked), sys.stdout)


if __name__ == "__main__":
    main()
