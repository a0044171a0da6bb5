"""Starts one harness inside a sandbox, stops it, and proves that it stopped.

Run as ``python3 -I -S process_supervisor.py SESSION_DIR``. Everything goes through files in SESSION_DIR:

    command.json    in   what to run (see `check_command`); read, then deleted
    stop.request    in   anything by this name: stop now; before a launch: never launch
    launch.claim    out  made exclusively by the one launch that takes effect
    supervisor.pid  out  the pid of this process
    output.log      out  stdout and stderr of the harness; only the tail of a long one
    processes.json  out  what was killed, preserved and left unfinished
    cleanup.json    out  the receipt, last and once: cleanup_confirmed, return_code, error, timed_out

The story: hide, check the command, claim, launch, watch, and then one of two endings.
- The harness ended by itself: kill its process group; what detached itself is left alone.
- Deadline or stop request: record the children adopted before the first signal (services), then SIGTERM,
  grace and SIGKILL to the group, and kill every other child, as they come, until none is left.
With ``"drain": "all"`` nothing outside the group is spared in either ending.

Three kernel facts carry the proof. Descendants never leave the subtree of a subreaper. A pid is not given
away before its parent has waited for it, and only we wait for our children. A dead child becomes waitable
in the same instant in which we adopt its children: a look at the process table during which no child became
waitable has missed nobody. What cannot be read is never taken as proof.

Standard library of CPython 3.8 or later, Linux. `_signal`, `_json` and `_ctypes` instead of their public
wrappers, which would take a seventh of the memory for what is not used here.
"""

from __future__ import annotations

import _ctypes
import _signal as signal  # type: ignore[import-not-found]
import fcntl
import os
import sys
import time
from _json import encode_basestring_ascii, make_scanner

TYPE_CHECKING = False  # Importing typing would cost more memory than all the rest.
if TYPE_CHECKING:
    from typing import Any

NAME = b"~~"  # No letter or digit: no word that a task's pkill or killall looks for is in it.
COMMAND_LIMIT_BYTES = 4 * 1024 * 1024
OUTPUT_LIMIT_BYTES = 64 * 1024 * 1024
OUTPUT_TAIL_BYTES = 256 * 1024
REPORT_LIMIT = 256
RECEIPT_BYTES = 4096  # Reserved on disk before the launch, so that a full disk does not cost the receipt.
TICK_S = 1.0  # Housekeeping; nothing urgent waits for it.
BLIND_TICK_S = 0.02  # How stop.request is noticed where the kernel does not tell.
PAUSE_S = 0.005  # Between two looks while something dies that is not our child.
SWATS = 100  # How many times we strike at a relay of forks before the next whole look.
REFUSED = 125  # Our own failures, as env, timeout and docker have it; 126 and 127: argv could not be run.
GONE = (ProcessLookupError, PermissionError)  # Not signalled: the next look tells whether it lives.
WAKING = (signal.SIGCHLD, signal.SIGIO)  # A child changed; a file appeared in the directory.
PEEK = os.WEXITED | os.WNOHANG | os.WNOWAIT  # See whether there is a dead child, and leave it standing.
DRAFT = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 15, 36


class Refused(Exception):
    """Nothing was launched, and this launch never will be."""


class Unreadable(Exception):
    """The process table, or a part of it, cannot be read."""


def attempt(tolerated: Any, function: Any, *arguments: Any) -> Any:
    """The function's result, or None where it failed in a way that may be passed over."""
    try:
        return function(*arguments)
    except tolerated:
        return None


def call_libc(function: str, *arguments: object) -> int:
    """Raises OSError when the C library has no such function."""
    address = _ctypes.dlsym(_ctypes.dlopen(None, 0), function)  # type: ignore[arg-type]
    return _ctypes.call_function(address, arguments)  # type: ignore[no-any-return]


def hide() -> None:
    """Take the neutral name, and put it over the command line and the environment that /proc shows."""
    call_libc("prctl", PR_SET_NAME, NAME, 0, 0, 0)
    with open("/proc/self/stat", "rb") as stat, open("/proc/self/mem", "r+b", buffering=0) as memory:
        fields = stat.read().rpartition(b")")[2].split()
        start, end = int(fields[45]), int(fields[48])  # arg_start, env_end: one piece of the stack
        memory.seek(start)
        memory.write(NAME.ljust(end - start, b"\0"))


