"""Start the agent: take the keeper's orders, bind what is reached, serve until the lifeline ends."""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import struct
import time

from inspan_runtime.providers.exec_agent.commands import null_fd
from inspan_runtime.providers.exec_agent.connections import Connection
from inspan_runtime.providers.exec_agent.descendants import descendants_of
from inspan_runtime.providers.exec_agent.lean import TYPE_CHECKING, signal, socket
from inspan_runtime.providers.exec_agent.listeners import bind_reach
from inspan_runtime.providers.exec_agent.loop import Loop
from inspan_runtime.providers.exec_agent.memory import MemoryWatch, open_watch

LISTEN_FD = 4
FOREIGN_FDS_END = 256  # What launched the agent may have left it descriptors; they are few, and low.
SHUTDOWN_LIMIT_S = 5.0
FAILED = 70
SAVED_ID = 65533
WORDS_LIMIT_CHARS = 1500
PR_SET_DUMPABLE = 4
PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36

if TYPE_CHECKING:
    from typing import Any


def end_descendants(own_pid: int) -> None:
    """Kill all that came from a process, until nothing of it lives; for a sandbox without a pid namespace."""
    deadline = time.monotonic() + SHUTDOWN_LIMIT_S
    while time.monotonic() < deadline:
        found = descendants_of(own_pid)
        if not found:
            return
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass


def protect(*, isolated: bool) -> None:
    """Take a neutral name, adopt orphans, and keep other processes from tracing or limiting this one.

    Whoever has the same three ids may take away what a process may open or start (`prlimit`). A command
    gets its saved ids from its others when it is executed.
    """
    libc = ctypes.CDLL(None)
    if isolated:
        try:
            os.setresgid(-1, -1, SAVED_ID)
            os.setresuid(-1, -1, SAVED_ID)
        except OSError:  # The sandbox of an ordinary user has one id.
            pass
    libc.prctl(PR_SET_NAME, b"init", 0, 0, 0)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def main(control_fd: int, orders: dict[str, Any]) -> None:
    """Serve.

    Args:
        control_fd: The connected stream to the keeper, the lifeline.
        orders: ``{"env": {bytes: bytes}, "workdir": bytes, "reach": [(host, port)], "isolated": bool}``;
            where memory is limited also ``memory_fd``, an inherited descriptor of the control group's events,
            or ``memory_paths``, where they may be.
    """
    for fd in (control_fd, LISTEN_FD):
        os.set_inheritable(fd, False)
    kept = None
    if "memory_fd" in orders:
        kept = fcntl.fcntl(orders["memory_fd"], fcntl.F_DUPFD_CLOEXEC, FOREIGN_FDS_END)
    os.closerange(max(control_fd, LISTEN_FD) + 1, FOREIGN_FDS_END)
    memory = open_watch(orders.get("memory_paths", ())) if kept is None else MemoryWatch(kept)
    os.chdir("/")
    os.umask(0o022)
    control = socket.socket(fileno=control_fd)
    for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(one, signal.SIG_IGN)
    try:
        protect(isolated=orders["isolated"])
        os.makedirs(orders["workdir"], exist_ok=True)
        listeners = bind_reach(orders["reach"])
    except OSError as error:
        # The first is told apart: the same order meets it again.
        kind = b"W" if isinstance(error, (FileExistsError, NotADirectoryError)) else b"E"
        control.send(kind + str(error).encode("utf-8", "replace"))
        os._exit(1)
    numbers = struct.pack(f"{len(listeners)}i", *[one.fileno() for one in listeners])
    control.sendmsg([b"R"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)] if listeners else [])
    for listener in listeners:
        listener.close()
    try:
        serve(control, orders, memory)
    except BaseException as error:  # The fence: whoever asks later learns what became of the sandbox.
        control.send(b"X" + last_words(error).encode("utf-8", "replace"))
        os._exit(FAILED)


def last_words(error: BaseException) -> str:
    """Return an error and the lines that led to it; the module for that is slow to import."""
    places = []
    trace = error.__traceback__
    while trace is not None:
        places.append(f"{trace.tb_frame.f_code.co_name}:{trace.tb_lineno}")
        trace = trace.tb_next
    return f"{error!r} at {' > '.join(places)}"[:WORDS_LIMIT_CHARS]


def serve(control: socket.socket, orders: dict[str, Any], memory: MemoryWatch) -> None:
    null_fd()
    loop = Loop()
    listener = socket.socket(fileno=LISTEN_FD)

    def on_keeper(_events: int) -> None:
        if not orders["isolated"]:
            end_descendants(os.getpid())
        os._exit(0)

    loop.watch(control.fileno(), select.EPOLLIN | select.EPOLLRDHUP, on_keeper)
    loop.listen(listener, lambda sock: Connection(loop, sock, orders["env"], memory))
    while True:
        loop.turn()
