"""The parser on recorded runs of the real program, whole and damaged."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inspan_core.codec import encode
from inspan_core.findings import Outcome
from inspan_core.harness import ArtifactProblem
from inspan_hermes.parse import parse
from inspan_runtime.testing.recorded import codes, kinds, records

USAGE = {
    "input_tokens": 300,
    "input_tokens_details": {"cached_tokens": 120},
    "output_tokens": 60,
    "output_tokens_details": {"reasoning_tokens": 15},
    "total_tokens": 360,
}


def changed(run_of, name, **how):
    """The run with its events changed by a function of (event) -> event or None."""
    change = how.pop("event")
    lines = run_of(name).artifacts.files["events.jsonl"].splitlines()
    kept = []
    for line in lines:
        record = json.loads(line)
        event = change(record["event"])
        if event is not None:
            kept.append(json.dumps({**record, "event": event}).encode())
    return run_of(name, files={"events.jsonl": b"\n".join(kept) + b"\n"}, **how)


def test_a_run_with_two_tools_in_full(run_of):
    parsed = parse(run_of("two_tools", request={"input": "Do the thing.", "metadata": {"k": "v"}}))
    assert (parsed.outcome, parsed.detail, codes(parsed)) == (Outcome.COMPLETED, None, [])
    response = parsed.response
    assert kinds(parsed) == [
        "reasoning", "message", "function_call", "function_call_output", "function_call",
        "function_call_output", "message",
    ]  # fmt: skip
    reasoning, said, call, result, *_, last = response["output"]
    assert reasoning["summary"] == [{"type": "summary_text", "text": "Look first."}]
    assert said["content"] == [{"type": "output_text", "text": "I look.", "annotations": []}]
    assert json.loads(call["arguments"]) == {"command": "pwd; printf hi > out.txt"}
    assert (call["name"], result["call_id"]) == ("terminal", call["call_id"])
    assert json.loads(result["output"]) == {"output": "/app", "exit_code": 0, "error": None}
    assert last["content"][0]["text"] == "It says hi."
    assert response["usage"] == USAGE
    assert (response["status"], response["model"], response["metadata"]) == (
        "completed",
        "policy",
        {"k": "v"},
    )
    assert response["created_at"] > 1_700_000_000
    invocation = parsed.observations.records[0]
    assert [ref.response_id[:9] for ref in invocation.model_calls] == ["chatcmpl-"] * 3
    assert {ref.model_ref for ref in invocation.model_calls} == {"policy"}
    assert invocation.conversation[0] == {"role": "user", "content": "Do the thing."}
    assert invocation.duration_ms > 0
    first, second = records(parsed, "tool_call")
    assert (first.tool_name, first.status, first.timing_source, first.sandbox_id) == (
        "terminal", "completed", "harness", "box-1",
    )  # fmt: skip
    assert first.completed_at >= first.started_at > 1_700_000_000
    assert (first.tool_call_id, second.tool_call_id) == (call["call_id"], response["output"][4]["call_id"])


def test_a_failed_tool_and_two_in_one_answer(run_of):
    parsed = parse(run_of("parallel_tools"))
    assert kinds(parsed)[:4] == ["function_call"] * 2 + ["function_call_output"] * 2
    assert [(t.status, t.error_type) for t in records(parsed, "tool_call")] == [
        ("completed", None),
        ("failed", "tool_error"),
    ]


def test_malformed_arguments_are_recorded_as_the_model_wrote_them(run_of):
    parsed = parse(run_of("malformed_arguments"))
    calls = [item for item in parsed.response["output"] if item["type"] == "function_call"]
    assert [(call["arguments"], call["status"]) for call in calls] == [
        ('{"command": "a', "incomplete"), ('{"x": 1}', "completed"),
        ("[]", "completed"), ("null", "completed"),
    ]  # fmt: skip
    assert [(t.tool_name, t.status, t.timing_source) for t in records(parsed, "tool_call")] == [
        ("no_such_tool", "failed", None), ("terminal", "failed", None), ("terminal", "failed", None),
    ]  # fmt: skip
    assert codes(parsed) == ["model_attempt_discarded"]
    assert len(parsed.observations.records[0].model_calls) == 5


ENDINGS = {
    "plain": (Outcome.COMPLETED, None, None),
    "rate_limit_then_ok": (Outcome.COMPLETED, None, None),
    "server_error_then_ok": (Outcome.COMPLETED, None, None),
    "server_error": (Outcome.FAILED, None, 500),
    "context_overflow": (Outcome.UNPROCESSABLE, None, 400),
    "unauthorized": (Outcome.UNPROCESSABLE, None, 401),
    "bad_request": (Outcome.UNPROCESSABLE, None, 400),
    "no_usage": (Outcome.COMPLETED, None, None),
    "dropped_stream": (Outcome.COMPLETED, None, None),
    "dropped_tool": (Outcome.COMPLETED, None, None),
    "empty": (Outcome.COMPLETED, None, None),
    "background": (Outcome.COMPLETED, None, None),
    "history": (Outcome.COMPLETED, None, None),
    "mcp": (Outcome.COMPLETED, None, None),
    "mcp_optional_down": (Outcome.COMPLETED, None, None),
    "overflow_after_work": (Outcome.INCOMPLETE, {"stop_reason": "context_length"}, None),
    "max_turns": (Outcome.INCOMPLETE, {"stop_reason": "max_turns"}, None),
    "length": (Outcome.INCOMPLETE, "max_output_tokens", None),
    "length_tool": (Outcome.INCOMPLETE, "max_output_tokens", None),
    "content_filter": (Outcome.INCOMPLETE, "content_filter", None),
    "dropped_stream_always": (Outcome.FAILED, None, None),
    "failed_answer": (Outcome.FAILED, None, None),
    "mcp_down": (Outcome.FAILED, None, None),
    "sigkill": (Outcome.FAILED, None, None),
}


@pytest.mark.parametrize("name", ENDINGS)
def test_how_each_run_ended(run_of, name):
    outcome, why, status = ENDINGS[name]
    parsed = parse(run_of(name, return_code=-9 if name == "sigkill" else 0))
    assert parsed.outcome is outcome
    if outcome is Outcome.INCOMPLETE:
        response = parsed.response
        assert response["status"] == "incomplete"
        assert (response["metadata"] or response["incomplete_details"]["reason"]) == why
    if outcome in (Outcome.FAILED, Outcome.UNPROCESSABLE):
        assert parsed.detail["message"]
        assert parsed.detail.get("model_status") == status
    if status is not None:
        assert "message" in parsed.detail["model_body"]["error"]


def test_every_recorded_run_is_tried(transcript_names):
    others = {"two_tools", "parallel_tools", "malformed_arguments", "deadline", "silent", "compaction"}
    assert set(transcript_names) == {*ENDINGS} | others


def test_a_deadline_during_a_tool_keeps_the_work(run_of):
    parsed = parse(run_of("deadline", timed_out=True))
    assert (parsed.outcome, parsed.response["metadata"]) == (
        Outcome.INCOMPLETE,
        {"stop_reason": "time_limit"},
    )
    assert [t.status for t in records(parsed, "tool_call")] == ["cancelled"]
    assert "[Command interrupted]" in parsed.response["output"][1]["output"]


def test_a_model_that_never_answered_leaves_nothing_to_grade(run_of):
    parsed = parse(run_of("silent", timed_out=True))
    assert (parsed.outcome, parsed.response) == (Outcome.FAILED, None)
    assert codes(parsed) == ["usage_unavailable"]


def test_a_run_cut_off_by_close_keeps_its_evidence(run_of):
    parsed = parse(run_of("deadline", interrupted=True))
    assert (parsed.outcome, parsed.observations.records[0].error_type) == (Outcome.FAILED, "interrupted")
    assert kinds(parsed) == ["function_call", "function_call_output"]


def test_a_killed_run_has_its_call_and_says_that_the_result_is_missing(run_of):
    parsed = parse(run_of("sigkill", return_code=-9))
    assert kinds(parsed) == ["function_call"]
    assert [t.status for t in records(parsed, "tool_call")] == ["incomplete"]
    assert "tool_result_missing" in codes(parsed)
    assert "exit code -9" in parsed.detail["message"]


def test_answers_that_broke_off_are_kept_as_far_as_they_came_and_their_cost_is_unknown(run_of):
    parsed = parse(run_of("dropped_stream"))
    assert [item["status"] for item in parsed.response["output"]] == ["incomplete", "completed"]
    assert parsed.response["usage"] is None
    assert codes(parsed) == [
        "model_answer_broken_off", "harness_message_inserted", "usage_unavailable", "model_call_failed",
    ]  # fmt: skip
    roles = [item.get("role") for item in parsed.observations.records[0].conversation]
    assert roles == ["user", "assistant", "user", "assistant"]


def test_a_compaction_names_its_call_and_is_part_of_the_usage(run_of):
    parsed = parse(run_of("compaction"))
    (compaction,) = records(parsed, "context_compaction")
    invocation = parsed.observations.records[0]
    assert (compaction.outcome, compaction.summary) == ("completed", "## Summary\nwe counted")
    assert (compaction.tokens_before, compaction.tokens_after) == (76387, None)
    first, second = invocation.model_calls
    assert (compaction.model_calls, compaction.after_model_call) == ((first,), second)
    assert kinds(parsed) == ["message"]
    assert parsed.response["usage"]["total_tokens"] == 240


def test_usage_is_null_with_a_gap_when_one_answer_had_none(run_of):
    parsed = parse(run_of("no_usage"))
    assert parsed.response["usage"] is None
    (gap,) = parsed.observations.gaps
    assert (gap.code, "1 of 2" in gap.detail, "120 tokens" in gap.detail) == ("usage_unavailable", True, True)


def test_settings_that_were_not_applied_are_no_retry_s_business(run_of):
    violated = {"type": "settings.violated", "field": "top_p", "asked": 0.9, "sent": None}
    lines = run_of("plain").artifacts.files["events.jsonl"]
    line = json.dumps({"at": 1.0, "event": violated}).encode()
    parsed = parse(run_of("plain", files={"events.jsonl": lines + line + b"\n"}))
    assert parsed.outcome is Outcome.UNPROCESSABLE
    assert parsed.detail["field"] == "top_p"


def test_without_the_shims_receipt_of_the_settings_nothing_is_gradable(run_of):
    parsed = parse(run_of("two_tools", files={"ready.json": None}))
    assert (parsed.outcome, parsed.detail["message"]) == (
        Outcome.FAILED, "the shim did not confirm that the settings were in force",
    )  # fmt: skip
    request = {"input": "x", "tools": [{"type": "function", "name": "buy"}]}
    assert "tools.ready" in parse(run_of("two_tools", request=request)).detail["message"]


def test_a_tool_that_ran_out_of_time_and_one_that_was_never_known(run_of):
    def time_out(event):
        if event["type"] == "tool.completed" or event["type"] == "model.request":
            text = json.dumps(event).replace('\\"exit_code\\": 0', '\\"exit_code\\": 124')
            return json.loads(text.replace('{\\"output\\": \\"/app', '{\\"output\\": \\"timed out'))
        return event

    assert records(parse(changed(run_of, "two_tools", event=time_out)), "tool_call")[0].status == "timeout"

    def forget(event):
        return None if event["type"] == "model.answer" and event["call"] == 1 else event

    parsed = parse(changed(run_of, "two_tools", event=forget))
    assert "tool_call_missing" in codes(parsed)


def test_a_result_that_only_the_executor_told_is_not_lost(run_of):
    def cut(event):
        return None if event.get("call", 0) > 1 or event["type"] == "ended" else event

    parsed = parse(changed(run_of, "two_tools", event=cut))
    assert kinds(parsed)[:4] == ["reasoning", "message", "function_call", "function_call_output"]


def test_problems_of_artifacts_and_a_missing_trace_are_gaps(run_of):
    problem = ArtifactProblem(
        name="output.log", code="artifact_missing", detail="output.log: it does not exist"
    )
    parsed = parse(
        run_of("plain", files={"events.jsonl": b"", "runtime_info.json": b"{"}, problems=[problem])
    )
    assert codes(parsed) == ["artifact_missing", "runtime_info_unavailable", "usage_unavailable"]
    assert parsed.outcome is Outcome.FAILED
    assert "trace_unavailable" in codes(parse(run_of("plain", files={"events.jsonl": None})))


@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_whatever_happens_to_the_files_there_is_a_verdict_and_no_exception(run_of, transcript_names, data):
    name = data.draw(st.sampled_from(transcript_names))
    raw = run_of(name).artifacts.files["events.jsonl"]
    start = data.draw(st.integers(0, len(raw)))
    end = data.draw(st.integers(start, min(len(raw), start + 400)))
    damage = data.draw(
        st.sampled_from([b"", b"\xff", b"\n", b'"', b"null", b"[]", b"{}", b"1e999", b"\\ud800"])
    )
    parsed = parse(run_of(name, files={"events.jsonl": raw[:start] + damage + raw[end:]}))
    assert isinstance(parsed.outcome, Outcome)
    json.dumps(parsed.response)
    encode(parsed.observations)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
KEYS = st.sampled_from(
    [
        "call",
        "messages",
        "message",
        "usage",
        "finish_reason",
        "whole",
        "id",
        "result",
        "status",
        "tokens",
        "purpose",
    ]
)


@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_events_of_any_shape_are_read(run_of, data):
    def strange(event):
        return {**event, data.draw(KEYS): data.draw(VALUES)}

    encode(parse(changed(run_of, "two_tools", event=strange)).observations)
