"""Parsers run away from the event loop: one that hangs, breaks or ends its process harms nobody else."""

from __future__ import annotations

import sys
import threading
from contextvars import ContextVar

import anyio
import pytest

from inspan_core.errors import InspanError
from inspan_runtime.parser_threads import THREADS, ParserThreads

pytestmark = pytest.mark.anyio
HELD: ContextVar[str] = ContextVar("held", default="nothing")


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


async def test_a_call_runs_in_another_thread_with_the_callers_context():
    threads = ParserThreads()
    HELD.set("something")
    ran = await threads.run(lambda: (threading.get_ident(), HELD.get()))
    assert ran[0] != threading.get_ident()
    assert ran[1] == "something"


async def test_what_a_call_raises_is_raised_here():
    threads = ParserThreads()
    with pytest.raises(ZeroDivisionError):
        await threads.run(lambda: 1 // 0)
    assert await threads.run(lambda: 2) == 2


async def test_a_call_that_would_end_the_process_is_an_error(anyio_backend):
    if anyio_backend == "trio":
        with pytest.raises(SystemExit):
            await ParserThreads().run(lambda: sys.exit(3))
        return
    with pytest.raises(InspanError, match="SystemExit"):
        await ParserThreads().run(lambda: sys.exit(3))
    with pytest.raises(InspanError, match="StopIteration"):
        await ParserThreads().run(lambda: next(iter(())))


async def test_calls_that_hang_are_left_behind_and_others_go_on():
    threads, released = ParserThreads(), threading.Event()
    try:
        for _ in range(THREADS + 1):
            with anyio.move_on_after(0.05) as bound:
                await threads.run(lambda: released.wait(60))
            assert bound.cancelled_caught
        with anyio.fail_after(30):
            assert await threads.run(lambda: "went on") == "went on"
    finally:
        released.set()


async def test_more_calls_at_once_than_threads_all_end():
    threads, results = ParserThreads(), []

    async def call(number: int) -> None:
        results.append(await threads.run(lambda: number))

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            for number in range(10 * THREADS):
                tasks.start_soon(call, number)
    assert sorted(results) == list(range(10 * THREADS))
