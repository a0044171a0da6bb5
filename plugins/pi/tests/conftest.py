"""Fixtures: recorded transcripts as artifacts, and the shim as a real process."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest

import inspan_core.shim as shim_library
import inspan_pi.sandbox_runner as runner
from inspan_runtime.testing.recorded import recorded_run
from inspan_runtime.testing.shim_process import ShimProcess

RUN = ("return_code", "timed_out", "interrupted", "request")
TRANSCRIPTS = Path(__file__).parent / "transcripts"


def recorded_names() -> list[str]:
    return sorted(path.name.partition(".")[0] for path in TRANSCRIPTS.glob("*.stdout.jsonl"))


@pytest.fixture(scope="session")
def transcript_names():
    return recorded_names()


@pytest.fixture(scope="session")
def events_of(tmp_path_factory):
    """Name of a transcript -> the ``events.jsonl`` that the shim makes of it, a millisecond an event."""
    made: dict[str, bytes] = {}

    def convert(name: str) -> bytes:
        if name not in made:
            path = tmp_path_factory.mktemp("events") / "events.jsonl"
            ticks = itertools.count()
            events = runner.Events(str(path), clock=lambda: 1000.0 + next(ticks) / 1000)
            lines = shim_library.Lines()
            for line, cut in lines.feed((TRANSCRIPTS / f"{name}.stdout.jsonl").read_bytes()):
                events.line(line, cut)
            made[name] = path.read_bytes()
        return made[name]

    return convert


@pytest.fixture(scope="session")
def run_of(events_of):
    """Name of a transcript -> what the parser is given."""

    def make(name: str, **more):
        told = {key: more.pop(key) for key in RUN if key in more}
        files = {
            "events.jsonl": events_of(name),
            "runtime_info.json": b'{"hostname": "box", "pid": 7, "interpreter": "/r/bin/node"}',
            "output.json": b'{"return_code": 0, "events": {"written": 1, "dropped": 0}}',
        }
        session = TRANSCRIPTS / f"{name}.session.jsonl"
        if session.exists():
            files["session.jsonl"] = session.read_bytes()
        files.update({name.replace("__", "."): data for name, data in more.items()})
        return recorded_run(files, **told)

    return make


@pytest.fixture
def shim(tmp_path):
    def order(program):
        return {
            "argv": [sys.executable, "-c", program],
            "env": {"FOR_THE_PROGRAM": "yes"},
            "files": {"agent/models.json": "{}"},
        }

    made = ShimProcess(root=tmp_path, source=Path(runner.__file__).read_text(), order=order)
    yield made
    made.end()
