"""Where one host call runs: a private folder below the server's own, in the shape of a provider.

Its shape lets a session's steps run unchanged; nothing of it can be configured or referred to by a seed, and
no sandbox is created: there is a folder, and children of the server.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import anyio
from attrs import define, field, frozen

from inspan_core.errors import SandboxCreateError, SandboxGone
from inspan_core.sandbox import Descriptor, Sandbox, SandboxSpec
from inspan_runtime.host_sandbox import HostSandbox
from inspan_runtime.providers import state_folder
from inspan_runtime.providers.strays import end_strays

NAME = "host"
CALL_ID = re.compile(r"host-[0-9a-z]+")


@define
class HostPlace:
    """Makes and removes the folder of one call; implements `inspan_core.sandbox.SandboxProvider`.

    Attributes:
        root: The server's folder for host calls, made with mode 0700 if needed.
        call_id: Names the call's folder.
    """

    root: Path
    call_id: str
    name: str = NAME
    _sandbox: HostSandbox | None = field(default=None, init=False)

    @property
    def folder(self) -> Path:
        """The call's folder."""
        return self.root / self.call_id

    @property
    def workdir(self) -> str:
        """Where the harness runs: empty at the beginning."""
        return str(self.folder / "work")

    @property
    def session_dir(self) -> str:
        """The session's own files, apart from the workdir."""
        return str(self.folder / "scratch" / self.call_id)

    async def create(self, spec: SandboxSpec, *, key: str, timeout_s: float = 60.0) -> Sandbox:
        """Make the folder, with mode 0700 and a lock that tells whether its server lives."""
        self._sandbox = await anyio.to_thread.run_sync(self._make, spec)
        return self._sandbox

    def _make(self, spec: SandboxSpec) -> HostSandbox:
        state_folder.prepare_folder(self.root)
        try:
            claimed = state_folder.claim(self.root, self.call_id, {"call": self.call_id})
            if claimed is None:
                raise SandboxCreateError(f"the host call's folder {self.folder} is taken")
            folder, lock_fd = claimed
            os.makedirs(spec.workdir, mode=0o700, exist_ok=True)
        except OSError as error:
            raise SandboxCreateError(f"a folder in {self.root} cannot be made: {error.strerror}") from error
        return HostSandbox(folder, lock_fd, spec.workdir, spec.env)

    async def connect(self, descriptor: Descriptor, *, timeout_s: float = 30.0) -> Sandbox:
        """A host call ends with its server: there is nothing that one could come back to."""
        raise SandboxGone(f"host call {self.call_id} ended with its server")

    async def stop(self, key: str, *, timeout_s: float = 30.0) -> None:
        """End what came from the call and remove its folder; none is success."""
        if self._sandbox is not None:
            await self._sandbox.stop()

    async def list(self, labels: Mapping[str, str]) -> list[Descriptor]:
        """Nothing that a reaper would have to know."""
        return []

    async def aclose(self) -> None:
        """Nothing is held in this process."""


@frozen
class Swept:
    """What a sweep did.

    Attributes:
        ended: Ids of the calls whose processes were ended and whose folders are gone.
        left: Ids of those whose folder is held by a living process, or could not be removed.
    """

    ended: tuple[str, ...]
    left: tuple[str, ...]


def sweep_host_calls(root: Path) -> Swept:
    """End and remove what calls of a killed server left in a folder."""
    ended: list[str] = []
    left: list[str] = []
    for folder in _folders_in(root):
        (ended if _is_swept(folder) else left).append(folder.name)
    return Swept(tuple(ended), tuple(left))


def _folders_in(root: Path) -> Iterator[Path]:
    """Folders of calls, and of those whose server was killed while it made them."""
    if root.is_dir():
        yield from state_folder.folders_in(root, CALL_ID)
        # One without a lock may be a living server's, of this moment.
        yield from (begun for begun in root.glob(f"{state_folder.NEW}*") if (begun / "lock").exists())


def _is_swept(folder: Path) -> bool:
    lock_fd = state_folder.take_dead(folder)
    if lock_fd is None and (folder / "lock").exists():
        return False
    # One without a lock was half removed by a server that was killed meanwhile.
    try:
        end_strays(folder)
        state_folder.remove(folder)
    finally:
        if lock_fd is not None:
            os.close(lock_fd)
    return not folder.exists()
