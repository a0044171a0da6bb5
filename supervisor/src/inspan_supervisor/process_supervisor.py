"""Starts one harness inside a sandbox, stops it, and proves that it stopped.

Run as ``python3 -I -S process_supervisor.py SESSION_DIR``. Everything goes through files in SESSION_DIR:

    command.json    in   what to run; read, checked, deleted. Keys: `COMMAND_KEYS` below
    stop.request    in   anything by this name: stop now; before a launch: never launch
    launch.claim    out  made exclusively by the one launch that takes effect
    supervisor.pid  out  the pid of this process
    output.log      out  stdout and stderr of the harness, bounded to its tail
    processes.json  out  what was killed, preserved and left unfinished
    cleanup.json    out  the receipt, last and once: cleanup_confirmed, return_code, error, timed_out

The story: hide, check the command, claim, launch, watch, and then one of two endings.
- The harness ended by itself: kill its process group; what detached itself is left alone.
- Deadline or stop request: record the children that were adopted before the first signal (services), then
  SIGTERM, grace, SIGKILL to the group, and kill every other child, as they come, until none is left.
With ``"drain": "all"`` nothing is preserved in either ending.

Three kernel facts carry the proof. A subreaper's descendants never leave its subtree. A pid is not given
away again before its parent has waited for it, and only this process waits for its children. A dead child
becomes waitable in the same instant in which its own children are adopted, so a look at the process table
during which no child became waitable has missed no child. Whatever cannot be read is never taken as proof.

Standard library, Python 3.8, Linux. The private `_signal` and `_json` keep it under 10 MiB: their public
wrappers load enum and re.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]
import ctypes
import errno
import fcntl
import os
import select
import sys
import time

NAME = b"~~"  # No letter or digit: no word that a task's pkill or killall looks for is in it.
COMMAND_KEYS = {"argv": True, "env": True, "timeout_s": True, "cleanup_timeout_s": True,  # True: required
                "grace_s": False, "drain": False, "cwd": False}  # fmt: skip
COMMAND_LIMIT_BYTES = 4 * 1024 * 1024
OUTPUT_LIMIT_BYTES = 64 * 1024 * 1024
OUTPUT_TAIL_BYTES = 256 * 1024
REPORT_LIMIT = 256
DEFAULT_GRACE_S = 2.0
TICK_S = 1.0  # Housekeeping; nothing that is urgent waits for it.
BLIND_TICK_S = 0.02  # How stop.request is noticed where directory notification is missing.
REFUSED = 125  # Our own failures, as env, timeout and docker have it; 126 and 127: argv could not be run.
PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 15, 36


class Refused(Exception):
    """Nothing was launched, and this launch never will be."""


class Unreadable(Exception):
    """The process table, or a part of it, cannot be read."""


# --- Hiding --------------------------------------------------------------------------------------------


def prctl(option: int, value: object) -> bool:
    unused = ctypes.c_ulong(0)
    return ctypes.CDLL(None).prctl(option, value, unused, unused, unused) == 0  # type: ignore[no-any-return]


def hide() -> None:
    """Take the neutral name, and put it over the command line and the environment that /proc shows."""
    prctl(PR_SET_NAME, ctypes.c_char_p(NAME))
    try:
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        start, end = int(fields[45]), int(fields[48])  # arg_start and env_end: one piece on the stack
        if 0 < end - start < 8 * 1024 * 1024:
            with open("/proc/self/mem", "r+b", buffering=0) as memory:
                memory.seek(start)
                memory.write(NAME.ljust(end - start, b"\0"))
    except (OSError, IndexError, ValueError):
        pass  # Only the disguise is lost: no proof rests on it.


def shield(handled: tuple[int, ...]) -> None:
    """Ignore every signal that can be ignored, except those that only wake us."""
    for number in range(1, signal.NSIG):
        try:
            signal.signal(number, wake if number in handled else signal.SIG_IGN)
        except (OSError, ValueError):
            pass  # SIGKILL, SIGSTOP and the two that libc keeps.
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def wake(number: int, frame: object) -> None:
    """Python writes the wake-up byte only for a signal that has a handler."""


def set_oom_score(value: int) -> None:
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write(str(value))
    except OSError:
        pass  # Lowering needs a capability; raising the harness's score is enough to order the two.


def close_inherited() -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            try:
                os.close(int(name))
            except OSError:
                pass  # The descriptor of this very listing.


# --- The command ---------------------------------------------------------------------------------------


def parse_json(text: str) -> object:
    try:
        from _json import make_scanner
    except ImportError:
        import json

        return json.loads(text)

    class Context:
        strict, object_hook, parse_float, parse_int, memo = True, None, float, int, {}  # type: ignore[var-annotated]

        @staticmethod
        def parse_constant(name: str) -> None:
            raise ValueError(name + " is not JSON")

        @staticmethod
        def object_pairs_hook(pairs: list[tuple[str, object]]) -> dict[str, object]:
            if len(dict(pairs)) != len(pairs):
                raise ValueError("a key occurs twice")
            return dict(pairs)

    text = text.strip(" \t\r\n")
    try:
        value, end = make_scanner(Context)(text, 0)  # type: ignore[arg-type]
    except (StopIteration, SystemError):  # SystemError: 3.11 cannot make its error without json loaded.
        raise ValueError("not JSON") from None
    if end != len(text):
        raise ValueError("something follows the JSON value")
    return value


def to_json(value: object) -> str:
    from _json import encode_basestring_ascii

    if isinstance(value, dict):
        return "{" + ", ".join(to_json(key) + ": " + to_json(item) for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(to_json, value)) + "]"
    if isinstance(value, str):
        return encode_basestring_ascii(value)
    return {None: "null", True: "true", False: "false"}.get(value) or repr(value)  # type: ignore[call-overload]


def read_command(path: str) -> dict[str, object]:
    """Read and check command.json.

    Raises:
        Refused: It is missing, too large, not a regular file, or does not fit.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            data = file.read(COMMAND_LIMIT_BYTES + 1)
        if len(data) > COMMAND_LIMIT_BYTES:
            raise ValueError("longer than {} bytes".format(COMMAND_LIMIT_BYTES))
        return check_command(parse_json(data.decode("utf-8")))
    except (OSError, ValueError, RecursionError) as error:
        raise Refused("{}: {}".format(path, error)) from None


