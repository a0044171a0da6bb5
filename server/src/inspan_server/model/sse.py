"""Server-sent events out of bytes, however they are cut: pure, with a bound on each event."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from attrs import define, field

EVENT_LIMIT_BYTES = 16 * 1024 * 1024
DONE = "[DONE]"


@define
class EventReader:
    """Reads the ``data`` of events.

    Attributes:
        saw_done: Whether ``data: [DONE]`` came.
        skipped: Events that were too long or not JSON objects.
    """

    saw_done: bool = False
    skipped: int = 0
    _rest: bytes = field(default=b"", repr=False)
    _data: list[bytes] = field(factory=list, repr=False)
    _held: int = 0

    def feed(self, part: bytes) -> Iterator[dict[str, Any]]:
        """The JSON objects of the events that `part` completes."""
        *lines, self._rest = (self._rest + part).split(b"\n")
        for line in lines:
            yield from self._line(line.removesuffix(b"\r"))
        if len(self._rest) > EVENT_LIMIT_BYTES:
            self._rest, self._held = b"", EVENT_LIMIT_BYTES + 1

    def _line(self, line: bytes) -> Iterator[dict[str, Any]]:
        if line.startswith(b"data:"):
            self._held += len(line)
            if self._held <= EVENT_LIMIT_BYTES:
                self._data.append(line[5:].removeprefix(b" "))
        elif not line and (self._data or self._held):
            data, self._data = b"\n".join(self._data), []
            too_long, self._held = self._held > EVENT_LIMIT_BYTES, 0
            if data.strip() == DONE.encode():
                self.saw_done = True
                return
            try:
                value = json.loads(data)
            except (ValueError, RecursionError):
                value = None
            if isinstance(value, dict) and not too_long:
                yield value
            else:
                self.skipped += 1
