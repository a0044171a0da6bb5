"""Start the agent: take the keeper's orders, bind what is reached, serve until the lifeline ends."""

import ctypes
import os
import select
import struct
import time

# The public modules `signal` and `socket` import enum and selectors: 8 ms of every sandbox's start.
import _signal
import _socket

from inspan_runtime.providers.exec_agent.connections import Connection
from inspan_runtime.providers.exec_agent.descendants import descendants_of
from inspan_runtime.providers.exec_agent.loop import Loop

LISTEN_FD = 4
FOREIGN_FDS_END = 256  # What launched the agent may have left it descriptors; they are few, and low.
SHUTDOWN_LIMIT_S = 5.0
PR_SET_DUMPABLE = 4
PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36


def bind_reach(addresses):
    """Return listeners on the given (host, port) pairs of this network namespace."""
    listeners = []
    for host, port in addresses:
        family = _socket.AF_INET6 if ":" in host else _socket.AF_INET
        listener = _socket.socket(family, _socket.SOCK_STREAM)
        listener.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            listener.listen(1024)
        except OSError as error:
            raise OSError(
                error.errno, "cannot listen on %s:%d inside: %s" % (host, port, error.strerror)
            ) from None
        listeners.append(listener)
    return listeners


def end_descendants(own_pid):
    """Kill all that came from a process, until nothing of it lives; for a sandbox without a pid namespace."""
    deadline = time.monotonic() + SHUTDOWN_LIMIT_S
    while time.monotonic() < deadline:
        found = descendants_of(own_pid)
        if not found:
            return
        for pid in found:
            try:
                os.kill(pid, _signal.SIGKILL)
            except ProcessLookupError:
                pass
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass


def protect():
    """Take a neutral name, adopt orphans, and keep the sandbox's other processes from tracing this one."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_NAME, b"init", 0, 0, 0)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def main(control_fd, orders):
    """Serve.

    Args:
        control_fd: The connected stream to the keeper, the lifeline.
        orders: ``{"env": {bytes: bytes}, "workdir": bytes, "reach": [(host, port)], "isolated": bool}``.
    """
    for fd in (control_fd, LISTEN_FD):
        os.set_inheritable(fd, False)
    os.closerange(max(control_fd, LISTEN_FD) + 1, FOREIGN_FDS_END)
    os.chdir("/")
    os.umask(0o022)
    control = _socket.socket(fileno=control_fd)
    for one in (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP):
        _signal.signal(one, _signal.SIG_IGN)
    try:
        protect()
        os.makedirs(orders["workdir"], exist_ok=True)
        listeners = bind_reach(orders["reach"])
    except OSError as error:
        control.send(b"E" + str(error).encode("utf-8", "replace"))
        os._exit(1)
    numbers = struct.pack("%di" % len(listeners), *[one.fileno() for one in listeners])
    control.sendmsg([b"R"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, numbers)] if listeners else [])
    for one in listeners:
        one.close()
    serve(control, orders)


def serve(control, orders):
    loop = Loop()
    listener = _socket.socket(fileno=LISTEN_FD)
    listener.setblocking(False)

    def on_keeper(_events):
        if not orders["isolated"]:
            end_descendants(os.getpid())
        os._exit(0)

    def on_client(_events):
        try:
            fd, _ = listener._accept()
        except OSError:
            return
        Connection(loop, _socket.socket(fileno=fd), orders["env"])

    loop.watch(control.fileno(), select.EPOLLIN | select.EPOLLRDHUP, on_keeper)
    loop.watch(LISTEN_FD, select.EPOLLIN, on_client)
    while True:
        loop.turn()
