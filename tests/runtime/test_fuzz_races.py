"""The fuzzer finds races: five classical ones are put back into the driver, and each must be found."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import attrs
import pytest

from inspan_core.answers import StageFailed
from inspan_core.effects import Disconnect, Launch, RemoveFiles, Stage, StopSandbox
from inspan_core.receipts import CleanupReceipt
from inspan_core.session import Phase
from inspan_runtime import perform, sessions
from inspan_runtime.driver import SessionDriver
from inspan_runtime.testing.fuzz import Found, fuzz_lifecycle
from inspan_runtime.testing.fuzz_reduce import surprises

EXAMPLES = 2000


async def takes_the_end_of_the_exec_for_the_end_of_the_run(sandbox, session_dir, **_):
    """A lost exec says nothing about the harness, which writes on while its artifacts are collected."""
    return CleanupReceipt(cleanup_confirmed=True, return_code=0, error=None, timed_out=False)


class LooksThenLaunches(SessionDriver):
    """Two activations both see READY before either is bound; so both launch."""

    async def ask(self, request, **watched):
        if self.session.phase is Phase.READY:
            await anyio.lowlevel.checkpoint()
            if self.session.phase is Phase.ACTIVE:
                self._spawn(self._launch_as_well)
        return await super().ask(request, **watched)

    async def _launch_as_well(self):
        with anyio.move_on_after(60.0):
            while not self.session.run.launched:
                await anyio.sleep(0.1)
            await self._performs.perform(Launch(number=0, timeout_s=60.0, run_timeout_s=30.0))


class ForgetsToJoin(SessionDriver):
    """Close does not wait for the end of the staging that it cuts off: the supervisor's upload goes on."""

    async def _cancel(self, order):
        pending = self._flights.get(order.pending)
        if pending is None or not isinstance(pending.order, Stage):
            return await super()._cancel(order)
        pending.dropped = True
        self.deliver(
            StageFailed(at=anyio.current_time(), order=order.pending, detail="cut off", retryable=True)
        )
        return None


class ReleasesInTheRequest(SessionDriver):
    """A release lives in the request that asked for it: when that client goes away, it is swallowed."""

    async def ask(self, request, **watched):
        try:
            return await super().ask(request, **watched)
        except anyio.get_cancelled_exc_class():
            for flight in self._flights.values():
                if isinstance(flight.order, RemoveFiles | Disconnect | StopSandbox):
                    flight.dropped = True
                    flight.scope.cancel()
            raise


class KeepsOneWaiter(SessionDriver):
    """Whoever joins an activation takes the place of the one who waited."""

    def _handle(self, event):
        super()._handle(event)
        waiters = self.session.activation_waiters
        if len(waiters) > 1:
            self.session = attrs.evolve(self.session, activation_waiters=waiters[-1:])


def without_evidence(monkeypatch):
    monkeypatch.setattr(perform, "await_receipt", takes_the_end_of_the_exec_for_the_end_of_the_run)


def driven_by(driver):
    return lambda monkeypatch: monkeypatch.setattr(sessions, "SessionDriver", driver)


RACES = {
    "collect while the exec still writes": (without_evidence, {"a collection without a confirmed receipt"}),
    "double launch on concurrent activation": (
        driven_by(LooksThenLaunches),
        {"a run was launched twice"},
    ),
    "close during the supervisor's upload": (
        driven_by(ForgetsToJoin),
        {"something is left", "a close was answered while session files lie there"},
    ),
    "cancellation swallowing a release": (
        driven_by(ReleasesInTheRequest),
        {"somebody waits for ever", "something is left"},
    ),
    "waiter lost on join": (driven_by(KeepsOneWaiter), {"somebody waits for ever"}),
}


def hunt(race, monkeypatch, *, seed, shrinks):
    put_back, rules = RACES[race]
    put_back(monkeypatch)
    with pytest.raises(Found) as raised:
        fuzz_lifecycle(examples=EXAMPLES, seed=seed, shrinks=shrinks)
    found = raised.value
    assert found.rule in rules
    return found


@pytest.mark.parametrize("race", RACES)
def test_race_is_found(race, monkeypatch):
    assert hunt(race, monkeypatch, seed=3, shrinks=False).examples <= EXAMPLES


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [1, 2, 7])
@pytest.mark.parametrize("race", RACES)
def test_race_is_found_from_any_seed_and_shrinks(race, seed, monkeypatch):
    found = hunt(race, monkeypatch, seed=seed, shrinks=True)
    assert len(surprises(found.scenario)) <= 3, str(found)
