"""An asyncio event loop that is stepped by hand: a chooser says which ready task goes next, time is virtual.

Only the order of *tasks* is chosen, for that is what nobody may rely on (trio shuffles it, too). Plain
callbacks keep asyncio's own order. Timers fire when no task is ready, so nothing ever sleeps: an hour of
timeouts takes as long as the steps in it. There are no threads and no sockets: what needs them fails loudly.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextvars import Context
from inspect import CORO_CREATED, getcoroutinestate
from typing import Any, TypeVar, cast

from inspan_runtime.testing.clock import VirtualClock

T = TypeVar("T")

Chooser = Callable[[Sequence[asyncio.Handle]], int]
"""Given the ready steps of tasks, oldest first, says by its index which one goes next."""

STEPS_LIMIT = 100_000
IDLE_CALLBACKS = 16
"""So many callbacks in a row without a task: anyio asks again and again whether a shielded task has ended."""


class Stuck(AssertionError):
    """Nothing can happen any more, or no end is in sight; the message says which."""


def in_order(steps: Sequence[asyncio.Handle]) -> int:
    """The chooser that asyncio is: first come, first served."""
    return 0


def task_of(handle: asyncio.Handle) -> asyncio.Task[Any] | None:
    """The task that a ready handle goes on with, or None for a plain callback."""
    owner = getattr(handle._callback, "__self__", None)  # type: ignore[attr-defined]  # as asyncio's debug log
    return owner if isinstance(owner, asyncio.Task) else None


class _Task(asyncio.Task[Any]):
    """A task whose place in a set does not depend on its address: anyio cancels a set of tasks in turn."""

    def __init__(self, number: int, coro: Any, **options: Any) -> None:
        self._number = number  # First, for asyncio puts the task into a set of its own.
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self._number


class SteppedLoop:
    """See the top of this page. It has what tasks, futures and anyio ask of a loop, and no more.

    Args:
        clock: Its time, which may outlive the loop.
        choose: Picks among ready tasks.
        until_s: The clock's time at which the loop gives up.
    """

    def __init__(
        self, clock: VirtualClock, choose: Chooser = in_order, *, until_s: float = float("inf")
    ) -> None:
        self.clock = clock
        self.choose = choose
        self.until_s = until_s
        self.steps = 0
        self.troubles: list[dict[str, Any]] = []
        self._ready: deque[asyncio.Handle] = deque()
        self._callbacks_in_a_row = 0
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._order = itertools.count()
        self._stopping = False
        self._running = False
        self._closed = False

    def run_until_complete(self, future: Any) -> Any:
        """Run until the coroutine or future is done, or `stop` was called.

        Returns:
            Its result; None when the loop was stopped before.

        Raises:
            Stuck: It waits for something that never comes, or too long.
        """
        task = future if isinstance(future, asyncio.Future) else self.create_task(future)
        self._run(task.done)
        return task.result() if task.done() else None

    def run_forever(self) -> None:
        """Run until `stop`."""
        self._run(lambda: False)

    def drain(self, limit: int = 5000) -> None:
        """Cancel every task and let each run its clean-up, without time; what does not end is left."""
        self.choose, cancelled = in_order, set[asyncio.Task[Any]]()
        self._enter()
        try:
            while limit:
                limit -= 1
                # One that has not begun has nothing to clean up; it begins, and is cancelled then.
                begun = {
                    task
                    for task in asyncio.all_tasks(self._as_loop) - cancelled
                    if getcoroutinestate(task.get_coro()) != CORO_CREATED  # type: ignore[arg-type]
                }
                for task in begun:
                    task.cancel()
                cancelled |= begun
                if any(task_of(handle) is not None for handle in self._ready):
                    self._callbacks_in_a_row = 0
                if not self._can_step():
                    return
                self._step()
        finally:
            self._leave()

    def _run(self, done: Callable[[], bool]) -> None:
        self._stopping = False
        self._enter()
        try:
            while not (done() or self._stopping):
                self.steps += 1
                if self.steps > STEPS_LIMIT:
                    raise Stuck(f"{STEPS_LIMIT} steps were taken, and no end is in sight")
                if self._can_step():
                    self._step()
                else:
                    self._advance()
        finally:
            self._leave()

    def _enter(self) -> None:
        if self._running or events._get_running_loop() is not None:
            raise RuntimeError("another event loop is running in this thread")
        self._running = True
        events._set_running_loop(self._as_loop)

    def _leave(self) -> None:
        self._running = False
        events._set_running_loop(None)

    def _can_step(self) -> bool:
        return bool(self._ready) and self._callbacks_in_a_row < IDLE_CALLBACKS + len(self._ready)

    def _step(self) -> None:
        handle = self._ready[0]
        if task_of(handle) is None:
            self._callbacks_in_a_row += 1
            self._ready.popleft()
        else:
            self._callbacks_in_a_row = 0
            steps = [each for each in self._ready if task_of(each) is not None]
            if len(steps) > 1:
                handle = steps[self.choose(steps)]
            self._ready.remove(handle)
        if not handle._cancelled:
            handle._run()

    def _advance(self) -> None:
        self._callbacks_in_a_row = 0
        while self._timers and self._timers[0][2].cancelled():
            heapq.heappop(self._timers)
        timer_at = self._timers[0][0] if self._timers else None
        world_at = self.clock.next_at
        if timer_at is None and world_at is None:
            raise Stuck("every task waits for something that nobody will do")
        earliest = min(at for at in (timer_at, world_at) if at is not None)
        if earliest > self.until_s:
            raise Stuck(f"nothing came to its end within {self.until_s - self.clock.now:g} s more")
        if world_at is not None and (timer_at is None or world_at <= timer_at):
            self.clock.happen()
            return
        at, _, timer = heapq.heappop(self._timers)
        self.clock.pass_to(at)
        self._enqueue(timer)

    # --- what asyncio and anyio ask of a loop ----------------------------------------------------

    @property
    def _as_loop(self) -> asyncio.AbstractEventLoop:
        return cast(asyncio.AbstractEventLoop, self)

    def _enqueue(self, handle: asyncio.Handle) -> None:
        self._ready.append(handle)

    def time(self) -> float:
        """The virtual time."""
        return self.clock.now

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Have a callback run in this very moment of virtual time."""
        handle = asyncio.Handle(callback, args, self._as_loop, context)
        self._enqueue(handle)
        return handle

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Have a callback run after `delay` seconds of virtual time."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Have a callback run at a virtual time."""
        timer = asyncio.TimerHandle(when, callback, args, self._as_loop, context)
        heapq.heappush(self._timers, (when, next(self._order), timer))
        return timer

    def create_future(self) -> asyncio.Future[Any]:
        """Make a future of this loop."""
        return asyncio.Future(loop=self._as_loop)

    def create_task(
        self,
        coro: Coroutine[Any, Any, T] | Generator[Any, None, T],
        *,
        name: object = None,
        context: Any = None,
    ) -> asyncio.Task[T]:
        """Make a task of this loop."""
        name_text = None if name is None else str(name)
        return _Task(next(self._order), coro, loop=self._as_loop, name=name_text, context=context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Keep what nobody caught in `troubles`."""
        self.troubles.append(context)

    def get_debug(self) -> bool:
        """Never."""
        return False

    def get_task_factory(self) -> None:
        """The usual one."""
        return None

    def is_running(self) -> bool:
        """Whether a step is being taken."""
        return self._running

    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def stop(self) -> None:
        """Take no further step."""
        self._stopping = True

    def close(self) -> None:
        """Forget everything that is still to come."""
        self._closed = True
        self._ready.clear()
        self._timers.clear()

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """A cancelled timer is passed over when its time comes."""

    async def shutdown_asyncgens(self) -> None:
        """There are none to look after."""

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """There is none."""