def set_signals(action: object, blocked: tuple[int, ...]) -> None:
    """One action for every signal that can have one; the blocked ones wait until they are asked for."""
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    for number in set(range(1, signal.NSIG)) - set(blocked):
        attempt((OSError, ValueError), signal.signal, number, action)  # Not SIGKILL, SIGSTOP, libc's own.


def sleep(seconds: float) -> None:
    """Until a signal wakes us (also one that came before), at most `seconds`."""
    signal.sigtimedwait(WAKING, max(0.0, seconds))


class JsonRules:
    strict, object_hook, object_pairs_hook, memo = True, None, None, {}  # type: ignore[var-annotated]
    parse_int, parse_float, parse_constant = int, float, float


def read_command(path: str) -> dict[str, Any]:
    """Raises Refused when it is missing, too large, no regular file, or does not fit."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            data = file.read(COMMAND_LIMIT_BYTES + 1)
        if len(data) > COMMAND_LIMIT_BYTES:
            raise ValueError(f"longer than {COMMAND_LIMIT_BYTES} bytes")
        text = data.decode("utf-8").strip(" \t\r\n")
        try:
            command, end = make_scanner(JsonRules)(text, 0)  # type: ignore[arg-type]
        except (StopIteration, SystemError):  # 3.11 cannot make its own error without json loaded.
            end = -1
        if end != len(text):
            raise ValueError("not JSON")
        return check_command(command)
    except (OSError, ValueError, RecursionError) as error:
        raise Refused(f"{path}: {error}") from None


def check_command(command: object) -> dict[str, Any]:
    """Check every key by `CHECKS`; the last three may be left out."""
    if not isinstance(command, dict):
        raise ValueError("expected an object")
    command = dict({"grace_s": None, "drain": "seed", "cwd": None}, **command)
    unknown, missing = sorted(set(command) - set(CHECKS)), sorted(set(CHECKS) - set(command))
    if unknown or missing:
        raise ValueError(f"unknown keys {unknown}, missing keys {missing}")
    for key, (fits, expected) in CHECKS.items():
        if not fits(command[key]):  # type: ignore[no-untyped-call]
            raise ValueError(f"{key}: expected {expected}")
    if command["grace_s"] is None:
        command["grace_s"] = min(2.0, command["cleanup_timeout_s"] / 2)
    if command["grace_s"] >= command["cleanup_timeout_s"]:
        raise ValueError("grace_s: expected less than cleanup_timeout_s")
    return command


def is_text(value: object) -> bool:
    try:
        return isinstance(value, str) and b"\0" not in encode(value)
    except UnicodeEncodeError:
        return False  # A lone surrogate: no bytes correspond to it.


def is_seconds(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1e9


def encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


CHECKS = {
    "argv": (lambda v: isinstance(v, list) and v != [] and all(map(is_text, v)) and v[0] != "",
             "a list of strings without NUL that begins with a program"),
    "env": (lambda v: isinstance(v, dict) and all(map(is_text, [*v, *v.values()]))
            and not any(key == "" or "=" in key for key in v),
            "an object of names of variables and strings without NUL"),
    "timeout_s": (lambda v: is_seconds(v) and v > 0, "seconds above 0"),
    "cleanup_timeout_s": (lambda v: is_seconds(v) and v > 0, "seconds above 0"),
    "grace_s": (lambda v: v is None or is_seconds(v), "seconds from 0 on"),
    "drain": (lambda v: v in ("seed", "all"), "'seed' or 'all'"),
    "cwd": (lambda v: v is None or (is_text(v) and v.startswith("/")), "an absolute path"),
}  # fmt: skip


class Process:
    """One row. A pid and a start time together name a process for good."""

    def __init__(self, pid: int, stat: bytes) -> None:
        head, _, tail = stat.rpartition(b")")
        fields = tail.split()
        self.pid = pid
        self.name = head.partition(b"(")[2]
        self.lives = fields[0] not in (b"Z", b"X", b"x")
        self.parent, self.group, self.session = int(fields[1]), int(fields[2]), int(fields[3])
        self.identity = (pid, int(fields[19]))


def look_up(pid: int) -> Process | None:
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            return Process(pid, file.read(4096))
    except (FileNotFoundError, ProcessLookupError):
        return None
    except (OSError, ValueError, IndexError) as error:
        raise Unreadable(f"/proc/{pid}/stat: {error}") from None


def look() -> list[Process]:
    """The whole table. Raises Unreadable when a part is missing: the rest then proves nothing."""
    names = attempt(OSError, os.listdir, "/proc") or []
    if "1" not in names or attempt(OSError, os.readlink, "/proc/self") != str(os.getpid()):
        raise Unreadable("/proc is missing, of another pid namespace, or hides the processes of others")
    found = map(look_up, [int(name) for name in names if name.isdigit()])
    return [process for process in found if process is not None]


def kill(process: Process) -> None:
    """SIGKILL exactly this process, never one that got its pid later."""
    if process.parent == os.getpid():  # The pid of a child is its own until we reap it.
        attempt(GONE, os.kill, process.pid, signal.SIGKILL)
        return
    pidfd = attempt((AttributeError, OSError), lambda: os.pidfd_open(process.pid))
    now = look_up(process.pid)
    if now and now.identity == process.identity:  # Without pidfds, pid and start time have to do.
        send = (os.kill, process.pid) if pidfd is None else (signal.pidfd_send_signal, pidfd)
        attempt(GONE, *send, signal.SIGKILL)
    if pidfd is not None:
        os.close(pidfd)


class Run:
    """The harness, from its launch to its receipt."""

    def __init__(self, directory: str, command: dict[str, Any]) -> None:
        self.directory = directory
        self.command = command
        self.me = os.getpid()
        self.pid_line = b"%d\n" % self.me
        self.marks = (f"{directory}/launch.claim", f"{directory}/supervisor.pid")
        self.leader = 0  # The harness: leader of its own session and process group.
        self.code = None  # type: int | None  # Its exit code, or minus the signal that killed it.
        self.error = None  # type: str | None
        self.timed_out = False
        self.output = self.notice = os.open(os.devnull, os.O_RDWR)
        self.adopted = set()  # type: set[tuple[int, int]]
        self.drains = False  # Whether children outside the group are killed as well, but for these:
        self.spared = None  # type: Any  # A set of identities; None: not known.
        self.report = {"killed": {}, "preserved": {}, "unfinished": {}}  # type: dict[str, dict[object, object]]

    def launch(self, origin: str) -> None:
        """Fork the harness and wait until its process group exists, so that every later signal reaches it."""
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        self.output = os.open(f"{self.directory}/output.log", flags, 0o600)
        for fd, target in ((os.open(os.devnull, os.O_RDONLY), 0), (self.output, 1), (self.output, 2)):
            os.dup2(fd, target)  # From here on nobody's exec pipe is held open.
        self.failure, child_end = os.pipe()
        self.leader = os.fork()
        if self.leader == 0:
            self.become_harness(origin, child_end)
        os.close(child_end)
        os.read(self.failure, 1)

    def become_harness(self, origin: str, failure: int) -> None:
        """Never returns. The one byte says that the group exists; what follows it, why nothing runs in it."""
        code = 126
        try:
            os.setsid()
            set_signals(signal.SIG_DFL, ())  # Before the parent may signal us, or the SIGTERM is lost.
            os.write(failure, b"+")
            attempt(OSError, write, "/proc/self/oom_score_adj", os.O_WRONLY, b"500")
            os.chdir(self.command["cwd"] or origin)
            argv = [encode(item) for item in self.command["argv"]]
            env = {encode(key): encode(value) for key, value in self.command["env"].items()}
            code = 127
            os.execvpe(argv[0], argv, env)
        except BaseException as error:
            if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
                code = 126
            os.write(failure, f"{self.command['argv'][0]}: {error}".encode("utf-8", "replace")[:2000])
        finally:
            os._exit(code)

    def watch(self) -> str:
        """Wait for the first of "exit", "stop", "deadline". Adopted orphans are reaped on the way."""
        attempt(OSError, call_libc, "malloc_trim", 0)  # Compiling this file took more than keeping it.
        deadline = time.monotonic() + self.command["timeout_s"]
        tick_s = TICK_S if attempt(OSError, self.listen) else BLIND_TICK_S
        housekeeping_at = 0.0
        while True:
            if self.reap_others():
                return "exit"
            if os.path.lexists(f"{self.directory}/stop.request"):
                return "stop"
            if not all(map(os.path.lexists, self.marks)):
                attempt(OSError, self.claim_again)
            now = time.monotonic()
            if now >= deadline:
                self.timed_out = True
                return "deadline"
            if now >= housekeeping_at:
                self.note_adopted()
                attempt(OSError, self.bound_output)
                housekeeping_at = now + TICK_S
            sleep(min(tick_s, deadline - now, housekeeping_at - now))

    def listen(self) -> bool:
        """Have the kernel send SIGIO when a file comes into the directory or leaves it."""
        os.close(self.notice)
        self.notice = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
        events = fcntl.DN_CREATE | fcntl.DN_DELETE | fcntl.DN_RENAME | fcntl.DN_MULTISHOT
        fcntl.fcntl(self.notice, fcntl.F_NOTIFY, events)
        return True

    def claim_again(self) -> None:
        """A tool has deleted our files; without a claim, a stop would conclude that nothing was launched."""
        restore(self.directory)
        for path in self.marks:
            attempt(OSError, write, path, NEW_FILE, self.pid_line)
        self.listen()

    def reap_others(self) -> bool:
        """Reap all dead children but the harness, whose unreaped pid keeps its group ours. Is it dead?"""
        while True:
            found = os.waitid(os.P_ALL, 0, PEEK)
            if found is None or found.si_pid == self.leader:
                return found is not None
            os.waitpid(found.si_pid, 0)

    def note_adopted(self) -> None:
        """Remember who is adopted while the harness runs: at its own exit these are the known services."""
        try:
            pids = attempt(OSError, self.child_pids)
            found = look() if pids is None else [p for p in map(look_up, pids) if p]
            self.adopted = {child.identity for child in self.children(found)}
        except Unreadable:
            pass

    def bound_output(self) -> None:
        """Keep only the tail of a log that grew too long; its writers append, so they need not know."""
        size = os.fstat(self.output).st_size
        if size > OUTPUT_LIMIT_BYTES:
            tail = os.pread(self.output, OUTPUT_TAIL_BYTES, size - OUTPUT_TAIL_BYTES)
            os.ftruncate(self.output, 0)
            os.write(self.output, b"[%d bytes dropped]\n" % (size - len(tail)) + tail)

    def end(self, ending: str) -> bool:
        """Stop what must not live on. Returns whether that was proven within the clean-up budget."""
        now = time.monotonic()
        budget_ends = now + self.command["cleanup_timeout_s"]
        if ending != "exit":
            self.drains = True
            table = attempt(Unreadable, look) or []
            members = [p for p in table if p.group == self.leader and p.lives and p.pid != self.leader]
            if self.command["drain"] == "seed" and table:
                self.spared = {p.identity for p in self.children(table) if p.group != self.leader}
            attempt(GONE, os.killpg, self.leader, signal.SIGTERM)
            attempt(GONE, os.killpg, self.leader, signal.SIGCONT)  # Who is stopped cannot act on SIGTERM.
            self.await_group(now + self.command["grace_s"])
            for process in members:
                self.note("killed", process, "group")
        attempt(GONE, os.killpg, self.leader, signal.SIGKILL)
        while os.waitid(os.P_PID, self.leader, PEEK) is None:
            if time.monotonic() >= budget_ends:
                self.error = f"the harness (pid {self.leader}) does not die of SIGKILL"
                return False
            sleep(PAUSE_S)
        status = os.waitpid(self.leader, 0)[1]
        self.code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)
        if self.command["drain"] == "all":
            self.drains, self.spared = True, set()
        return self.drain(budget_ends)

    def await_group(self, grace_ends: float) -> None:
        """Until nobody in the group lives, at most until `grace_ends`."""
        while time.monotonic() < grace_ends:
            if os.waitid(os.P_PID, self.leader, PEEK) is None:
                sleep(grace_ends - time.monotonic())  # Its death wakes us.
            elif any(p.group == self.leader and p.lives for p in attempt(Unreadable, look) or []):
                sleep(min(PAUSE_S, grace_ends - time.monotonic()))
            else:
                return

    def drain(self, budget_ends: float) -> bool:
        """Kill the group's rest, and when draining all that is not spared, until a look proves it gone."""
        while self.group_exists() or self.has_children():  # Neither: nobody is left, by the kernel's word.
            try:
                if self.drains and self.spared is None:
                    raise Unreadable("/proc could not be read when the stop came")
                table = look()
                for process in table:
                    if process.group == self.leader:
                        self.note("killed", process, "group")
                targets = self.targets(table)
                for process in targets:
                    kill(process)
                    self.note("killed", process, "adopted")
                if not targets and not (self.drains and self.reap_all()):
                    self.note_survivors(table)
                    return True
                problem = f"{len(targets)} processes that must be dead still live"
                self.swat()
            except Unreadable as error:
                problem = f"process state is unreadable: {error}"
                if not self.drains and not self.group_exists():
                    return True
            if time.monotonic() >= budget_ends:
                self.error = problem
                return False
            sleep(PAUSE_S)
            self.reap_all()
        return True

    def targets(self, table: list[Process]) -> list[Process]:
        """Whoever of the group lives; when draining, also all below a child that is not spared."""
        wanted = {p.pid: p for p in table if p.group == self.leader}
        if self.drains:
            below = {}  # type: dict[int, list[Process]]
            for process in table:
                below.setdefault(process.parent, []).append(process)
            front = [p for p in below.get(self.me, []) if p.identity not in self.spared]
            while front:
                process = front.pop()
                wanted[process.pid] = process
                front += below.get(process.pid, [])
        return [process for process in wanted.values() if process.lives]

    def swat(self) -> None:
        """Kill new children as they come: a relay of forks is elsewhere before a whole look is over."""
        for _ in range(SWATS if self.drains else 0):
            spared = {pid for pid, _ in self.spared}
            found = [pid for pid in attempt(OSError, self.child_pids) or [] if pid not in spared]
            if not found:
                return
            for pid in found:
                attempt(GONE, os.kill, pid, signal.SIGKILL)
            for process in filter(None, map(look_up, found)):
                self.note("killed", process, "adopted")
            self.reap_all()

    def group_exists(self) -> bool:
        try:
            attempt(PermissionError, os.killpg, self.leader, 0)
        except ProcessLookupError:
            return False
        return True

    def has_children(self) -> bool:
        return attempt(ChildProcessError, lambda: os.waitid(os.P_ALL, 0, PEEK) or True) is not None

    def reap_all(self) -> bool:
        """Reap every dead child (the harness was reaped before). Returns whether there was any."""
        reaped = set()  # type: set[int]
        while True:
            pid, _ = attempt(ChildProcessError, os.waitpid, -1, os.WNOHANG) or (0, 0)
            if not pid:
                self.spared = self.spared and {known for known in self.spared if known[0] not in reaped}
                return bool(reaped)
            reaped.add(pid)

    def child_pids(self) -> list[int]:
        """Raises OSError where the kernel does not have this file."""
        with open(f"/proc/self/task/{self.me}/children", "rb", buffering=0) as file:
            return [int(pid) for pid in file.read().split()]

    def children(self, table: list[Process]) -> list[Process]:
        return [p for p in table if p.parent == self.me and p.pid != self.leader and p.lives]

    def note_survivors(self, table: list[Process]) -> None:
        for process in self.children(table):
            if self.drains or process.identity in self.adopted:
                self.note("preserved", process, "adopted before the end")
            else:
                self.note("unfinished", process, "below the harness at its exit")

    def note(self, kind: str, process: Process, reason: str) -> None:
        entries = self.report[kind]
        if len(entries) < REPORT_LIMIT and process.identity not in entries:
            entries[process.identity] = {
                "pid": process.pid, "start_ticks": process.identity[1], "parent": process.parent,
                "group": process.group, "session": process.session,
                "name": process.name.decode("utf-8", "replace"), "reason": reason}  # fmt: skip

    def conclude(self, confirmed: bool) -> int:
        """Write the report, then the receipt (or raise OSError: there is none); returns our exit code."""
        attempt(OSError, self.bound_output)
        try:
            report = {kind: list(entries.values()) for kind, entries in self.report.items()}
            put(self.directory, "processes.json", report)
        except OSError as error:
            complain(f"processes.json: {error}")  # It may never cost the receipt.
        receipt = {"cleanup_confirmed": confirmed, "return_code": self.code, "error": self.error,
                   "timed_out": self.timed_out}  # fmt: skip
        put(self.directory, "cleanup.json", receipt)
        fd = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(fd)  # Both names, durably.
        os.close(fd)
        if self.code is None or not confirmed:
            return REFUSED
        return self.code if self.code >= 0 else 128 - self.code


