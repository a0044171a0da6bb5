"""Starts one harness inside a sandbox, stops it, and proves that it stopped.

Run as ``python3 -I -S process_supervisor.py SESSION_DIR`` (3.8 or later). The rest goes through files there:

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
With ``"drain": "all"`` nobody is spared in either ending, nor who carries the run's mark elsewhere.

The kernel gives the proof: descendants never leave a subreaper's subtree, a pid is a process's own until its
parent has waited for it, and a dead child is waitable in the same instant in which we adopt its children: a
look at the process table during which none became waitable, nor died in a tracer's hands, missed nobody.
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
COMMAND_LIMIT_BYTES, OUTPUT_LIMIT_BYTES, OUTPUT_TAIL_BYTES = 4 << 20, 64 << 20, 256 << 10
REPORT_LIMIT, COUNT_LIMIT = 256, 4096  # Of each kind: how many are listed, and how many more are counted.
PORTS_BUDGET_S, FD_LIMIT = 0.1, 512  # Looking for ports: until so much processor time is spent on an ending.
NETWORKS = {}  # type: dict[str, dict[str, int]]  # Ports by socket in each network: reading takes long.
MARK = "INSPAN_RUN"  # In the harness's environment, with a random value: who carries it comes from there.
ONE_READ_BYTES = RECEIPT_BYTES = 4096  # The receipt's are reserved before, so that no full disk costs it.
TICK_S, BLIND_TICK_S = 1.0, 0.02  # Housekeeping; looking for stop.request where the kernel does not tell.
PAUSE_S, SWATS = 0.005, 100  # Between two whole looks: time for dying, and blows at a relay of forks.
FENCES = {"/stop.request": "a stop came before the launch", ".retired": "this session directory is retired"}
REFUSED = 125  # Our own failures, as env, timeout and docker have it; 126 and 127: argv could not be run.
GONE = (ProcessLookupError, PermissionError)  # Not signalled: the next look tells whether it lives.
WAKING = (signal.SIGCHLD, signal.SIGIO)  # A child changed; a file appeared in the directory.
PEEK = os.WEXITED | os.WNOHANG | os.WNOWAIT  # See whether there is a dead child, and leave it standing.
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW


class Refused(Exception): ...  # Nothing was launched, and this launch never will be.


class Unreadable(Exception): ...  # The process table, or a part of it, cannot be read.


def attempt(tolerated: Any, function: Any, *arguments: Any) -> Any:
    """The function's result, or None where it failed in a way that may be passed over."""
    try:
        return function(*arguments)
    except tolerated:
        return None


def call_libc(function: str, *arguments: object) -> int:
    """Raises OSError when the C library has no such function."""
    return _ctypes.call_function(_ctypes.dlsym(_ctypes.dlopen(None, 0), function), arguments)  # type: ignore[arg-type, no-any-return]


def hide() -> None:
    """Take the neutral name, and put it over the command line and the environment that /proc shows."""
    call_libc("prctl", 15, NAME, 0, 0, 0)  # PR_SET_NAME
    with open("/proc/self/stat", "rb") as stat, open("/proc/self/mem", "r+b", buffering=0) as memory:
        fields = stat.read().rpartition(b")")[2].split()
        start, end = int(fields[45]), int(fields[48])  # arg_start, env_end: one piece of the stack
        os.pwrite(memory.fileno(), NAME.ljust(end - start, b"\0"), start)


def set_signals(action: object, blocked: tuple[int, ...]) -> None:
    """One action for every signal that can have one; the blocked ones wait until they are asked for."""
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    for number in range(1, signal.NSIG):  # An inherited SIG_IGN for SIGCHLD would lose every exit code.
        attempt((OSError, ValueError), signal.signal, number, signal.SIG_DFL if number in blocked else action)


def sleep(seconds: float) -> None:
    """Until a signal wakes us (also one that came before), at most `seconds`."""
    signal.sigtimedwait(WAKING, max(0.0, seconds))


