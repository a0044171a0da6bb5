"""The driver against a world that is played by the test: orders are answered when the test says so."""

from __future__ import annotations

import anyio
import pytest

from inspan_core.effects import (
    ORDER_TYPES,
    AwaitReceipt,
    CancelPending,
    Install,
    Launch,
    RemoveFiles,
)
from inspan_core.session import Phase, Session, Settings
from inspan_runtime.driver import SessionDriver
from inspan_runtime.perform import PERFORM
from inspan_runtime.testing.played_world import World, activate, close, seed, until

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


def test_every_order_is_performed_by_one_coroutine():
    assert set(PERFORM) | {CancelPending} == set(ORDER_TYPES)


async def test_an_episode_in_a_borrowed_sandbox_goes_by_the_book():
    world = World()
    async with anyio.create_task_group() as group:
        driver = SessionDriver(Session(name="s"), world, spawn=group.start_soon)
        replies = [await seed(driver), await activate(driver), await close(driver)]
        assert [reply.status for reply in replies] == [200, 200, 200]
        assert world.orders == [
            "ConnectSandbox", "Install", "TakeSlot", "Stage", "Launch", "AwaitReceipt", "Collect", "Parse",
            "RemoveFiles", "Disconnect",
        ]  # fmt: skip
        assert driver.session.gradable
        group.cancel_scope.cancel()


async def test_an_owned_sandbox_is_stopped_and_not_disconnected():
    world = World()
    async with anyio.create_task_group() as group:
        driver = SessionDriver(Session(name="s"), world, spawn=group.start_soon)
        await seed(driver, owned=True)
        assert (await close(driver)).status == 200
        assert "StopSandbox" in world.orders and "Disconnect" not in world.orders
        group.cancel_scope.cancel()


async def test_identical_activations_join_and_another_is_refused():
    world = World(Launch)
    async with anyio.create_task_group() as group:
        driver = SessionDriver(Session(name="s"), world, spawn=group.start_soon)
        await seed(driver)
        statuses = []

        async def one(digest):
            statuses.append((digest, (await activate(driver, digest=digest)).status))

        group.start_soon(one, "a")
        await until(lambda: "Launch" in world.orders)
        group.start_soon(one, "a")
        group.start_soon(one, "b")
        await until(lambda: statuses == [("b", 409)])
        world.let_go(Launch)
        await until(lambda: len(statuses) == 3)
        assert sorted(statuses) == [("a", 200), ("a", 200), ("b", 409)]
        assert world.orders.count("Launch") == 1
        group.cancel_scope.cancel()


async def test_a_client_that_goes_changes_nothing():
    world = World(Launch)
    async with anyio.create_task_group() as group:
        driver = SessionDriver(Session(name="s"), world, spawn=group.start_soon)
        await seed(driver)
        with anyio.move_on_after(0.01):
            await activate(driver)
        assert driver.session.phase is Phase.ACTIVE and driver.session.activation_waiters == ()
        world.let_go(Launch)
        assert (await activate(driver)).status == 200
        assert world.orders.count("Launch") == 1
        group.cancel_scope.cancel()


async def test_close_while_running_drops_the_wait_for_the_launch_but_not_its_release():
    world = World(Launch)
    async with anyio.create_task_group() as group:
        driver = SessionDriver(Session(name="s"), world, spawn=group.start_soon)
        await seed(driver)
        answered = []

        async def run():
            answered.append((await activate(driver)).status)

        group.start_soon(run)
        await until(lambda: "Launch" in world.orders)
        assert (await close(driver)).status == 200
        assert answered == [503]
        assert world.orders[-6:] == [
            "StopHarness", "Collect", "Parse", "ReleaseExec", "RemoveFiles", "Disconnect",
        ]  # fmt: skip
        group.cancel_scope.cancel()


async def test_close_during_installation_cancels_it():
    world = World(Install)
    async with anyio.create_task_group() as group:
        driver = SessionDriver(Session(name="s"), world, spawn=group.start_soon)
        seeded = []

        async def run():
            seeded.append((await seed(driver)).status)

        group.start_soon(run)
        await until(lambda: "Install" in world.orders)
        assert (await close(driver)).status == 200
        assert world.cut_off == ["Install"] and world.orders[-1] == "Disconnect"
        await until(lambda: len(seeded) == 1)
        assert seeded[0] >= 400
        group.cancel_scope.cancel()


async def test_an_order_past_its_budget_is_answered_by_a_time_out():
    world = World(RemoveFiles)
    async with anyio.create_task_group() as group:
        driver = SessionDriver(
            Session(name="s", settings=Settings(close_step_timeout_s=0.05)),
            world,
            spawn=group.start_soon,
            timers=False,
        )
        await seed(driver)
        assert (await close(driver)).status >= 500
        assert driver.session.phase is Phase.CLOSE_FAILED
        world.let_go(RemoveFiles)
        assert (await close(driver)).status == 200
        group.cancel_scope.cancel()


async def test_the_window_ends_and_the_record_is_new_again():
    world = World()
    async with anyio.create_task_group() as group:
        driver = SessionDriver(
            Session(name="s", settings=Settings(retry_window_s=0.05)), world, spawn=group.start_soon
        )
        await seed(driver)
        first, again = await close(driver), await close(driver)
        assert first.body == again.body
        await until(lambda: driver.session.phase is Phase.NEW)
        group.cancel_scope.cancel()


async def test_however_many_ask_for_one_run_it_is_waited_for_once():
    world, statuses = World(AwaitReceipt), []
    async with anyio.create_task_group() as group:
        driver = SessionDriver(Session(name="s"), world, spawn=group.start_soon)
        await seed(driver)

        async def one():
            statuses.append((await activate(driver)).status)

        for _ in range(500):
            group.start_soon(one)
        await until(lambda: "AwaitReceipt" in world.orders and len(driver.session.activation_waiters) == 500)
        world.let_go(AwaitReceipt)
        await until(lambda: len(statuses) == 500)
        assert set(statuses) == {200}
        assert [world.orders.count(order) for order in ("Launch", "AwaitReceipt", "Collect")] == [1, 1, 1]
        group.cancel_scope.cancel()
