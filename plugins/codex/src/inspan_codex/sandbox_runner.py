"""Runs inside the sandbox under the supervisor: starts Codex, keeps its events, reports its end.

Standard library only, Python 3.8 syntax; its library lies beside it (`inspan_core.shim` says what is read
and written).
"""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
sys.dont_write_bytecode = True
from inspan_core import shim

# Output of a running command as it grows: `item.completed` carries the same in full.
DROPPED = b'{"type":"item.updated"'


class Events(shim.Events):
    """Codex's events without what they repeat."""

    def take(self, at: float, line: bytes) -> None:
        """One event."""
        if not line.startswith(DROPPED):
            super().take(at, line)

    def tells_loaded(self, line: bytes) -> bool:
        """Codex has its configuration when the turn starts."""
        return line.startswith(b'{"type":"turn.started"')

    def is_vital(self, line: bytes) -> bool:
        """The turn's end decides how the run ended."""
        return b'"type":"turn.' in line[:128]


if __name__ == "__main__":
    sys.exit(shim.main(__file__, Events))
