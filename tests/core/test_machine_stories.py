"""Stories of sessions: what is ordered, and what clients hear."""

import pytest

from inspan_core.effects import (
    ActivationBody,
    AwaitReceipt,
    CancelPending,
    CloseBody,
    CreateSandbox,
    ErrorBody,
    GapCode,
    Launch,
    ReleaseExec,
    SeedBody,
    Stage,
    StartTimer,
    StopHarness,
    StopSandbox,
    TakeSlot,
    Timer,
)
from inspan_core.events import (
    Abandoned,
    ClientGone,
    Collected,
    CollectResult,
    Disconnected,
    EvidenceMissing,
    ExecLost,
    ExecReleased,
    ExecReturned,
    ExpiryReached,
    FilesRemoved,
    Installed,
    InstallFailed,
    NeverLaunched,
    Outcome,
    Parsed,
    Restarted,
    RetryDue,
    SandboxGone,
    SandboxReady,
    SandboxStopped,
    SandboxUnavailable,
    SlotGranted,
    Staged,
    StageFailed,
    StepFailed,
    StepTimedOut,
    TerminationConfirmed,
    TerminationRefuted,
    WindowEnded,
)
from inspan_core.session import Phase, Settings
from inspan_core.testing.player import Player

SETTINGS = Settings(
    install_timeout_s=900.0,
    run_margin_s=60.0,
    close_step_timeout_s=30.0,
    retry_window_s=300.0,
    retry_delay_s=5.0,
    retry_delay_limit_s=12.0,
)


def ready(*, owned: bool = False, settings: Settings = SETTINGS) -> Player:
    """Play a session to READY."""
    player = Player(settings=settings)
    player.seed(owned=owned)
    player.answer(SandboxReady)
    player.answer(Installed)
    return player


def running(*, owned: bool = False) -> Player:
    """Play a session until its harness is launched; its activation is waiter 2."""
    player = ready(owned=owned)
    player.activate()
    player.answer(SlotGranted)
    player.answer(Staged)
    assert isinstance(player.order, Launch)
    return player


def confirm(player: Player) -> None:
    """Answer with a positive receipt."""
    player.answer(TerminationConfirmed, return_code=0, timed_out=False, error=None)


def collect_and_parse(
    player: Player, outcome: Outcome = Outcome.COMPLETED, detail: str | None = None
) -> None:
    """Answer collection and parsing."""
    player.answer(Collected, result=CollectResult.OK, detail=None)
    player.answer(Parsed, outcome=outcome, detail=detail)


def finished(*, owned: bool = False, outcome: Outcome = Outcome.COMPLETED) -> Player:
    """Play a session to FINISHED."""
    player = running(owned=owned)
    player.answer(ExecReturned, exit_code=0)
    confirm(player)
    collect_and_parse(player, outcome)
    assert player.session.phase is Phase.FINISHED
    return player


def test_a_borrowed_episode_is_collected_then_left_clean() -> None:
    player = finished()
    assert player.replies[2].status == 200
    assert player.replies[2].body == ActivationBody()
    close = player.close()
    assert player.doing == "CLOSING REMOVING_FILES"
    player.answer(FilesRemoved)
    player.answer(Disconnected)
    assert player.replies[close].status == 200
    assert player.replies[close].body == CloseBody(seeded=True, gaps=())
    assert player.session.gradable
    assert player.timer == StartTimer(number=player.session.timer, kind=Timer.WINDOW, delay_s=300.0)
    player.feed(WindowEnded(at=0.0, timer=player.session.timer))
    assert player.session.phase is Phase.NEW


def test_an_owned_episode_stops_its_sandbox_by_key() -> None:
    player = Player("s1")
    player.seed(owned=True)
    assert player.order == CreateSandbox(number=1, timeout_s=600.0, key="s1.1")
    player = finished(owned=True)
    player.close()
    assert player.order == StopSandbox(number=player.session.run.order, timeout_s=30.0, key="s1.1")
    player.answer(SandboxStopped)
    assert player.session.phase is Phase.CLOSED


