"""What a shim says of the process that it runs; optional, and never a condition of anything else."""

from __future__ import annotations

import json
from typing import Any

from attrs import frozen

from inspan_core.json_shapes import is_object

LIMIT_BYTES = 16 * 1024


@frozen(kw_only=True)
class HarnessProcessInfo:
    """The harness process as the shim saw it.

    Attributes:
        hostname: The sandbox's host name.
        pid: The program's process id inside the sandbox.
        interpreter: Absolute path of the program, or of the interpreter that runs it.
    """

    hostname: str
    pid: int
    interpreter: str


def parse_runtime_info(text: str | bytes | None) -> HarnessProcessInfo | None:
    """Read ``runtime_info.json``; None (the gap `runtime_info_unavailable`) when it does not fit."""
    if text is None or len(text) > LIMIT_BYTES:
        return None
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not is_object(value):
        return None
    hostname, pid, interpreter = value.get("hostname"), value.get("pid"), value.get("interpreter")
    if not isinstance(hostname, str) or not isinstance(interpreter, str) or not interpreter.startswith("/"):
        return None
    if not isinstance(pid, int) or isinstance(pid, bool) or pid < 1:
        return None
    return HarnessProcessInfo(hostname=hostname, pid=pid, interpreter=interpreter)
