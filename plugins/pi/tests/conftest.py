"""Fixtures: recorded transcripts as artifacts, the shim as a real process, and a scripted model server."""

from __future__ import annotations

import http.server
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import inspan_core.shim as shim_library
import inspan_pi.sandbox_runner as runner
from inspan_core.harness import Artifacts, ParseInput
from inspan_core.shim_files import shim_files

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

    def make(name: str, *, return_code=0, timed_out=False, interrupted=False, request=None, **changed):
        files = {
            "events.jsonl": events_of(name),
            "runtime_info.json": b'{"hostname": "box", "pid": 7, "interpreter": "/r/bin/node"}',
            "output.json": b'{"return_code": 0, "events": {"written": 1, "dropped": 0}}',
        }
        session = TRANSCRIPTS / f"{name}.session.jsonl"
        if session.exists():
            files["session.jsonl"] = session.read_bytes()
        files.update({name.replace("__", "."): data for name, data in changed.items()})
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
    """The shim in a session folder of its own, with a program of the test's in place of Node."""

    def __init__(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "session"
        self.work = tmp_path / "work"
        self.home = tmp_path / "home"
        self.started: list[subprocess.Popen[bytes]] = []
        for folder in (self.folder, self.work, self.home):
            folder.mkdir()
        source = Path(runner.__file__).read_text()
        for name, text in {"sandbox_runner.py": source, **shim_files()}.items():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_text(text)

    def start(self, program: str, *, prompt: str = "hello", **order: Any) -> subprocess.Popen[bytes]:
        """Start the shim over a Python program, as the supervisor does: own group, no input."""
        content = {
            "argv": [sys.executable, "-c", program],
            "env": {"FOR_THE_PROGRAM": "yes"},
            "workdir": str(self.work),
            "files": {"agent/models.json": "{}"},
            "prompt": prompt,
            **order,
        }
        (self.folder / "input.json").write_text(json.dumps(content))
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(self.folder / "sandbox_runner.py")],
            env={"HOME": str(self.home), "PATH": "/usr/bin:/bin", "TASK": "kept"},
            cwd=self.work,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def end(self) -> None:
        """Leave no process and no pipe behind."""
        for process in self.started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate(timeout=30)

    def run(self, program: str, **order: Any) -> int:
        """Run to the end; what the shim itself printed is a fault."""
        process = self.start(program, **order)
        out, error = process.communicate(timeout=50)
        assert (out, error) == (b"", b"")
        return process.returncode

    def read(self, name: str) -> Any:
        return json.loads((self.folder / name).read_text())

    def events(self) -> list[dict[str, Any]]:
        lines = (self.folder / "events.jsonl").read_bytes().split(b"\n")
        return [json.loads(line) for line in lines if line]


@pytest.fixture
def shim(tmp_path):
    made = Shim(tmp_path)
    yield made
    made.end()


class ModelServer(http.server.ThreadingHTTPServer):
    """Answers Chat Completions with a script, one reply a call, the last one for ever; keeps the calls."""

    daemon_threads = True

    def __init__(self, script: list[dict[str, Any]]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.script = script
        self.calls: list[dict[str, Any]] = []
        self.lock = threading.Lock()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/ng-rollout/r1/v1"


class _Handler(http.server.BaseHTTPRequestHandler):
    server: ModelServer
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with self.server.lock:
            number = len(self.server.calls)
            headers = {name.lower(): value for name, value in self.headers.items()}
            self.server.calls.append({"path": self.path, "headers": headers, "body": body})
        reply = self.server.script[min(number, len(self.server.script) - 1)]
        if "status" in reply:
            self._send(reply["status"], json.dumps(reply["body"]).encode(), "application/json")
            return
        self._send(200, b"".join(self._chunks(reply, number, body["model"])), "text/event-stream")

    def _send(self, status: int, data: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _chunks(self, reply: dict[str, Any], number: int, model: str) -> Iterator[bytes]:
        calls = [
            {
                "index": i,
                "id": c["id"],
                "type": "function",
                "function": {"name": c["name"], "arguments": c["args"]},
            }
            for i, c in enumerate(reply.get("calls", []))
        ]
        finish = "tool_calls" if calls else "stop"
        usage = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
        usage |= {"prompt_tokens_details": {"cached_tokens": 40}}
        head = {"id": f"chatcmpl-{number}", "object": "chat.completion.chunk", "created": 1, "model": model}
        for choice in (
            {"delta": {"role": "assistant", "reasoning_content": reply.get("reasoning", "")}},
            {"delta": {"content": reply.get("text", "")}},
            {"delta": {"tool_calls": calls}} if calls else {"delta": {}},
            {"delta": {}, "finish_reason": finish},
        ):
            yield b"data: " + json.dumps({**head, "choices": [{"index": 0, **choice}]}).encode() + b"\n\n"
        yield b"data: " + json.dumps({**head, "choices": [], "usage": usage}).encode() + b"\n\n"
        yield b"data: [DONE]\n\n"


@pytest.fixture
def model_server():
    """A function that starts a server for a script; all are stopped at the end."""
    running: list[tuple[ModelServer, threading.Thread]] = []

    def start(script: list[dict[str, Any]]) -> ModelServer:
        server = ModelServer(script)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        running.append((server, thread))
        return server

    yield start
    for server, thread in running:
        server.shutdown()
        thread.join(20)
        server.server_close()
