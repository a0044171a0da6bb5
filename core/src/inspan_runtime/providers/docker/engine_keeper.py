"""The keeper of a container: it starts it by the engine's command line, holds its lifeline, removes it.

With the agent, the container's first process connects to ``door/sock`` of the state folder (mounted
read-only), and gets the agent's listener and code: from then on all is as in the other kinds of sandboxes.
Without, the container ends by its own time to live; the keeper watches it, removes it, and forwards what it
reaches.
"""

from __future__ import annotations

import errno
import os
import select
import time

from inspan_runtime.providers.exec_agent.lean import TYPE_CHECKING, accept, signal, socket
from inspan_runtime.providers.keeper.forwards import Forwarding
from inspan_runtime.providers.keeper.launch import LaunchError
from inspan_runtime.providers.keeper.main import START_LIMIT_S, Keeper
from inspan_runtime.providers.keeper.main import main as keep
from inspan_runtime.providers.keeper.namespaces import bind_inside

CALL_LIMIT_S = 20.0
DIED_LIMIT_S = 2.0
POLL_S = 0.005
SAID_LIMIT_BYTES = 4096
GONE = (b"no such container", b"no container with", b"no such object")

if TYPE_CHECKING:
    from typing import Any


def main(server_fd: int, orders: dict[str, Any]) -> None:
    """Keep one container; see `inspan_runtime.providers.keeper.main.main`.

    Args:
        server_fd: The connected stream to the creator.
        orders: Its orders, and ``engine`` (argv before the subcommand), ``engine_env``, ``run`` (the
            arguments that start the container), ``remove`` (those that remove it), ``name``, ``agent``.
    """
    keep(server_fd, orders, EngineKeeper)


