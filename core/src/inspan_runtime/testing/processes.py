"""Whether a process lives, as the supervisor tells it: by its state and by its threads."""

from __future__ import annotations

from pathlib import Path


def is_dead(stat: bytes) -> bool:
    """Whether a row of ``/proc/PID/stat`` is that of a dead process.

    The state is that of the first thread: where that one has ended, a process says Z while its others run.
    """
    fields = stat.rpartition(b")")[2].split()
    return fields[0] in (b"Z", b"X", b"x") and int(fields[17]) < 2


def lives(pid: int | str) -> bool:
    """Whether there is such a process, and it is no zombie: os.kill(pid, 0) would also find that."""
    try:
        return not is_dead(Path(f"/proc/{pid}/stat").read_bytes())
    except (FileNotFoundError, ProcessLookupError):
        return False