def check_command(command: object) -> dict[str, object]:
    if not isinstance(command, dict):
        raise ValueError("expected an object, got {}".format(type(command).__name__))
    unknown = sorted(set(command) - set(COMMAND_KEYS))
    missing = sorted(key for key, required in COMMAND_KEYS.items() if required and key not in command)
    if unknown or missing:
        raise ValueError("unknown keys {}, missing keys {}".format(unknown, missing))
    argv, env = command["argv"], command["env"]
    if not (isinstance(argv, list) and argv and all(map(is_text, argv)) and argv[0]):
        raise ValueError("argv: expected a list of strings without NUL that begins with a program")
    if not (isinstance(env, dict) and all(key and "=" not in key and is_text(key) for key in env)):
        raise ValueError("env: expected an object whose keys are variable names")
    for key, value in env.items():
        if not is_text(value):
            raise ValueError("env.{}: expected a string without NUL".format(key))
    for key in ("timeout_s", "cleanup_timeout_s"):
        if not (is_number(command[key]) and command[key] > 0):
            raise ValueError("{}: expected a number of seconds above 0".format(key))
    budget = command["cleanup_timeout_s"]
    grace = command.setdefault("grace_s", min(DEFAULT_GRACE_S, budget / 2))
    if not (is_number(grace) and 0 <= grace < budget):
        raise ValueError("grace_s: expected seconds from 0 to below cleanup_timeout_s ({})".format(budget))
    if command.setdefault("drain", "seed") not in ("seed", "all"):
        raise ValueError("drain: expected 'seed' or 'all', got {!r}".format(command["drain"]))
    cwd = command.setdefault("cwd", None)
    if not (cwd is None or (is_text(cwd) and cwd.startswith("/"))):
        raise ValueError("cwd: expected an absolute path")
    return command


def is_text(value: object) -> bool:
    try:
        return isinstance(value, str) and b"\0" not in encode(value)
    except UnicodeEncodeError:
        return False  # A lone surrogate: no byte string corresponds to it.


