"""What plugins share when they read requests and traces."""

import json

import pytest

from inspan_core.errors import ConfigError, RequestRefused
from inspan_core.harness import ArtifactProblem, Artifacts, HarnessSpec, ParseInput
from inspan_core.option_checks import complete_options
from inspan_core.request_text import (
    effort_of,
    instructions_of,
    items_of,
    refuse_choices,
    sampling_of,
    text_of,
    token_limit,
)
from inspan_core.run_trace import OpenCalls, RunTrace, artifact_gaps, sound_times
from inspan_core.trace_lines import MOST_LINES, read_records


@pytest.mark.parametrize(
    ("read", "field"),
    [
        (lambda: refuse_choices({"tool_choice": "required"}, "some"), "tool_choice"),
        (lambda: refuse_choices({"parallel_tool_calls": False}, "some"), "parallel_tool_calls"),
        (lambda: instructions_of({"instructions": ["x"]}, "some"), "instructions"),
        (lambda: items_of({}), "input"),
        (lambda: items_of({"input": b"x"}), "input"),
        (lambda: items_of({"input": ["x"]}), "input"),
        (lambda: text_of(5, 2, "some"), "input"),
        (lambda: text_of([{"type": "input_image"}], 2, "some"), "input"),
        (lambda: text_of([{"type": "input_text", "text": None}], 2, "some"), "input"),
        (lambda: token_limit({"max_output_tokens": True}), "max_output_tokens"),
        (lambda: token_limit({"max_output_tokens": 0}), "max_output_tokens"),
        (lambda: sampling_of({"temperature": "hot"}), "temperature"),
        (lambda: sampling_of({"top_p": True}), "top_p"),
        (lambda: effort_of({"reasoning": 5}, "some", ["low"]), "reasoning"),
        (lambda: effort_of({"reasoning": {"effort": "ultra"}}, "some", ["low"]), "reasoning"),
        (lambda: effort_of({"reasoning": {"summary": "auto"}}, "some", ["low"]), "reasoning"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_field(read, field):
    with pytest.raises(RequestRefused, match=field) as refused:
        read()
    assert refused.value.field == field


def test_what_fits_is_read():
    refuse_choices({"tool_choice": "auto", "parallel_tool_calls": True}, "some")
    refuse_choices({"tool_choice": None}, "some")
    assert (instructions_of({}, "some"), instructions_of({"instructions": "Be"}, "some")) == ([], ["Be"])
    assert items_of({"input": "hi"}) == [{"role": "user", "content": "hi"}]
    assert items_of({"input": ({"type": "message"},)}) == [{"type": "message"}]
    assert text_of([{"text": "a"}, {"type": "x", "text": "b"}], 0, "some") == "a\nb"
    assert text_of("plain", 0, "some") == "plain"
    assert (token_limit({}), token_limit({"max_output_tokens": 5})) == (None, 5)
    assert sampling_of({"temperature": 0, "top_p": None}) == {"temperature": 0}
    assert effort_of({"reasoning": {"effort": "low", "summary": None}}, "some", ["low"]) == "low"
    assert effort_of({"reasoning": {}}, "some", ["low"]) is effort_of({}, "some", []) is None


def test_a_trace_notes_times_and_what_is_lost():
    trace = RunTrace()
    trace.begin(Artifacts())
    assert trace.note({"at": 5.0, "event": {"type": "x"}}) == (5.0, {"type": "x"})
    assert trace.note({"at": "soon", "event": []}) == (None, None)
    assert trace.note({"at": 7.5, "cut": 10}) == (7.5, None)
    assert (trace.first_at, trace.last_at, trace.duration_ms) == (5.0, 7.5, 2500.0)
    output = {"events": {"dropped": 3}, "last_dropped": json.dumps({"at": 9.0, "event": {}})}
    full = Artifacts(files={"output.json": json.dumps(output).encode()})
    assert trace.note_overflow(full) == {"at": 9.0, "event": {}}
    for data in (b"", b"[]", b'{"events": 5, "last_dropped": "{"}', b'{"last_dropped": "[]"}'):
        assert trace.note_overflow(Artifacts(files={"output.json": data})) is None
    assert [gap.code for gap in trace.gaps] == ["trace_unavailable", "event_too_large", "trace_truncated"]
    assert RunTrace(first_at=5.0, last_at=4.0).duration_ms is RunTrace().duration_ms is None


def test_of_too_many_lines_the_last_are_read_and_the_rest_is_a_gap():
    line = b'{"a":1}\n'
    for extra, codes in ((0, []), (1, ["trace_truncated"]), (40, ["trace_truncated"])):
        gaps = []
        artifacts = Artifacts(files={"t.jsonl": line * (MOST_LINES - 1 + extra) + b'{"last":1}\n'})
        records = list(read_records(artifacts, "t.jsonl", gaps))
        assert (len(records), records[-1]) == (MOST_LINES, {"last": 1})
        assert [gap.code for gap in gaps] == codes


@pytest.mark.parametrize("dropped", [True, "x" * 1000, 10**400, [1] * 1000, {"a": 1}])
def test_a_count_of_dropped_events_that_is_none_is_told_in_few_words(dropped):
    trace = RunTrace()
    trace.note_overflow(
        Artifacts(files={"output.json": json.dumps({"events": {"dropped": dropped}}).encode()})
    )
    assert [gap.detail for gap in trace.gaps] == [
        "events.jsonl was full: an unknown number of events were not kept"
    ]


def test_calls_and_results_are_counted_by_id():
    calls = OpenCalls()
    for call_id in ("twice", "twice", "open"):
        calls.called(call_id)
    for call_id in ("twice", "twice", "stray"):
        calls.answered(call_id)
    assert [(gap.code, gap.detail.split("'")[1]) for gap in calls.gaps()] == [
        ("tool_result_missing", "open"),
        ("tool_call_missing", "stray"),
    ]


def test_times_are_sound_or_none():
    assert sound_times(1.0, 2.0) == (1.0, 2.0)
    assert sound_times(1.0, None) == (1.0, None)
    assert sound_times(2.0, 1.0) == (None, None)


def test_what_could_not_be_collected_is_a_gap():
    problem = ArtifactProblem(name="x", code="artifact_truncated", detail="x: cut")
    run = ParseInput(
        artifacts=Artifacts(problems=[problem]),
        request={},
        return_code=0,
        timed_out=False,
        interrupted=False,
        model_name="m",
    )
    assert [gap.code for gap in artifact_gaps(run)] == ["artifact_truncated", "runtime_info_unavailable"]


SPEC = HarnessSpec(
    name="some",
    version="1",
    model_api="responses",
    level=2,
    request_fields={"input": "applied", "metadata": "applied"},
    options={"turns": 5, "share": 0.5, "is_on": True, "mode": "a", "tools": ["x"]},
)


def checked(**given):
    options = complete_options(SPEC, given)
    options.whole_numbers({"turns": 1})
    options.number("share", 0, 1)
    options.truths("is_on")
    options.one_of("mode", ("a", "b"))
    options.list_of("tools", ("x", "y"))
    return options.values


def test_options_that_fit_are_the_defaults_with_what_was_given():
    assert checked() == SPEC.options
    given = {"turns": 1, "share": 1, "is_on": False, "mode": "b", "tools": ("y", "x")}
    assert checked(**given) == given


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("turns", 0, "a whole number >= 1"),
        ("turns", True, "a whole number >= 1"),
        ("turns", 1.5, "a whole number >= 1"),
        ("share", 1.01, "a number from 0 to 1"),
        ("share", float("nan"), "a number from 0 to 1"),
        ("share", True, "a number from 0 to 1"),
        ("share", "much", "a number from 0 to 1"),
        ("is_on", 1, "true or false"),
        ("mode", "c", "one of a, b"),
        ("mode", ["a"], "one of a, b"),
        ("tools", "x", "a list of x, y"),
        ("tools", ["x", "z"], "a list of x, y"),
        ("tools", [["x"]], "a list of x, y"),
    ],
)
def test_an_option_that_does_not_fit_is_named_with_its_value_and_what_was_expected(name, value, expected):
    with pytest.raises(ConfigError) as caught:
        checked(**{name: value})
    assert str(caught.value) == f"option {name!r} of some is {value!r}, expected {expected}"


def test_an_option_that_is_not_declared_is_refused_with_those_that_are():
    with pytest.raises(ConfigError, match="unknown option 'turn' of some; known: is_on, mode, share"):
        checked(turn=1)
