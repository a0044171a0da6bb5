"""Make one sandbox: claim its folder, start its keeper, take it; or undo all of it."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
from attrs import frozen

from inspan_core.errors import ConfigError, SandboxCreateError
from inspan_runtime.providers import boot, state_folder
from inspan_runtime.providers.interpreter import Interpreter
from inspan_runtime.providers.kept_sandbox import stop_kept

UNDO_LIMIT_S = 20.0
MESSAGE_LIMIT_BYTES = 16 * 1024


@frozen(kw_only=True)
class Plan:
    """How one sandbox is made.

    Attributes:
        descriptor: What is told about it, without ``provider``, ``sandbox_id`` and ``state``.
        orders: The keeper's orders (`inspan_runtime.providers.keeper.main`), without ``state``,
            ``lock_fd``, ``ttl_s``, ``agent_program`` and ``agent_boot``; called in a worker thread while
            the keeper's interpreter starts.
        agent_orders: The agent's orders (`inspan_runtime.providers.exec_agent.main`).
        same_version: Whether the agent's interpreter is of this process's version.
        agent_modules: The agent's code, its entry last.
        keeper_modules: The keeper's, likewise.
    """

    descriptor: Mapping[str, Any]
    orders: Callable[[], Mapping[str, Any]]
    agent_orders: Mapping[str, Any]
    same_version: bool = True
    agent_modules: Sequence[str] = boot.AGENT_MODULES
    keeper_modules: Sequence[str] = boot.KEEPER_MODULES


class KeeperRefused(SandboxCreateError):
    """The keeper could not start the sandbox.

    Attributes:
        kind: ``overlay`` when the private root could not be mounted, ``workdir`` when the workdir can be no
            folder there, else ``create``.
    """

    def __init__(self, message: str, *, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


class Birth:
    """A creation, until the keeper holds the sandbox and knows that somebody took it.

    Attributes:
        state: The state folder; None while none is claimed, or when the key is taken.
    """

    def __init__(self, interpreter: Interpreter, sweep: Callable[[Path], None]) -> None:
        self._interpreter = interpreter
        self._sweep = sweep
        self.state: Path | None = None
        self._lock_fd: int | None = None
        self._sock, self._theirs = socket.socketpair()
        self._starter: subprocess.Popen[bytes] | None = None
        self._has_keeper = False

    def claim(self, folder: Path, sandbox_id: str, meta: Mapping[str, Any]) -> None:
        """Make the state folder, if the key is free."""
        claimed = state_folder.claim(folder, sandbox_id, meta)
        if claimed is not None:
            self.state, self._lock_fd = claimed

    def launch(self, plan: Plan, ttl_s: float | None) -> None:
        """Start the keeper and hand it its code and orders."""
        assert self.state is not None and self._lock_fd is not None
        fd, lock_fd = self._theirs.fileno(), self._lock_fd
        script, feeds = os.pipe()
        try:
            os.write(feeds, boot.program(fd))
            os.close(feeds)
            with open(self.state / "log", "ab") as log:
                self._starter = subprocess.Popen(
                    boot.command(self._interpreter.path),
                    executable=self._interpreter.path,
                    stdin=script,
                    stdout=log,
                    stderr=log,
                    env={},
                    cwd="/",
                    pass_fds=(fd, lock_fd),
                    start_new_session=True,
                )
                self._has_keeper = True
        finally:
            os.close(script)
        self._release_handed_over()
        orders = {
            **plan.orders(),
            "state": os.fsencode(self.state),
            "lock_fd": lock_fd,
            "ttl_s": ttl_s,
            "agent_program": boot.program(3),
            "agent_boot": boot.bundle(plan.agent_modules, plan.agent_orders, same_version=plan.same_version),
        }
        self._sock.settimeout(UNDO_LIMIT_S)
        self._sock.sendall(boot.bundle(plan.keeper_modules, orders))

    async def completed(self) -> None:
        """Wait for the keeper's word, and take the sandbox."""
        self._sock.setblocking(False)
        data = await self._received()
        self._collect_starter()
        if data == b"R":
            self._sock.send(b"A")
            data = await self._received()
            if data == b"K":
                return
        kind, _, message = data[1:].decode("utf-8", "replace").partition(":")
        if kind == "workdir":
            raise ConfigError(f"the workdir cannot be a folder of the sandbox: {message}")
        raise KeeperRefused(message or f"the keeper ended: {self._log()}", kind=kind or "create")

    async def _received(self) -> bytes:
        await anyio.wait_readable(self._sock)
        try:
            return self._sock.recv(MESSAGE_LIMIT_BYTES)
        except ConnectionResetError:  # It ended with something unread.
            return b""

    async def undone(self) -> None:
        """Give the creation up, and wait until nothing of it is left."""
        if self.state is None:
            return
        self._theirs.close()
        with anyio.move_on_after(UNDO_LIMIT_S, shield=True):
            if self._has_keeper:  # Also when its starter was collected: it may just have been taken.
                try:
                    self._sock.shutdown(socket.SHUT_WR)
                except OSError:
                    pass
                self._sock.setblocking(False)
                while await self._received():
                    pass
                if await anyio.to_thread.run_sync(state_folder.is_held, self.state):
                    await stop_kept(self.state, self.state.name)  # It was taken before it was given up.
            await anyio.to_thread.run_sync(self._remove_state)
        self._collect_starter()

    def _remove_state(self) -> None:
        assert self.state is not None
        if self._lock_fd is not None:
            state_folder.remove(self.state)
        else:
            self._sweep(self.state)

    def _log(self) -> str:
        try:
            return (self.state / "log").read_bytes()[-2000:].decode("utf-8", "replace") if self.state else ""
        except OSError:
            return ""

    def _collect_starter(self) -> None:
        if self._starter is not None:
            self._starter.wait()
            self._starter = None

    def _release_handed_over(self) -> None:
        self._theirs.close()
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    def close(self) -> None:
        self._release_handed_over()
        self._sock.close()
