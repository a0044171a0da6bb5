"""Stories of runs and closes: what is ordered, and what clients hear."""

import pytest

from inspan_core.effects import (
    ActivationBody,
    AwaitReceipt,
    CloseBody,
    CreateSandbox,
    ErrorBody,
    GapCode,
    Launch,
    ReleaseExec,
    Stage,
    StartTimer,
    StopHarness,
    StopSandbox,
    TakeSlot,
    Timer,
)
from inspan_core.events import (
    Abandoned,
    Collected,
    CollectResult,
    Disconnected,
    EvidenceMissing,
    ExecLost,
    ExecReleased,
    ExecReturned,
    FilesRemoved,
    Outcome,
    Parsed,
    RetryDue,
    SandboxGone,
    SandboxStopped,
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
from inspan_core.testing.player import Player, finished, ready, running

SETTINGS = Settings(retry_delay_s=5.0, retry_delay_limit_s=12.0)


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
    player.confirm()
    player.collect_and_parse()
    assert isinstance(player.order, ReleaseExec), "its handle is still ours"
    player.answer(ExecReleased)
    assert player.replies[2].status == 200


def test_a_receipt_before_the_exec_ends_the_run() -> None:
    player = running()
    player.confirm()
    player.collect_and_parse()
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
    assert player.replies[2].status == 503
    assert player.order == StopHarness(number=player.session.run.order, timeout_s=30.0)
    late = player.activate()
    assert player.replies[late].status == 409
    player.confirm()
    player.answer(Collected, result=CollectResult.LIMIT, detail=None)
    player.answer(Parsed, outcome=Outcome.INCOMPLETE, detail=None)
    player.answer(ExecReleased)
    player.answer(FilesRemoved)
    assert close not in player.replies
    player.answer(Disconnected)
    assert player.replies[close].body == CloseBody(seeded=True, gaps=())


def test_a_close_joins_a_collection_in_flight() -> None:
    player = running()
    player.confirm()
    number = player.session.run.order
    player.close()
    assert player.session.run.order == number
    player.answer(Collected, result=CollectResult.OK, detail=None)
    assert player.doing == "CLOSING PARSING"


def test_missing_evidence_keeps_the_state_until_a_close_confirms_it() -> None:
    player = running(settings=SETTINGS)
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
    player.collect_and_parse()
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
    assert player.replies[again].status == 503
    assert not player.session.gradable


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
    player.confirm()
    player.collect_and_parse(outcome, detail)
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
    player.confirm()
    player.answer(StepTimedOut)
    assert player.replies[2].status == 503
    player.close()
    assert player.doing == "CLOSING REMOVING_FILES", "the collection is not tried again"


def test_a_failing_parser_is_a_gap_and_an_execution_error() -> None:
    player = running()
    player.answer(ExecReturned, exit_code=0)
    player.confirm()
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
