"""The keeper's life: start the sandbox, keep it, end it."""

from __future__ import annotations

import os
import select
import struct
import time

from inspan_runtime.providers.exec_agent.descendants import descendants_of
from inspan_runtime.providers.exec_agent.frames import encode
from inspan_runtime.providers.exec_agent.lean import TYPE_CHECKING, signal, socket
from inspan_runtime.providers.exec_agent.loop import Loop
from inspan_runtime.providers.keeper.cgroups import RECORD, Group, NoLimit, limited, remove_groups
from inspan_runtime.providers.keeper.forwards import Forwarding
from inspan_runtime.providers.keeper.host import adopt_orphans, leave_session_keyring, unmount
from inspan_runtime.providers.keeper.launch import (
    MERGED,
    SPACE,
    LaunchError,
    out_of_the_way,
    prepare_root,
    start_agent,
)
from inspan_runtime.providers.keeper.obituary import exit_words, write_obituary
from inspan_runtime.providers.keeper.requests import take_requests
from inspan_runtime.providers.keeper.ways import Ways

BACKLOG = 4096
START_LIMIT_S = 30.0
ACKNOWLEDGE_LIMIT_S = 30.0
END_LIMIT_S = 10.0
POLL_S = 0.0005
LOG_LIMIT_BYTES = 4096
FOLDER_LOOK_S = 2.0
LAST_WORDS_S = 0.5

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def main(
    server_fd: int, orders: dict[str, Any], make: Callable[[dict[str, Any]], Keeper] | None = None
) -> None:
    """Keep one sandbox.

    Args:
        server_fd: The connected stream to the creator: it gets "R", must answer "A" and gets "K", or it gets
            "E" kind ":" message; if it ends before the answer, the creation was given up and is undone.
        orders: ``state`` (folder), ``lock_fd``, ``ttl_s`` (or None), ``agent_program``, ``agent_boot``,
            ``executable``, ``argv``, ``bwrap`` (its argv, or empty), ``map_ids``, ``root`` (or None),
            ``isolated``, ``reach`` (host addresses, in the order of the agent's listeners), and perhaps
            ``limits`` (see `inspan_runtime.providers.keeper.cgroups`).
        make: Makes the keeper of another kind of sandbox.
    """
    if os.fork() != 0:  # The creator need not wait for the keeper's end.
        os._exit(0)
    for fd in (server_fd, orders["lock_fd"]):
        os.set_inheritable(fd, False)
    for one in (signal.SIGINT, signal.SIGHUP):
        signal.signal(one, signal.SIG_IGN)
    server = socket.socket(fileno=server_fd)
    os.chdir(orders["state"])
    keeper = (make or Keeper)(orders)
    try:
        try:
            keeper.start(server)
        except (LaunchError, OSError) as error:
            kind, message = error.args if isinstance(error, LaunchError) else ("create", str(error))
            message = ": ".join(filter(None, (message, _log())))
            keeper.end()
            server.send(f"E{kind}:{message}".encode("utf-8", "replace"))
            return
        if keeper.is_acknowledged(server):
            server.close()
            keeper.run()
    finally:
        keeper.end()
        os._exit(0)


