"""The parser over Pi's recorded streams (`transcripts/README.md`): whole values out."""

from __future__ import annotations

import json

import pytest

from inspan_core.findings import Outcome
from inspan_core.observations import AgentInvocation, ModelCallRef, ToolCall
from inspan_pi.parse import parse
from inspan_runtime.testing.recorded import codes

SESSION = "11111111-2222-7333-8444-555555555555"


def call(number, call_id, arguments):
    head = {"type": "function_call", "id": f"fc_{number}", "call_id": call_id, "name": "bash"}
    return {**head, "arguments": arguments, "status": "completed"}


def result(number, call_id, output):
    head = {"type": "function_call_output", "id": f"fco_{number}", "call_id": call_id}
    return {**head, "output": output, "status": "completed"}


def message(number, text, status="completed"):
    content = [{"type": "output_text", "text": text, "annotations": []}]
    head = {"type": "message", "id": f"msg_{number}", "role": "assistant", "status": status}
    return {**head, "content": content}


def reasoning(number, text):
    return {"type": "reasoning", "id": f"rs_{number}", "summary": [{"type": "summary_text", "text": text}]}


def usage(calls, thought=0):
    """The scripted server counts 111 tokens in, 11 of them cached, and 22 out for each call."""
    return {
        "input_tokens": 111 * calls,
        "input_tokens_details": {"cached_tokens": 11 * calls},
        "output_tokens": 22 * calls,
        "output_tokens_details": {"reasoning_tokens": thought},
        "total_tokens": 133 * calls,
    }


def test_two_tools_give_a_whole_response(run_of):
    request = {"input": "Do the thing.", "metadata": {"task": "t"}, "temperature": 0.5}
    parsed = parse(run_of("two_tools", request=request))
    output = [
        message(0, "I will look."),
        call(1, "call_1", '{"command": "printf hi > out.txt"}'),
        result(2, "call_1", "(no output)"),
        call(3, "call_2", '{"command": "cat out.txt"}'),
        result(4, "call_2", "hi"),
        message(5, "All done."),
    ]
    assert parsed.response == {
        "id": f"resp_{SESSION.replace('-', '')}",
        "object": "response",
        "created_at": 1000.0,
        "model": "policy",
        "status": "completed",
        "output": output,
        "usage": usage(3),
        "instructions": None,
        "metadata": {"task": "t"},
        "max_output_tokens": None,
        "temperature": 0.5,
        "top_p": None,
        "reasoning": None,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "incomplete_details": None,
        "error": None,
    }
    assert (parsed.outcome, parsed.detail) == (Outcome.COMPLETED, None)
    invocation, first, second = parsed.observations.records
    assert invocation == AgentInvocation(
        invocation_id=SESSION,
        status="completed",
        duration_ms=pytest.approx(invocation.duration_ms),
        model_calls=tuple(
            ModelCallRef(model_ref="policy", response_id=f"chatcmpl-000{number}") for number in range(3)
        ),
        conversation=({"role": "user", "content": "Do the thing."}, *output),
    )
    assert first == ToolCall(
        invocation_id=SESSION,
        tool_call_id="call_1",
        tool_name="bash",
        sandbox_id="box-1",
        started_at=first.started_at,
        completed_at=first.completed_at,
        duration_ms=first.duration_ms,
        timing_source="harness",
        status="completed",
    )
    assert 1000.0 < first.started_at <= first.completed_at < second.started_at < 1001.0
    assert first.duration_ms >= 0
    assert codes(parsed) == []


@pytest.mark.parametrize(
    ("name", "output", "tokens"),
    [
        ("plain", [message(0, "Hello.")], usage(1)),
        ("empty", [], usage(1)),
        (
            "parallel_tools",
            [
                call(0, "call_1", '{"command": "echo one"}'),
                call(1, "call_2", '{"command": "echo two"}'),
                result(2, "call_1", "one\n"),
                result(3, "call_2", "two\n"),
                message(4, "ok"),
            ],
            usage(2),
        ),
        (
            "tool_failure",
            [
                call(0, "call_1", '{"command": "echo oops >&2; exit 3"}'),
                result(1, "call_1", "oops\n\n\nCommand exited with code 3"),
                message(2, "It failed."),
            ],
            usage(2),
        ),
        (
            "reasoning",
            [
                reasoning(0, "First I think."),
                call(1, "call_1", '{"command": "echo hi"}'),
                result(2, "call_1", "hi\n"),
                reasoning(3, "Then answer."),
                message(4, "Answer."),
            ],
            usage(2, thought=12),
        ),
        ("rate_limit_then_ok", [message(0, "fine")], usage(1)),
    ],
)
def test_runs_that_complete(run_of, name, output, tokens):
    parsed = parse(run_of(name))
    assert parsed.outcome is Outcome.COMPLETED
    assert parsed.response["output"] == output
    assert parsed.response["usage"] == tokens


