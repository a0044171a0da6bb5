"""The parser on recorded runs of the real program, whole and damaged."""

from __future__ import annotations

import json

import pytest
from attrs import evolve
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inspan_codex.parse import parse
from inspan_core.codec import encode
from inspan_core.findings import Outcome
from inspan_core.harness import ArtifactProblem, Artifacts, ParseInput
from inspan_runtime.testing.recorded import codes, kinds, records

USAGE = {
    "input_tokens": 300,
    "input_tokens_details": {"cached_tokens": 120},
    "output_tokens": 60,
    "output_tokens_details": {"reasoning_tokens": 15},
    "total_tokens": 360,
}


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
    assert json.loads(call["arguments"])["cmd"].startswith("pwd; printf hi")
    assert call["name"] == "exec_command"
    assert (result["call_id"], "/app\n" in result["output"]) == (call["call_id"], True)
    assert last["content"][0]["text"] == "It says hi."
    assert response["usage"] == USAGE
    assert (response["status"], response["model"], response["metadata"]) == (
        "completed",
        "policy",
        {"k": "v"},
    )
    assert response["created_at"] > 1_700_000_000
    invocation = parsed.observations.records[0]
    assert invocation.invocation_id.replace("-", "") in response["id"]
    assert [ref.response_id[:5] for ref in invocation.model_calls] == ["resp_"] * 3
    assert {ref.model_ref for ref in invocation.model_calls} == {"policy"}
    assert invocation.conversation[0] == {"role": "user", "content": "Do the thing."}
    assert invocation.duration_ms > 0
    first, second = records(parsed, "tool_call")
    assert (first.tool_name, first.status, first.timing_source, first.sandbox_id) == (
        "exec_command", "completed", "harness", "box-1",
    )  # fmt: skip
    assert first.completed_at >= first.started_at > 1_700_000_000
    assert (first.tool_call_id, second.tool_call_id) == (call["call_id"], response["output"][4]["call_id"])
    assert "internal_chat_message_metadata_passthrough" not in json.dumps(response)


def test_a_failed_tool_and_two_in_one_answer(run_of):
    parsed = parse(run_of("parallel_tools"))
    assert kinds(parsed)[:4] == ["function_call"] * 2 + ["function_call_output"] * 2
    assert [(t.status, t.error_type) for t in records(parsed, "tool_call")] == [
        ("completed", None),
        ("failed", "tool_error"),
    ]


def test_malformed_arguments_are_kept_word_for_word(run_of):
    parsed = parse(run_of("malformed_arguments"))
    call, told, unknown, *_ = parsed.response["output"]
    assert call["arguments"] == '{"cmd": "a'
    assert told["output"].startswith("failed to parse function arguments")
    assert unknown["name"] == "nosuch"
    assert [t.status for t in records(parsed, "tool_call")] == ["failed", "failed"]
    assert codes(parsed) == []


def test_a_command_that_was_still_running_is_not_called_complete(run_of):
    parsed = parse(run_of("slow"))
    assert parsed.outcome is Outcome.COMPLETED
    assert "Process running with session ID" in parsed.response["output"][1]["output"]
    assert [t.status for t in records(parsed, "tool_call")] == ["failed"]
    unnoted = with_thread(run_of("slow"), lambda data: data.replace(b'"status": "failed"', b'"status": 0'))
    assert [t.status for t in records(parse(unnoted), "tool_call")] == ["incomplete"]


def test_a_tool_of_a_grant(run_of):
    parsed = parse(run_of("mcp"))
    assert (parsed.outcome, codes(parsed)) == (Outcome.COMPLETED, [])
    call, result, _ = parsed.response["output"]
    assert (call["name"], call["namespace"], call["arguments"]) == ("look_up", "mcp__ng", '{"key": "k"}')
    assert result["output"].endswith('{"value":1}')
    assert [(t.tool_name, t.status, t.timing_source) for t in records(parsed, "tool_call")] == [
        ("look_up", "completed", "harness")
    ]


def test_a_server_of_a_grant_that_cannot_be_reached(run_of):
    required = parse(run_of("mcp_down", return_code=1))
    assert (required.outcome, required.response) == (Outcome.FAILED, None)
    assert required.detail["message"].endswith("required MCP servers failed to initialize: ng")
    assert required.observations.records[0].error_type == "tool_server_unavailable"
    optional = parse(run_of("mcp_optional_down"))
    assert (optional.outcome, codes(optional)) == (Outcome.COMPLETED, ["tool_server_disconnected"])


def test_a_history_is_not_part_of_the_run(run_of):
    parsed = parse(run_of("history"))
    assert kinds(parsed) == ["function_call", "function_call_output", "message"]
    assert "old" not in json.dumps(parsed.response["output"])
    assert parsed.response["usage"]["total_tokens"] == 240
    (tool,) = records(parsed, "tool_call")
    assert (tool.status, tool.timing_source) == ("completed", "artifact")


