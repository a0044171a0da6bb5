"""A model of ``process_supervisor.py``: the same files in the same order, by the same rules, in virtual time.

A test plays the same stories with the real one and compares.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from attrs import frozen

from inspan_runtime.testing.clock import Happening, VirtualClock
from inspan_runtime.testing.fake_machine import FakeMachine
from inspan_supervisor import (
    CLAIM_FILE,
    COMMAND_FILE,
    PID_FILE,
    PROCESSES_FILE,
    RECEIPT_FILE,
    RETIRED_SUFFIX,
    STOP_FILE,
    SUPERVISOR_FILE,
)

REFUSED = 125
STEP_S = 0.002
TERM_S = 0.05


@frozen(kw_only=True)
class ProgramStart:
    """What a harness program finds when it starts.

    Attributes:
        files: The session's folder: name to bytes.
        argv: Its command line.
        env: Its environment.
    """

    files: Mapping[str, bytes]
    argv: tuple[str, ...]
    env: Mapping[str, str]


Program = Callable[[ProgramStart], Iterable[tuple[float, str, bytes]]]
"""A model of a harness: what it writes into the session's folder, each as the part of its run after which it
is written (0 to 1), the file's name, and its whole contents by then."""


@frozen(kw_only=True)
class HarnessPlan:
    """How a harness and its supervisor will behave.

    Attributes:
        loads_s: From the exec until the supervisor looks for its fences.
        runs_s: How long the harness runs when nobody stops it.
        return_code: Its own exit code.
        heeds_term: Whether it ends on SIGTERM, or only by the SIGKILL after the grace.
        is_proven: Whether its end can be proven; if not, the receipt is negative.
        dies_after_s: When somebody kills the supervisor, counted from the launch; None: nobody does.
    """

    loads_s: float = 0.02
    runs_s: float = 1.0
    return_code: int = 0
    heeds_term: bool = True
    is_proven: bool = True
    dies_after_s: float | None = None


