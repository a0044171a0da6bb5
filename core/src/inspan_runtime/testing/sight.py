"""Looks into the sandbox of a harness under check, by a script inside: the same for each provider."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import resources
from typing import Any, Literal

from attrs import frozen

from inspan_core.sandbox import Sandbox

MARK = "INSPAN_CHECK"
LOOK_TIMEOUT_S = 60.0
ANSWER_LIMIT_BYTES = 16 * 1024 * 1024


@frozen(kw_only=True)
class Caller:
    """A process inside that holds a connection to the model.

    Attributes:
        pid: Its process id, as the sandbox counts.
        group: Its process group.
        leader_parent: The parent of the group's leader, or None when that is gone.
    """

    pid: int
    group: int
    leader_parent: int | None


@frozen(kw_only=True)
class Shown:
    """Where a word can be seen inside.

    Attributes:
        lines: Command lines that hold it.
        files: Files that hold it and that other users may read.
    """

    lines: Sequence[str]
    files: Sequence[str]


@frozen(kw_only=True)
class Sight:
    """What can be seen of one sandbox.

    Attributes:
        python: An interpreter inside.
        mark: What its processes carry in their environment, where they live beside others; None: all of
            the sandbox's processes are its own.
    """

    sandbox: Sandbox
    python: str
    mark: str | None

    async def processes(self) -> set[int]:
        """Who lives."""
        return set(await self._ask("processes", mark=self.mark))

    async def callers(self, port: int) -> tuple[Caller, ...]:
        """Who holds a connection to a port of the loopback."""
        return tuple(Caller(**each) for each in await self._ask("callers", port=port))

    async def shown(self, word: str, folder: str) -> Shown:
        """Where a word can be seen, in command lines and in files below a folder."""
        return Shown(**await self._ask("shown", word=word, folder=folder))

    async def tree(self, folders: Iterable[str]) -> set[str]:
        """Every path below some folders."""
        return set(await self._ask("tree", folders=list(folders)))

    async def spoil(self, how: Literal["huge", "link", "fifo"], paths: Iterable[str], outside: str) -> None:
        """Put in the place of files a terabyte of nothing, a link to `outside`, or a pipe."""
        await self._ask("spoil", how=how, paths=list(paths), outside=outside)

    async def _ask(self, what: str, **more: Any) -> Any:
        asked = json.dumps({"what": what, **more}).encode()
        command = [self.python, "-I", "-S", "-c", _script()]
        ended = await self.sandbox.exec(
            command, timeout_s=LOOK_TIMEOUT_S, stdin=asked, output_limit_bytes=ANSWER_LIMIT_BYTES
        )
        if ended.exit_code != 0:
            raise RuntimeError(f"cannot look into {self.sandbox.sandbox_id}: {ended.stderr.decode()}")
        return json.loads(ended.stdout)


@cache
def _script() -> str:
    return resources.files("inspan_runtime.testing").joinpath("look_inside.py").read_text()
