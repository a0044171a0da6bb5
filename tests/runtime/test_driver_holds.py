"""The driver while a record is on its way to the disk, and the waits that cost no cancellation."""

from __future__ import annotations

import anyio
import pytest

from inspan_core.effects import (
    CreateSandbox,
    Install,
    Launch,
    StopSandbox,
)
from inspan_core.session import Phase, Session, Settings
from inspan_runtime.alarms import Alarms
from inspan_runtime.driver import SessionDriver
from inspan_runtime.journal import JournalError
from inspan_runtime.testing.memory_journal import MemoryJournal
from inspan_runtime.testing.played_world import World, activate, close, seed, until
from inspan_runtime.waiting import WaiterGone

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


class SlowDisk(MemoryJournal):
    """A journal whose records become durable when the test says so: `write` or `fail` the oldest."""

    def __init__(self, *, by_itself=False):
        super().__init__()
        self.by_itself = by_itself
        self.tickets = []

    def append(self, name, event):
        ticket = Ticket(lambda: super(SlowDisk, self).append(name, event), self.by_itself)
        self.tickets.append(ticket)
        return ticket

    async def write(self, error=None):
        with anyio.fail_after(10):
            while not self.tickets:
                await anyio.sleep(0.001)
        ticket = self.tickets.pop(0)
        ticket.error = error
        ticket.done.set()


class Ticket:
    def __init__(self, record, by_itself):
        self.record, self.by_itself = record, by_itself
        self.done, self.error = anyio.Event(), None

    async def durable(self):
        if self.by_itself:
            await anyio.lowlevel.checkpoint()
        else:
            await self.done.wait()
        if self.error is not None:
            raise self.error
        self.record()


async def test_an_episode_over_a_disk_that_takes_its_time_goes_by_the_book():
    world, disk = World(), SlowDisk(by_itself=True)
    async with anyio.create_task_group() as group:
        driver = SessionDriver(Session(name="s"), world, spawn=group.start_soon, journal=disk)
        assert [(await seed(driver, owned=True)).status, (await activate(driver)).status] == [200, 200]
        assert (await close(driver)).status == 200
        assert world.orders == [
            "CreateSandbox", "Install", "TakeSlot", "Stage", "Launch", "AwaitReceipt", "Collect", "Parse",
            "StopSandbox",
        ]  # fmt: skip
        assert driver.session.gradable
        (kept,) = disk.load()
        assert len(kept.events) == 12
        group.cancel_scope.cancel()


async def test_nothing_of_an_event_is_visible_before_its_record_is_durable():
    world, disk, seen = World(), SlowDisk(), []
    async with anyio.create_task_group() as group:
        driver = SessionDriver(
            Session(name="s"), world, spawn=group.start_soon, journal=disk, observers=(seen.append,)
        )
        group.start_soon(seed, driver)
        await until(lambda: disk.tickets)
        for _ in range(20):
            await anyio.lowlevel.checkpoint()
        assert driver.is_working
        assert driver.session.phase is Phase.NEW and world.orders == [] and seen == []
        await disk.write()
        await until(lambda: world.orders)
        assert seen[0]["event"] == "SeedRequested" and driver.session.phase is Phase.SEEDING
        group.cancel_scope.cancel()


async def test_a_second_identical_request_waits_for_the_first_ones_record_and_joins():
    world, disk, statuses = World(CreateSandbox), SlowDisk(), []
    async with anyio.create_task_group() as group:
        driver = SessionDriver(Session(name="s"), world, spawn=group.start_soon, journal=disk)

        async def ask(digest):
            statuses.append((digest, (await seed(driver, owned=True, digest=digest)).status))

        for digest in ("s", "s", "other"):
            group.start_soon(ask, digest)
            await until(lambda: disk.tickets)
            await anyio.sleep(0.002)
        assert len(disk.tickets) == 1
        disk.by_itself = True
        await disk.write()
        await until(lambda: statuses == [("other", 409)])
        world.let_go(CreateSandbox)
        await until(lambda: len(statuses) == 3)
        assert sorted(statuses) == [("other", 409), ("s", 200), ("s", 200)]
        assert world.orders.count("CreateSandbox") == 1
        group.cancel_scope.cancel()