class FakeSupervisor:
    """One supervisor process, from its exec to its end.

    Args:
        machine: Where it runs.
        folder: The session's folder.
        clock: The world's time.
        program: What the harness writes.
        plan: How both behave.
        on_write: Told of each file that the harness writes.

    Attributes:
        exit_code: None while it runs and when it was killed.
        lives: Whether the process exists.
        claimed: Whether it took the claim: its launch took effect.
        harness_lives: Whether its harness runs.
    """

    def __init__(
        self,
        machine: FakeMachine,
        folder: str,
        *,
        clock: VirtualClock,
        program: Program,
        plan: HarnessPlan,
        on_write: Callable[[FakeSupervisor], None],
    ) -> None:
        self.machine, self.folder, self.plan = machine, folder, plan
        self.pid = machine.next_pid
        self.exit_code: int | None = None
        self.lives = True
        self.claimed = False
        self.harness_lives = False
        self.complaint = ""
        self._clock, self._program, self._on_write = clock, program, on_write
        self._command: Mapping[str, Any] = {}
        self._watches = False
        machine.supervisors.append(self)
        self._then(plan.loads_s, self._check)

    def path(self, name: str) -> str:
        """A file of the session's folder."""
        return f"{self.folder}/{name}"

    def has(self, name: str) -> bool:
        """Whether there is such a file."""
        return self.machine.exists(self.path(name))

    def kill(self) -> None:
        """SIGKILL, by a task or by the provider that ends its exec: no receipt; the harness runs on."""
        self.lives = False
        self.machine.change()

    def vanish(self) -> None:
        """End with the sandbox, and the harness as well."""
        self.lives = self.harness_lives = False

    def look(self) -> None:
        """Something changed in the sandbox: is there a stop request, is our claim still there?"""
        if not (self._watches and self.lives):
            return
        if self.has(STOP_FILE):
            self._watches = False
            self._then(STEP_S, lambda: self._stop(timed_out=False))
        elif not self.has(CLAIM_FILE) and not self._retired:
            self._claim_files()

    # --- the steps ---------------------------------------------------------------------------------

    def _then(self, delay_s: float, step: Happening) -> None:
        self._clock.later(delay_s, lambda: step() if self.lives else None)

    @property
    def _retired(self) -> bool:
        return self.machine.exists(self.folder + RETIRED_SUFFIX)

    def _fenced(self) -> str | None:
        if self.has(STOP_FILE):
            return f"{STOP_FILE}: a stop came before the launch"
        return f"{self.folder}: this session directory is retired" if self._retired else None

    def _refuse(self, reason: str) -> None:
        self.complaint = f"supervisor: {reason}\n"
        self._exit(REFUSED)

    def _exit(self, code: int) -> None:
        self.lives, self._watches, self.exit_code = False, False, code
        self.machine.change()

    def _check(self) -> None:
        if not self.has(SUPERVISOR_FILE):
            self.complaint = f"FileNotFoundError: {self.path(SUPERVISOR_FILE)}\n"
            self._exit(1)
            return
        reason = self._fenced()
        command = self.machine.files.get(self.path(COMMAND_FILE))
        if reason is None and self.has(CLAIM_FILE):
            reason = f"{CLAIM_FILE}: another launch holds it"
        if reason is None and command is None:
            reason = f"{COMMAND_FILE}: there is none"
        if reason is not None or command is None:
            self._refuse(str(reason))
            return
        self._command = json.loads(command.data)
        self._then(STEP_S, self._claim)

    def _claim(self) -> None:
        if self.has(CLAIM_FILE) or not self.machine.exists(self.folder):
            self._refuse(f"no claim on {self.folder}")
            return
        self.claimed = True
        self.machine.write(self.path(CLAIM_FILE), b"%d\n" % self.pid)
        self._then(STEP_S, self._launch)

    def _claim_files(self) -> None:
        for name in (CLAIM_FILE, PID_FILE):
            if not self.has(name):
                self.machine.write(self.path(name), b"%d\n" % self.pid)

    def _launch(self) -> None:
        if not self.has(COMMAND_FILE):
            self._conclude(True, None, f"{COMMAND_FILE} vanished")
            return
        self.machine.remove(self.path(COMMAND_FILE))
        reason = self._fenced()
        if reason is not None:
            self._conclude(True, None, f"Refused: {reason}")
            return
        self._claim_files()
        self.harness_lives = True
        self._run_program()
        if self.plan.dies_after_s is not None:
            self._then(self.plan.dies_after_s, self.kill)
        self._then(self._command["timeout_s"], self._deadline)
        self._watches = True
        self.look()

    def _run_program(self) -> None:
        start = ProgramStart(
            files=self.machine.below(self.folder),
            argv=tuple(self._command["argv"]),
            env=self._command["env"],
        )
        for part, name, data in self._program(start):
            # Not `_then`: a harness outlives its supervisor.
            self._clock.later(part * self.plan.runs_s, lambda name=name, data=data: self._write(name, data))  # type: ignore[misc]
        self._clock.later(self.plan.runs_s, self._harness_ended)

    def _write(self, name: str, data: bytes) -> None:
        if self.harness_lives and self.machine.is_alive:
            self._on_write(self)
            if self.machine.exists(self.folder):
                self.machine.write(self.path(name), data)

    def _harness_ended(self) -> None:
        if not self.harness_lives:
            return
        self.harness_lives = False
        if self.lives and self._watches:
            self._watches = False
            problem = None if self.plan.is_proven else "a process that must be dead still lives"
            self._then(STEP_S, lambda: self._conclude(self.plan.is_proven, self.plan.return_code, problem))

    def _deadline(self) -> None:
        if self._watches:
            self._watches = False
            self._stop(timed_out=True)

    def _stop(self, *, timed_out: bool) -> None:
        grace_s = self._command["grace_s"]
        delay_s = min(TERM_S, grace_s) if self.plan.heeds_term else grace_s
        if not self.plan.is_proven:
            delay_s = self._command["cleanup_timeout_s"]
        self._then(delay_s, lambda: self._stopped(timed_out))

    def _stopped(self, timed_out: bool) -> None:
        if not self.plan.is_proven:
            self._conclude(
                False, None, f"the harness (pid {self.pid + 1}) does not die of SIGKILL", timed_out
            )
            return
        # One that ended by itself before the signal keeps its own code.
        code = self.plan.return_code if not self.harness_lives else (-15 if self.plan.heeds_term else -9)
        self.harness_lives = False
        self._conclude(True, code, None, timed_out)

    def _conclude(
        self, confirmed: bool, code: int | None, error: str | None, timed_out: bool = False
    ) -> None:
        if self._retired and not self.machine.exists(self.folder):
            self._exit(REFUSED)  # Nowhere to leave it.
            return
        report: dict[str, list[object]] = {"killed": [], "preserved": [], "unfinished": []}
        receipt = {
            "cleanup_confirmed": confirmed,
            "return_code": code,
            "error": error,
            "timed_out": timed_out,
        }
        self.machine.write(self.path(PROCESSES_FILE), json.dumps(report).encode())
        self._watches = False
        self.machine.write(self.path(RECEIPT_FILE), json.dumps(receipt).encode())
        if code is None or not confirmed:
            self._exit(REFUSED)
        else:
            self._exit(code if code >= 0 else 128 - code)
