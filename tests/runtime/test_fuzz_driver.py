"""`fuzz_driver`: our own driver and a plain one hold, and drivers with a fault are found out."""

from __future__ import annotations

import pytest

from inspan_core.effects import Reply, StopHarness
from inspan_core.events import Restarted
from inspan_core.machine import fold, new_session, step
from inspan_runtime.driver import SessionDriver
from inspan_runtime.testing.driver_fuzz import DriverFault, fuzz_driver
from inspan_runtime.testing.memory_journal import MemoryJournal


class Plain:
    """Keeps events in a list; each fault is one that a hasty author makes."""

    def __init__(self, obey):
        self.obey, self.kept, self.session = obey, [], new_session("plain")

    def deliver(self, event):
        session, effects = step(self.session, event)
        self.kept.append(event)
        self.session = session
        for effect in effects:
            self.obey(effect)

    def restart(self):
        self.session = fold(new_session("plain"), self.kept)
        self.deliver(Restarted(at=0.0))

    def snapshot(self):
        return self.session


class KeepsTooLate(Plain):
    def deliver(self, event):
        self.session, effects = step(self.session, event)
        for effect in effects:
            self.obey(effect)
        self.kept.append(event)


class SwallowsRefusals(Plain):
    def deliver(self, event):
        session, effects = step(self.session, event)
        self.kept.append(event)
        self.session = session
        for effect in effects:
            if not (isinstance(effect, Reply) and effect.status == 409):
                self.obey(effect)


class WakesUpIdle(Plain):
    def restart(self):
        self.session = fold(new_session("plain"), [*self.kept, Restarted(at=0.0)])
        self.kept.append(Restarted(at=0.0))


class NeverStops(Plain):
    def deliver(self, event):
        session, effects = step(self.session, event)
        self.kept.append(event)
        self.session = session
        for effect in effects:
            if not isinstance(effect, StopHarness):
                self.obey(effect)


class Ours:
    """The runtime's own driver; its orders are taken instead of performed."""

    def __init__(self, obey):
        self.journal = MemoryJournal()
        self.obey = obey
        self._drive(new_session("ours"))

    def _drive(self, session):
        obey = self.obey

        class Taken(SessionDriver):
            def _start(self, effect):
                obey(effect)

        self.driver = Taken(session, _Settles(), spawn=None, journal=self.journal)

    def deliver(self, event):
        self.driver.deliver(event)

    def restart(self):
        self.journal = self.journal.successor()
        events = [event for stored in self.journal.load() for event in stored.events]
        self._drive(fold(new_session("ours"), events))
        self.driver.deliver(Restarted(at=0.0))

    def snapshot(self):
        return self.driver.session


class _Settles:
    def settled(self, session):
        pass


@pytest.mark.parametrize("driver", [Plain, Ours])
def test_a_driver_that_follows_the_machine_holds(driver):
    assert fuzz_driver(driver, examples=200, seed=1) >= 200


@pytest.mark.parametrize(
    "driver",
    [KeepsTooLate, SwallowsRefusals, WakesUpIdle, pytest.param(NeverStops, marks=pytest.mark.full)],
    ids=lambda driver: driver.__name__,
)
def test_a_hasty_driver_is_found_out_and_its_story_is_short(driver):
    with pytest.raises(DriverFault) as raised:
        fuzz_driver(driver, examples=2000, seed=1)
    fault = raised.value
    assert fault.examples <= 2000
    assert len(fault.story) < 45
    assert "fuzz_driver(..., seed=1)" in str(fault)
    with pytest.raises(DriverFault) as again:
        fuzz_driver(driver, examples=2000, seed=fault.seed)
    assert again.value.story == fault.story