def restore(directory: str) -> None:
    """Make the directory again that a tool has deleted; one that was retired stays away."""
    if not os.path.isdir(directory) and not os.path.lexists(directory + ".retired"):
        os.makedirs(directory, 0o700)


def write(path: str, flags: int, data: bytes, durably: bool = False) -> None:
    fd = os.open(path, flags, 0o600)
    try:
        if os.write(fd, data) != len(data):
            raise OSError(f"{path}: short write, the disk is full")
        if durably:
            os.ftruncate(fd, len(data))
            os.fsync(fd)
    finally:
        os.close(fd)


def temporary(directory: str, name: str) -> str:
    return f"{directory}/.{name}.{os.getpid()}"


def to_json(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(to_json(key) + ": " + to_json(value[key]) for key in value) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(to_json, value)) + "]"
    if isinstance(value, str):
        return encode_basestring_ascii(value)
    return "null" if value is None else str(value).lower()  # A boolean or an integer.


def put(directory: str, name: str, value: object) -> None:
    """Make the file appear durably and whole, or not at all."""
    restore(directory)
    draft = temporary(directory, name)
    try:
        write(draft, DRAFT, to_json(value).encode("ascii") + b"\n", durably=True)
        os.rename(draft, f"{directory}/{name}")
    except OSError:
        attempt(OSError, os.unlink, draft)
        raise