async def test_a_request_whose_record_is_lost_never_was():
    world, disk, errors, bound = World(), SlowDisk(), [], []
    async with anyio.create_task_group() as group:
        driver = SessionDriver(Session(name="s"), world, spawn=group.start_soon, journal=disk)

        async def ask(digest):
            try:
                await seed(driver, owned=True, digest=digest, bind=lambda: bound.append(digest))
            except JournalError as error:
                errors.append(str(error))

        group.start_soon(ask, "first")
        await until(lambda: disk.tickets)
        group.start_soon(ask, "second")
        await anyio.sleep(0.002)
        await disk.write(JournalError("the disk is full"))
        await until(lambda: len(errors) == 2)
        # What came meanwhile would have opened a session with the contents of the first.
        assert errors == ["the disk is full"] * 2 and bound == ["first"]
        assert driver.session.phase is Phase.NEW and world.orders == []
        disk.by_itself = True
        group.start_soon(ask, "third")
        await until(lambda: driver.session.phase is Phase.READY)
        assert driver.session.seed_digest == "third" and bound == ["first", "third"]
        group.cancel_scope.cancel()


async def test_an_answer_whose_record_is_lost_is_brought_again():
    world, disk, statuses = World(), SlowDisk(), []
    async with anyio.create_task_group() as group:
        driver = SessionDriver(Session(name="s"), world, spawn=group.start_soon, journal=disk)

        async def ask():
            statuses.append((await seed(driver, owned=True)).status)

        group.start_soon(ask)
        await disk.write()
        await disk.write(JournalError("the disk is full"))  # SandboxReady
        assert driver.session.phase is Phase.SEEDING
        disk.by_itself = True
        await disk.write()
        await until(lambda: statuses)
        assert statuses == [200] and world.orders == ["CreateSandbox", "Install"]
        group.cancel_scope.cancel()


async def test_a_client_that_leaves_while_its_record_is_written_is_answered_no_more():
    world, disk = World(CreateSandbox), SlowDisk()
    async with anyio.create_task_group() as group:
        driver = SessionDriver(Session(name="s"), world, spawn=group.start_soon, journal=disk)
        with anyio.move_on_after(0.01):
            await seed(driver, owned=True)
        disk.by_itself = True
        await disk.write()
        await until(lambda: driver.session.phase is Phase.SEEDING and not driver.is_working)
        assert driver.session.seed_waiters == ()
        group.cancel_scope.cancel()


class Connection:
    """A client that tells by a call that it has left."""

    def __init__(self):
        self.gone, self.watched = None, 0

    def watch(self, gone):
        self.gone = gone
        self.watched += 1

    def unwatch(self):
        self.gone = None


async def test_a_connection_that_tells_by_a_call_ends_the_wait_and_nothing_else():
    world, client, raised = World(Launch), Connection(), []
    async with anyio.create_task_group() as group:
        driver = SessionDriver(Session(name="s"), world, spawn=group.start_soon)
        await seed(driver, owned=True, gone=client)
        assert client.watched == 1 and client.gone is None

        async def ask():
            try:
                await activate(driver, gone=client)
            except WaiterGone as error:
                raised.append(error)

        group.start_soon(ask)
        await until(lambda: "Launch" in world.orders and client.gone is not None)
        client.gone()
        await until(lambda: raised)
        assert driver.session.phase is Phase.ACTIVE and driver.session.activation_waiters == ()
        world.let_go(Launch)
        assert (await activate(driver, gone=client)).status == 200
        assert world.orders.count("Launch") == 1
        group.cancel_scope.cancel()


async def test_budgets_in_shared_alarms_end_an_order_and_what_follows_has_its_own():
    world = World(StopSandbox)
    async with anyio.create_task_group() as group:
        driver = SessionDriver(
            Session(name="s", settings=Settings(close_step_timeout_s=0.05)),
            world,
            spawn=group.start_soon,
            alarms=Alarms(group.start_soon),
        )
        await seed(driver, owned=True)
        assert (await activate(driver)).status == 200
        assert (await close(driver)).status >= 500
        assert driver.session.phase is Phase.CLOSE_FAILED
        world.let_go(StopSandbox)
        assert (await close(driver)).status == 200
        group.cancel_scope.cancel()


async def test_a_close_that_cuts_off_an_order_goes_on_in_a_scope_of_its_own():
    world = World(Install)
    async with anyio.create_task_group() as group:
        driver = SessionDriver(
            Session(name="s"), world, spawn=group.start_soon, alarms=Alarms(group.start_soon)
        )
        statuses = []

        async def ask():
            statuses.append((await seed(driver, owned=True)).status)

        group.start_soon(ask)
        await until(lambda: "Install" in world.orders)
        assert (await close(driver)).status == 200
        assert world.orders == ["CreateSandbox", "Install", "StopSandbox"]
        await until(lambda: statuses and not driver.busy)
        assert statuses[0] >= 400
        group.cancel_scope.cancel()
