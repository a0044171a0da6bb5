"""Concurrency slots: never more than there are, in the order of asking, and none is lost with a waiter."""

from __future__ import annotations

import anyio
import pytest

from inspan_runtime.slots import SlotPool
from inspan_runtime.testing.played_world import until

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


def takers(count):
    """A pool, who has got a slot of it, and how one asks for it."""
    pool, got = SlotPool(count), []

    async def take(name):
        await pool.take(name)
        got.append(name)

    return pool, got, take


async def test_slots_are_given_out_in_the_order_of_asking_and_never_more_than_there_are():
    pool, got, take = takers(2)

    async with anyio.create_task_group() as group:
        for name in "abcde":
            group.start_soon(take, name)
            await anyio.sleep(0.005)
        await until(lambda: got == ["a", "b"])
        assert pool.taken == 2
        for done, successor in zip("abc", "cde", strict=True):
            pool.give_back(done)
            assert pool.taken == 2
            await until(lambda: got[-1] == successor)  # noqa: B023
        assert got == ["a", "b", "c", "d", "e"]
        pool.give_back("d")
        pool.give_back("e")
        assert pool.taken == 0


async def test_one_that_waits_and_leaves_takes_no_slot_with_it():
    pool, got, take = takers(1)

    async with anyio.create_task_group() as group:
        await pool.take("first")
        with anyio.CancelScope() as leaving:
            async with anyio.create_task_group() as impatient:
                impatient.start_soon(take, "second")
                await anyio.sleep(0.005)
                group.start_soon(take, "third")
                await anyio.sleep(0.005)
                leaving.cancel()
        pool.give_back("first")
        await until(lambda: got)
        assert got == ["third"] and pool.taken == 1


async def test_a_slot_that_is_given_to_one_that_has_just_left_goes_to_the_next():
    pool, got, take = takers(1)

    async with anyio.create_task_group() as group:
        await pool.take("first")
        async with anyio.create_task_group() as impatient:
            impatient.start_soon(take, "second")
            await anyio.sleep(0.005)
            group.start_soon(take, "third")
            await anyio.sleep(0.005)
            impatient.cancel_scope.cancel()
            pool.give_back("first")  # It is cancelled, and does not know it yet.
        with anyio.fail_after(10):
            await until(lambda: "third" in got or "second" in got)
        if "second" in got:  # It went on before its cancellation came, so the slot is its own.
            pool.give_back("second")
        await until(lambda: "third" in got)
        assert pool.taken == 1
