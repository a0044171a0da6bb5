"""What is due at a time: nothing is forgotten, nothing that is off rings, and what is over is not kept."""

from __future__ import annotations

import anyio
import pytest

from inspan_runtime.alarms import SORTED_LEAST, YOUNG_LIMIT, Alarms

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


async def until(condition):
    with anyio.fail_after(10):
        while not condition():
            await anyio.sleep(0.001)


async def test_what_is_set_rings_in_the_order_of_times_also_what_is_set_late_for_early():
    rung = []
    async with anyio.create_task_group() as group:
        alarms = Alarms(group.start_soon)
        alarms.set(0.2, lambda: rung.append("late"))
        await anyio.lowlevel.checkpoint()  # Its task sleeps for that one.
        alarms.set(0.05, lambda: rung.append("early"))
        alarms.set(0.0, lambda: rung.append("now"))
        await until(lambda: len(rung) == 3)
    assert rung == ["now", "early", "late"]


async def test_what_was_cancelled_does_not_ring_and_its_task_ends():
    rung = []
    async with anyio.create_task_group() as group:
        alarms = Alarms(group.start_soon)
        for delay_s in (0.01, 0.02, 0.03):
            alarms.set(delay_s, lambda: rung.append("off")).cancel()
        alarms.set(0.04, lambda: rung.append("on"))
    # The group is over because its task is: nothing is wanted any more.
    assert rung == ["on"] and len(alarms) == 0


async def test_an_alarm_that_sets_another_while_it_rings_is_followed_by_it():
    rung = []
    async with anyio.create_task_group() as group:
        alarms = Alarms(group.start_soon)

        def again():
            rung.append(len(rung))
            if len(rung) < 5:
                alarms.set(0.0, again)

        alarms.set(0.0, again)
        await until(lambda: len(rung) == 5)
    assert rung == [0, 1, 2, 3, 4]


async def test_one_that_breaks_does_not_silence_the_others(caplog):
    rung = []
    async with anyio.create_task_group() as group:
        alarms = Alarms(group.start_soon)
        alarms.set(0.0, lambda: rung[7])
        alarms.set(0.01, lambda: rung.append("on"))
        await until(lambda: rung)
    assert "an alarm failed" in caplog.text


async def test_what_is_over_before_its_time_is_not_kept():
    async with anyio.create_task_group() as group:
        alarms = Alarms(group.start_soon)
        wanted = [alarms.set(3600.0, lambda: None) for _ in range(100)]
        for _ in range(20 * YOUNG_LIMIT):
            alarms.set(3600.0, lambda: None).cancel()
        assert len(alarms) <= 100 + YOUNG_LIMIT
        # Also what was wanted long enough to be sorted in, and is not any more.
        for _ in range(10):
            more = [alarms.set(3600.0, lambda: None) for _ in range(SORTED_LEAST)]
            for alarm in more:
                alarm.cancel()
        assert len(alarms) <= 4 * SORTED_LEAST
        assert not any(alarm.is_off for alarm in wanted)
        group.cancel_scope.cancel()