def is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1e9


# --- The process table -----------------------------------------------------------------------------------


class Process:
    """One row of the process table. A pid and a start time together name a process for good."""

    __slots__ = ("group", "name", "parent", "pid", "session", "start", "state")

    def __init__(self, pid: int, stat: bytes) -> None:
        head, _, tail = stat.rpartition(b")")
        fields = tail.split()
        self.pid = pid
        self.name = head.partition(b"(")[2].decode("utf-8", "replace")
        self.state = fields[0]
        self.parent, self.group, self.session = int(fields[1]), int(fields[2]), int(fields[3])
        self.start = int(fields[19])

    @property
    def identity(self) -> tuple[int, int]:
        return self.pid, self.start

    @property
    def lives(self) -> bool:
        return self.state not in (b"Z", b"X", b"x")


def look_up(pid: int) -> Process | None:
    try:
        fd = os.open("/proc/{}/stat".format(pid), os.O_RDONLY | os.O_CLOEXEC)
        try:
            return Process(pid, os.read(fd, 4096))
        finally:
            os.close(fd)
    except (FileNotFoundError, ProcessLookupError):
        return None
    except (OSError, ValueError, IndexError) as error:
        raise Unreadable("/proc/{}/stat: {}".format(pid, error)) from None


def look() -> list[Process]:
    """The whole process table.

    Raises:
        Unreadable: A part of it cannot be read: then nothing can be concluded from the rest.
    """
    try:
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError as error:
        raise Unreadable("/proc: {}".format(error)) from None
    if 1 not in pids:
        raise Unreadable("/proc hides the processes of others")
    return [process for process in map(look_up, pids) if process is not None]