class EngineKeeper(Keeper):
    """One container."""

    _starting = 0  # The call that starts it.

    def start(self, server: socket.socket) -> None:
        """Start the container, and the agent in it; the creator may give up meanwhile."""
        self._began = time.time() - 1.0
        self._control_listener = self._listen("control.sock")
        self._start(server)
        if self._orders["ttl_s"] is not None:  # How long the engine took is not the sandbox's time.
            self._expires = time.monotonic() + self._orders["ttl_s"]

    def _start(self, server: socket.socket) -> None:
        self._deadline = time.monotonic() + START_LIMIT_S
        if not self._orders["agent"]:
            self._start_plain(server)
            return
        agent_listener = self._listen("agent.sock")
        os.mkdir("door", 0o755)
        os.chmod("door", 0o755)
        door = self._listen("door/sock")
        os.chmod("door/sock", 0o666)
        door.setblocking(False)
        call = self._spawn(self._orders["run"])
        self._await(server, call, door.fileno())
        agent = accept(door)
        if agent is None:
            raise LaunchError("create", "the container's agent hung up")
        door.close()
        self._agent = agent
        agent.settimeout(START_LIMIT_S)
        program = self._orders["agent_program"]
        try:
            number = agent_listener.fileno().to_bytes(4, "little")
            agent.sendmsg([b"L"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, number)])
            agent.sendall(len(program).to_bytes(4, "big") + program + self._orders["agent_boot"])
        except OSError:
            pass  # Its end is seen, and its words are read, below.
        agent_listener.close()
        self._await_ready(server)

    def _start_plain(self, server: socket.socket) -> None:
        self._await(server, self._spawn(self._orders["run"]), None)
        self._agent, self._unused = socket.socketpair()
        self._loop.children[self._spawn(["wait", self._orders["name"]])] = self._on_child_dead
        if self._orders["reach"]:
            try:
                listeners = bind_inside(self._pid_inside(), self._orders["reach"])
            except OSError as error:
                raise LaunchError("create", f"reach: {error}") from error
            for listener, address in zip(listeners, self._orders["reach"], strict=True):
                Forwarding(self._loop, listener, address)

    def _pid_inside(self) -> int:
        status, said = self._call(["inspect", "--format={{.State.Pid}}", self._orders["name"]])
        if status != 0 or not said.strip().isdigit():
            raise OSError(errno.ESRCH, f"the container's process is not known: {_text(said)}")
        return int(said)

    def _await(self, server: socket.socket, call: int, door: int | None) -> None:
        """Wait for the container's connection, or, without a door, for the engine's success."""
        poller = select.poll()
        handle = os.pidfd_open(call)
        self._starting = call
        self._loop.children[call] = _ignore
        try:
            for fd in (server.fileno(), handle, door):
                if fd is not None:
                    poller.register(fd, select.POLLIN)
            while True:
                left = self._deadline - time.monotonic()
                ready = dict(poller.poll(max(0.0, left) * 1000))
                if door in ready:
                    return
                if server.fileno() in ready:
                    raise LaunchError("create", "given up by its creator")
                if not ready:
                    raise LaunchError("create", f"the container did not start within {left:g} s")
                if handle in ready:
                    poller.unregister(handle)
                    del self._loop.children[call]
                    status = os.waitstatus_to_exitcode(os.waitpid(call, 0)[1])
                    if status != 0:
                        raise LaunchError("engine", f"the engine exited with {status}")
                    if door is None:
                        return
        finally:
            os.close(handle)

    def _agent_end(self) -> str:
        """Ask the engine: it remembers for a while how a container ended that it has removed."""
        which = [f"--filter=container={self._orders['name']}", "--filter=event=die", "--filter=event=died"]
        deadline = time.monotonic() + DIED_LIMIT_S
        while True:
            span = [f"--since={self._began:.0f}", f"--until={time.time():.3f}"]
            status, said = self._call(["events", *span, *which, "--format={{json .}}"])
            if status == 0 and said.strip():
                return f"its container ended: {_text(said)}"
            if time.monotonic() > deadline:  # The agent may have ended alone.
                return "its container ended"
            time.sleep(POLL_S)

    def _spawn(self, arguments: list[str], out: int | None = None) -> int:
        """Start a subcommand of the engine; what it says goes to the log, or to `out`."""
        argv = [*self._orders["engine"], *arguments]
        log = os.open("log", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        try:
            into = null if out is None else out
            errors = log if out is None else out
            actions = [
                (os.POSIX_SPAWN_DUP2, here, there) for here, there in ((null, 0), (into, 1), (errors, 2))
            ]
            return os.posix_spawn(argv[0], argv, self._orders["engine_env"], file_actions=actions)
        finally:
            os.close(log)
            os.close(null)

    def _call(self, arguments: list[str]) -> tuple[int, bytes]:
        """Return (exit code, what it said) of a subcommand; -1 when it did not end in time."""
        reads, writes = os.pipe()
        os.set_blocking(reads, False)
        pid = self._spawn(arguments, writes)
        os.close(writes)
        try:
            deadline = time.monotonic() + CALL_LIMIT_S
            while True:
                found, status = os.waitpid(pid, os.WNOHANG)
                if found:
                    return os.waitstatus_to_exitcode(status), _read(reads)
                if time.monotonic() > deadline:
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
                    return -1, b"no answer of the engine"
                time.sleep(POLL_S)
        finally:
            os.close(reads)

    def end(self) -> bool:
        """Remove the container, confirm it, and take the folder away."""
        if self._ended:
            return True
        self._finish_starting()
        status, said = self._call(self._orders["remove"])
        if status != 0 and not _is_gone(said):
            deadline = time.monotonic() + CALL_LIMIT_S  # The engine may be removing it already.
            while True:
                status, said = self._call(["container", "inspect", self._orders["name"]])
                if status != 0 and _is_gone(said):
                    break
                if time.monotonic() > deadline:
                    return False
                time.sleep(POLL_S)
        return super().end()

    def _finish_starting(self) -> None:
        """Let a start in flight end: what is killed half way may leave a container that is made later."""
        deadline = time.monotonic() + CALL_LIMIT_S
        while self._starting in self._loop.children:
            self._loop.reap()
            if time.monotonic() > deadline:
                os.kill(self._starting, signal.SIGKILL)
                return
            time.sleep(POLL_S)

    def _remove_folder(self) -> None:
        for remove, name in ((os.unlink, "door/sock"), (os.rmdir, "door"), (os.unlink, "container")):
            try:
                remove(name)
            except FileNotFoundError:
                pass
        super()._remove_folder()


def _ignore(_status: int) -> None:
    """The engine's command line has nothing more to say."""


def _is_gone(said: bytes) -> bool:
    return any(one in said.lower() for one in GONE)


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, SAID_LIMIT_BYTES)
    except BlockingIOError:
        return b""


def _text(said: bytes) -> str:
    return said.decode("utf-8", "replace").strip()