def test_malformed_arguments_are_kept_as_the_model_wrote_them(run_of):
    parsed = parse(run_of("malformed_arguments"))
    calls = [item for item in parsed.response["output"] if item["type"] == "function_call"]
    assert [item["arguments"] for item in calls] == ['{"command": "a', "[]", "null"]
    assert [record.status for record in parsed.observations.records[1:]] == ["failed"] * 3
    assert codes(parsed) == []


def test_without_the_shims_copy_malformed_arguments_come_from_pis_error(run_of, events_of):
    records = [json.loads(line) for line in events_of("malformed_arguments").split(b"\n") if line]
    for record in records:
        record.pop("raw_arguments", None)
    data = b"\n".join(json.dumps(record).encode() for record in records)
    parsed = parse(run_of("malformed_arguments", events__jsonl=data))
    calls = [item for item in parsed.response["output"] if item["type"] == "function_call"]
    assert [item["arguments"] for item in calls] == ['{"command": "a', "[]", "null"]


def test_arguments_keep_the_models_own_spelling(run_of, events_of):
    written = '{"command" :"printf hi > out.txt"  }'
    lines = [json.loads(line) for line in events_of("two_tools").split(b"\n") if line]
    record = next(line for line in lines if "raw_arguments" in line)
    record["raw_arguments"] = {"1": written}
    data = b"\n".join(json.dumps(line).encode() for line in lines)
    parsed = parse(run_of("two_tools", events__jsonl=data))
    assert parsed.response["output"][1] == call(1, "call_1", written)


def test_a_clock_that_was_set_back_leaves_only_pis_own_duration(run_of, events_of):
    lines = [json.loads(line) for line in events_of("tool_failure").split(b"\n") if line]
    for line in lines:
        if line["event"]["type"] == "tool_execution_end":
            line["at"] = 1.0
    data = b"\n".join(json.dumps(line).encode() for line in lines)
    tool = parse(run_of("tool_failure", events__jsonl=data)).observations.records[1]
    assert (tool.started_at, tool.completed_at) == (None, None)
    assert tool.duration_ms is not None and tool.duration_ms >= 0


def test_a_run_that_ended_before_the_repetition_keeps_the_failed_answer(run_of, events_of):
    events = events_of("dropped_stream")
    cut = events[: events.index(b"\n", events.index(b"auto_retry_start")) + 1]
    parsed = parse(run_of("dropped_stream", return_code=143, timed_out=True, events__jsonl=cut))
    assert parsed.outcome is Outcome.INCOMPLETE
    assert parsed.response["output"] == [message(0, "Half a sen", "incomplete")]


def test_a_tool_that_does_not_exist_is_a_failed_call(run_of):
    parsed = parse(run_of("unknown_tool"))
    assert parsed.outcome is Outcome.COMPLETED
    assert parsed.response["output"][0]["name"] == "frobnicate"
    assert parsed.observations.records[1].status == "failed"


OVERFLOW = {
    "message": "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens "
    "(8000 in the messages, 1000 in the completion).",
    "type": "invalid_request_error",
    "code": "context_length_exceeded",
}


@pytest.mark.parametrize(
    ("name", "outcome", "detail", "error_type", "items"),
    [
        (
            "unauthorized",
            Outcome.UNPROCESSABLE,
            {
                "message": "the model server answered 401",
                "model_status": 401,
                "model_body": {
                    "message": "Incorrect API key provided",
                    "type": "invalid_request_error",
                    "code": "invalid_api_key",
                },
            },
            "model_status_401",
            0,
        ),
        (
            "context_overflow",
            Outcome.UNPROCESSABLE,
            {"message": "the model server answered 400", "model_status": 400, "model_body": OVERFLOW},
            "context_length",
            0,
        ),
        (
            "server_error",
            Outcome.FAILED,
            {
                "message": "the model server answered 500",
                "model_status": 500,
                "model_body": {"message": "internal boom", "type": "server_error"},
            },
            "model_status_500",
            0,
        ),
        (
            "server_error_after_work",
            Outcome.FAILED,
            {
                "message": "the model server answered 503",
                "model_status": 503,
                "model_body": {"message": "overloaded", "type": "server_error"},
            },
            "model_status_503",
            2,
        ),
        (
            "refused",
            Outcome.FAILED,
            {"message": "Connection error.: connect ECONNREFUSED 127.0.0.1:18091"},
            "model_connection_error",
            0,
        ),
        (
            "dropped_stream",
            Outcome.FAILED,
            {"message": "Stream ended without finish_reason"},
            "model_connection_error",
            1,
        ),
    ],
)
def test_model_errors_keep_status_and_body(run_of, name, outcome, detail, error_type, items):
    parsed = parse(run_of(name))
    assert (parsed.outcome, parsed.detail) == (outcome, detail)
    assert parsed.observations.records[0].error_type == error_type
    assert parsed.observations.records[0].status == "failed"
    assert parsed.response["status"] == "failed"
    assert parsed.response["error"] == {"code": "server_error", "message": detail["message"]}
    assert len(parsed.response["output"]) == items
    assert "model_call_reference_unavailable" in codes(parsed) or name == "dropped_stream"