def test_budgets_travel_with_the_orders() -> None:
    player = ready()
    player.activate(timeout_s=100.0)
    assert player.order == TakeSlot(number=3, timeout_s=None)
    player.answer(SlotGranted)
    assert player.order == Stage(number=4, timeout_s=120.0, run_timeout_s=100.0)
    player.answer(Staged, at=50.0)
    assert player.order == Launch(number=5, timeout_s=160.0, run_timeout_s=100.0)
    player.answer(ExecLost, at=70.0, detail="connection reset")
    assert player.order == AwaitReceipt(number=6, timeout_s=140.0), (
        "until the deadline at 150, and the margin"
    )


def test_a_returned_exec_leaves_a_short_wait_for_its_receipt() -> None:
    player = running()
    player.answer(ExecReturned, exit_code=0)
    assert player.order == AwaitReceipt(number=6, timeout_s=30.0)


def test_a_lost_exec_is_no_outcome() -> None:
    player = running()
    player.answer(ExecLost, detail="connection reset")
    confirm(player)
    collect_and_parse(player)
    assert isinstance(player.order, ReleaseExec), "its handle is still ours"
    player.answer(ExecReleased)
    assert player.replies[2].status == 200


def test_a_receipt_before_the_exec_ends_the_run() -> None:
    player = running()
    confirm(player)
    collect_and_parse(player)
    player.answer(StepFailed, detail="pipe held open")
    assert player.replies[2].status == 200, "a failing release never replaces a result"
    player.close()
    assert isinstance(player.order, ReleaseExec), "and is tried again by close"


def test_a_negative_receipt_is_never_graded_and_still_released() -> None:
    player = running()
    player.answer(TerminationRefuted, error="two processes live")
    player.answer(ExecReleased)
    assert player.replies[2].status == 503
    assert player.replies[2].body == ErrorBody(
        detail="session s1: the harness could not be proven stopped: two processes live"
    )
    close = player.close()
    player.answer(FilesRemoved)
    player.answer(Disconnected)
    assert player.replies[close].status == 200
    body = player.replies[close].body
    assert isinstance(body, CloseBody)
    assert [gap.code for gap in body.gaps] == [GapCode.TERMINATION_REFUTED, GapCode.ARTIFACTS_UNAVAILABLE]
    assert not player.session.gradable


def test_a_close_of_an_active_run_answers_it_at_once_and_stops() -> None:
    player = running()
    close = player.close()
    assert player.replies[2].status == 409
    assert player.order == StopHarness(number=player.session.run.order, timeout_s=30.0)
    late = player.activate()
    assert player.replies[late].status == 409
    confirm(player)
    player.answer(Collected, result=CollectResult.LIMIT, detail=None)
    player.answer(Parsed, outcome=Outcome.INCOMPLETE, detail=None)
    player.answer(ExecReleased)
    player.answer(FilesRemoved)
    assert close not in player.replies
    player.answer(Disconnected)
    assert player.replies[close].body == CloseBody(seeded=True, gaps=())


def test_a_close_joins_a_collection_in_flight() -> None:
    player = running()
    confirm(player)
    number = player.session.run.order
    player.close()
    assert player.session.run.order == number
    player.answer(Collected, result=CollectResult.OK, detail=None)
    assert player.doing == "CLOSING PARSING"


def test_missing_evidence_keeps_the_state_until_a_close_confirms_it() -> None:
    player = running()
    player.answer(ExecReturned, exit_code=137)
    player.answer(EvidenceMissing, detail="no receipt")
    assert player.replies[2].status == 503
    first = player.close()
    player.answer(StepTimedOut)
    assert player.replies[first].status == 503
    assert player.timer is not None
    assert (player.timer.kind, player.timer.delay_s) == (Timer.RETRY, 5.0)
    player.feed(RetryDue(at=0.0, timer=player.session.timer))
    player.answer(StepTimedOut)
    assert player.timer.delay_s == 10.0
    player.feed(RetryDue(at=0.0, timer=player.session.timer))
    player.answer(StepTimedOut)
    assert player.timer.delay_s == 12.0, "the doubling ends at the limit"
    second = player.close()
    player.answer(TerminationConfirmed, return_code=-9, timed_out=False, error=None)
    collect_and_parse(player)
    player.answer(FilesRemoved)
    player.answer(Disconnected)
    assert player.replies[second].status == 200
    assert not player.session.gradable, "the retained 503 is not rewritten"


