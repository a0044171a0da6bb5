"""Create, find and stop sandboxes that keepers hold: what the embedded providers share."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import anyio
from attrs import define, field

from inspan_core.errors import (
    SandboxConnectError,
    SandboxCreateError,
    SandboxGone,
    SandboxTransportError,
)
from inspan_core.sandbox import Descriptor, SandboxSpec
from inspan_runtime.providers import state_folder
from inspan_runtime.providers.birth import Birth, KeeperRefused, Plan
from inspan_runtime.providers.holding import HeldSandbox, held_in
from inspan_runtime.providers.interpreter import Interpreter
from inspan_runtime.providers.kept_sandbox import KeptSandbox, stop_kept

POLL_S = 0.005
ANSWER_LIMIT_S = 10.0

__all__ = ["KeeperRefused", "KeptSandboxes", "Plan"]


def _ignore(_folder: Path) -> None:
    return None


@define
class KeptSandboxes:
    """The sandboxes of one kind below one runtime folder.

    Attributes:
        kind: The provider's name.
        runtime_dir: Where the state folders are.
        interpreter: What runs the keepers.
        end_strays: Called with the folder of a sandbox whose keeper was killed, before it is removed.
    """

    kind: str
    runtime_dir: Path
    interpreter: Interpreter
    end_strays: Callable[[Path], None] = field(default=_ignore)

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
            birth = Birth(self.interpreter, self.sweep)
            try:
                await anyio.to_thread.run_sync(birth.claim, folder, sandbox_id, meta)
                if birth.state is not None:
                    await anyio.to_thread.run_sync(birth.launch, made, spec.ttl_s)
                    await birth.completed()
                    return KeptSandbox(descriptor, self.sweep)
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
                sandbox = KeptSandbox(meta["descriptor"], self.sweep)
                if await _answers(sandbox):
                    await anyio.to_thread.run_sync(state_folder.add_holder, state)
                    return sandbox
            await anyio.sleep(POLL_S)
        await anyio.to_thread.run_sync(self.sweep, state)
        return None

    def sweep(self, state: Path) -> None:
        """Remove what a killed keeper left."""
        fd = state_folder.take_dead(state)
        if fd is not None:
            try:
                self.end_strays(state)
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
        if not state_folder.SANDBOX_ID.fullmatch(str(given["sandbox_id"])):
            raise SandboxConnectError(
                f"descriptor of a {self.kind} sandbox: sandbox_id is {given['sandbox_id']!r}, "
                f"not a name that this provider gives"
            )
        if not str(given["workdir"]).startswith("/") or "\0" in str(given["workdir"]):
            raise SandboxConnectError(
                f"descriptor of {given['sandbox_id']}: workdir is {given['workdir']!r}, not an absolute path"
            )
        state = Path(str(given["state"]))
        folder = self.runtime_dir / self.kind
        if state.parent != folder or state.name != given["sandbox_id"]:
            raise SandboxConnectError(
                f"descriptor of {given['sandbox_id']}: its state folder {state} is not in {folder}"
            )
        if not await anyio.to_thread.run_sync(state_folder.is_held, state):
            raise SandboxGone(f"{given['sandbox_id']} no longer exists{state_folder.ending_of(state)}")
        meta = state_folder.read_meta(state)
        if meta is None:
            raise SandboxGone(f"{given['sandbox_id']} no longer exists{state_folder.ending_of(state)}")
        sandbox = KeptSandbox({**meta["descriptor"], "workdir": given["workdir"]}, self.sweep)
        await anyio.to_thread.run_sync(state_folder.add_holder, state)
        await sandbox.ping(timeout_s=timeout_s)
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
            await anyio.to_thread.run_sync(self.sweep, state)

    async def held(self) -> tuple[HeldSandbox, ...]:
        """See `inspan_runtime.providers.holding.HoldingProvider.held`."""
        return await anyio.to_thread.run_sync(held_in, self.runtime_dir / self.kind)

    async def remove(self, held: HeldSandbox) -> None:
        """See `inspan_runtime.providers.holding.HoldingProvider.remove`."""
        state = self.runtime_dir / self.kind / held.sandbox_id
        await stop_kept(state, held.sandbox_id)
        await anyio.to_thread.run_sync(self.sweep, state)

    async def find(self, labels: Mapping[str, str]) -> list[Descriptor]:
        """See `inspan_core.sandbox.SandboxProvider.list`."""
        return await anyio.to_thread.run_sync(self._find, dict(labels))

    def _find(self, labels: dict[str, str]) -> list[Descriptor]:
        found: list[Descriptor] = []
        for state in state_folder.folders_in(self.folder()):
            if not state_folder.is_held(state):
                self.sweep(state)
                continue
            meta = state_folder.read_meta(state)
            if meta is not None and (state / "ready").exists() and labels.items() <= meta["labels"].items():
                found.append(meta["descriptor"])
        return found


async def _answers(sandbox: KeptSandbox) -> bool:
    """Whether a sandbox is more than its keeper, which may not have seen yet that it died."""
    if sandbox.descriptor.get("agent") is False:
        return True
    try:
        await sandbox.ping(timeout_s=ANSWER_LIMIT_S)
    except SandboxGone:
        return False
    except SandboxTransportError:  # It is there, and slow.
        return True
    return True
