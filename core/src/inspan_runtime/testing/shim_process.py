"""A plugin's shim as a real process, over a program of the test's in place of the harness."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from attrs import define, field

from inspan_core.shim_files import shim_files

RUN_LIMIT_S = 50.0


@define(kw_only=True)
class ShimProcess:
    """The shim in a session folder of its own.

    Attributes:
        root: Empty folder of the test.
        source: The plugin's runner.
        order: The text of a Python program -> what is particular to the plugin in ``input.json``.
    """

    root: Path
    source: str
    order: Callable[[str], Mapping[str, Any]]
    started: list[subprocess.Popen[bytes]] = field(factory=list)

    def __attrs_post_init__(self) -> None:
        for folder in (self.folder, self.work, self.home):
            folder.mkdir()
        for name, text in {"sandbox_runner.py": self.source, **shim_files()}.items():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_text(text)

    @property
    def folder(self) -> Path:
        """The session's."""
        return self.root / "session"

    @property
    def work(self) -> Path:
        """The task's."""
        return self.root / "work"

    @property
    def home(self) -> Path:
        """The task's HOME."""
        return self.root / "home"

    def start(self, program: str, **more: Any) -> subprocess.Popen[bytes]:
        """Start it over a Python program, as the supervisor does: own group, no input."""
        common = {"workdir": str(self.work), "prompt": "hello"}
        (self.folder / "input.json").write_text(json.dumps({**common, **self.order(program), **more}))
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

    def run(self, program: str, **more: Any) -> int:
        """Run to the end; the exit code.

        Raises:
            RuntimeError: The shim itself printed something, which is a fault.
        """
        process = self.start(program, **more)
        said = process.communicate(timeout=RUN_LIMIT_S)
        if said != (b"", b""):
            raise RuntimeError(f"the shim printed {said}")
        return process.returncode

    def read(self, name: str) -> Any:
        """A JSON file of the session."""
        return json.loads((self.folder / name).read_text())

    def events(self) -> list[dict[str, Any]]:
        """What it recorded."""
        lines = (self.folder / "events.jsonl").read_bytes().split(b"\n")
        return [json.loads(line) for line in lines if line]

    def end(self) -> None:
        """Leave no process and no pipe behind."""
        for process in self.started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate(timeout=RUN_LIMIT_S)
