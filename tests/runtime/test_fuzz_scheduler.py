"""The stepped loop: virtual time, chosen order, anyio's own behaviour."""

from __future__ import annotations

import asyncio
import time

import anyio
import anyio.lowlevel
import pytest

from inspan_runtime.testing.clock import VirtualClock
from inspan_runtime.testing.fake_provider import FakeProvider
from inspan_runtime.testing.fake_world import FakeWorld
from inspan_runtime.testing.scheduler import SteppedLoop, Stuck
from inspan_runtime.testing.schedules import Delay, Schedule, Scheduler, doing


async def three_workers():
    seen = []

    async def work(name):
        for turn in range(3):
            seen.append(f"{name}{turn}")
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as group:
        for name in "abc":
            group.start_soon(work, name)
    return " ".join(seen)


def played(main, choose=None, **options):
    clock = VirtualClock()
    loop = SteppedLoop(clock, **({"choose": choose} if choose else {}), **options)
    return loop.run_until_complete(main())


def test_in_order_it_is_what_asyncio_does():
    assert played(three_workers) == anyio.run(three_workers) == "a0 b0 c0 a1 b1 c1 a2 b2 c2"


def test_a_chooser_reaches_every_order():
    orders = set()
    for seed in range(60):
        orders.add(played(three_workers, Scheduler(Schedule(shuffle=seed + 1), lambda _: None)))
    assert len(orders) > 40
    assert all(sorted(order.split()) == sorted("a0 a1 a2 b0 b1 b2 c0 c1 c2".split()) for order in orders)


def test_a_delay_holds_one_task_back():
    said = []
    schedule = Scheduler(Schedule(delays=(Delay(decision=1, turns=20),)), said.append)
    assert played(three_workers, schedule) == "b0 c0 b1 c1 b2 c2 a0 a1 a2"
    assert said == ["held back for 20 turns: a task that has not begun"]


@pytest.mark.parametrize("shuffle", [1, 2])
def test_a_shuffle_is_the_same_each_time(shuffle):
    def once():
        return played(three_workers, Scheduler(Schedule(shuffle=shuffle), lambda _: None))

    assert once() == once()
    assert once() != played(three_workers)


def test_hours_pass_at_once_and_in_order():
    async def main():
        seen = []

        async def sleeper(seconds):
            await anyio.sleep(seconds)
            seen.append((seconds, anyio.current_time() - start))

        start = anyio.current_time()
        async with anyio.create_task_group() as group:
            for seconds in (7200.0, 0.5, 3600.0):
                group.start_soon(sleeper, seconds)
        with anyio.move_on_after(86_400.0) as scope:
            await anyio.sleep_forever()
        return seen, scope.cancelled_caught, anyio.current_time() - start

    began = time.process_time()
    seen, caught, passed = played(main)
    assert seen == [(0.5, 0.5), (3600.0, 3600.0), (7200.0, 7200.0)]
    assert caught and passed == 7200.0 + 86_400.0
    assert time.process_time() - began < 60.0


def test_the_world_happens_between_timers_and_outlives_a_loop():
    clock, seen = VirtualClock(), []
    for delay_s in (3.0, 1.0, 1.0):
        clock.later(delay_s, lambda delay_s=delay_s: seen.append((delay_s, clock.now)))
    start = clock.now
    SteppedLoop(clock).run_until_complete(anyio.sleep(2.0))
    assert seen == [(1.0, start + 1.0), (1.0, start + 1.0)]
    SteppedLoop(clock).run_until_complete(anyio.sleep(2.0))
    assert seen[-1] == (3.0, start + 3.0) and clock.now == start + 4.0


def test_a_shielded_cleanup_ends_although_anyio_keeps_asking():
    async def main():
        async with anyio.create_task_group() as group:

            async def stubborn():
                try:
                    await anyio.sleep_forever()
                finally:
                    with anyio.CancelScope(shield=True):
                        await anyio.sleep(50.0)

            group.start_soon(stubborn)
            await anyio.sleep(1.0)
            group.cancel_scope.cancel()
        return anyio.current_time()

    clock = VirtualClock()
    start = clock.now
    assert SteppedLoop(clock).run_until_complete(main()) == start + 51.0


def test_waiting_for_nobody_is_told():
    with pytest.raises(Stuck, match="waits for something that nobody will do"):
        played(lambda: anyio.Event().wait())
    with pytest.raises(Stuck, match="within 10 s more"):
        clock = VirtualClock()
        SteppedLoop(clock, until_s=clock.now + 10.0).run_until_complete(anyio.sleep(11.0))

    async def spins():
        while True:
            await anyio.lowlevel.checkpoint()

    with pytest.raises(Stuck, match="no end is in sight"):
        played(spins)


def test_drain_lets_every_task_clean_up_and_no_time_pass():
    ended = []

    async def main():
        async def task(name):
            try:
                await anyio.sleep_forever()
            finally:
                ended.append(name)

        async with anyio.create_task_group() as group:
            group.start_soon(task, "one")
            group.start_soon(task, "two")
            await anyio.sleep(1.0)
            asyncio.get_running_loop().stop()
            group.start_soon(task, "three")
            await anyio.sleep_forever()

    clock = VirtualClock()
    loop = SteppedLoop(clock)
    assert loop.run_until_complete(main()) is None
    stopped_at = clock.now
    loop.drain()
    assert sorted(ended) == ["one", "three", "two"]
    assert clock.now == stopped_at
    assert not asyncio.all_tasks(loop)


def test_errors_come_out_as_they_are():
    async def main():
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        played(main)


def test_there_are_no_threads_and_no_sockets():
    async def executor():
        await asyncio.get_running_loop().run_in_executor(None, len, "x")

    with pytest.raises(AttributeError, match="run_in_executor"):
        played(executor)
    with pytest.raises(AttributeError, match="create_connection"):
        played(lambda: asyncio.open_connection("127.0.0.1", 1))


def test_a_task_is_described_by_where_it_is():
    world = FakeWorld()
    said = []

    async def main():
        task = asyncio.get_running_loop().create_task(FakeProvider(world).stop("nobody"))
        await anyio.sleep(0.0)
        said.append(doing(task))
        await task

    SteppedLoop(world.clock).run_until_complete(main())
    assert said == ["FakeProvider.stop > Caller._call > Caller._travel"]
