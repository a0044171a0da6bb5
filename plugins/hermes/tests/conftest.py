"""Fixtures: recorded runs as artifacts."""

from __future__ import annotations

from pathlib import Path

import pytest

from inspan_runtime.testing.recorded import recorded_run

TRANSCRIPTS = Path(__file__).parent / "transcripts"
INFO = b'{"hostname": "box", "pid": 7, "interpreter": "/usr/bin/python3"}'
READY = b'{"version": "0.19.0", "tools": [], "session_id": "s"}'


@pytest.fixture(scope="session")
def transcript_names():
    return sorted(path.name.partition(".")[0] for path in TRANSCRIPTS.glob("*.events.jsonl"))


@pytest.fixture(scope="session")
def run_of():
    """Name of a recorded run -> what the parser is given; `files` replace, or with None remove, its files."""

    def make(name, *, files=None, **told):
        found = {
            "events.jsonl": TRANSCRIPTS / f"{name}.events.jsonl",
            "output.json": TRANSCRIPTS / f"{name}.output.json",
        }
        data = {key: path.read_bytes() for key, path in found.items() if path.exists()}
        if b'"type": "ready"' in data["events.jsonl"]:
            data["ready.json"] = READY
        data["runtime_info.json"] = INFO
        return recorded_run(data | (files or {}), **told)

    return make
