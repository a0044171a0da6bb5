"""Parsing hostile and broken artifacts: the trace stays valid, and what is lost is said."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import inspan_echo
from inspan_core.codec import encode_observations
from inspan_core.errors import RequestRefused
from inspan_core.findings import Outcome
from inspan_core.harness import ArtifactProblem, Artifacts, ParseInput
from inspan_echo.messages import to_messages


def parse(events=b"", output=b"", *, problems=(), return_code=0):
    return inspan_echo.inspan_parse(
        run=ParseInput(
            artifacts=Artifacts(files={"events.jsonl": events, "output.json": output}, problems=problems),
            request={"input": "hi"},
            return_code=return_code,
            timed_out=False,
            interrupted=False,
            model_name="policy",
        )
    )


def event(name, **details):
    return json.dumps({"event": name, "at": 1.5, **details}).encode() + b"\n"


def answered(content, usage=None, calls=()):
    message = {"content": content, "tool_calls": list(calls)}
    return event("model_answered", response_id="r1", usage=usage, message=message, finish_reason="stop")


ANSWERED = json.dumps({"ended": "answered", "finish_reason": "stop"}).encode()


@given(events=st.binary(max_size=300), output=st.binary(max_size=100))
def test_any_bytes_parse_to_valid_observations(events, output):
    parsed = parse(events, output)
    encode_observations(parsed.observations)
    assert parsed.outcome is Outcome.FAILED


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
KEYS = st.sampled_from(["event", "message", "usage", "call_id", "output", "status", "text", "response_id"])
NAMES = st.sampled_from(["model_answered", "tool_started", "tool_ended", "echoed", "other"])


@given(st.lists(st.tuples(NAMES, st.dictionaries(KEYS, JSON)), max_size=4))
def test_any_events_parse_to_valid_observations(events):
    lines = [json.dumps({**details, "event": name, "at": 2.0}).encode() for name, details in events]
    encode_observations(parse(b"\n".join(lines), ANSWERED).observations)


def test_a_line_cut_in_the_middle_is_dropped_with_a_gap():
    parsed = parse(answered("whole") + answered("cut")[:-20], ANSWERED)
    assert [item["content"][0]["text"] for item in parsed.response["output"]] == ["whole"]
    assert "event_unreadable" in [gap.code for gap in parsed.observations.gaps]


def test_the_first_line_of_a_tail_is_not_trusted():
    cut = ArtifactProblem(name="events.jsonl", code="artifact_truncated", detail="only the tail")
    parsed = parse(b'"tail of a line"}\n' + answered("whole"), ANSWERED, problems=[cut])
    assert len(parsed.response["output"]) == 1
    assert parsed.observations.gaps[0].code == "artifact_truncated"
    assert "event_unreadable" not in [gap.code for gap in parsed.observations.gaps]


def test_half_a_surrogate_pair_and_broken_bytes_cost_nothing_else():
    text = b'{"event": "echoed", "at": 1.0, "text": "x\\ud83d"}\n'
    parsed = parse(text + b'{"event": "echoed", "at": 1.0, "text": "\xff"}\n', ANSWERED)
    assert [item["content"][0]["text"] for item in parsed.response["output"]] == ["x\ufffd"]
    json.dumps(parsed.response, ensure_ascii=False).encode()


def test_unknown_usage_is_null_with_a_gap_and_known_usage_is_summed():
    assert parse(answered("a", {"prompt_tokens": 1}), ANSWERED).response["usage"] is None
    details = {
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }
    known = {"prompt_tokens": 10, "completion_tokens": 3, **details}
    parsed = parse(answered("a", known) + answered("b", known), ANSWERED)
    assert parsed.response["usage"] == {
        "input_tokens": 20,
        "input_tokens_details": {"cached_tokens": 8},
        "output_tokens": 6,
        "output_tokens_details": {"reasoning_tokens": 4},
        "total_tokens": 26,
    }
    assert parsed.observations.gaps == ()


@pytest.mark.parametrize(("output", "return_code"), [(b"", 0), (ANSWERED, 1), (ANSWERED, -9), (b"[]", 0)])
def test_a_good_output_with_a_bad_exit_or_none_at_all_is_a_failure(output, return_code):
    parsed = parse(answered("a"), output, return_code=return_code)
    assert parsed.outcome is Outcome.FAILED
    assert str(return_code) in parsed.detail
    assert parsed.response["status"] == "failed"


def test_an_answer_that_nothing_recorded_is_a_failure():
    assert parse(b"", ANSWERED).outcome is Outcome.FAILED


def test_the_clock_that_was_set_back_gives_no_times():
    call = {"id": "c1", "function": {"name": "bash", "arguments": "{}"}}
    started = b'{"event": "tool_started", "at": 9.0, "call_id": "c1"}\n'
    ended = b'{"event": "tool_ended", "at": 8.0, "call_id": "c1", "output": "", "status": "completed"}\n'
    record = parse(answered(None, calls=[call]) + started + ended, ANSWERED).observations.records[1]
    assert (record.started_at, record.completed_at, record.duration_ms) == (None, None, None)
    assert record.status == "completed"


def test_input_becomes_messages_with_the_instructions_first():
    request = {
        "instructions": "Be brief.",
        "input": [
            {"role": "developer", "content": "d"},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "u"}]},
        ],
    }
    assert to_messages(request) == [
        {"role": "system", "content": "Be brief."},
        {"role": "system", "content": "d"},
        {"role": "user", "content": "u"},
    ]


@pytest.mark.parametrize(
    "item",
    [
        {"type": "function_call_output", "call_id": "c", "output": "x"},
        {"role": "user", "content": [{"type": "input_image", "image_url": "http://h/x"}]},
        {"role": "tool", "content": "x"},
        {"role": "user", "content": None},
    ],
)
def test_input_that_it_could_only_drop_is_refused(item):
    with pytest.raises(RequestRefused, match=r"input\[0\]"):
        to_messages({"input": [item]})
