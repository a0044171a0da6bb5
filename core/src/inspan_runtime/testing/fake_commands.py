"""The commands that a fake sandbox understands: those that the runtime sends, and a little shell for checks.

Each works in steps with a checkpoint between them, as the real scripts do: others may come in between.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Awaitable, Callable, Sequence

import anyio
import anyio.lowlevel

from inspan_core.sandbox import ExecResult
from inspan_runtime.supervisor_client import RETIRE_SCRIPT, WAIT_SCRIPT
from inspan_runtime.testing.fake_machine import FakeMachine
from inspan_runtime.testing.faults import CallKind
from inspan_supervisor import CLAIM_FILE, LOADER, PID_FILE, RECEIPT_FILE, RETIRED_SUFFIX, STOP_FILE

Answerer = Callable[[FakeMachine, Sequence[str], bytes], Awaitable[ExecResult] | ExecResult | None]
"""Answers commands that a plugin of its own sends; None for one that it does not know either."""

NOT_FOUND = 127
PREFLIGHT = {
    "os": "Linux",
    "arch": "x86_64",
    "libc": "glibc",
    "libc_version": "2.36",
    "user": "0",
    "python": "/usr/bin/python3",
    "python_version": "3.11.2",
    "certificates": "/etc/ssl/certs/ca-certificates.crt",
    "clock": None,
    "shells": {"sh": "/bin/sh"},
    "programs": {},
    "places": [
        {"path": "/tmp", "tried": "/tmp", "writes": True, "runs": True, "free_kib": None, "barred": None},
    ],
    "roots": [
        {
            "path": "/opt/inspan/runtimes",
            "tried": "/opt",
            "writes": True,
            "runs": True,
            "free_kib": None,
            "barred": None,
        },
    ],
    "ready": [],
    "word": None,
    "workdir": "folder",
}
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}
VARIABLES = re.compile(rb"d=(.*) wait=(\d+) request=(\w+)\n")


def kind_of(argv: Sequence[str], stdin: bytes) -> CallKind:
    """Which kind of call a command is."""
    if LOADER in argv:
        return CallKind.LAUNCH
    if list(argv) in (["sh"], ["/bin/sh"]) and stdin.endswith(WAIT_SCRIPT.encode()):
        return CallKind.LOOK
    if RETIRE_SCRIPT in argv:
        return CallKind.REMOVE
    return CallKind.EXEC


class LookCommand:
    """The script that waits for the receipt, and plants a stop request first where it is told to."""

    def __init__(self, machine: FakeMachine, stdin: bytes) -> None:
        found = VARIABLES.match(stdin)
        assert found is not None, stdin[:200]
        (self.folder,) = shlex.split(found[1].decode())
        self.wait_s, self.request = int(found[2]), found[3].decode()
        self._machine = machine

    def _has(self, name: str) -> bool:
        return self._machine.exists(f"{self.folder}/{name}")

    async def plant(self) -> str | None:
        """The request, if one is to be planted; a word when that ends it all."""
        if self.request == "look" or (self.request == "fence" and self._has(CLAIM_FILE)):
            return None
        if self._machine.exists(self.folder + RETIRED_SUFFIX) and not self._machine.exists(self.folder):
            return "retired"
        await anyio.lowlevel.checkpoint()
        self._machine.write(f"{self.folder}/{STOP_FILE}", b"")
        return None

    async def wait(self) -> str:
        """The word that the script prints in the end."""
        with anyio.move_on_after(self.wait_s):
            while True:
                word = await self._look()
                if word is not None or not self._machine.is_alive:
                    return word or "waiting"
                await self._machine.changed()
        return "waiting"

    async def _look(self) -> str | None:
        if self._has(RECEIPT_FILE):
            return "receipt"
        await anyio.lowlevel.checkpoint()
        if not self._has(CLAIM_FILE):
            if not self._has(STOP_FILE):
                return None
            if self._has(RECEIPT_FILE):
                return "receipt"
            return None if self._has(CLAIM_FILE) else "never"
        holder = self._machine.files.get(f"{self.folder}/{PID_FILE}") or self._machine.files.get(
            f"{self.folder}/{CLAIM_FILE}"
        )
        if holder is None or self._machine.lives(int(holder.data)):
            return None
        return "receipt" if self._has(RECEIPT_FILE) else "dead"


async def retire(machine: FakeMachine, folder: str, *, keep_fence: bool, halfway: bool = False) -> None:
    """Remove a session's folder, fenced before it begins to vanish; `halfway` stops at the fence."""
    machine.write(folder + RETIRED_SUFFIX, b"")
    if halfway:
        return
    await anyio.lowlevel.checkpoint()
    machine.remove(folder)
    await anyio.lowlevel.checkpoint()
    if not keep_fence:
        machine.remove(folder + RETIRED_SUFFIX)


async def run_plain(
    machine: FakeMachine, argv: Sequence[str], stdin: bytes, answer: Answerer | None
) -> ExecResult:
    """Any other command."""
    program, script = argv[0], argv[-1]
    if program == "env":
        lines = [f"{name}={value}" for name, value in {**ENVIRONMENT, **machine.spec.env}.items()]
        return ExecResult(exit_code=0, stdout="\0".join(lines).encode() + b"\0")
    if program == "sh" and '"places": [' in script:
        return ExecResult(exit_code=0, stdout=json.dumps(PREFLIGHT).encode())
    if answer is not None:
        result = answer(machine, argv, stdin)
        if isinstance(result, Awaitable):
            result = await result
        if result is not None:
            return result
    if program == "stat" and script in machine.files:
        return ExecResult(exit_code=0, stdout=b"%o\n" % machine.files[script].mode)
    if program == "true" or (program == "sh" and script == "true"):
        return ExecResult(exit_code=0)
    return await _little_shell(machine, program, script)


async def _little_shell(machine: FakeMachine, program: str, script: str) -> ExecResult:
    words = script.split()
    match words if program == "sh" else ["?"]:
        case ["echo", word, target] if target.startswith(">"):
            machine.write(f"{machine.spec.workdir}/{target[1:]}", word.encode() + b"\n")
            return ExecResult(exit_code=0)
        case ["echo", *rest]:
            return ExecResult(exit_code=0, stdout=" ".join(rest).encode() + b"\n")
        case ["exit", code]:
            return ExecResult(exit_code=int(code))
        case ["kill", number, "$$"]:
            return ExecResult(exit_code=128 - int(number))
        case ["cat", name] if f"{machine.spec.workdir}/{name}" in machine.files:
            return ExecResult(exit_code=0, stdout=machine.files[f"{machine.spec.workdir}/{name}"].data)
        case ["test", "-e", name]:
            return ExecResult(exit_code=0 if machine.exists(f"{machine.spec.workdir}/{name}") else 1)
        case ["touch", name, "sleep", seconds] if name.endswith(";"):
            machine.write(f"{machine.spec.workdir}/{name.rstrip(';')}", b"")
            with anyio.move_on_after(float(seconds)):
                while machine.is_alive:
                    await machine.changed()
            return ExecResult(exit_code=0)
    return ExecResult(exit_code=NOT_FOUND, stderr=f"{program}: a fake sandbox has no such command".encode())