def read_file(path: str | int, limit_bytes: int = 1024 * 1024) -> bytes:
    with open(path, "rb", 0 if limit_bytes == ONE_READ_BYTES else -1) as file:
        return file.read(limit_bytes)


def read_command(path: str) -> dict[str, Any]:
    """Raises Refused when it is missing, too large, no regular file, or does not fit."""
    try:
        data = read_file(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), COMMAND_LIMIT_BYTES + 1)
        if len(data) > COMMAND_LIMIT_BYTES:
            raise ValueError(f"longer than {COMMAND_LIMIT_BYTES} bytes")
        text = data.decode("utf-8").strip(" \t\r\n")
        rules: Any = type("", (), {"strict": True, "memo": {}, "object_hook": None, "object_pairs_hook": None,
                          "parse_int": int, "parse_float": float, "parse_constant": float})  # fmt: skip
        found = attempt((StopIteration, SystemError), make_scanner(rules), text, 0)  # 3.11: SystemError.
        if found is None or found[1] != len(text):
            raise ValueError("not JSON")
        return check_command(found[0])
    except (OSError, ValueError, RecursionError) as error:
        raise Refused(f"{path}: {error}") from None


def check_command(command: object) -> dict[str, Any]:
    """Check every key by `CHECKS`; the last three may be left out."""
    if not isinstance(command, dict):
        raise ValueError("expected an object")
    command = dict({"grace_s": None, "drain": "seed", "cwd": None}, **command)
    if set(command) != set(CHECKS):
        raise ValueError(f"expected the keys {sorted(CHECKS)}, found {sorted(command)}")
    for key, (fits, expected) in CHECKS.items():
        if not attempt(ValueError, fits, command[key]):
            raise ValueError(f"{key}: expected {expected}")
    if command["grace_s"] is None:
        command["grace_s"] = min(2.0, command["cleanup_timeout_s"] / 2)
    if command["grace_s"] >= command["cleanup_timeout_s"]:
        raise ValueError("grace_s: expected less than cleanup_timeout_s")
    return command


def encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")  # A ValueError for a lone surrogate: it has no bytes.


def is_text(value: object) -> bool:
    return isinstance(value, str) and b"\0" not in encode(value)


CHECKS = {
    "argv": (lambda v: isinstance(v, list) and v != [] and all(map(is_text, v)) and v[0] != "",
             "a list of strings without NUL that begins with a program"),
    "env": (lambda v: isinstance(v, dict) and all(map(is_text, [*v, *v.values()]))
            and "" not in v and "=" not in "".join(v), "an object of variables, strings without NUL"),
    "timeout_s": (lambda v: type(v) in (int, float) and 0 < v <= 1e9, "seconds above 0"),
    "cleanup_timeout_s": (lambda v: type(v) in (int, float) and 0 < v <= 1e9, "seconds above 0"),
    "grace_s": (lambda v: v is None or (type(v) in (int, float) and 0 <= v <= 1e9), "seconds from 0 on"),
    "drain": (lambda v: v in ("seed", "all"), "'seed' or 'all'"),
    "cwd": (lambda v: v is None or (is_text(v) and v.startswith("/")), "an absolute path"),
}  # fmt: skip


class Process:
    """One row. A pid and a start time together name a process for good."""

    def __init__(self, pid: int, stat: bytes) -> None:
        head, _, tail = stat.rpartition(b")")
        fields = tail.split()
        self.pid, self.name = pid, head.partition(b"(")[2]
        self.lives = fields[0] not in (b"Z", b"X", b"x") or int(fields[17]) > 1  # Other threads go on.
        self.parent, self.group, self.session = int(fields[1]), int(fields[2]), int(fields[3])
        self.identity = (pid, int(fields[19]))


def look_up(pid: int) -> Process | None:
    try:
        return Process(pid, read_file(f"/proc/{pid}/stat", ONE_READ_BYTES))
    except (FileNotFoundError, ProcessLookupError):
        return None
    except (OSError, ValueError, IndexError) as error:
        raise Unreadable(f"/proc/{pid}/stat: {error}") from None


