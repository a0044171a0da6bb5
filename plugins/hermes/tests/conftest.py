"""Fixtures: recorded runs as artifacts."""

from __future__ import annotations

from pathlib import Path

import pytest

from inspan_core.harness import Artifacts, ParseInput

TRANSCRIPTS = Path(__file__).parent / "transcripts"
INFO = b'{"hostname": "box", "pid": 7, "interpreter": "/usr/bin/python3"}'
READY = b'{"version": "0.19.0", "tools": [], "session_id": "s"}'


@pytest.fixture(scope="session")
def transcript_names():
    return sorted(path.name.partition(".")[0] for path in TRANSCRIPTS.glob("*.events.jsonl"))


@pytest.fixture(scope="session")
def run_of():
    """Name of a recorded run -> what the parser is given; `files` replace, or with None remove, its files."""

    def make(
        name, *, return_code=0, timed_out=False, interrupted=False, request=None, files=None, problems=()
    ):
        found = {
            "events.jsonl": TRANSCRIPTS / f"{name}.events.jsonl",
            "output.json": TRANSCRIPTS / f"{name}.output.json",
        }
        data = {key: path.read_bytes() for key, path in found.items() if path.exists()}
        if b'"type": "ready"' in data["events.jsonl"]:
            data["ready.json"] = READY
        data["runtime_info.json"] = INFO
        data |= files or {}
        kept = {key: value for key, value in data.items() if value is not None}
        return ParseInput(
            artifacts=Artifacts(files=kept, problems=problems),
            request=request or {"input": "Do the thing."},
            return_code=return_code,
            timed_out=timed_out,
            interrupted=interrupted,
            model_name="policy",
            sandbox_id="box-1",
        )

    return make
