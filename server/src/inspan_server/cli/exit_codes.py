"""The exit codes of the `inspan` command."""

from __future__ import annotations

DONE = 0
FAILED = 1
USAGE = 2
INFRASTRUCTURE = 3


def interrupted(signal_number: int) -> int:
    """The exit code after a signal, as shells have it: 130 for Ctrl-C, 143 for SIGTERM."""
    return 128 + signal_number