@pytest.mark.parametrize(
    ("name", "reason", "stop_reason", "items"),
    [
        ("length", "max_output_tokens", None, [message(0, "This text is cut", "incomplete")]),
        ("content_filter", "content_filter", None, [message(0, "partial", "incomplete")]),
        (
            "overflow_after_work",
            None,
            "context_length",
            [call(0, "call_1", '{"command": "echo work"}'), result(1, "call_1", "work\n")],
        ),
    ],
)
def test_limits_keep_the_partial_work(run_of, name, reason, stop_reason, items):
    parsed = parse(run_of(name))
    assert (parsed.outcome, parsed.detail) == (Outcome.INCOMPLETE, None)
    assert parsed.response["status"] == "incomplete"
    assert parsed.response["incomplete_details"] == ({"reason": reason} if reason else None)
    assert parsed.response["metadata"].get("stop_reason") == stop_reason
    assert parsed.response["output"] == items


def test_a_deadline_with_work_done_is_incomplete_and_has_the_tools_last_words(run_of):
    parsed = parse(run_of("sigterm", return_code=143, timed_out=True))
    assert parsed.outcome is Outcome.INCOMPLETE
    assert parsed.response["incomplete_details"] is None
    assert parsed.response["metadata"] == {"stop_reason": "time_limit"}
    assert parsed.response["output"] == [
        call(0, "call_1", '{"command": "echo started; sleep 60"}'),
        result(1, "call_1", "started\n\n\nCommand aborted"),
    ]
    tool = parsed.observations.records[1]
    assert (tool.status, tool.completed_at) == ("cancelled", None)
    assert parsed.response["usage"] == usage(1)
    assert codes(parsed) == []


@pytest.mark.parametrize(
    ("flags", "outcome", "error_type"),
    [
        ({"interrupted": True}, Outcome.FAILED, "interrupted"),
        ({}, Outcome.FAILED, "aborted"),
    ],
)
def test_a_stop_that_is_no_deadline_is_a_failure_with_its_trace(run_of, flags, outcome, error_type):
    parsed = parse(run_of("sigterm", return_code=143, **flags))
    assert parsed.outcome is outcome
    assert parsed.observations.records[0].error_type == error_type
    assert len(parsed.response["output"]) == 2


def test_a_killed_run_keeps_its_partial_trace(run_of):
    parsed = parse(run_of("sigkill", return_code=-9, output__json=None))
    assert parsed.outcome is Outcome.FAILED
    assert parsed.response["output"] == [call(0, "call_1", '{"command": "echo started; sleep 60"}')]
    assert parsed.observations.records[1].status == "incomplete"
    assert codes(parsed) == ["tool_result_missing"]


def test_a_deadline_before_any_answer_is_a_failure(run_of):
    parsed = parse(run_of("refused", return_code=143, timed_out=True))
    assert parsed.outcome is Outcome.FAILED


def test_no_artifacts_at_all_is_a_failure_without_a_response(run_of):
    run = run_of("plain", return_code=1, events__jsonl=None, output__json=None, runtime_info__json=None)
    parsed = parse(run)
    assert (parsed.outcome, parsed.response) == (Outcome.FAILED, None)
    assert parsed.observations.records[0].error_type == "no_model_answer"
    assert {"trace_unavailable", "runtime_info_unavailable", "usage_unavailable"} <= set(codes(parsed))


def test_unknown_usage_is_null_with_a_gap(run_of):
    parsed = parse(run_of("no_usage"))
    assert parsed.outcome is Outcome.COMPLETED
    assert parsed.response["usage"] is None
    assert codes(parsed) == ["usage_unavailable"]


def test_an_attempt_that_pi_repeated_is_a_gap_and_not_output(run_of):
    parsed = parse(run_of("dropped_stream_tool"))
    assert parsed.outcome is Outcome.COMPLETED
    assert parsed.response["output"] == [message(0, "end")]
    assert codes(parsed) == ["model_attempt_discarded", "usage_unavailable"]
    assert parsed.response["usage"] is None


def test_a_clean_exit_without_the_end_of_the_loop_is_not_a_completion(run_of, events_of):
    data = b"\n".join(line for line in events_of("plain").split(b"\n") if b'"agent_' not in line)
    parsed = parse(run_of("plain", events__jsonl=data))
    assert parsed.outcome is Outcome.FAILED
    assert parsed.observations.records[0].error_type == "harness_died"
