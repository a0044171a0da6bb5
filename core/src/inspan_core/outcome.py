"""What a session's facts are worth to its clients: the activation's answer, and the gaps of the close."""

from inspan_core.draft import Draft
from inspan_core.effects import ActivationBody, ErrorBody, Gap, GapCode
from inspan_core.findings import CollectResult
from inspan_core.learning import GRADABLE_COLLECTIONS
from inspan_core.session import Evidence, Failure, Retained


def _error(status: int, detail: str) -> Retained:
    return Retained(status=status, body=ErrorBody(detail=detail))


def activation_answer(draft: Draft) -> Retained:
    """Decide the answer to the activation when its run has ended.

    The order of the questions is the rule: a negative receipt first, then an unknown outcome, then the
    execution error, then a launch that never was, then what went wrong with the artifacts.

    Returns:
        200 with the response, or the error that keeps the episode from being graded.
    """
    name, reason = draft.name, draft.evidence_detail
    if draft.evidence is Evidence.NEGATIVE:
        return _error(503, f"session {name}: the harness could not be proven stopped: {reason}")
    if draft.launched and draft.evidence is Evidence.NONE:
        why = reason or "the sandbox is gone"
        return _error(503, f"session {name}: whether the harness stopped is unknown: {why}")
    if draft.execution_error is not None:
        return _error(draft.execution_error.status, draft.execution_error.detail)
    if draft.evidence is not Evidence.CONFIRMED:
        return _error(503, f"session {name}: the harness was never launched")
    if draft.collect not in GRADABLE_COLLECTIONS or draft.outcome is None:
        why = draft.capture_error or "they were not parsed"
        return _error(503, f"session {name}: the artifacts are not available: {why}")
    return Retained(status=200, body=ActivationBody())


def setup_answer(draft: Draft) -> Failure:
    """Say why the set-up failed; a set-up without an error of its own was cut off by a restart."""
    return draft.setup_error or Failure(
        detail=f"session {draft.name}: its set-up was cut off by a restart of the server", retryable=True
    )


def close_gaps(draft: Draft) -> tuple[Gap, ...]:
    """List what the evidence of a closed session lacks.

    Returns:
        At most one gap about the harness's end and one about its artifacts.
    """
    if draft.activation_digest is None:
        return (Gap(code=GapCode.NEVER_ACTIVATED, detail="the session was closed before an activation"),)
    if draft.evidence is Evidence.NEGATIVE:
        return (
            Gap(code=GapCode.TERMINATION_REFUTED, detail=draft.evidence_detail or "no reason was given"),
            Gap(code=GapCode.ARTIFACTS_UNAVAILABLE, detail="nothing is collected after a negative receipt"),
        )
    if not draft.launched or draft.evidence is Evidence.NEVER_LAUNCHED:
        return (Gap(code=GapCode.NEVER_LAUNCHED, detail="the harness was never launched"),)
    if draft.evidence is Evidence.NONE:
        why = draft.evidence_detail or "the sandbox ended before its receipt was read"
        return (
            Gap(code=GapCode.TERMINATION_UNKNOWN, detail=why),
            Gap(code=GapCode.ARTIFACTS_UNAVAILABLE, detail="the sandbox ended before they were collected"),
        )
    return _artifact_gaps(draft)


def _artifact_gaps(draft: Draft) -> tuple[Gap, ...]:
    detail = draft.capture_error or "the sandbox ended before they were collected"
    if draft.collect in GRADABLE_COLLECTIONS:
        if draft.capture_error is None:
            return ()
        return (Gap(code=GapCode.PARSE_FAILED, detail=detail),)
    if draft.collect is CollectResult.ERROR:
        return (Gap(code=GapCode.OBSERVATION_CAPTURE_FAILED, detail=detail),)
    return (Gap(code=GapCode.ARTIFACTS_UNAVAILABLE, detail=detail),)
