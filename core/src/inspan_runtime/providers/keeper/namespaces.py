"""Listen in a sandbox's network namespace, from the host."""

from __future__ import annotations

import ctypes
import errno
import os
import struct

from inspan_runtime.providers.exec_agent.lean import TYPE_CHECKING, socket
from inspan_runtime.providers.exec_agent.listeners import bind_reach

CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000
ANSWER_LIMIT_BYTES = 1000

if TYPE_CHECKING:
    from collections.abc import Sequence


def bind_inside(pid: int, addresses: Sequence[tuple[str, int]]) -> list[socket.socket]:
    """Return listeners on addresses of the network namespace of a process.

    A forked child enters the namespace, binds, hands the sockets over and ends.

    Args:
        pid: A process of the sandbox, as this host knows it.
        addresses: (host, port) pairs.

    Raises:
        OSError: The namespace cannot be entered, or an address is taken.
    """
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        try:
            _bind(pid, list(addresses), theirs)
        finally:
            os._exit(0)
    theirs.close()
    try:
        data, ancillary, _, _ = ours.recvmsg(ANSWER_LIMIT_BYTES, socket.CMSG_SPACE(4 * len(addresses)))
    finally:
        ours.close()
        os.waitpid(child, 0)
    numbers = [fd for _, _, raw in ancillary for (fd,) in struct.iter_unpack("i", raw)]
    if data != b"R":
        number, _, words = data.decode("utf-8", "replace").partition(" ")
        raise OSError(int(number or errno.EIO), words or "the helper died")
    for fd in numbers:
        os.set_inheritable(fd, False)
    return [socket.socket(fileno=fd) for fd in numbers]


def has_own_network(pid: int) -> bool:
    """Whether a process is in another network namespace than this one.

    Raises:
        OSError: This user may not know, or there is no such process.
    """
    try:
        theirs = os.stat(f"/proc/{pid}/ns/net")
    except PermissionError:
        raise OSError(errno.EACCES, "this user may not enter the sandbox's network, root may") from None
    return not os.path.samestat(theirs, os.stat("/proc/self/ns/net"))


def _bind(pid: int, addresses: list[tuple[str, int]], answers: socket.socket) -> None:
    try:
        _enter(pid)
        listeners = bind_reach(addresses)
    except OSError as error:
        words = f"{error.errno or errno.EIO} {error.strerror or error}"
        answers.send(words.encode("utf-8", "replace")[:ANSWER_LIMIT_BYTES])
        return
    numbers = struct.pack(f"{len(listeners)}i", *[one.fileno() for one in listeners])
    answers.sendmsg([b"R"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)])


def _enter(pid: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    for name, kind in (("user", CLONE_NEWUSER), ("net", CLONE_NEWNET)):
        path = f"/proc/{pid}/ns/{name}"
        if os.path.samestat(os.stat(path), os.stat(f"/proc/self/ns/{name}")):
            continue
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if libc.setns(fd, kind) != 0:
                number = ctypes.get_errno()
                raise OSError(number, f"cannot enter the sandbox's {name} namespace: {os.strerror(number)}")
        finally:
            os.close(fd)