def complain(text: str) -> None:
    attempt(OSError, os.write, 2, ("supervisor: " + text + "\n").encode("utf-8", "backslashreplace"))


def check_fences(directory: str) -> None:
    if os.path.lexists(f"{directory}/stop.request"):
        raise Refused("stop.request: a stop came before the launch")
    if os.path.lexists(directory + ".retired"):
        raise Refused(f"{directory}: this session directory is retired")


def supervise(directory: str, origin: str) -> int:
    """One whole run. Raises Refused when nothing was launched, and OSError when there is no receipt."""
    check_fences(directory)
    if os.path.lexists(f"{directory}/launch.claim"):
        raise Refused("launch.claim: another launch holds it")
    run = Run(directory, read_command(f"{directory}/command.json"))
    if call_libc("prctl", PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise Refused("this kernel does not let us adopt orphans (PR_SET_CHILD_SUBREAPER)")
    try:
        write(temporary(directory, "cleanup.json"), NEW_FILE, bytes(RECEIPT_BYTES))
        write(run.marks[0], NEW_FILE, run.pid_line)
    except OSError as error:
        attempt(OSError, os.unlink, temporary(directory, "cleanup.json"))
        raise Refused(f"no claim on {directory}: {error}") from None
    confirmed = False
    try:
        os.unlink(f"{directory}/command.json")
        check_fences(directory)  # Whoever plants a stop looks for the claim after it: one sees the other.
        write(run.marks[1], NEW_FILE, run.pid_line)
        run.launch(origin)
        confirmed = run.end(run.watch())
        if confirmed:
            run.error = os.read(run.failure, 2000).decode("utf-8", "replace") or None
    except BaseException as error:  # The last fence: whatever went wrong is told, after a kill.
        run.error = f"{type(error).__name__}: {error}"
        complain(run.error)
        confirmed = run.leader == 0  # Nothing was started, hence nothing runs.
        if run.leader and run.code is None:
            attempt(GONE, os.killpg, run.leader, signal.SIGKILL)
    return run.conclude(confirmed)


def main(argv: list[str]) -> int:
    attempt((OSError, IndexError, ValueError), hide)  # Only the disguise is lost: no proof rests on it.
    while os.open(os.devnull, os.O_RDWR) < 3:
        pass  # No file of ours may take the place of a closed stdout.
    os.closerange(3, 4096)  # What a careless parent leaked must not reach the harness.
    set_signals(signal.SIG_IGN, WAKING)
    attempt(OSError, write, "/proc/self/oom_score_adj", os.O_WRONLY, b"-1000")  # Where we may.
    try:
        if len(argv) != 2 or not argv[1].startswith("/"):
            raise Refused("usage: process_supervisor.py SESSION_DIR (an absolute path)")
        origin = attempt(OSError, os.getcwd) or "/"
        os.chdir("/")  # A task may kill whoever sits in its folder.
        return supervise(argv[1].rstrip("/"), origin)
    except (Refused, OSError) as error:
        complain(str(error))
        return REFUSED


if __name__ == "__main__":
    sys.exit(main(sys.argv))
