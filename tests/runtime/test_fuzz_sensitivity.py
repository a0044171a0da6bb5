"""What the fuzzer notices: small faults put into the runtime, each of which must be found."""

from __future__ import annotations

import attrs
import pytest

from inspan_core.harness import SandboxCommand
from inspan_runtime import harness_work, perform, sessions, slots
from inspan_runtime.driver import SessionDriver
from inspan_runtime.perform import Performer
from inspan_runtime.room import ExecHandle
from inspan_runtime.testing.fuzz import Found, fuzz_lifecycle

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]


def slot_is_kept(patch):
    patch.setattr(slots.SlotPool, "give_back", lambda self, holder: None)


def files_are_left(patch):
    async def remove(sandbox, session_dir, **_):
        return None

    patch.setattr(perform, "remove_session_directory", remove)


def client_is_left_open(patch):
    async def drop(self):
        self._provider = None

    patch.setattr(harness_work.HarnessWork, "_drop_provider", drop)


def sandbox_is_not_kept(patch):
    real = harness_work.HarnessWork._known

    def known(self, room, sandbox):
        keep, room.keep = room.keep, lambda name, value: None
        real(self, room, sandbox)
        room.keep = keep

    patch.setattr(harness_work.HarnessWork, "_known", known)


def exec_is_let_go_of_before_the_stop(patch):
    real = Performer._stop_harness

    async def stop(self, order):
        if self.room.exec is not None:
            await self.room.exec.release()
        return await real(self, order)

    patch.setitem(perform.PERFORM, perform.StopHarness, stop)


def exec_is_not_released(patch):
    async def release(self):
        return None

    patch.setattr(ExecHandle, "release", release)


def restart_launches_again(patch):
    real = Performer._await_receipt

    async def await_receipt(self, order):
        if self.room.exec is None and self.room.command is None:
            self.room.command = SandboxCommand(argv=["/bin/scripted"], python="/usr/bin/python3")
            await self._launch(perform.Launch(number=order.number, timeout_s=60.0, run_timeout_s=30.0))
        return await real(self, order)

    patch.setitem(perform.PERFORM, perform.AwaitReceipt, await_receipt)


class KeepsAfterwards(SessionDriver):
    """Journals an event only after its effects."""

    def _handle(self, event):
        journal, self._journal = self._journal, None
        before = self.session
        try:
            super()._handle(event)
        finally:
            self._journal = journal
        if journal is not None and self.session is not before:
            journal.append(self.session.name, event)


def keeps_afterwards(patch):
    patch.setattr(sessions, "SessionDriver", KeepsAfterwards)


def timer_is_forgotten(patch):
    patch.setattr(SessionDriver, "_start_timer", lambda self, timer: None)


def negative_receipt_is_taken_for_a_good_one(patch):
    real = Performer._evidence

    def evidence(self, order, found):
        if getattr(found, "cleanup_confirmed", None) is False:
            found = attrs.evolve(found, cleanup_confirmed=True, return_code=0)
        return real(self, order, found)

    patch.setattr(Performer, "_evidence", evidence)


def create_has_no_key_of_its_own(patch):
    patch.setattr(harness_work, "_key", lambda room, key: "the-one-sandbox")


FAULTS = [
    slot_is_kept,
    files_are_left,
    client_is_left_open,
    sandbox_is_not_kept,
    exec_is_let_go_of_before_the_stop,
    exec_is_not_released,
    restart_launches_again,
    keeps_afterwards,
    timer_is_forgotten,
    negative_receipt_is_taken_for_a_good_one,
    create_has_no_key_of_its_own,
]


@pytest.mark.parametrize("put_in", FAULTS, ids=lambda fault: fault.__name__)
def test_fault_is_found(put_in, monkeypatch):
    put_in(monkeypatch)
    with pytest.raises(Found) as raised:
        fuzz_lifecycle(examples=2000, seed=11, shrinks=False)
    assert raised.value.examples <= 2000
