"""Waiting on behalf of somebody who may go away meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias, TypeVar

import anyio

from inspan_core.errors import InspanError

T = TypeVar("T")


class Client(Protocol):
    """Whoever waits for a reply, as a connection that says by a call that it is gone: nobody is cancelled."""

    def watch(self, gone: Callable[[], None]) -> None:
        """Have `gone` called, once and on the event loop, when the client goes; at once if it is gone."""
        ...

    def unwatch(self) -> None:
        """Forget that; called at the end in any case."""
        ...


Gone: TypeAlias = Callable[[], Awaitable[None]] | Client
"""A callable returns when whoever waits has gone away, or is cancelled when the reply is there."""


class Bell:
    """Rings once, for one who waits; on asyncio it is a bare future, which costs half of an event."""

    __slots__ = ("_event", "_future")

    def __init__(self) -> None:
        self._event: anyio.Event | None = None
        self._future: asyncio.Future[None] | None = None
        try:
            self._future = asyncio.get_running_loop().create_future()
        except RuntimeError:
            self._event = anyio.Event()

    def ring(self) -> None:
        """End the wait."""
        if self._event is not None:
            self._event.set()
        elif self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def wait(self) -> None:
        """Wait until it rings."""
        if self._event is not None:
            await self._event.wait()
        elif self._future is not None:
            await self._future


class WaiterGone(InspanError):
    """Whoever waited for a reply went away first; what was asked for goes on."""


async def wait_gone(gone: Gone) -> None:
    """Wait until nobody waits any more."""
    if callable(gone):
        await gone()
        return
    bell = Bell()
    gone.watch(bell.ring)
    try:
        await bell.wait()
    finally:
        gone.unwatch()


async def unless_gone(gone: Gone | None, call: Callable[[], Awaitable[T]]) -> T:
    """What `call` returns; it is cancelled when nobody waits for that any more.

    Raises:
        WaiterGone: `gone` returned first.
    """
    if gone is None:
        return await call()
    results: list[T] = []
    failures: list[Exception] = []

    async def ask(scope: anyio.CancelScope) -> None:
        try:
            results.append(await call())
        except Exception as error:  # raised below, so that it does not come wrapped in a group
            failures.append(error)
        scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask, tasks.cancel_scope)
        await wait_gone(gone)
        tasks.cancel_scope.cancel()
    if failures:
        raise failures[0]
    if not results:
        raise WaiterGone("nobody waits for the answer any more")
    return results[0]