def look() -> list[Process]:
    """The whole table. Raises Unreadable when a part is missing: the rest then proves nothing."""
    names = attempt(OSError, os.listdir, "/proc") or []
    if "1" not in names or attempt(OSError, os.readlink, "/proc/self") != str(os.getpid()):
        raise Unreadable("/proc is missing, of another pid namespace, or hides the processes of others")
    return [*filter(None, map(look_up, [int(name) for name in names if name.isdigit()]))]


def below(table: list[Process], roots: list[Process]) -> list[Process]:
    """The roots and all their descendants; also where pids changed hands so fast that a circle was read."""
    children = {}  # type: dict[int, list[Process]]
    for process in table:
        children.setdefault(process.parent, []).append(process)
    found = list(roots)
    for process in found:  # It grows on the way.
        found += children.pop(process.pid, [])
    return found


def listening_ports(pid: int) -> list[int] | None:
    """The TCP ports where it listens; None when unknown. Listeners stand first in /proc/PID/net/tcp."""
    try:
        with os.scandir(f"/proc/{pid}/fd") as fds:
            held = {attempt(OSError, os.readlink, fd.path) for fd, _ in zip(fds, range(FD_LIMIT))}  # noqa: B905
        if not any(str(name).startswith("socket:") for name in held):
            return [] if held else None  # A process without any file is a dead one.
        network = os.readlink(f"/proc/{pid}/ns/net")
        if network not in NETWORKS:
            ipv6 = attempt(OSError, read_file, f"/proc/{pid}/net/tcp6") or b""
            lines = (read_file(f"/proc/{pid}/net/tcp") + ipv6).splitlines()
            rows = [line.split() for line in lines if b" 0A " in line]  # TCP_LISTEN
            NETWORKS[network] = {"socket:[%d]" % int(row[9]): int(row[1][-4:], 16) for row in rows if row[9:]}
    except (OSError, ValueError):
        return None
    return sorted({port for name, port in NETWORKS[network].items() if name in held})


def kill(process: Process) -> None:
    """SIGKILL exactly this process, never one that got its pid later, nor one misread to be below another."""
    if process.parent == os.getpid():  # The pid of a child is its own until we reap it.
        attempt(GONE, os.kill, process.pid, signal.SIGKILL)
        return
    pidfd = attempt((AttributeError, OSError), lambda: os.pidfd_open(process.pid))
    now = look_up(process.pid)
    if now and now.identity == process.identity and now.parent in (process.parent, os.getpid()):
        send = (os.kill, process.pid) if pidfd is None else (signal.pidfd_send_signal, pidfd)
        attempt(GONE, *send, signal.SIGKILL)
    if pidfd is not None:
        os.close(pidfd)