def test_a_compaction_is_a_record_and_its_summary_no_answer(run_of):
    parsed = parse(run_of("compaction"))
    assert kinds(parsed) == ["function_call", "function_call_output", "message"]
    (compaction,) = [r for r in parsed.observations.records if r.kind == "context_compaction"]
    assert "Summary: one was echoed." in compaction.summary
    assert (compaction.outcome, len(compaction.model_calls)) == ("completed", 1)
    assert len(parsed.observations.records[0].model_calls) == 3
    assert parsed.response["usage"]["input_tokens"] == 200200


OUTCOMES = [
    ("plain", Outcome.COMPLETED, None, []),
    ("empty", Outcome.COMPLETED, None, []),
    ("server_error_then_ok", Outcome.COMPLETED, None, ["model_attempt_discarded"]),
    ("length", Outcome.INCOMPLETE, "max_output_tokens", []),
    (
        "content_filter",
        Outcome.INCOMPLETE,
        "content_filter",
        ["model_attempt_discarded", "usage_unavailable", "model_call_reference_unavailable"],
    ),
    ("overflow_after_work", Outcome.INCOMPLETE, None, []),
    ("dropped_stream", Outcome.COMPLETED, None, ["model_attempt_discarded", "usage_unavailable"]),
    (
        "dropped_after_item",
        Outcome.COMPLETED,
        None,
        ["model_attempt_discarded", "usage_unavailable", "model_call_reference_unavailable"],
    ),
    ("no_usage", Outcome.COMPLETED, None, ["usage_unavailable", "model_call_reference_unavailable"]),
    ("no_usage_first", Outcome.COMPLETED, None, ["usage_unavailable", "model_call_reference_unavailable"]),
]


@pytest.mark.parametrize(("name", "outcome", "reason", "gaps"), OUTCOMES)
def test_how_answered_runs_ended(run_of, name, outcome, reason, gaps):
    parsed = parse(run_of(name))
    assert (parsed.outcome, parsed.detail, codes(parsed)) == (outcome, None, gaps)
    details = parsed.response["incomplete_details"]
    assert details == (None if reason is None else {"reason": reason})
    assert (parsed.response["usage"] is None) == ("usage_unavailable" in gaps)


def test_an_overflow_after_work_is_named(run_of):
    assert parse(run_of("overflow_after_work")).response["metadata"] == {"stop_reason": "context_length"}


FAILURES = [
    ("unauthorized", Outcome.UNPROCESSABLE, 401, "scripted error 401"),
    ("not_found", Outcome.UNPROCESSABLE, 404, "scripted error 404"),
    ("bad_request", Outcome.UNPROCESSABLE, 400, "BadRequestError"),
    ("context_overflow", Outcome.UNPROCESSABLE, None, "ran out of room"),
    ("rate_limit", Outcome.FAILED, 429, "429"),
    ("server_error", Outcome.FAILED, None, "high demand"),
    ("refused", Outcome.FAILED, None, "Connection failed"),
    ("dropped_stream_always", Outcome.FAILED, None, "stream disconnected"),
    ("failed_answer", Outcome.FAILED, None, "gave up"),
]


@pytest.mark.parametrize(("name", "outcome", "status", "words"), FAILURES)
def test_how_runs_without_an_answer_ended(run_of, name, outcome, status, words):
    parsed = parse(run_of(name, return_code=1))
    assert (parsed.outcome, parsed.response) == (outcome, None)
    assert parsed.detail.get("model_status") == status
    assert words in json.dumps(parsed.detail)
    assert "usage_unavailable" in codes(parsed)


@pytest.mark.parametrize("name", ["sigterm", "sigkill"])
def test_a_run_that_was_stopped_keeps_what_it_did(run_of, name):
    died = parse(run_of(name, return_code=-9))
    assert (died.outcome, kinds(died)) == (Outcome.FAILED, ["message", "function_call"])
    assert codes(died) == ["tool_result_missing"]
    assert records(died, "tool_call")[0].status == "incomplete"
    late = parse(run_of(name, timed_out=True))
    assert (late.outcome, late.response["metadata"]) == (Outcome.INCOMPLETE, {"stop_reason": "time_limit"})
    assert records(late, "tool_call")[0].status == "cancelled"
    cut_off = parse(run_of(name, interrupted=True))
    assert (cut_off.outcome, cut_off.detail["message"]) == (Outcome.FAILED, "the run was cut off by close")


def test_a_time_limit_before_any_answer_is_a_failure(run_of):
    assert parse(run_of("server_error", timed_out=True)).outcome is Outcome.FAILED


