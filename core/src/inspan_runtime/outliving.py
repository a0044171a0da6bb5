"""Tasks that outlive whoever starts them, and end with their owner.

On asyncio they are plain tasks, each with a scope by which it is cancelled in the end: to start one costs
half of what a task group asks for. On other loops they are a task group's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import anyio
import anyio.abc

log = logging.getLogger(__name__)


class OutlivingTasks:
    """Tasks whose errors are logged and end nobody else."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._scopes: set[anyio.CancelScope] = set()
        self._group: anyio.abc.TaskGroup | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_ending = False

    async def open(self) -> None:
        """Begin; tasks may be started from now on."""
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError:
            self._group = await anyio.create_task_group().__aenter__()

    def start(self, call: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a coroutine function in a task of its own."""
        if self._loop is not None:
            task = self._loop.create_task(self._run(call))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif self._group is not None:
            self._group.start_soon(self._fenced, call)

    async def close(self) -> None:
        """Cancel all tasks and wait for their ends."""
        self._is_ending = True
        if self._group is not None:
            self._group.cancel_scope.cancel()
            await self._group.__aexit__(None, None, None)
            return
        for scope in list(self._scopes):
            scope.cancel()
        with anyio.CancelScope(shield=True):
            while self._tasks:
                await asyncio.wait(self._tasks)

    async def _run(self, call: Callable[[], Coroutine[Any, Any, None]]) -> None:
        with anyio.CancelScope() as scope:
            if self._is_ending:
                scope.cancel()
            self._scopes.add(scope)
            try:
                await self._fenced(call)
            finally:
                self._scopes.discard(scope)

    async def _fenced(self, call: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await call()
        except Exception:  # the fence between sessions: one that breaks must not end the others
            log.exception("a session's task failed")
