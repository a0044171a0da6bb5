"""The terminal of the demonstration: phases and model calls as they come, or one JSON object at the end."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from attrs import define

from inspan_server.cli import report
from inspan_server.cli.timeline import Entry, Timeline
from inspan_server.model.capture import ModelCall


@define
class Screen:
    """What the user sees. A reader that goes away (``inspan demo | head``) ends the showing, not the run.

    Attributes:
        as_json: Nothing is said on the way; `finish` prints one object.
    """

    as_json: bool
    timeline: Timeline | None = None
    calls: int = 0

    def say(self, text: str) -> None:
        """Print a line, unless one JSON object is wanted."""
        if not self.as_json:
            _print(text)

    def warn(self, text: str) -> None:
        """Print a line to stderr, whatever is wanted on stdout."""
        print(f"inspan demo: {text}", file=sys.stderr, flush=True)

    def on_entry(self, entry: Entry) -> None:
        """A phase has ended."""
        self.say(report.phase_line(entry))

    def on_call(self, call: ModelCall) -> None:
        """The model was called."""
        self.calls += 1
        at_ms = 0.0 if self.timeline is None else self.timeline.elapsed_ms
        self.say(report.call_line(at_ms, self.calls, call))

    def finish(self, value: Mapping[str, Any]) -> None:
        """Print what came of it."""
        _print(json.dumps(value, indent=2) if self.as_json else report.summary(value))


def _print(text: str) -> None:
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # Python flushes once more at exit, and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
