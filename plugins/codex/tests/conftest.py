"""Fixtures: recorded runs as artifacts, and the shim as a real process."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import inspan_codex.sandbox_runner as runner
from inspan_runtime.testing.recorded import recorded_run
from inspan_runtime.testing.shim_process import ShimProcess

RUN = ("return_code", "timed_out", "interrupted", "request")
TRANSCRIPTS = Path(__file__).parent / "transcripts"
INFO = b'{"hostname": "box", "pid": 7, "interpreter": "/r/bin/inspan-h"}'


@pytest.fixture(scope="session")
def transcript_names():
    return sorted(path.name.partition(".")[0] for path in TRANSCRIPTS.glob("*.events.jsonl"))


@pytest.fixture(scope="session")
def run_of():
    """Name of a recorded run -> what the parser is given."""

    def make(name: str, **more):
        told = {key: more.pop(key) for key in RUN if key in more}
        events = (TRANSCRIPTS / f"{name}.events.jsonl").read_bytes()
        files = {
            "events.jsonl": events,
            "runtime_info.json": INFO,
            "output.json": b'{"return_code": 0, "events": {"written": 1, "dropped": 0}}',
        }
        if (path := TRANSCRIPTS / f"{name}.thread.jsonl").exists():
            thread_id = json.loads(events.split(b"\n")[0])["event"]["thread_id"]
            folder = "2000/01/01" if name == "history" else "2026/11/29"
            files[f"home/sessions/{folder}/rollout-x-{thread_id}.jsonl"] = path.read_bytes()
        if (path := TRANSCRIPTS / f"{name}.stderr.log").exists():
            files["stderr.log"] = path.read_bytes()
        for key, data in more.items():
            named = next((n for n in files if n.startswith("home/")), "") if key == "thread" else key
            files[named.replace("__", ".")] = data
        return recorded_run(files, **told)

    return make


@pytest.fixture
def shim(tmp_path):
    def order(program):
        return {
            "argv": ["neutral", "-c", program],
            "program": sys.executable,
            "env": {"CODEX_HOME": str(tmp_path / "session" / "home")},
            "files": {"home/config.toml": "model = 'x'\n"},
        }

    made = ShimProcess(root=tmp_path, source=Path(runner.__file__).read_text(), order=order)
    yield made
    made.end()
