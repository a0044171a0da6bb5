"""Runs inside the sandbox under the supervisor: starts Pi, keeps its events, reports its end.

Standard library only, Python 3.8 syntax; its library lies beside it (`inspan_core.shim` says what is read
and written). Streaming deltas are left out, but not the arguments of tool calls as the model wrote them.
"""

import json
import os
import sys
import time
from typing import Any, Callable, Dict, List

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
sys.dont_write_bytecode = True
from inspan_core import shim

ARGUMENTS_LIMIT_CHARS = 1024 * 1024
# Streaming deltas and repetitions: `message_end` and `tool_execution_end` carry the same in full.
DROPPED = (
    b'{"type":"message_update"',
    b'{"type":"message_start"',
    b'{"type":"tool_execution_update"',
    b'{"type":"turn_end"',
)


class Events(shim.Events):
    """Pi's events without deltas."""

    def __init__(self, path: str, clock: Callable[[], float] = time.time) -> None:
        super().__init__(path, clock)
        self.arguments: Dict[int, List[str]] = {}

    def take(self, at: float, line: bytes) -> None:
        """One event."""
        if line.startswith(DROPPED):
            self._delta(line)
        elif line.startswith(b'{"type":"agent_end"'):
            self.write({"at": at, "event": without_messages(line)})
        elif line.startswith(b'{"type":"message_end"') and self.arguments:
            raw = {str(index): "".join(parts) for index, parts in self.arguments.items()}
            self.arguments = {}
            self.keep(b'{"at":%f,"raw_arguments":%s,"event":%s}' % (at, json.dumps(raw).encode(), line))
        else:
            super().take(at, line)

    def tells_loaded(self, line: bytes) -> bool:
        """Pi has its models when the agent starts."""
        return line.startswith(b'{"type":"agent_start"')

    def is_vital(self, line: bytes) -> bool:
        """Pi's last answer decides how the run ended."""
        return b'"role":"assistant"' in line

    def _delta(self, line: bytes) -> None:
        """Remember tool arguments as the model wrote them: Pi keeps only what it could parse."""
        if line.startswith(b'{"type":"message_start"'):
            self.arguments = {}
        if b'"toolcall_' not in line[:1024]:
            return
        try:
            event = json.loads(line.decode("utf-8", "replace"))["assistantMessageEvent"]
            index = int(event["contentIndex"])
            if event["type"] == "toolcall_start":
                self.arguments[index] = []
            elif event["type"] == "toolcall_delta":
                parts = self.arguments.setdefault(index, [])
                if sum(map(len, parts)) < ARGUMENTS_LIMIT_CHARS:
                    parts.append(str(event["delta"]))
        except (ValueError, KeyError, TypeError):
            return


def without_messages(line: bytes) -> Dict[str, Any]:
    """`agent_end` without its copy of every message."""
    try:
        event = json.loads(line.decode("utf-8", "replace"))
    except ValueError:
        return {"type": "agent_end"}
    return {key: value for key, value in event.items() if key != "messages"}


if __name__ == "__main__":
    sys.exit(shim.main(__file__, Events))