class Run:
    """The harness, from its launch to its receipt."""

    def __init__(self, directory: str, command: dict[str, Any]) -> None:
        self.directory, self.command, self.me = directory, command, os.getpid()
        self.marks = (f"{directory}/launch.claim", f"{directory}/supervisor.pid")
        self.leader = 0  # The harness: leader of its own session and of the group by the same number,
        self.group = None  # type: int | None  # which is forgotten when the group is gone.
        self.code, self.error = None, None  # type: Any, Any  # Exit code, or minus the signal that killed it.
        self.timed_out, self.ended_at, self.ports_until = False, 0.0, 0.0
        self.output, self.notice, self.lock = (os.open(os.devnull, os.O_RDWR) for _ in range(3))
        self.mark, self.held = os.urandom(16).hex(), set()  # type: str, set[tuple[int, int]]
        self.adopted = {}  # type: dict[tuple[int, int], float]  # When a child was first seen.
        self.busy = set()  # type: set[int]  # The sessions of the tools that ran when the stop came.
        self.drains, self.spared = False, None  # type: bool, Any  # Kill all children but these (None: unknown).
        self.report = {"killed": {}, "preserved": {}, "unfinished": {}}  # type: dict[str, dict[object, object]]

    def launch(self, origin: str) -> None:
        """Fork the harness and wait until its process group exists, so that every later signal reaches it."""
        self.tick_s = TICK_S if attempt(OSError, self.settle) else BLIND_TICK_S
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        self.output = os.open(f"{self.directory}/output.log", flags, 0o600)
        for fd, target in ((os.open(os.devnull, os.O_RDONLY), 0), (self.output, 1), (self.output, 2)):
            os.dup2(fd, target)  # From here on nobody's exec pipe is held open.
        self.failure, child_end = os.pipe()
        self.leader = self.group = os.fork()
        if self.leader == 0:
            self.become_harness(origin, child_end)
        os.close(child_end)
        os.read(self.failure, 1)
        os.set_blocking(self.failure, False)  # A tool may hold it open, by /proc.

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
            env = {encode(k): encode(v) for k, v in {**self.command["env"], MARK: self.mark}.items()}
            code = 127
            os.execvpe(argv[0], argv, env)
        except BaseException as error:
            code = code if isinstance(error, (FileNotFoundError, NotADirectoryError)) else 126
            os.write(failure, f"{self.command['argv'][0]}: {error}".encode("utf-8", "replace")[:2000])
        finally:
            os._exit(code)

    def watch(self) -> str:
        """Wait for the first of "exit", "stop", "deadline". Adopted orphans are reaped on the way."""
        attempt(OSError, call_libc, "malloc_trim", 0)  # Compiling this file took more than keeping it.
        deadline, housekeeping_at = time.monotonic() + self.command["timeout_s"], 0.0
        while True:
            if self.reap_others():
                return "exit"
            if any(os.path.lexists(self.directory + fence) for fence in FENCES):
                return "stop"
            whole = all(map(os.path.lexists, self.marks)) or attempt(OSError, self.settle)
            self.timed_out = (now := time.monotonic()) >= deadline
            if self.timed_out:
                return "deadline"
            if now >= housekeeping_at:
                self.note_adopted(now)
                attempt(OSError, self.bound_output)
                housekeeping_at = now + TICK_S
            sleep(min(self.tick_s if whole else BLIND_TICK_S, deadline - now, housekeeping_at - now))

    def settle(self) -> bool:
        """Make our files, which a tool may have deleted, again; lock one until our end; hear of new ones."""
        restore(self.directory)
        reopen(self.notice, self.directory, os.O_RDONLY | os.O_DIRECTORY)
        events = fcntl.DN_CREATE | fcntl.DN_DELETE | fcntl.DN_RENAME | fcntl.DN_MULTISHOT
        heard = attempt(OSError, fcntl.fcntl, self.notice, fcntl.F_NOTIFY, events) is not None
        for path in self.marks:  # Without a claim, a stop would conclude that nothing was launched.
            attempt(OSError, write, path, NEW_FILE, b"%d\n" % self.me)
        reopen(self.lock, self.marks[1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        attempt(OSError, fcntl.flock, self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return heard

    def reap_others(self) -> bool:
        """Reap all dead children but the harness, whose unreaped pid keeps its group ours. Is it dead?"""
        while (found := os.waitid(os.P_ALL, 0, PEEK)) and found.si_pid != self.leader:
            os.waitpid(found.si_pid, 0)
        return self.is_over()

    def is_over(self) -> bool:
        """Whether the harness is dead. Who traces it can keep its death from us, but not from the table."""
        harness = attempt(Unreadable, look_up, self.leader)
        return bool(os.waitid(os.P_PID, self.leader, PEEK) or (harness and not harness.lives))

    def note_adopted(self, now: float) -> None:
        """Remember who is adopted while the harness runs: at its own exit these are the known services."""
        pids = attempt(OSError, self.child_pids)
        found = attempt(Unreadable, lambda: look() if pids is None else [*filter(None, map(look_up, pids))])
        if found is not None and not self.is_over():  # It lived all the while.
            self.adopted = {p.identity: self.adopted.get(p.identity, now) for p in self.children(found)}

    def bound_output(self) -> None:
        """Keep only the tail of a log that grew too long; its writers append, so they need not know."""
        size = os.fstat(self.output).st_size
        if size > OUTPUT_LIMIT_BYTES:
            tail = os.pread(self.output, OUTPUT_TAIL_BYTES, size - OUTPUT_TAIL_BYTES)
            os.ftruncate(self.output, 0)
            os.write(self.output, b"[%d bytes dropped]\n" % (size - len(tail)) + tail)

    def end(self, ending: str) -> bool:
        """Stop what must not live on. Returns whether that was proven within the clean-up budget."""
        self.ended_at, self.ports_until = time.monotonic(), time.process_time() + PORTS_BUDGET_S
        budget_ends = self.ended_at + self.command["cleanup_timeout_s"]
        alone = ending == "exit" and attempt(OSError, self.child_pids) == [self.leader]  # It left nobody.
        table = [] if alone else attempt(Unreadable, look) or []
        for process in filter(lambda p: p.group == self.leader != p.pid and p.lives, table):
            self.note("killed", process, "group")
        if not self.is_over():  # Else the tools that it left are in the table.
            self.drains = True
            running = below(table, [p for p in table if p.pid == self.leader])
            self.busy = {p.session for p in running if p.lives}
            if table:
                self.spared = {p.identity for p in self.children(table) if p.group != self.leader}
            attempt(GONE, os.killpg, self.leader, signal.SIGTERM)
            attempt(GONE, os.killpg, self.leader, signal.SIGCONT)  # Who is stopped cannot act on SIGTERM.
            self.await_group(self.ended_at + self.command["grace_s"])
        attempt(GONE, os.killpg, self.leader, signal.SIGKILL)
        while not self.is_over():
            if time.monotonic() >= budget_ends:
                self.error = f"the harness (pid {self.leader}) does not die of SIGKILL"
                return False
            sleep(PAUSE_S)
        reaped, status = os.waitpid(self.leader, os.WNOHANG)
        if not reaped:  # A tracer holds it.
            status = int(read_file(f"/proc/{self.leader}/stat", ONE_READ_BYTES).split()[-1])
        self.code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)
        if self.command["drain"] == "all":
            self.drains, self.spared = True, set()
        return self.drain(budget_ends)

    def await_group(self, grace_ends: float) -> None:
        """Until nobody in the group lives, at most until `grace_ends`."""
        while (left_s := grace_ends - time.monotonic()) > 0:
            dead = self.is_over()
            if dead and not any(p.group == self.leader and p.lives for p in attempt(Unreadable, look) or []):
                return
            sleep(min(left_s, PAUSE_S) if dead else left_s)  # Its death wakes us.

    def drain(self, budget_ends: float) -> bool:
        """Kill the group's rest, and when draining all that is not spared, until a look proves it gone."""
        while True:
            self.group = self.group and attempt(ProcessLookupError, self.touch_group)
            alone = not self.group and not attempt(ChildProcessError, lambda: [os.waitid(os.P_ALL, 0, PEEK)])
            if alone and self.command["drain"] == "seed":
                return True  # By the kernel's own word.
            try:
                if self.drains and self.spared is None:
                    raise Unreadable("/proc could not be read when the stop came")
                struck = self.strike(table := look())
                dead = {p.identity for p in table if p.parent == self.me and not p.lives}  # Traced.
                if not struck and (not self.drains or (not self.reap_all() and dead <= self.held)):
                    self.note_survivors(table)
                    return True
                self.held, problem = dead, f"{struck or 'new'} processes that must be dead still live"
                self.swat()
            except Unreadable as error:
                problem = f"process state is unreadable: {error}"
                if alone or (not self.drains and not self.group):
                    return True
            if time.monotonic() >= budget_ends:
                self.error = problem
                return False
            sleep(PAUSE_S)
            self.reap_all()

    def touch_group(self) -> int | None:
        """Raises ProcessLookupError where the group is no more, and its number free for others."""
        return attempt(PermissionError, os.killpg, self.group, 0) or self.group

    def strike(self, table: list[Process]) -> int:
        """Kill the group; when draining, also all below a child not spared. Returns how many lived."""
        found = {p.pid: (p, "marked") for p in table if self.command["drain"] == "all" and self.is_marked(p)}
        if self.drains:
            ours = [p for p in table if p.parent == self.me and p.identity not in self.spared]
            found.update({p.pid: (p, "adopted") for p in below(table, ours)})
        found.update({p.pid: (p, "group") for p in table if p.group == self.group})
        for process, reason in found.values():
            self.note("killed", process, reason)
            if process.lives:
                kill(process)
        return sum(process.lives for process, _ in found.values())

    def is_marked(self, process: Process) -> bool:
        """Whether its environment comes from the harness, on whatever way. It is compared, never told."""
        environment = attempt(OSError, read_file, f"/proc/{process.pid}/environ") or b""
        return encode(f"{MARK}={self.mark}") in environment.split(b"\0")

    def swat(self) -> None:
        """Kill new children as they come: a relay of forks is elsewhere before a whole look is over."""
        spared = {pid for pid, _ in self.spared or ()}
        for _ in range(SWATS if self.drains else 0):
            found = [pid for pid in attempt(OSError, self.child_pids) or [] if pid not in spared]
            for pid in found:
                attempt(GONE, os.kill, pid, signal.SIGKILL)
            for process in filter(None, map(look_up, found)):
                self.note("killed", process, "adopted")
            if not self.reap_all() and not found:
                return

    def reap_all(self) -> bool:
        """Reap every dead child (the harness was reaped before). Returns whether there was any."""
        return [*iter(lambda: (attempt(ChildProcessError, os.waitpid, -1, os.WNOHANG) or (0,))[0], 0)] != []

    def child_pids(self) -> list[int]:
        """Raises OSError where the kernel does not have this file."""
        return [int(pid) for pid in read_file(f"/proc/self/task/{self.me}/children", -1).split()]

    def children(self, table: list[Process]) -> list[Process]:
        return [p for p in table if p.parent == self.me and p.pid != self.leader and p.lives]

    def note_survivors(self, table: list[Process]) -> None:
        """Tell apart who lives on: by when it was adopted and from whom, and who merely hangs below one."""
        NETWORKS.clear()  # The last look: services had time to start.
        for child in self.children(table):
            kind, reason = "preserved", "adopted before the end"
            if child.identity not in self.adopted and not self.drains:
                kind, reason = "unfinished", "below the harness at its exit"
            elif child.session in self.busy - {self.leader}:
                reason = "adopted from a tool that was still running"
            elif self.ended_at - self.adopted.get(child.identity, self.ended_at) < TICK_S:
                reason = "adopted just before the end"
            for process in filter(lambda p: p.lives, below(table, [child])):
                self.note(kind, process, reason if process is child else f"below {child.pid}")

    def note(self, kind: str, process: Process, reason: str) -> None:
        entries = self.report[kind]
        if process.identity in entries or len(entries) >= COUNT_LIMIT:
            return
        entries[process.identity] = None
        if len(entries) <= REPORT_LIMIT:
            entries[process.identity] = {
                "pid": process.pid, "start_ticks": process.identity[1], "parent": process.parent,
                "group": process.group, "session": process.session,
                "ports": listening_ports(process.pid) if time.process_time() < self.ports_until else None,
                "name": process.name.decode("utf-8", "replace"), "reason": reason}  # fmt: skip

    def conclude(self, confirmed: bool) -> int:
        """Write the report, then the receipt (or raise OSError: there is none); returns our exit code."""
        attempt(OSError, self.bound_output)
        try:
            report = {kind: [*filter(None, found.values())] for kind, found in self.report.items()}
            dropped = {kind: len(self.report[kind]) - len(listed) for kind, listed in report.items()}
            put(self.directory, "processes.json", dict(report, dropped=dropped))
        except OSError as error:
            complain(f"processes.json: {error}")  # It may never cost the receipt.
        receipt = {"cleanup_confirmed": confirmed, "return_code": self.code, "error": self.error,
                   "timed_out": self.timed_out}  # fmt: skip
        put(self.directory, "cleanup.json", receipt)
        reopen(self.notice, self.directory, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(self.notice)  # Both names, durably.
        os.close(self.lock)  # Whoever waits may look.
        code = self.code if confirmed and self.code is not None else REFUSED
        return code if code >= 0 else 128 - code


def restore(directory: str) -> None:
    """Make the directory again that a tool has deleted or shut; one that was retired stays away."""
    if not os.path.isdir(directory) and not os.path.lexists(directory + ".retired"):
        attempt(OSError, os.unlink, directory)
        os.makedirs(directory, 0o700)
    if not os.access(directory, os.R_OK | os.W_OK | os.X_OK) and not os.path.islink(directory):
        attempt(OSError, os.chmod, directory, 0o700)


def reopen(fd: int, path: str, flags: int) -> None:
    os.dup2(opened := os.open(path, flags), fd, False)
    os.close(opened)


def write(path: str, flags: int, data: bytes, durably: bool = False) -> None:
    with open(os.open(path, flags, 0o600), "wb", 0) as file:
        if file.write(data) != len(data):
            raise OSError(f"{path}: short write, the disk is full")
        if durably:
            file.truncate(len(data))
            os.fsync(file.fileno())


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
    draft, final = f"{directory}/.{name}.{os.getpid()}", f"{directory}/{name}"
    for path in (draft, final):  # What a tool has put in the place of a plain file goes aside.
        if os.path.islink(path) or not os.path.isfile(path):
            attempt(OSError, os.rename, path, f"{path}.{os.urandom(4).hex()}")
    try:
        write(draft, NEW_FILE & ~os.O_EXCL | os.O_NONBLOCK, b"%b\n" % to_json(value).encode(), durably=True)
        os.rename(draft, final)
    except OSError:
        attempt(OSError, os.unlink, draft)
        raise


def complain(text: str) -> None:
    attempt(OSError, os.write, 2, ("supervisor: " + text + "\n").encode("utf-8", "backslashreplace"))


def check_fences(directory: str) -> None:
    for fence, meaning in FENCES.items():
        if os.path.lexists(directory + fence):
            raise Refused(f"{directory + fence}: {meaning}")


def supervise(directory: str, origin: str) -> int:
    """One whole run. Raises Refused when nothing was launched, and OSError when there is no receipt."""
    check_fences(directory)
    if os.path.lexists(f"{directory}/launch.claim"):
        raise Refused("launch.claim: another launch holds it")
    run = Run(directory, read_command(f"{directory}/command.json"))
    if call_libc("prctl", 36, 1, 0, 0, 0) != 0:  # PR_SET_CHILD_SUBREAPER
        raise Refused("this kernel does not let us adopt orphans")
    draft = f"{directory}/.cleanup.json.{run.me}"
    try:
        write(draft, NEW_FILE, bytes(RECEIPT_BYTES))
        write(run.marks[0], NEW_FILE, b"%d\n" % run.me)
    except OSError as error:
        attempt(OSError, os.unlink, draft)
        raise Refused(f"no claim on {directory}: {error}") from None
    try:
        os.unlink(f"{directory}/command.json")
        check_fences(directory)  # Whoever plants a stop looks for the claim after it: one sees the other.
        run.launch(origin)
        confirmed = run.end(run.watch())
        if confirmed:
            run.error = attempt(OSError, lambda: os.read(run.failure, 2000).decode(errors="replace") or None)
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
