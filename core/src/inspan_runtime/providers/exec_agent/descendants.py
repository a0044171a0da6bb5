"""Find the processes that came from one, by /proc."""

from __future__ import annotations

import os


def children_by_parent() -> dict[int, list[int]]:
    """Return {parent pid: [pids]} of all that /proc shows; not every kernel has /proc/P/task/T/children."""
    tree: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open("/proc/" + name + "/stat", "rb") as file:
                    line = file.read()
            except OSError:
                continue
            fields = line[line.rindex(b")") + 2 :].split()
            if fields[0] not in (b"Z", b"X") or int(fields[17]) > 1:  # Its other threads run.
                tree.setdefault(int(fields[1]), []).append(int(name))
    return tree


def descendants_of(pid: int) -> list[int]:
    """Return the pids of all living descendants."""
    tree = children_by_parent()
    found: list[int] = []
    queue = [pid]
    while queue:
        for child in tree.get(queue.pop(), ()):
            found.append(child)
            queue.append(child)
    return found
