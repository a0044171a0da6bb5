"""Create, find and stop sandboxes that keepers hold: what the embedded providers share."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
from attrs import define, field, frozen

from inspan_core.errors import (
    SandboxConnectError,
    SandboxCreateError,
    SandboxGone,
    SandboxTransportError,
)
from inspan_core.sandbox import Descriptor, SandboxSpec
from inspan_runtime.providers import boot, state_folder
from inspan_runtime.providers.interpreter import Interpreter
from inspan_runtime.providers.kept_sandbox import KeptSandbox, stop_kept

UNDO_LIMIT_S = 20.0
POLL_S = 0.005
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
        kind: ``overlay`` when the private root could not be mounted, else ``create``.
    """

    def __init__(self, message: str, *, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


def _ignore(_sandbox_id: str) -> None:
    return None


@define
class KeptSandboxes:
    """The sandboxes of one kind below one runtime folder.

    Attributes:
        kind: The provider's name.
        runtime_dir: Where the state folders are.
        interpreter: What runs the keepers.
        end_strays: Called with the id of a sandbox whose keeper was killed, before its folder is removed.
    """

    kind: str
    runtime_dir: Path
    interpreter: Interpreter
    end_strays: Callable[[str], None] = field(default=_ignore)

    def folder(self) -> Path:
        """Return the folder of this kind, made if needed."""
        state_folder.prepare_folder(self.runtime_dir)
        return state_folder.prepare_folder(self.runtime_dir / self.kind)

    async def create(
        self, plan: Callable[[str], Plan], spec: SandboxSpec, key: str, *, timeout_s: float
    ) -> KeptSandbox:
        """Create the sandbox of a key, or connect to the one that it has.

        Raises:
            KeeperRefused: It could not be started; nothing of it is left.
            SandboxCreateError: Likewise, or not within `timeout_s`.
        """
        sandbox_id = state_folder.sandbox_id_of(self.runtime_dir / self.kind, key)
        try:
            with anyio.fail_after(timeout_s):
                return await self._create(plan, spec, key, sandbox_id)
        except TimeoutError as error:
            raise SandboxCreateError(
                f"{self.kind} sandbox {sandbox_id}: not up within {timeout_s:g} s"
            ) from error
        except OSError as error:
            raise SandboxCreateError(f"{self.kind} sandbox {sandbox_id}: {error}") from error

    async def _create(
        self, plan: Callable[[str], Plan], spec: SandboxSpec, key: str, sandbox_id: str
    ) -> KeptSandbox:
        folder = await anyio.to_thread.run_sync(self.folder)
        made = await anyio.to_thread.run_sync(plan, sandbox_id)
        where = {"provider": self.kind, "sandbox_id": sandbox_id, "state": str(folder / sandbox_id)}
        descriptor = {**where, **made.descriptor}
        meta = {"descriptor": descriptor, "key": key, "labels": dict(spec.labels), "created_at": time.time()}
        while True:
            birth = _Birth()
            try:
                await anyio.to_thread.run_sync(birth.claim, folder, sandbox_id, meta)
                if birth.state is not None:
                    await anyio.to_thread.run_sync(birth.launch, self, made, spec.ttl_s)
                    await birth.completed()
                    return KeptSandbox(descriptor)
            except BaseException:
                await birth.undone()
                raise
            finally:
                birth.close()
            existing = await self._existing(folder / sandbox_id)
            if existing is not None:
                return existing

    async def _existing(self, state: Path) -> KeptSandbox | None:
        """Return the sandbox that has a key already, once it is up; None when it died or is being stopped."""
        while await anyio.to_thread.run_sync(state_folder.is_held, state):
            meta = state_folder.read_meta(state)
            if meta is not None and (state / "ready").exists():
                return KeptSandbox(meta["descriptor"])
            await anyio.sleep(POLL_S)
        await anyio.to_thread.run_sync(self._sweep, state)
        return None

    def _sweep(self, state: Path) -> None:
        """Remove what a killed keeper left."""
        fd = state_folder.take_dead(state)
        if fd is not None:
            try:
                self.end_strays(state.name)
                state_folder.remove(state)
            finally:
                os.close(fd)
        elif not (state / "lock").exists():  # The lock is the last that is removed.
            state_folder.remove(state)

    async def connect(self, descriptor: Descriptor, *, timeout_s: float) -> KeptSandbox:
        """See `inspan_core.sandbox.SandboxProvider.connect`."""
        given = {name: descriptor.get(name) for name in ("provider", "sandbox_id", "state", "workdir")}
        for name, value in given.items():
            if not isinstance(value, str):
                raise SandboxConnectError(
                    f"descriptor of a {self.kind} sandbox: {name} is {value!r}, not a string"
                )
        if given["provider"] != self.kind:
            raise SandboxConnectError(
                f"this is a descriptor of provider {given['provider']!r}, not of {self.kind!r}"
            )
        state = Path(str(given["state"]))
        folder = self.runtime_dir / self.kind
        if state.parent != folder or state.name != given["sandbox_id"]:
            raise SandboxConnectError(
                f"descriptor of {given['sandbox_id']}: its state folder {state} is not in {folder}"
            )
        if not await anyio.to_thread.run_sync(state_folder.is_held, state):
            raise SandboxGone(f"{given['sandbox_id']} no longer exists")
        meta = state_folder.read_meta(state)
        if meta is None:
            raise SandboxGone(f"{given['sandbox_id']} no longer exists")
        sandbox = KeptSandbox({**meta["descriptor"], "workdir": given["workdir"]})
        try:
            await sandbox.ping(timeout_s=timeout_s)
        except SandboxTransportError as error:
            raise SandboxConnectError(str(error)) from error
        return sandbox

    async def stop(self, key: str, *, timeout_s: float) -> None:
        """See `inspan_core.sandbox.SandboxProvider.stop`."""
        sandbox_id = state_folder.sandbox_id_of(self.runtime_dir / self.kind, key)
        state = self.runtime_dir / self.kind / sandbox_id
        try:
            with anyio.fail_after(timeout_s):
                await self._stop(state)
        except TimeoutError as error:
            raise SandboxTransportError(
                f"stop of {sandbox_id}: not confirmed within {timeout_s:g} s"
            ) from error

    async def _stop(self, state: Path) -> None:
        # A creation in flight is joined first: it ends by itself, acknowledged or undone.
        existing = await self._existing(state)
        if existing is not None:
            await stop_kept(state, state.name)
            await anyio.to_thread.run_sync(self._sweep, state)

    async def find(self, labels: Mapping[str, str]) -> list[Descriptor]:
        """See `inspan_core.sandbox.SandboxProvider.list`."""
        return await anyio.to_thread.run_sync(self._find, dict(labels))

    def _find(self, labels: dict[str, str]) -> list[Descriptor]:
        found: list[Descriptor] = []
        for state in state_folder.folders_in(self.folder()):
            if not state_folder.is_held(state):
                self._sweep(state)
                continue
            meta = state_folder.read_meta(state)
            if meta is not None and (state / "ready").exists() and labels.items() <= meta["labels"].items():
                found.append(meta["descriptor"])
        return found


class _Birth:
    """A creation, until the keeper holds the sandbox and knows that somebody took it."""

    def __init__(self) -> None:
        self.state: Path | None = None
        self._lock_fd: int | None = None
        self._sock, self._theirs = socket.socketpair()
        self._starter: subprocess.Popen[bytes] | None = None
        self._keepers: KeptSandboxes | None = None

    def claim(self, folder: Path, sandbox_id: str, meta: Mapping[str, Any]) -> None:
        claimed = state_folder.claim(folder, sandbox_id, meta)
        if claimed is not None:
            self.state, self._lock_fd = claimed

    def launch(self, keepers: KeptSandboxes, plan: Plan, ttl_s: float | None) -> None:
        """Start the keeper and hand it its code and orders."""
        assert self.state is not None and self._lock_fd is not None
        self._keepers = keepers
        fd, lock_fd = self._theirs.fileno(), self._lock_fd
        script, feeds = os.pipe()
        try:
            os.write(feeds, boot.program(fd))
            os.close(feeds)
            with open(self.state / "log", "ab") as log:
                self._starter = subprocess.Popen(
                    boot.command(keepers.interpreter.path),
                    executable=keepers.interpreter.path,
                    stdin=script,
                    stdout=log,
                    stderr=log,
                    env={},
                    cwd="/",
                    pass_fds=(fd, lock_fd),
                    start_new_session=True,
                )
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
            if self._starter is not None:
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
        elif self._keepers is not None:
            self._keepers._sweep(self.state)

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
