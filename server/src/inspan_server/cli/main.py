"""The `inspan` command's first step: everything else is loaded where Ctrl-C is already an exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence

INTERRUPTED = 130
"""As shells have it for Ctrl-C; said here, since nothing is loaded yet."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns:
        The process's exit code.
    """
    try:
        from inspan_server.cli.parser import run_command

        return run_command(argv)
    except KeyboardInterrupt:
        print(file=sys.stderr)  # The terminal's ^C stands on a line of its own.
        return INTERRUPTED