def test_artifacts_that_are_missing_are_gaps(run_of):
    parsed = parse(run_of("two_tools", thread=None, runtime_info__json=None))
    assert parsed.outcome is Outcome.FAILED
    assert codes(parsed) == ["runtime_info_unavailable", "thread_record_missing", "usage_unavailable"]
    problem = ArtifactProblem(name="output.json", code="artifact_missing", detail="x")
    nothing = ParseInput(
        artifacts=Artifacts(problems=[problem]),
        request={"input": "x"}, return_code=1, timed_out=False, interrupted=False, model_name="m",
    )  # fmt: skip
    parsed = parse(nothing)
    assert (parsed.outcome, parsed.response) == (Outcome.FAILED, None)
    assert codes(parsed) == [
        "artifact_missing", "runtime_info_unavailable", "trace_unavailable", "thread_record_missing",
        "usage_unavailable",
    ]  # fmt: skip


def with_thread(run, change):
    """The run with its thread's lines changed."""
    files = dict(run.artifacts.files)
    name = next(name for name in files if name.startswith("home/"))
    files[name] = change(files[name])
    return evolve(run, artifacts=Artifacts(files=files))


def test_what_cannot_be_read_or_converted_is_said(run_of):
    extra = [
        {"type": "custom_tool_call", "call_id": "k", "name": "apply_patch", "input": "*** Begin"},
        {"type": "custom_tool_call_output", "call_id": "k", "output": [{"type": "input_image"}]},
        {"type": "web_search_call", "id": "w"},
        {"type": "function_call_output", "call_id": "never", "output": "x"},
        {
            "type": "function_call",
            "call_id": "n",
            "name": "look_up",
            "namespace": "mcp__ng",
            "arguments": "{}",
        },
    ]
    lines = b"".join(json.dumps({"type": "response_item", "payload": p}).encode() + b"\n" for p in extra)
    parsed = parse(with_thread(run_of("plain"), lambda data: data + lines + b'[1]\n{"type": "cut'))
    output = parsed.response["output"]
    assert json.loads(output[1]["arguments"]) == {"input": "*** Begin"}
    assert (output[-1]["name"], output[-1]["namespace"]) == ("look_up", "mcp__ng")
    assert codes(parsed) == [
        "trace_line_cut", "trace_line_malformed", "custom_tool_call_converted", "tool_output_dropped",
        "item_dropped", "tool_call_missing", "tool_result_missing", "usage_unavailable",
        "model_call_reference_unavailable",
    ]  # fmt: skip


def test_the_thread_that_codex_named_is_the_one_that_is_read(run_of):
    run = run_of("plain")
    planted = {"home/sessions/2026/12/31/rollout-z.jsonl": b"{}\n", **run.artifacts.files}
    run = evolve(run, artifacts=Artifacts(files=planted))
    parsed = parse(run)
    assert (parsed.outcome, kinds(parsed), codes(parsed)) == (
        Outcome.COMPLETED, ["message"], ["thread_not_read"],
    )  # fmt: skip


def test_every_recorded_run_parses_to_what_the_wire_takes(run_of, transcript_names):
    assert len(transcript_names) > 20
    for name in transcript_names:
        parsed = parse(run_of(name))
        encode(parsed.observations)
        json.dumps(parsed.response, allow_nan=False)


# Other types, other sizes, other nesting, and what is on the edge of each.
STRANGE = [
    None, True, False, 0, -1, 10**30, 1.5, -1e308, "", "x", "\ud800", "2026", "completed", [], [[]], ["x"],
    [None], {}, {"type": "text"}, {"text": 1}, [{"text": "t"}], [{"type": None}], {"usage": {}}, "x" * 5000,
]  # fmt: skip
relaxed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@relaxed
@given(st.data())
def test_any_damage_is_survived(run_of, transcript_names, data):
    run = run_of(data.draw(st.sampled_from(transcript_names)))
    files = dict(run.artifacts.files)
    name = data.draw(st.sampled_from(sorted(files)))
    lines = files[name].split(b"\n")
    index = data.draw(st.integers(0, len(lines) - 1))
    what = data.draw(st.sampled_from(["cut", "drop", "twice", "value", "bytes"]))
    if what == "cut":
        lines = [*lines[:index], lines[index][: data.draw(st.integers(0, len(lines[index])))]]
    elif what == "drop":
        del lines[index]
    elif what == "twice":
        lines.insert(index, lines[index])
    elif what == "bytes":
        lines[index] = data.draw(st.binary(max_size=20))
    elif lines[index]:
        try:
            value = json.loads(lines[index])
        except ValueError:
            return
        replace_somewhere(value, data)
        lines[index] = json.dumps(value).encode()
    files[name] = b"\n".join(lines)
    parsed = parse(evolve(run, artifacts=Artifacts(files=files)))
    encode(parsed.observations)
    json.dumps(parsed.response, allow_nan=False)


def replace_somewhere(value, data):
    """Put any JSON in place of some value inside."""
    while isinstance(value, dict) and value:
        key = data.draw(st.sampled_from(sorted(value)))
        if isinstance(value[key], dict) and value[key] and data.draw(st.booleans()):
            value = value[key]
        else:
            value[key] = data.draw(st.sampled_from(STRANGE))
            return