class Keeper:
    """One sandbox; the working directory is its state folder."""

    def __init__(self, orders: dict[str, Any]) -> None:
        self._orders = orders
        self._folder = orders["state"]
        self._loop = Loop()
        self._child: int | None = None
        self._agent_handle: int | None = None
        self._group: Group | None = None
        self._ended = self._dead = False
        self._cause: str | None = None  # Why it ends, when nobody stopped it.
        self._child_status: int | None = None
        self._agent_pid = 0
        self._ways = Ways(self._loop, self._pid_inside, orders["reach"])
        ttl_s = orders["ttl_s"]
        self._expires = None if ttl_s is None else time.monotonic() + ttl_s
        adopt_orphans()
        leave_session_keyring()

    def start(self, server: socket.socket) -> None:
        """Make the root and the agent, and wait for the agent's word; the creator may give up meanwhile."""
        orders = self._orders
        if orders["root"] is not None:
            prepare_root(orders["root"])
        log = out_of_the_way(os.open("log", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600))
        agent_listener = self._listen("agent.sock")
        self._control_listener = self._listen("control.sock")
        self._agent, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        memory = self._limit()
        pids = start_agent(
            orders, out_of_the_way(theirs.detach()), out_of_the_way(agent_listener.detach()), log, memory
        )
        os.close(log)
        self._child, self._agent_pid = pids
        if self._group is not None:
            self._group.add(self._agent_pid)
        self._agent_handle = os.pidfd_open(self._agent_pid)
        self._loop.children[self._child] = self._on_child_dead
        self._agent.settimeout(START_LIMIT_S)
        try:
            self._agent.sendall(orders["agent_boot"])
        except BrokenPipeError:
            pass  # Its end is seen, and its words are read, below.
        self._await_ready(server)

    def _limit(self) -> int | None:
        """Make the control groups; return a descriptor of the memory's events."""
        limits = self._orders.get("limits")
        if not limits:
            return None
        try:
            self._group = limited(os.path.basename(os.fsdecode(self._folder)), limits)
            events = self._group.open_events()
        except (NoLimit, OSError) as error:
            raise LaunchError("limits", str(error)) from error
        return None if events is None else out_of_the_way(events)

    def _listen(self, name: str) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(name)
        listener.listen(BACKLOG)
        return listener

    def _await_ready(self, server: socket.socket) -> None:
        poller = select.poll()
        for sock in (server, self._agent):
            poller.register(sock.fileno(), select.POLLIN)
        ready = dict(poller.poll(START_LIMIT_S * 1000))
        if server.fileno() in ready:
            raise LaunchError("create", "given up by its creator")
        if not ready:
            raise LaunchError("create", f"the agent did not start within {START_LIMIT_S:g} s")
        try:
            space = socket.CMSG_SPACE(4 * len(self._orders["reach"]) + 4)
            data, ancillary, _, _ = self._agent.recvmsg(4096, space)
        except ConnectionResetError:  # It ended with orders unread.
            data, ancillary = b"", []
        if not data.startswith(b"R"):
            kind = "workdir" if data.startswith(b"W") else "create"
            raise LaunchError(kind, data[1:].decode("utf-8", "replace") or "the agent did not start")
        numbers = [fd for _, _, raw in ancillary for (fd,) in struct.iter_unpack("i", raw)]
        for fd, address in zip(numbers, self._orders["reach"], strict=True):
            os.set_inheritable(fd, False)
            Forwarding(self._loop, socket.socket(fileno=fd), address)

    def _pid_inside(self) -> int:
        return self._agent_pid

    def is_acknowledged(self, server: socket.socket) -> bool:
        """Tell the creator, and wait for its answer: a creation that nobody took is undone."""
        signal.signal(signal.SIGTERM, lambda *_: self._dies("its keeper was told to end (SIGTERM)"))
        server.send(b"R")
        server.settimeout(ACKNOWLEDGE_LIMIT_S)
        try:
            if server.recv(1) != b"A":
                return False
        except OSError:
            return False
        with open("ready", "wb"):
            pass
        try:
            server.send(b"K")
        except OSError:  # It is gone since: the sandbox is taken, and found by its key.
            pass
        return True

    def run(self) -> None:
        """Serve until the sandbox has ended."""
        take_requests(self._loop, self._control_listener, self._take)
        self._loop.watch(self._agent.fileno(), select.EPOLLRDHUP, self._on_agent_gone)
        if self._expires is not None:
            ttl_s = self._orders["ttl_s"]
            self._loop.call_at(self._expires, lambda: self._dies(f"its time to live of {ttl_s:g} s is over"))
        self._look_for_folder()
        self._loop.reap()
        while not self._dead:
            self._loop.turn()
        if self._cause is not None:
            write_obituary(self._folder, self._cause)

    def _look_for_folder(self) -> None:
        """End with the state folder: nobody could find the sandbox without it."""
        if not self._has_folder():
            self._dies("its state folder was removed")
        self._loop.call_at(time.monotonic() + FOLDER_LOOK_S, self._look_for_folder)

    def _has_folder(self) -> bool:
        try:
            return os.path.samestat(os.stat(self._folder), os.stat("."))
        except OSError:
            return False

    def _on_child_dead(self, status: int) -> None:
        self._child = None
        self._child_status = status
        self._on_agent_gone()

    def _retire(self) -> None:
        """From now on nobody takes it for a sandbox: not who asks by its key, not who lists."""
        self._dead = True
        try:
            os.unlink("ready")
        except FileNotFoundError:
            pass

    def _dies(self, cause: str) -> None:
        self._retire()
        self._cause = self._cause or cause

    def _on_agent_gone(self, *_: object) -> None:
        self._retire()
        if self._cause is None:
            words = self._last_words()
            self._cause = "; ".join(filter(None, (f"it ended by itself: {self._agent_end()}", words)))

    def _agent_end(self) -> str:
        """Say how the agent's process ended; it is given a moment to do so."""
        deadline = time.monotonic() + LAST_WORDS_S
        while self._child is not None and time.monotonic() < deadline:
            pid, status = os.waitpid(self._child, os.WNOHANG)
            if pid:
                self._loop.children.pop(pid, None)
                self._child, self._child_status = None, status
            else:
                time.sleep(POLL_S)
        if self._child_status is None:
            return "its first process hung up"
        return f"its first process {exit_words(self._child_status)}"

    def _last_words(self) -> str:
        """Return what the agent said before it ended, and what bubblewrap wrote."""
        try:
            self._agent.setblocking(False)
            said = self._agent.recv(LOG_LIMIT_BYTES)
        except OSError:
            said = b""
        words = said[1:] if said[:1] in (b"E", b"X") else said
        logged = _log() if os.path.exists("log") else ""
        return " ".join(filter(None, (words.decode("utf-8", "replace"), logged)))

    def _take(self, sock: socket.socket, fields: list[bytes]) -> None:
        if fields[:1] == [b"reach"]:
            self._ways.take(sock, fields[1:])
            return
        stops = fields == [b"stop"]
        self._dead = self._dead or (stops and self.end())
        try:
            sock.send(encode([b"alive" if stops and not self._dead else b"ok"]))
        except OSError:  # It did not wait for the answer.
            pass
        if self._dead:
            sock.detach()  # Closed by the keeper's end, which the client waits for.
        else:
            self._loop.close(sock.detach())

    def end(self) -> bool:
        """Kill all that lives in the sandbox, wait for it, take the mounts and the folder away.

        Returns:
            Whether nothing of it lives.
        """
        if self._ended:
            return True
        self._kill_known()
        deadline = time.monotonic() + END_LIMIT_S
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:  # As a subreaper the keeper is the parent of all that is left.
                break
            if pid == self._child:
                self._child = None
            if pid == 0:
                if time.monotonic() > deadline:
                    return False
                if not self._orders["isolated"]:
                    kill_all(descendants_of(os.getpid()))
                time.sleep(POLL_S)
        self._ended = True
        if self._group is not None:
            remove_groups(self._group.folders)
        if self._orders["root"] is not None:
            for inner in reversed(self._orders["root"]["inner_mounts"]):
                unmount(os.path.join(MERGED, inner))
            unmount(MERGED)
            unmount(SPACE)
        self._remove_folder()
        return True

    def _kill_known(self) -> None:
        if self._agent_handle is not None:
            try:
                signal.pidfd_send_signal(self._agent_handle, signal.SIGKILL)
            except ProcessLookupError:
                pass
        if self._child is not None:  # Not reaped yet, so the number is still its own.
            os.kill(self._child, signal.SIGKILL)

    def _remove_folder(self) -> None:
        """Remove what is known to be there; only a sandbox without isolation has a folder of free content."""
        for name in ("ready", "agent.sock", "control.sock", "log", RECORD, "holders", "meta.json"):
            try:
                os.unlink(name)
            except FileNotFoundError:
                pass
        if not self._orders["isolated"]:
            pid = os.posix_spawn("/bin/rm", ["rm", "-rf", "--one-file-system", "home", "scratch"], {})
            os.waitpid(pid, 0)
        has_folder = self._has_folder()
        for remove, name in ((os.rmdir, "home"), (os.rmdir, "space"), (os.unlink, "lock")):
            try:
                remove(name)
            except FileNotFoundError:
                pass
        if has_folder:
            os.rmdir(self._folder)


def kill_all(pids: list[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def _log() -> str:
    with open("log", "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - LOG_LIMIT_BYTES))
        return file.read().decode("utf-8", "replace").strip()
