"""The library of the shims that run inside sandboxes: starts a program, keeps its events, reports its end.

Standard library only, Python 3.8 syntax: this file travels into the sandbox beside a plugin's own
``sandbox_runner.py`` (`inspan_core.shim_files`), which says what becomes of the program's events. Standard
input is empty. `main` reads ``input.json`` beside that file and deletes it first thing; the program gets its
prompt on its own standard input and runs in the shim's process group, so that a stop reaches both.

``input.json``::

    argv       the program and its arguments: what everybody in the sandbox can read
    program    the file to run where it is not ``argv[0]``, or absent
    env        variables on top of the sandbox's
    workdir    where it runs
    files      name below the session folder to text, each written with mode 0600
    prompt     its standard input
    loaded     names of files that the program needs only until it has loaded them, or absent
    tool_bridge  tools of a grant to serve to the program (`inspan_core.tool_bridge`), or null; in the text of
               files its ``url_mark`` is replaced by the URL

Written into the session folder as the run goes:

    runtime_info.json   {"hostname", "pid", "interpreter", "runner_pid"}: who runs
    events.jsonl        {"at": Unix seconds, "event": {...}} a line
    stderr.log          what the program said beside its events, the tail of it
    output.json         how it ended; absent after SIGKILL
"""

import ctypes
import json
import os
import selectors
import signal
import socket
import subprocess
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

NAME = b"inspan-r"
LINE_LIMIT_BYTES = 4 * 1024 * 1024
EVENTS_LIMIT_BYTES = 48 * 1024 * 1024
STDERR_LIMIT_BYTES = 512 * 1024
# How long output is still read after the program's end, when something else holds its pipe open.
DRAIN_S = 1.0


