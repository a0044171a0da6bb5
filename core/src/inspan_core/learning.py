"""What answers teach beyond plain facts: their texts, and what depends on whose the sandbox is.

These functions are the notes of `inspan_core.tables.LEARN`. They write facts and decide nothing.
"""

from inspan_core.answers import (
    Collected,
    EvidenceMissing,
    InstallFailed,
    Parsed,
    SandboxUnavailable,
    StageFailed,
    StepFailed,
    StepTimedOut,
    TerminationConfirmed,
    TerminationRefuted,
)
from inspan_core.draft import Draft
from inspan_core.findings import CollectResult, Outcome
from inspan_core.session import RunPhase, SandboxFact

GRADABLE_COLLECTIONS = (CollectResult.OK, CollectResult.LIMIT)

WORDS = {
    RunPhase.REST: "nothing",
    RunPhase.CONNECTING: "getting the sandbox",
    RunPhase.INSTALLING: "installing the harness",
    RunPhase.QUEUED: "waiting for a concurrency slot",
    RunPhase.STAGING: "staging the input",
    RunPhase.RUNNING: "running the harness",
    RunPhase.AWAITING: "waiting for the termination receipt",
    RunPhase.STOPPING: "stopping the harness",
    RunPhase.COLLECTING: "collecting the artifacts",
    RunPhase.PARSING: "parsing the artifacts",
    RunPhase.RELEASING_EXEC: "releasing the exec",
    RunPhase.CANCELLING: "cancelling set-up or staging",
    RunPhase.REMOVING_FILES: "removing the session files",
    RunPhase.DISCONNECTING: "disconnecting from the sandbox",
    RunPhase.STOPPING_SANDBOX: "stopping the sandbox",
}
"""What each run phase is doing, for sentences."""


def failure_text(phase: RunPhase, answer: object) -> str:
    """Say how a step failed: "stopping the harness failed: ..."."""
    match answer:
        case StepTimedOut():
            return f"{WORDS[phase]} took longer than its budget"
        case StepFailed(detail=detail) | EvidenceMissing(detail=detail):
            return f"{WORDS[phase]} failed: {detail}"
        case _:
            return f"{WORDS[phase]} failed: the sandbox is gone"


def setup_refused(draft: Draft, answer: SandboxUnavailable | InstallFailed) -> None:
    """Keep the reason why there is no sandbox or no runtime."""
    draft.note_setup_error(answer.detail, retryable=answer.retryable)


def connect_broke(draft: Draft, answer: object) -> None:
    """A create that broke may have made a sandbox; a connect that broke holds nothing."""
    draft.note_setup_error(failure_text(RunPhase.CONNECTING, answer), retryable=True)
    if not draft.owned:
        draft.sandbox = SandboxFact.NONE


def install_broke(draft: Draft, answer: object) -> None:
    """Keep the reason why the installation did not end well."""
    draft.note_setup_error(failure_text(RunPhase.INSTALLING, answer), retryable=True)


def queue_broke(draft: Draft, answer: StepFailed) -> None:
    """Keep the reason why no slot was granted."""
    draft.note_execution_error(failure_text(RunPhase.QUEUED, answer), retryable=True)


def stage_refused(draft: Draft, answer: StageFailed) -> None:
    """Keep the reason that the harness's own staging gave."""
    draft.note_execution_error(answer.detail, retryable=answer.retryable)


def stage_broke(draft: Draft, answer: object) -> None:
    """Keep the reason why staging did not end well."""
    draft.note_execution_error(failure_text(RunPhase.STAGING, answer), retryable=True)


def confirmed(draft: Draft, answer: TerminationConfirmed) -> None:
    """A receipt of a harness that never ran is an execution error; the parser judges any other error."""
    if answer.return_code is None and not answer.timed_out:
        reason = answer.error or "the receipt has no return code"
        draft.note_execution_error(f"the harness did not run: {reason}", retryable=True)


def refuted(draft: Draft, answer: TerminationRefuted) -> None:
    """Keep what the negative receipt said."""
    draft.evidence_detail = answer.error or "the receipt gives no reason"


def receipt_missing(draft: Draft, answer: object) -> None:
    """Keep why waiting brought no evidence."""
    draft.evidence_detail = failure_text(RunPhase.AWAITING, answer)


def stop_unproven(draft: Draft, answer: object) -> None:
    """Keep why stopping brought no evidence."""
    draft.evidence_detail = failure_text(RunPhase.STOPPING, answer)


def collected(draft: Draft, answer: Collected) -> None:
    """Record the one collection."""
    draft.collect = answer.result
    if answer.result not in GRADABLE_COLLECTIONS:
        draft.note_capture_error(answer.detail or f"collecting the artifacts ended in {answer.result.value}")


def collect_broke(draft: Draft, answer: object) -> None:
    """Keep why there are no artifacts."""
    draft.note_capture_error(failure_text(RunPhase.COLLECTING, answer))


def parsed(draft: Draft, answer: Parsed) -> None:
    """Record what the artifacts say of the run."""
    draft.outcome = answer.outcome
    if answer.outcome is Outcome.FAILED or answer.outcome is Outcome.UNPROCESSABLE:
        draft.note_execution_error(
            answer.detail or f"the harness's run {answer.outcome.value}",
            retryable=answer.outcome is Outcome.FAILED,
        )


def parse_broke(draft: Draft, answer: object) -> None:
    """A parser that fails is a gap, and an execution error."""
    reason = failure_text(RunPhase.PARSING, answer)
    draft.outcome = Outcome.FAILED
    draft.note_capture_error(reason)
    draft.note_execution_error(reason, retryable=True)
