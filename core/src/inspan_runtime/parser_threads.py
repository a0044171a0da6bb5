"""Threads for parsers: a session is parsed away from the event loop, which goes on whatever a parser does.

On asyncio they are threads of our own, which wait in a lock instead of a queue with conditions: to hand one
parse over costs half of what a general pool takes. On other loops the loop's own pool is used.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

import anyio.to_thread

from inspan_core.errors import InspanError

T = TypeVar("T")
THREADS = 8
"""So many at most; a parse that finds them all busy goes to the loop's own pool, which has a bound too."""

_Job = tuple[Callable[[], Any], "asyncio.Future[Any]"]


class _Thread:
    """Does one job after the other, and says each time that it is idle again."""

    def __init__(self, idle: list[_Thread]) -> None:
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._idle = idle
        threading.Thread(target=self._run, name="inspan-parser", daemon=True).start()

    def give(self, job: _Job) -> None:
        self._jobs.put(job)

    def _run(self) -> None:
        while True:
            self._work(*self._jobs.get())

    def _work(self, call: Callable[[], Any], future: asyncio.Future[Any]) -> None:
        result: Any = None
        problem: Exception | None = None
        try:
            result = call()
        except Exception as error:  # raised where the result is awaited
            problem = error if not isinstance(error, StopIteration) else _unusable(error)
        except BaseException as error:  # one parser must not end the server
            problem = _unusable(error)
        self._idle.append(self)
        with suppress(RuntimeError):  # The loop may be closed by now.
            future.get_loop().call_soon_threadsafe(_resolve, future, result, problem)


class ParserThreads:
    """Runs calls in threads that are kept. A call that is abandoned keeps its thread until it ends."""

    def __init__(self) -> None:
        self._idle: list[_Thread] = []
        self._started = 0

    async def run(self, call: Callable[[], T]) -> T:
        """What `call` returns or raises. Being cancelled leaves it behind: it goes on for nobody."""
        if not _is_in_asyncio():
            return await anyio.to_thread.run_sync(call, abandon_on_cancel=True)
        thread = self._thread()
        if thread is None:
            return await anyio.to_thread.run_sync(call, abandon_on_cancel=True)
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        context = contextvars.copy_context()
        thread.give((lambda: context.run(call), future))
        return await future

    def _thread(self) -> _Thread | None:
        with suppress(IndexError):  # Loops of other threads may take them too.
            return self._idle.pop()
        if self._started >= THREADS:
            return None
        self._started += 1
        return _Thread(self._idle)


def _is_in_asyncio() -> bool:
    try:
        return asyncio.current_task() is not None
    except RuntimeError:
        return False


def _resolve(future: asyncio.Future[Any], result: Any, problem: Exception | None) -> None:
    if future.done():
        return  # Nobody waits for it any more.
    if problem is None:
        future.set_result(result)
    else:
        future.set_exception(problem)


def _unusable(error: BaseException) -> InspanError:
    unusable = InspanError(f"the parser raised {type(error).__name__}: {error}")
    unusable.__cause__ = error
    return unusable
