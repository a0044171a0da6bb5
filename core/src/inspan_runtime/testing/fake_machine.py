"""The inside of a fake sandbox: files, and the supervisors that run in it. It lives on when servers die."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

import anyio
from attrs import define, field

from inspan_core.sandbox import SandboxSpec

if TYPE_CHECKING:
    from inspan_runtime.testing.fake_supervisor import FakeSupervisor

FIRST_PID = 100


@define
class FakeFile:
    """A regular file."""

    data: bytes
    mode: int


@define(eq=False)
class FakeMachine:
    """One sandbox as it is, whoever is connected to it.

    Attributes:
        sandbox_id: The provider's name for it.
        key: What it was created under; None for one that was supplied.
        spec: What it was created from.
        is_alive: Whether it still exists.
        files: By absolute path.
        folders: Absolute paths, parents included.
        supervisors: Every supervisor that was ever started in it.
    """

    sandbox_id: str
    key: str | None
    spec: SandboxSpec
    is_alive: bool = True
    files: dict[str, FakeFile] = field(factory=dict)
    folders: set[str] = field(factory=lambda: {"/"})
    supervisors: list[FakeSupervisor] = field(factory=list)
    _changed: anyio.Event | None = None

    def exists(self, path: str) -> bool:
        """Whether there is a file or a folder by that path."""
        return path in self.files or path in self.folders

    def make_folder(self, path: str) -> None:
        """As ``mkdir -p``."""
        while path not in self.folders:
            self.folders.add(path)
            path = posixpath.dirname(path)

    def write(self, path: str, data: bytes, mode: int = 0o600) -> None:
        """Put a whole file there, with its parents."""
        self.make_folder(posixpath.dirname(path))
        self.files[path] = FakeFile(data, mode)
        self.change()

    def remove(self, path: str) -> None:
        """As ``rm -rf``."""
        below = path + "/"
        for name in [name for name in self.files if name == path or name.startswith(below)]:
            del self.files[name]
        self.folders -= {name for name in self.folders if name == path or name.startswith(below)}
        self.change()

    def below(self, folder: str) -> dict[str, bytes]:
        """The files of a folder by their names in it."""
        start = folder + "/"
        return {name[len(start) :]: file.data for name, file in self.files.items() if name.startswith(start)}

    def lives(self, pid: int) -> bool:
        """Whether a supervisor by that pid lives."""
        return any(each.pid == pid and each.lives for each in self.supervisors)

    @property
    def next_pid(self) -> int:
        """A pid that nobody had."""
        return FIRST_PID + len(self.supervisors)

    def end(self) -> None:
        """End the sandbox, with everything in it."""
        self.is_alive = False
        for supervisor in self.supervisors:
            supervisor.vanish()
        self.change()

    def change(self) -> None:
        """Let supervisors look, and wake whoever waits for a change."""
        for supervisor in self.supervisors:
            supervisor.look()
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    async def changed(self) -> None:
        """Wait for the next change of anything."""
        if self._changed is None:
            self._changed = anyio.Event()
        await self._changed.wait()

    def forget_waiters(self) -> None:
        """Whoever waited for a change is dead."""
        self._changed = None