def test_an_owned_sandbox_stands_in_for_a_stop_that_fails() -> None:
    player = running(owned=True)
    close = player.close()
    player.answer(EvidenceMissing, detail="the supervisor is dead")
    assert player.doing == "CLOSING STOPPING_SANDBOX"
    player.answer(SandboxStopped)
    body = player.replies[close].body
    assert player.replies[close].status == 200
    assert isinstance(body, CloseBody)
    assert [gap.code for gap in body.gaps] == [GapCode.TERMINATION_UNKNOWN, GapCode.ARTIFACTS_UNAVAILABLE]


def test_a_supplied_sandbox_that_is_gone_ends_the_session() -> None:
    player = running()
    close = player.close()
    player.answer(SandboxGone)
    assert player.doing == "CLOSING DISCONNECTING"
    player.answer(Disconnected)
    assert player.replies[close].status == 200
    assert not player.session.gradable


def test_an_abandoned_session_ends_and_is_never_gradable() -> None:
    player = finished()
    player.close()
    player.answer(StepFailed, detail="permission denied")
    player.feed(Abandoned(at=0.0))
    assert player.session.phase is Phase.CLOSED
    again = player.close()
    assert player.replies[again].status == 409
    assert not player.session.gradable


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


@pytest.mark.parametrize(
    ("outcome", "detail", "status"),
    [
        (Outcome.COMPLETED, None, 200),
        (Outcome.INCOMPLETE, None, 200),
        (Outcome.FAILED, "the model answered 500", 503),
        (Outcome.UNPROCESSABLE, "the model answered 400: context overflow", 422),
    ],
)
def test_the_parser_decides_among_the_answers_of_a_healthy_run(
    outcome: Outcome, detail: str | None, status: int
) -> None:
    player = running()
    player.answer(ExecReturned, exit_code=0)
    confirm(player)
    collect_and_parse(player, outcome, detail)
    assert player.replies[2].status == status
    if detail is not None:
        assert player.replies[2].body == ErrorBody(detail=detail)
    again = player.activate()
    assert (player.replies[again].status, player.replies[again].body) == (status, player.replies[2].body)


def test_a_capture_error_never_replaces_the_execution_error() -> None:
    player = running()
    player.answer(TerminationConfirmed, return_code=None, timed_out=False, error="no such program")
    player.answer(Collected, result=CollectResult.ERROR, detail="output.json is a FIFO")
    player.answer(ExecReleased)
    assert player.replies[2].body == ErrorBody(detail="the harness did not run: no such program")
    close = player.close()
    player.answer(FilesRemoved)
    player.answer(Disconnected)
    body = player.replies[close].body
    assert isinstance(body, CloseBody)
    assert [(gap.code, gap.detail) for gap in body.gaps] == [
        (GapCode.OBSERVATION_CAPTURE_FAILED, "output.json is a FIFO")
    ]


def test_a_capture_error_alone_is_answered_503_and_blocks_no_release() -> None:
    player = running()
    player.answer(ExecReturned, exit_code=0)
    confirm(player)
    player.answer(StepTimedOut)
    assert player.replies[2].status == 503
    player.close()
    assert player.doing == "CLOSING REMOVING_FILES", "the collection is not tried again"


def test_a_failing_parser_is_a_gap_and_an_execution_error() -> None:
    player = running()
    player.answer(ExecReturned, exit_code=0)
    confirm(player)
    player.answer(Collected, result=CollectResult.OK, detail=None)
    player.answer(StepFailed, detail="KeyError: 'events'")
    assert player.replies[2].body == ErrorBody(detail="parsing the artifacts failed: KeyError: 'events'")
    close = player.close()
    player.answer(FilesRemoved)
    player.answer(Disconnected)
    body = player.replies[close].body
    assert isinstance(body, CloseBody)
    assert [gap.code for gap in body.gaps] == [GapCode.PARSE_FAILED]


def test_staging_that_fails_for_good_is_unprocessable() -> None:
    player = ready()
    waiter = player.activate()
    player.answer(SlotGranted)
    player.answer(StageFailed, detail="temperature is not supported", retryable=False)
    assert player.replies[waiter].status == 422


def test_a_restart_never_launches_again() -> None:
    player = running()
    player.feed(Restarted(at=7.0))
    assert player.order == AwaitReceipt(number=6, timeout_s=120.0), "the deadline's clock is lost"
    retry = player.activate()
    confirm(player)
    collect_and_parse(player)
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
    confirm(player)
    collect_and_parse(player)
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
    confirm(player)
    assert not player.session.holds_slot
