"""Whatever becomes of the files: the parser never raises, and a tool call that is there is never lost."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inspan_pi.parse import parse
from inspan_pi.sandbox import parse_runtime_info

relaxed = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def check(parsed):
    """What every result must be: text that can be written, and calls and results that pair."""
    json.dumps(parsed.response, ensure_ascii=False, allow_nan=False).encode()
    for record in parsed.observations.records:
        if record.kind == "tool_call" and record.started_at is not None and record.completed_at is not None:
            assert record.completed_at >= record.started_at
    for gap in parsed.observations.gaps:
        assert gap.code and gap.detail


def calls_in(data):
    found = []
    for line in data.split(b"\n"):
        try:
            message = json.loads(line)["event"]["message"]
        except (ValueError, KeyError, TypeError):
            continue
        found += [b["id"] for b in message["content"] if isinstance(b, dict) and b.get("type") == "toolCall"]
    return found


def calls_out(parsed):
    items = [] if parsed.response is None else parsed.response["output"]
    return [item["call_id"] for item in items if item["type"] == "function_call"]


@relaxed
@given(data=st.data())
def test_any_cut_keeps_every_complete_call(run_of, events_of, transcript_names, data):
    name = data.draw(st.sampled_from([n for n in transcript_names if n != "dropped_stream_tool"]))
    events = events_of(name)
    kept = events[: data.draw(st.integers(0, len(events)))]
    parsed = parse(run_of(name, events__jsonl=kept, session__jsonl=None))
    check(parsed)
    assert calls_out(parsed) == calls_in(kept)


@relaxed
@given(data=st.data())
def test_any_damage_is_survived_and_other_lines_still_count(run_of, events_of, transcript_names, data):
    name = data.draw(st.sampled_from([n for n in transcript_names if n != "dropped_stream_tool"]))
    lines = events_of(name).split(b"\n")
    index = data.draw(st.integers(0, len(lines) - 1))
    lines[index] = data.draw(st.binary(max_size=200).filter(lambda line: b"\n" not in line))
    damaged = b"\n".join(lines)
    parsed = parse(run_of(name, events__jsonl=damaged, session__jsonl=None))
    check(parsed)
    assert calls_out(parsed) == calls_in(damaged)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.just(10**400)
    | st.floats(allow_nan=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
words = st.sampled_from(
    [
        "message_end",
        "tool_execution_start",
        "tool_execution_end",
        "compaction_end",
        "auto_retry_start",
        "session",
    ]
)


@relaxed
@given(data=st.data())
def test_fields_of_any_type_are_survived(run_of, events_of, transcript_names, data):
    """Replace one value anywhere in one event by any JSON value."""
    name = data.draw(st.sampled_from(transcript_names))
    records = [json.loads(line) for line in events_of(name).split(b"\n") if line]
    record = data.draw(st.sampled_from(records))
    _mutate(record, data)
    records.append(
        {"at": data.draw(json_values), "event": {"type": data.draw(words), "x": data.draw(json_values)}}
    )
    events = b"\n".join(json.dumps(each).encode() for each in records)
    check(parse(run_of(name, events__jsonl=events, output__json=json.dumps(data.draw(json_values)).encode())))


def _mutate(value, data):
    """Walk to a random place and put another value there."""
    while True:
        if isinstance(value, dict) and value:
            key = data.draw(st.sampled_from(sorted(value)))
        elif isinstance(value, list) and value:
            key = data.draw(st.integers(0, len(value) - 1))
        else:
            return
        if not isinstance(value[key], dict | list) or data.draw(st.booleans()):
            value[key] = data.draw(json_values)
            return
        value = value[key]


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300))
def test_process_metadata_of_any_bytes_is_none_or_sound(data):
    info = parse_runtime_info(data)
    assert info is None or (info.pid > 0 and info.interpreter.startswith("/"))


@settings(max_examples=100, deadline=None)
@given(json_values, json_values, json_values)
def test_process_metadata_of_any_values_is_none_or_sound(hostname, pid, interpreter):
    text = json.dumps({"hostname": hostname, "pid": pid, "interpreter": interpreter})
    info = parse_runtime_info(text)
    assert info is None or (info.hostname, info.pid, info.interpreter) == (hostname, pid, interpreter)


def test_process_metadata_as_the_shim_writes_it():
    info = parse_runtime_info('{"hostname": "h", "pid": 12, "interpreter": "/n", "runner_pid": 3}')
    assert info is not None
    assert (info.hostname, info.pid, info.interpreter) == ("h", 12, "/n")


@pytest.mark.parametrize("pid", [True, 0, -1, 1.5, "7"])
def test_a_process_id_is_a_positive_whole_number(pid):
    assert parse_runtime_info(json.dumps({"hostname": "h", "pid": pid, "interpreter": "/n"})) is None