def kill(process: Process) -> None:
    """SIGKILL exactly this process: never one that got its pid later."""
    if process.parent == os.getpid():
        os.kill(process.pid, signal.SIGKILL)  # Unreaped, so the pid is still its own.
        return
    pidfd = None
    try:
        if hasattr(os, "pidfd_open"):
            pidfd = os.pidfd_open(process.pid)
        now = look_up(process.pid)
        if now is None or now.start != process.start:
            return
        if pidfd is not None:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        else:
            os.kill(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    finally:
        if pidfd is not None:
            os.close(pidfd)


# --- One run -----------------------------------------------------------------------------------------------


class Run:
    """The harness, from its launch to its receipt."""

    def __init__(self, directory: str, command: dict[str, object]) -> None:
        self.directory = directory
        self.command = command
        self.me = os.getpid()
        self.leader = 0  # The harness: leader of its own session and process group.
        self.status = None  # type: int | None
        self.error = None  # type: str | None
        self.adopted = set()  # type: set[tuple[int, int]]
        self.report = {"killed": {}, "preserved": {}, "unfinished": {}}  # type: dict[str, dict[object, object]]

    def path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    # Launch

    def launch(self, origin: str) -> None:
        """Fork the harness and wait until its process group exists, so that every later signal reaches it."""
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        self.output = os.open(self.path("output.log"), flags, 0o600)
        null = os.open(os.devnull, os.O_RDONLY)
        for fd, target in ((null, 0), (self.output, 1), (self.output, 2)):
            os.dup2(fd, target)  # From here on we hold no pipe of whoever launched us.
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
            os.write(failure, b"+")
            for number in range(1, signal.NSIG):
                try:
                    signal.signal(number, signal.SIG_DFL)
                except (OSError, ValueError):
                    pass
            set_oom_score(500)
            argv = [encode(item) for item in self.command["argv"]]  # type: ignore[attr-defined]
            env = {encode(key): encode(value) for key, value in self.command["env"].items()}  # type: ignore[attr-defined]
            os.chdir(self.command["cwd"] or origin)  # type: ignore[arg-type]
            os.execvpe(argv[0], argv, env)
        except BaseException as error:
            if isinstance(error, (FileNotFoundError, NotADirectoryError)) and error.filename is None:
                code = 127
            os.write(failure, str(error).encode("utf-8", "replace")[:2000])
        finally:
            os._exit(code)

    # Watch

    def watch(self, wakeup: int) -> str:
        """Wait for the first of: "exit", "stop", "deadline". Adopted orphans are reaped on the way."""
        self.poller = select.poll()
        self.poller.register(wakeup, select.POLLIN)
        self.wakeup = wakeup
        tick_s = TICK_S if self.listen() else BLIND_TICK_S
        deadline = time.monotonic() + self.command["timeout_s"]  # type: ignore[operator]
        housekeeping_at = 0.0
        while True:
            if self.reap():
                return "exit"
            if os.path.lexists(self.path("stop.request")):
                return "stop"
            now = time.monotonic()
            if now >= deadline:
                return "deadline"
            if now >= housekeeping_at:
                housekeeping_at = now + TICK_S
                self.note_adopted()
                self.bound_output()
            self.sleep(min(tick_s, deadline - now))

    def listen(self) -> bool:
        """Have the kernel send SIGIO when a file appears in the directory."""
        try:
            fd = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.fcntl(fd, fcntl.F_NOTIFY, fcntl.DN_CREATE | fcntl.DN_RENAME | fcntl.DN_MULTISHOT)
        except OSError:
            return False
        return True

    def sleep(self, seconds: float) -> None:
        """Until a signal wakes us, at most `seconds`."""
        self.poller.poll(max(0, int(seconds * 1000 + 0.999)))
        try:
            while len(os.read(self.wakeup, 4096)) == 4096:
                pass
        except BlockingIOError:
            pass

    def reap(self) -> bool:
        """Reap every dead child but the harness, whose pid keeps the name of its group ours. Is it dead?"""
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return False
            if found is None:
                return False
            if found.si_pid == self.leader and self.status is None:
                return True
            os.waitpid(found.si_pid, 0)

    def note_adopted(self) -> None:
        """Remember who was adopted while the harness ran: at a natural exit only these are known services."""
        try:
            with open("/proc/self/task/{}/children".format(self.me), "rb") as file:
                pids = [int(pid) for pid in file.read().split()]
            children = [process for process in map(look_up, pids) if process is not None]
        except (OSError, ValueError):
            children = self.children(look_or_nothing())
        except Unreadable:
            return
        self.adopted = {child.identity for child in children if child.pid != self.leader}

    def bound_output(self) -> None:
        """Keep only the tail of a log that grew too long; its writers append, so they need not know."""
        try:
            size = os.fstat(self.output).st_size
            if size > OUTPUT_LIMIT_BYTES:
                tail = os.pread(self.output, OUTPUT_TAIL_BYTES, size - OUTPUT_TAIL_BYTES)
                os.ftruncate(self.output, 0)
                os.write(self.output, "[{} bytes dropped]\n".format(size - len(tail)).encode() + tail)
        except OSError:
            pass  # The log is a comfort; the run does not depend on it.

    # End

    def end(self, ending: str) -> bool:
        """Stop what must not live on. Returns whether that was proven within the clean-up budget."""
        budget_ends = time.monotonic() + self.command["cleanup_timeout_s"]  # type: ignore[operator]
        drains = ending != "exit" or self.command["drain"] == "all"
        services = set()  # type: set[tuple[int, int]]
        if ending != "exit":
            if self.command["drain"] == "seed":
                services = {p.identity for p in self.children(look_or_nothing()) if p.group != self.leader}
            self.signal_group(signal.SIGTERM)
            self.signal_group(signal.SIGCONT)  # A stopped process acts on SIGTERM only once it runs.
            self.await_group(time.monotonic() + self.command["grace_s"])  # type: ignore[operator]
        self.signal_group(signal.SIGKILL)
        while not self.leader_is_dead():
            if time.monotonic() >= budget_ends:
                self.error = "the harness (pid {}) did not die of SIGKILL".format(self.leader)
                return False
            self.sleep(0.05)
        self.status = os.waitpid(self.leader, 0)[1]
        proven = self.drain(drains, services, budget_ends)
        return proven

    def signal_group(self, number: int) -> None:
        """The unreaped leader keeps the group's number ours."""
        try:
            os.killpg(self.leader, number)
        except (ProcessLookupError, PermissionError):
            pass  # Whoever is left will be found by the look that follows.

    def leader_is_dead(self) -> bool:
        return os.waitid(os.P_PID, self.leader, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def await_group(self, grace_ends: float) -> None:
        """Until nobody in the group lives, at most until `grace_ends`."""
        pause_s = 0.001
        while time.monotonic() < grace_ends:
            if self.leader_is_dead():
                try:
                    if not any(p.group == self.leader and p.lives for p in look()):
                        return
                except Unreadable:
                    return
                pause_s = min(pause_s * 2, 0.02)
            else:
                pause_s = TICK_S
            self.sleep(min(pause_s, max(0.0, grace_ends - time.monotonic())))

    def drain(self, drains: bool, services: set[tuple[int, int]], budget_ends: float) -> bool:
        """Kill what must not live until a look proves that none is left."""
        pause_s = 0.001
        while True:
            problem = ""
            if not self.group_exists() and not self.has_children():
                return True  # No children, hence no descendants: the kernel's own word.
            try:
                table = look()
                targets = self.targets(table, drains, services)
                if not targets and not (drains and self.reap_all()):
                    self.note_survivors(table, drains)
                    return True
                for process in targets:
                    self.note("killed", process, "group" if process.group == self.leader else "adopted")
                    kill(process)
                problem = "{} processes still live, among them pid {}".format(
                    len(targets), targets[0].pid if targets else None)  # fmt: skip
            except Unreadable as error:
                problem = "process state is unreadable: {}".format(error)
                if not drains and not self.group_exists():
                    return True
            if time.monotonic() >= budget_ends:
                self.error = problem
                return False
            self.sleep(pause_s)
            pause_s = min(pause_s * 2, 0.02)
            self.reap_all()

    def targets(self, table: list[Process], drains: bool, services: set[tuple[int, int]]) -> list[Process]:
        """Whoever of the group lives, and when draining all that is below a child that is no service."""
        wanted = {p.pid: p for p in table if p.group == self.leader}
        if drains:
            below = {}  # type: dict[int, list[Process]]
            for process in table:
                below.setdefault(process.parent, []).append(process)
            front = [p for p in below.get(self.me, []) if p.identity not in services]
            while front:
                process = front.pop()
                wanted[process.pid] = process
                front += below.get(process.pid, [])
        return [process for process in wanted.values() if process.lives]

    def group_exists(self) -> bool:
        try:
            os.killpg(self.leader, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return True

    def has_children(self) -> bool:
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return False
        return True

    def reap_all(self) -> bool:
        """Reap every dead child (the harness was reaped before). Returns whether there was any."""
        reaped = False
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                reaped = True
        except ChildProcessError:
            pass
        return reaped

    # Report

    def children(self, table: list[Process]) -> list[Process]:
        return [p for p in table if p.parent == self.me and p.pid != self.leader and p.lives]

    def note_survivors(self, table: list[Process], drains: bool) -> None:
        for process in self.children(table):
            if drains:
                self.note("preserved", process, "adopted before the stop")
            elif process.identity in self.adopted:
                self.note("preserved", process, "adopted before the exit")
            else:
                self.note("unfinished", process, "below the harness at its exit")

    def note(self, kind: str, process: Process, reason: str) -> None:
        if len(self.report[kind]) < REPORT_LIMIT:
            self.report[kind].setdefault(process.identity, {
                "pid": process.pid, "start_ticks": process.start, "parent": process.parent,
                "group": process.group, "session": process.session, "name": process.name,
                "reason": reason})  # fmt: skip

    def conclude(self, confirmed: bool, timed_out: bool) -> None:
        """Write the report, then the receipt. A receipt that cannot be written is no receipt.

        Raises:
            OSError: The receipt could not be made durable.
        """
        return_code = None
        if self.status is not None:
            exited = os.WIFEXITED(self.status)
            return_code = os.WEXITSTATUS(self.status) if exited else -os.WTERMSIG(self.status)
        try:
            report = {kind: list(entries.values()) for kind, entries in self.report.items()}
            write_durably(self.directory, "processes.json", report)
        except OSError as error:
            complain("processes.json: {}".format(error))  # It may never cost the receipt.
        receipt = {"cleanup_confirmed": confirmed, "return_code": return_code, "error": self.error,
                   "timed_out": timed_out}  # fmt: skip
        write_durably(self.directory, "cleanup.json", receipt)

    def exit_code(self, confirmed: bool) -> int:
        if not confirmed or self.status is None:
            return REFUSED
        return os.WEXITSTATUS(self.status) if os.WIFEXITED(self.status) else 128 + os.WTERMSIG(self.status)


def encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def look_or_nothing() -> list[Process]:
    try:
        return look()
    except Unreadable:
        return []


def write_durably(directory: str, name: str, value: object) -> None:
    """Make the file appear whole or not at all, also in a directory that a tool has deleted meanwhile."""
    if not os.path.isdir(directory) and not os.path.lexists(directory + ".retired"):
        os.makedirs(directory, 0o700)
    temporary = os.path.join(directory, ".{}.{}".format(name, os.getpid()))
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    try:
        with open(fd, "wb") as file:
            file.write((to_json(value) + "\n").encode("ascii"))
            file.flush()
            os.fsync(fd)
        os.rename(temporary, os.path.join(directory, name))
    except OSError:
        os.unlink(temporary)
        raise
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def complain(text: str) -> None:
    try:
        os.write(2, ("supervisor: " + text + "\n").encode("utf-8", "backslashreplace"))
    except OSError:
        pass


# --- Main ---------------------------------------------------------------------------------------------------


def fence(directory: str) -> None:
    """
    Raises:
        Refused: A stop or the directory's retirement came before this launch.
    """
    if os.path.lexists(os.path.join(directory, "stop.request")):
        raise Refused("a stop was requested before the launch")
    if os.path.lexists(directory + ".retired"):
        raise Refused("the session directory is retired")


def claim(directory: str) -> None:
    try:
        fd = os.open(os.path.join(directory, "launch.claim"), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        held = error.errno == errno.EEXIST
        raise Refused("launch.claim: " + ("another launch holds it" if held else str(error))) from None
    os.write(fd, b"%d\n" % os.getpid())
    os.close(fd)


def supervise(directory: str, origin: str, wakeup: int) -> int:
    if os.path.lexists(os.path.join(directory, "launch.claim")):
        raise Refused("launch.claim: another launch holds it")
    fence(directory)
    run = Run(directory, read_command(os.path.join(directory, "command.json")))
    if not prctl(PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1)):
        raise Refused("this kernel does not let us adopt orphans (PR_SET_CHILD_SUBREAPER)")
    claim(directory)
    confirmed, ending = False, ""
    try:
        os.unlink(run.path("command.json"))
        fence(directory)  # Whoever plants the stop looks for the claim after: one of us sees the other.
        fd = os.open(run.path("supervisor.pid"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        os.write(fd, b"%d\n" % run.me)
        os.close(fd)
        run.launch(origin)
        ending = run.watch(wakeup)
        confirmed = run.end(ending)
        if confirmed:
            run.error = os.read(run.failure, 2000).decode("utf-8", "replace") or None
    except BaseException as error:  # The last fence: whatever went wrong is told, after a kill.
        run.error = "{}: {}".format(type(error).__name__, error)
        complain(run.error)
        confirmed = run.leader == 0  # Nothing was launched, hence nothing runs.
        if not confirmed and run.status is None:
            run.signal_group(signal.SIGKILL)
    run.conclude(confirmed, ending == "deadline")
    return run.exit_code(confirmed)


def main(argv: list[str]) -> int:
    hide()
    close_inherited()
    wakeup, write_end = os.pipe()
    os.set_blocking(wakeup, False)
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    shield((signal.SIGCHLD, signal.SIGIO))
    set_oom_score(-1000)
    try:
        if len(argv) != 2 or not argv[1].startswith("/"):
            raise Refused("usage: process_supervisor.py SESSION_DIR (an absolute path)")
        try:
            origin = os.getcwd()
        except OSError:
            origin = "/"
        os.chdir("/")  # A task may kill whoever sits in its folder.
        return supervise(argv[1].rstrip("/"), origin, wakeup)
    except (Refused, OSError) as error:
        complain(str(error))
        return REFUSED


if __name__ == "__main__":
    sys.exit(main(sys.argv))
