"""How each fault ends on each harness, measured, and why they differ; with two repetitions allowed."""

from __future__ import annotations

from attrs import frozen

DISCARDED = "model_attempt_discarded"
NO_REFERENCE = "model_call_reference_unavailable"
NO_RESULT = "tool_result_missing"
NO_USAGE = "usage_unavailable"
REPEATED = "model_call_failed"
BROKEN_OFF = frozenset({"model_answer_broken_off", "harness_message_inserted", REPEATED, NO_USAGE})


@frozen
class Ends:
    """How a run ends.

    Attributes:
        status: Of the activation.
        how: ``completed``, or the agent invocation's ``error_type``.
        calls: Of the model, as the gateway counts.
        gaps: Codes beside those of processes, which follow from the supervisor's report.
    """

    status: int
    how: str
    calls: int
    gaps: frozenset[str] = frozenset()

    def __str__(self) -> str:
        outcome = self.how if self.status != 200 or self.how == "completed" else f"incomplete ({self.how})"
        return f"{self.status} {outcome}, {self.calls} call{'s' * (self.calls != 1)}"


def ends(status, how, calls, *gaps):
    return Ends(status, how, calls, frozenset(gaps))


USUAL = {
    "tool success": ends(200, "completed", 2),
    "tool failure, recovery": ends(200, "completed", 3),
    "two tools, one state": ends(200, "completed", 3),
    "429 twice": ends(200, "completed", 3, DISCARDED, NO_REFERENCE),
    "500 once": ends(200, "completed", 2, DISCARDED, NO_REFERENCE),
    "context overflow": ends(422, "context_length", 1, NO_USAGE, NO_REFERENCE),
    "context overflow after work": ends(200, "context_length", 2, NO_REFERENCE),
    "401": ends(422, "model_status_401", 1, NO_USAGE, NO_REFERENCE),
    "silent model": ends(503, "time_limit", 1, NO_USAGE),
    "usage omitted": ends(200, "completed", 1, NO_USAGE),
    "dropped stream": ends(200, "completed", 2, DISCARDED, NO_USAGE),
    "stream dropped for ever": ends(503, "model_connection_error", 3, DISCARDED, NO_USAGE),
    "deadline during a tool": ends(200, "time_limit", 1),
    "close during a tool": ends(503, "interrupted", 1),
    "harness killed": ends(503, "harness_died", 1, NO_RESULT),
    "background service": ends(200, "completed", 3),
    "forced removal": ends(200, "completed", 3),
    "two calls in one answer": ends(200, "completed", 2),
    "malformed arguments": ends(200, "completed", 6),
    "huge and broken output": ends(200, "completed", 2),
    "hard prompt": ends(200, "completed", 3),
}

NOT_KEPT = "Codex keeps no refused call; Pi keeps it as an answer without an id"
COUNTED = "Hermes' shim notes refused calls as such, in one gap"
KILLED = "Codex dies by the signal: the end of its command is not in its record"
ONCE_MORE = "Hermes tries to shorten the conversation, and asks once more when it cannot"
GOES_ON = "Hermes keeps the half of an answer, and asks the model to go on from there"
"""Reasons that more than one cell has."""

DIFFERS = {
    ("429 twice", "codex"): (
        ends(503, "model_status_429", 1, NO_USAGE),
        "Codex never repeats a 429",
    ),
    ("500 once", "codex"): (ends(200, "completed", 2, DISCARDED), NOT_KEPT),
    ("context overflow", "codex"): (ends(422, "context_length", 1, NO_USAGE), NOT_KEPT),
    ("context overflow after work", "codex"): (ends(200, "context_length", 2), NOT_KEPT),
    ("401", "codex"): (
        ends(422, "model_status_401", 3, NO_USAGE, DISCARDED),
        "Codex repeats a 401",
    ),
    ("usage omitted", "codex"): (
        ends(200, "completed", 1, NO_USAGE, NO_REFERENCE),
        "Codex notes an answer's id only with its usage",
    ),
    ("429 twice", "hermes"): (ends(200, "completed", 3, REPEATED), COUNTED),
    ("500 once", "hermes"): (ends(200, "completed", 2, REPEATED), COUNTED),
    ("context overflow", "hermes"): (ends(422, "context_length", 2, NO_USAGE, REPEATED), ONCE_MORE),
    ("context overflow after work", "hermes"): (ends(200, "context_length", 3, REPEATED), ONCE_MORE),
    ("401", "hermes"): (ends(422, "model_status_401", 1, NO_USAGE), COUNTED),
    ("dropped stream", "hermes"): (ends(200, "completed", 2, *BROKEN_OFF), GOES_ON),
    ("stream dropped for ever", "hermes"): (
        ends(503, "model_stream_broken", 4, DISCARDED, *BROKEN_OFF),
        GOES_ON,
    ),
    ("malformed arguments", "hermes"): (
        ends(200, "completed", 6, DISCARDED),
        "Hermes throws an answer with broken JSON in it away, and asks again",
    ),
    ("harness killed", "hermes"): (
        ends(503, "harness_died", 1, NO_RESULT, "artifact_missing"),
        "Hermes runs in its shim, which cannot write how it ended",
    ),
    ("deadline during a tool", "codex"): (ends(200, "time_limit", 1, NO_RESULT), KILLED),
    ("close during a tool", "codex"): (ends(503, "interrupted", 1, NO_RESULT), KILLED),
}


def expected(fault, harness):
    """How a fault ends on a harness."""
    return DIFFERS[fault, harness][0] if (fault, harness) in DIFFERS else USUAL[fault]


def page_rows():
    """The table of `docs/harnesses.md`: a row for each fault; a number refers to `page_reasons`."""
    reasons = page_reasons()
    yield "| fault | pi | codex | hermes |"
    yield "| --- | --- | --- | --- |"
    for fault in USUAL:
        cells = []
        for harness in ("pi", "codex", "hermes"):
            why = DIFFERS.get((fault, harness), (None, None))[1]
            note = "" if why is None else f" ({reasons.index(why) + 1})"
            cells.append(f"{expected(fault, harness)}{note}")
        yield f"| {fault} | {' | '.join(cells)} |"


def page_reasons():
    """Why harnesses differ, in the order in which the table needs them."""
    return list(dict.fromkeys(why for _, why in DIFFERS.values()))
