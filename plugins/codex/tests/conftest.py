"""Fixtures: recorded runs as artifacts, and the shim as a real process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import inspan_codex.sandbox_runner as runner
from inspan_core.harness import Artifacts, ParseInput
from inspan_core.shim_files import shim_files

TRANSCRIPTS = Path(__file__).parent / "transcripts"
INFO = b'{"hostname": "box", "pid": 7, "interpreter": "/r/bin/inspan-h"}'


@pytest.fixture(scope="session")
def transcript_names():
    return sorted(path.name.partition(".")[0] for path in TRANSCRIPTS.glob("*.events.jsonl"))


@pytest.fixture(scope="session")
def run_of():
    """Name of a recorded run -> what the parser is given."""

    def make(name: str, *, return_code=0, timed_out=False, interrupted=False, request=None, **changed):
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
        for key, data in changed.items():
            named = next((n for n in files if n.startswith("home/")), "") if key == "thread" else key
            files[named.replace("__", ".")] = data
        return ParseInput(
            artifacts=Artifacts(files={name: data for name, data in files.items() if data is not None}),
            request=request or {"input": "Do the thing."},
            return_code=return_code,
            timed_out=timed_out,
            interrupted=interrupted,
            model_name="policy",
            sandbox_id="box-1",
        )

    return make


class Shim:
    """The shim in a session folder of its own, with a program of the test's in place of Codex."""

    def __init__(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "session"
        self.work = tmp_path / "work"
        for folder in (self.folder, self.work):
            folder.mkdir()
        self.started: list[subprocess.Popen[bytes]] = []
        source = Path(runner.__file__).read_text()
        for name, text in {"sandbox_runner.py": source, **shim_files()}.items():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_text(text)

    def start(self, program: str, **order: Any) -> subprocess.Popen[bytes]:
        """Start the shim over a Python program, as the supervisor does: own group, no input."""
        content = {
            "argv": ["neutral", "-c", program],
            "program": sys.executable,
            "env": {"CODEX_HOME": str(self.folder / "home")},
            "workdir": str(self.work),
            "files": {"home/config.toml": "model = 'x'\n"},
            "prompt": "hello",
            **order,
        }
        (self.folder / "input.json").write_text(json.dumps(content))
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(self.folder / "sandbox_runner.py")],
            env={"PATH": "/usr/bin:/bin"},
            cwd=self.work,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def run(self, program: str, **order: Any) -> int:
        """Run to the end; what the shim itself printed is a fault."""
        process = self.start(program, **order)
        assert process.communicate(timeout=50) == (b"", b"")
        return process.returncode

    def events(self) -> list[dict[str, Any]]:
        lines = (self.folder / "events.jsonl").read_bytes().split(b"\n")
        return [json.loads(line) for line in lines if line]

    def end(self) -> None:
        """Leave no process and no pipe behind."""
        for process in self.started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate(timeout=30)


@pytest.fixture
def shim(tmp_path):
    made = Shim(tmp_path)
    yield made
    made.end()
