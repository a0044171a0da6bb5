"""Stories of set-ups, restarts, leases and lost clients."""

import pytest

from inspan_core.effects import (
    AwaitReceipt,
    CancelPending,
    CloseBody,
    CreateSandbox,
    ErrorBody,
    GapCode,
    SeedBody,
    StartTimer,
    StopSandbox,
    Timer,
)
from inspan_core.events import (
    ClientGone,
    Disconnected,
    ExecReturned,
    ExpiryReached,
    FilesRemoved,
    Installed,
    InstallFailed,
    NeverLaunched,
    Restarted,
    SandboxReady,
    SandboxStopped,
    SandboxUnavailable,
    SlotGranted,
    Staged,
    StepFailed,
    StepTimedOut,
    WindowEnded,
)
from inspan_core.session import Phase, Settings
from inspan_core.testing.player import Player, ready, running


@pytest.mark.parametrize(("retryable", "status"), [(True, 503), (False, 422)])
def test_a_failed_setup_is_undone_before_its_seed_hears_of_it(retryable: bool, status: int) -> None:
    player = Player()
    first, second = player.seed(), player.seed()
    player.answer(SandboxReady)
    player.answer(InstallFailed, detail="no glibc 2.28", retryable=retryable)
    assert player.replies == {}
    player.answer(FilesRemoved)
    player.answer(Disconnected)
    assert [player.replies[waiter].status for waiter in (first, second)] == [status, status]
    assert player.replies[first].body == ErrorBody(detail="no glibc 2.28")
    assert player.session.phase is Phase.NEW


def test_a_setup_that_cannot_be_undone_is_kept_for_close() -> None:
    player = Player()
    first = player.seed(owned=True)
    player.answer(StepTimedOut)
    player.answer(StepFailed, detail="provider down")
    assert player.replies[first].status == 503
    assert player.session.phase is Phase.SETUP_FAILED
    again = player.seed(owned=True)
    assert player.replies[again].status == 409
    close = player.close()
    player.answer(SandboxStopped)
    assert player.replies[close].status == 200


def test_a_seed_that_comes_again_makes_a_sandbox_under_a_new_key() -> None:
    player = Player()
    player.seed(owned=True)
    player.answer(SandboxUnavailable, detail="quota", retryable=True)
    assert player.session.phase is Phase.NEW
    player.seed(owned=True)
    assert isinstance(player.order, CreateSandbox)
    assert player.order.key == "s1.2"


def test_a_close_while_a_sandbox_is_created_joins_the_creation() -> None:
    player = Player()
    seed = player.seed(owned=True)
    create = player.session.run.order
    close = player.close()
    assert player.replies[seed].status == 409
    assert player.order == CancelPending(number=2, timeout_s=30.0, pending=create)
    player.answer(StepTimedOut)
    assert player.replies[close].status == 503
    player.answer(SandboxReady, order=create)
    assert isinstance(player.order, StopSandbox), "the late sandbox is stopped without anybody asking"
    player.answer(SandboxStopped)
    assert player.session.phase is Phase.CLOSED


def test_a_close_while_staging_cancels_it_and_never_launches() -> None:
    player = ready()
    player.activate()
    player.answer(SlotGranted)
    stage = player.session.run.order
    close = player.close()
    player.answer(Staged, order=stage)
    assert player.doing == "CLOSING REMOVING_FILES"
    player.answer(FilesRemoved)
    player.answer(Disconnected)
    body = player.replies[close].body
    assert isinstance(body, CloseBody)
    assert [gap.code for gap in body.gaps] == [GapCode.NEVER_LAUNCHED]


def test_a_restart_never_launches_again() -> None:
    player = running()
    player.feed(Restarted(at=7.0))
    assert player.order == AwaitReceipt(number=6, timeout_s=120.0), "the deadline's clock is lost"
    retry = player.activate()
    player.confirm()
    player.collect_and_parse()
    assert player.replies[retry].status == 200
    assert 2 not in player.replies, "nobody is answered whom the crash dropped"


def test_a_restart_before_the_claim_fences_and_answers_503() -> None:
    player = running()
    player.feed(Restarted(at=7.0))
    retry = player.activate()
    player.answer(NeverLaunched)
    assert player.replies[retry].body == ErrorBody(detail="session s1: the harness was never launched")


def test_a_restart_while_seeding_undoes_and_the_retried_seed_succeeds() -> None:
    player = Player()
    player.seed(owned=True)
    player.feed(Restarted(at=1.0))
    retry = player.seed(owned=True)
    assert player.order == StopSandbox(number=2, timeout_s=30.0, key="s1.1")
    player.answer(SandboxStopped)
    assert isinstance(player.order, CreateSandbox)
    assert player.order.key == "s1.2"
    player.answer(SandboxReady)
    player.answer(Installed)
    assert player.replies[retry].body == SeedBody()


def test_a_restart_gives_retained_answers_their_window_again() -> None:
    player = Player()
    player.close()
    assert player.session.phase is Phase.FENCED
    player.feed(Restarted(at=1.0))
    assert player.timer == StartTimer(number=2, kind=Timer.WINDOW, delay_s=300.0)
    player.feed(WindowEnded(at=2.0, timer=1))
    assert player.session.phase is Phase.FENCED, "the old timer does not count any more"


def test_a_lost_client_changes_nothing_for_the_others() -> None:
    player = running()
    other = player.activate()
    player.feed(ClientGone(at=0.0, waiter=2))
    player.answer(ExecReturned, exit_code=0)
    player.confirm()
    player.collect_and_parse()
    assert player.replies[other].status == 200
    assert 2 not in player.replies


def test_a_lease_that_is_over_closes_without_a_client() -> None:
    player = Player(settings=Settings(lease_s=1000.0))
    player.seed(owned=True)
    assert player.timer == StartTimer(number=1, kind=Timer.LEASE, delay_s=1000.0)
    player.answer(SandboxReady)
    player.answer(Installed)
    waiter = player.activate()
    player.feed(ExpiryReached(at=1000.0, timer=1))
    assert player.replies[waiter].status == 503
    assert player.session.phase is Phase.CLOSING


def test_a_slot_is_held_from_its_grant_until_the_run_has_ended() -> None:
    player = ready()
    player.activate()
    assert not player.session.holds_slot
    player.answer(SlotGranted)
    assert player.session.holds_slot
    player.answer(Staged)
    player.close()
    assert player.session.holds_slot, "the harness may be running"
    player.confirm()
    assert not player.session.holds_slot