def rename_process(name: bytes) -> None:
    """Take a name that no task matches by accident, in place of the interpreter and this file's path."""
    try:
        libc = ctypes.CDLL(None)
        libc.prctl(15, name, 0, 0, 0)  # PR_SET_NAME
        with open("/proc/self/stat", "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()
        start, end = int(fields[45]), int(fields[46])
    except (OSError, AttributeError, ValueError, IndexError):
        return
    if 0 < start < end and end - start > len(name):
        ctypes.memset(start, 0, end - start)
        ctypes.memmove(start, name, len(name))


def write_atomically(path: str, value: Any) -> None:
    """Write JSON so that a reader sees all of it or none."""
    draft = path + ".part"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as out:
        json.dump(value, out)
    os.replace(draft, path)


class Lines:
    """Splits a byte stream at LF only (U+2028 is text in JSON), with a bound on each line."""

    def __init__(self) -> None:
        self.rest = b""
        self.skipped = 0

    def feed(self, data: bytes) -> List[Tuple[bytes, int]]:
        """Complete lines, each with the number of bytes that were cut from it."""
        *ends, rest = data.split(b"\n")
        done = []
        for end in ends:
            self._add(end)
            done.append((self.rest, self.skipped))
            self.rest, self.skipped = b"", 0
        self._add(rest)
        return done

    def _add(self, data: bytes) -> None:
        room = LINE_LIMIT_BYTES - len(self.rest)
        self.rest += data[:room]
        self.skipped += max(0, len(data) - room)


class Events:
    """Keeps the program's events: one a line of its standard output, stamped, bounded in all.

    A plugin's shim derives from it to leave events out or to add to them (`take`).
    """

    def __init__(self, path: str, clock: Callable[[], float] = time.time) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        self.file = os.open(path, flags, 0o600)
        self.clock = clock
        self.written = self.dropped = self.bytes = 0
        self.last: Optional[str] = None
        self.loaded: List[str] = []

    def line(self, line: bytes, cut: int) -> None:
        """One line of the program's standard output; `cut` bytes beyond the limit are missing."""
        at = self.clock()
        if cut:
            self.write({"at": at, "cut": cut, "head": line[:4096].decode("utf-8", "replace")})
        elif line:
            if self.loaded and self.tells_loaded(line):
                self.forget()
            self.take(at, line)

    def take(self, at: float, line: bytes) -> None:
        """Keep one whole line as it is."""
        self.keep(b'{"at":%f,"event":%s}' % (at, line))

    def tells_loaded(self, line: bytes) -> bool:
        """Whether the program has read its files for good when it writes this line."""
        return False

    def forget(self) -> None:
        """Remove the files that the program does not need any more: they hold its keys."""
        while self.loaded:
            try:
                os.unlink(self.loaded.pop())
            except OSError:
                pass

    def is_vital(self, line: bytes) -> bool:
        """Whether the last such record is worth reporting even when the file is full."""
        return False

    def write(self, value: Dict[str, Any]) -> None:
        """Keep a record of the shim's own."""
        self.keep(json.dumps(value).encode())

    def keep(self, line: bytes) -> None:
        """Append a record, unless the file is full."""
        if self.bytes + len(line) + 1 > EVENTS_LIMIT_BYTES:
            self.dropped += 1
            if len(line) < LINE_LIMIT_BYTES and self.is_vital(line):
                self.last = line.decode("utf-8", "replace")
            return
        view = memoryview(line + b"\n")
        while view:
            view = view[os.write(self.file, view) :]
        self.written += 1
        self.bytes += len(line) + 1


class Tail:
    """A log file that keeps its end: at twice the bound it is rewritten with a marker."""

    def __init__(self, path: str) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        self.file = os.open(path, flags, 0o600)
        self.size = 0

    def take(self, data: bytes) -> None:
        """Append, and cut the front when it grew too long."""
        self.size += os.write(self.file, data)
        if self.size > 2 * STDERR_LIMIT_BYTES:
            kept = b"[truncated]\n" + os.pread(self.file, STDERR_LIMIT_BYTES, self.size - STDERR_LIMIT_BYTES)
            os.ftruncate(self.file, 0)
            os.lseek(self.file, 0, os.SEEK_SET)
            self.size = os.write(self.file, kept)


class Run:
    """One run of the program."""

    def __init__(self, folder: str, events: Callable[[str], Events] = Events) -> None:
        self.folder = folder
        self.stopped = False
        self.events = events(os.path.join(folder, "events.jsonl"))
        self.stderr = Tail(os.path.join(folder, "stderr.log"))
        self.wake, wake_end = socket.socketpair()
        wake_end.setblocking(False)
        self.wake.setblocking(False)
        self.wake_end = wake_end
        signal.set_wakeup_fd(wake_end.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self.stop)

    def stop(self, *_: Any) -> None:
        """A stop reaches the program by itself, since it is in this group: let it finish."""
        self.stopped = True

    def open_bridge(self, order: Optional[Dict[str, Any]]) -> Dict[str, str]:
        """Serve a grant's tools to the program; what stands for what in its files."""
        if order is None:
            return {}
        # Loaded only where there are such tools: it brings an HTTP server.
        from inspan_core.tool_bridge import ToolBridge

        bridge = ToolBridge(order, self.folder)
        bridge.start()
        return {order["url_mark"]: bridge.url}

    def start(self, order: Dict[str, Any]) -> "subprocess.Popen[bytes]":
        """Start the program, its prompt on standard input and that at its end."""
        replaced = self.open_bridge(order.get("tool_bridge"))
        for name, text in order["files"].items():
            for mark, value in replaced.items():
                text = text.replace(mark, value)
            path = os.path.join(self.folder, name)
            os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
            with os.fdopen(os.open(path, flags, 0o600), "w", encoding="utf-8", errors="replace") as out:
                out.write(text)
        self.events.loaded = [os.path.join(self.folder, name) for name in order.get("loaded", ())]
        prompt = os.path.join(self.folder, "prompt.part")
        with open(prompt, "w+", encoding="utf-8", errors="replace") as stdin:
            os.unlink(prompt)
            stdin.write(order["prompt"])
            stdin.flush()
            os.lseek(stdin.fileno(), 0, os.SEEK_SET)
            environment = dict(os.environ)
            environment.update(order["env"])
            child = subprocess.Popen(
                order["argv"],
                executable=order.get("program"),
                cwd=order["workdir"],
                env=environment,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        if self.stopped:
            # The group was signalled before the program was in it.
            child.terminate()
        return child

    def follow(self, child: "subprocess.Popen[bytes]") -> None:
        """Take everything that the program writes until it ended and its pipes are empty."""
        lines = Lines()
        selector = selectors.DefaultSelector()
        selector.register(self.wake, selectors.EVENT_READ)
        for stream in (child.stdout, child.stderr):
            if stream is not None:
                os.set_blocking(stream.fileno(), False)
                selector.register(stream, selectors.EVENT_READ)
        until: Optional[float] = None
        while len(selector.get_map()) > 1:
            if until is None and child.poll() is not None:
                until = time.monotonic() + DRAIN_S
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                break
            for key, _ in selector.select(left):
                if key.fileobj is self.wake:
                    self.wake.recv(4096)
                    continue
                data = os.read(key.fd, 1024 * 1024)
                if not data:
                    selector.unregister(key.fileobj)
                elif key.fileobj is child.stderr:
                    self.stderr.take(data)
                else:
                    for line, cut in lines.feed(data):
                        self.events.line(line, cut)
        if lines.rest:
            self.events.line(lines.rest, lines.skipped)
        selector.close()


def take_order(folder: str) -> Dict[str, Any]:
    """Read ``input.json`` and delete it: it holds the key of the model.

    The folder becomes private too, since programs write prompts into files that everybody may read.
    """
    os.chmod(folder, 0o700)
    source = os.path.join(folder, "input.json")
    with open(source, encoding="utf-8") as stream:
        order = json.load(stream)  # type: Dict[str, Any]
    os.unlink(source)
    return order


def main(runner: str, events: Callable[[str], Events] = Events) -> int:
    """Run the order of ``input.json``; ends as the program ended.

    Args:
        runner: The plugin's ``sandbox_runner.py``, in the session folder.
        events: Makes what keeps the program's events, from the path of ``events.jsonl``.

    Returns:
        The program's exit code; 70 when it could not be started.
    """
    rename_process(NAME)
    folder = os.path.dirname(os.path.abspath(runner))
    order = take_order(folder)
    run = Run(folder, events)
    started = time.time()
    output = {"return_code": None, "error": None, "started_at": started}  # type: Dict[str, Any]
    try:
        child = run.start(order)
        program = order.get("program") or order["argv"][0]
        info = {"hostname": socket.gethostname(), "pid": child.pid, "interpreter": program}
        info["runner_pid"] = os.getpid()
        write_atomically(os.path.join(folder, "runtime_info.json"), info)
        run.follow(child)
        output["return_code"] = child.wait()
    except OSError as error:
        output["error"] = "%s: %s" % (type(error).__name__, error)
    run.events.forget()
    output["ended_at"] = time.time()
    output["stopped"] = run.stopped
    output["events"] = {"written": run.events.written, "dropped": run.events.dropped}
    output["last_dropped"] = run.events.last
    write_atomically(os.path.join(folder, "output.json"), output)
    code = output["return_code"]
    if code is None:
        return 70
    if code < 0:
        # End by the same signal, so that the receipt tells what happened.
        signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -code)
    return int(code)
