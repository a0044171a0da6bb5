"""How a run ended: from the runner's own last word, its exit code and the receipt, in this order of trust:
the receipt's deadline, then the last word, then the exit code."""

from __future__ import annotations

from typing import Any

from attrs import field, frozen

from inspan_core.errors import WireError
from inspan_core.findings import Outcome
from inspan_core.harness import ParseInput
from inspan_core.json_text import parse_json
from inspan_core.observations import ObservationGap

OUTPUT_LIMIT_BYTES = 1024 * 1024
_RETRYABLE_STATUSES = frozenset({408, 409, 425, 429})


@frozen(kw_only=True)
class Ending:
    """How a run ended.

    Attributes:
        outcome: For the answer's status.
        detail: For FAILED and UNPROCESSABLE.
        error_type: For the invocation.
        reason: Of an incomplete response, where the model set the limit.
        stop_reason: Where we set the limit.
        gaps: What is missing.
    """

    outcome: Outcome
    detail: Any = None
    error_type: str | None = None
    reason: str | None = None
    stop_reason: str | None = None
    gaps: tuple[ObservationGap, ...] = field(default=())


def read_ending(run: ParseInput, *, has_answer: bool) -> Ending:
    """How the run ended.

    Args:
        has_answer: Whether the model (or, without a model, the harness) answered at least once.
    """
    word = _last_word(run)
    if run.interrupted:
        return _failed("interrupted", "the run was cut off by close")
    if run.timed_out:
        if has_answer:
            return Ending(outcome=Outcome.INCOMPLETE, stop_reason="timeout")
        return _failed("timeout", "the run's time ended before the model answered")
    match word.get("ended"):
        case "model_error":
            return _model_error(word)
        case "turn_limit" if has_answer:
            return Ending(outcome=Outcome.INCOMPLETE, stop_reason="turn_limit")
        case "answered" if has_answer and run.return_code == 0:
            reason = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(
                str(word.get("finish_reason"))
            )
            return Ending(outcome=Outcome.INCOMPLETE if reason else Outcome.COMPLETED, reason=reason)
    log = run.artifacts.files.get("output.log", b"")[-2000:].decode("utf-8", "replace").strip()
    detail = f"the echo harness ended with exit code {run.return_code} and no readable output.json {log}"
    gap = ObservationGap(code="harness_output_unavailable", detail="output.json is missing or malformed")
    return _failed("harness_error", detail.rstrip(), gap)


def _last_word(run: ParseInput) -> dict[str, Any]:
    try:
        word = parse_json(
            run.artifacts.files.get("output.json", b""), OUTPUT_LIMIT_BYTES, lone_surrogates="replace"
        )
    except WireError:
        return {}
    return word if isinstance(word, dict) else {}


def _model_error(word: dict[str, Any]) -> Ending:
    status, text = word.get("status"), str(word.get("detail"))
    if type(status) is not int:
        return _failed("model_unreachable", f"the model could not be reached: {text}")
    final = 400 <= status < 500 and status not in _RETRYABLE_STATUSES
    return Ending(
        outcome=Outcome.UNPROCESSABLE if final else Outcome.FAILED,
        detail={"message": f"the model answered {status}", "status": status, "body": text},
        error_type=f"model_http_{status}",
    )


def _failed(error_type: str, detail: str, *gaps: ObservationGap) -> Ending:
    return Ending(outcome=Outcome.FAILED, detail=detail, error_type=error_type, gaps=gaps)
