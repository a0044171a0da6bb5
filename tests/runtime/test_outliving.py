"""Tasks that outlive whoever starts them: they end with their owner, and what is shielded ends well."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

from inspan_runtime.outliving import OutlivingTasks

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


@pytest.fixture
async def tasks():
    tasks = OutlivingTasks()
    await tasks.open()
    yield tasks
    await tasks.close()


async def test_a_task_goes_on_when_whoever_started_it_is_cancelled(tasks):
    gate, done = anyio.Event(), anyio.Event()

    async def work():
        await gate.wait()
        done.set()

    with anyio.CancelScope() as scope:
        tasks.start(work)
        scope.cancel()
        await anyio.lowlevel.checkpoint()
    gate.set()
    await done.wait()


async def test_an_error_of_one_is_logged_and_ends_no_other(tasks, caplog):
    gate, done = anyio.Event(), anyio.Event()

    async def broken():
        gate.set()
        raise LookupError("it is broken")

    async def sound():
        await gate.wait()
        await anyio.lowlevel.checkpoint()
        done.set()

    tasks.start(sound)
    tasks.start(broken)
    await done.wait()
    assert "it is broken" in caplog.text


async def test_closing_cancels_all_but_what_is_shielded_is_awaited():
    tasks, ended = OutlivingTasks(), []
    await tasks.open()
    begun = anyio.Event()

    async def held():
        try:
            begun.set()
            await anyio.sleep_forever()
        finally:
            # A cancellation that is brought again and again must not reach in here.
            with anyio.CancelScope(shield=True):
                for _ in range(5):
                    await anyio.sleep(0.002)
            ended.append("held")

    async def late():
        ended.append("begun")
        await anyio.sleep_forever()

    tasks.start(held)
    await begun.wait()
    tasks.start(late)  # It has not begun when all are cancelled.
    await tasks.close()
    assert "held" in ended
    assert ended.count("begun") <= 1


async def test_closing_is_finished_also_when_the_owner_is_cancelled_meanwhile():
    tasks, ended = OutlivingTasks(), []
    begun = anyio.Event()

    async def held():
        try:
            begun.set()
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.02)
            ended.append("held")

    with anyio.CancelScope() as scope:
        await tasks.open()
        tasks.start(held)
        await begun.wait()
        scope.cancel()
        await tasks.close()
    assert ended == ["held"]
