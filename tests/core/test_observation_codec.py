"""Observation bundles: what a reader refuses is refused here first."""

import json
from pathlib import Path

import pytest

from inspan_core.codec import decode, encode, encode_observations
from inspan_core.errors import WireError
from inspan_core.observations import (
    AgentInvocation,
    AgentObservationBundle,
    ContextCompaction,
    ModelCallRef,
    ObservationGap,
    SandboxObservation,
    ToolCall,
)
from inspan_core.wire import CloseResponse

BUNDLE = AgentObservationBundle(
    source="echo",
    records=(
        AgentInvocation(
            invocation_id="root",
            status="completed",
            model_calls=(ModelCallRef(model_call_id="m1"), ModelCallRef(model_ref="m", response_id="r")),
            conversation=({"role": "user", "content": "hi"},),
        ),
        AgentInvocation(invocation_id="child", parent_invocation_id="root"),
        ToolCall(invocation_id="root", tool_call_id="c1", tool_name="bash", started_at=1.0, completed_at=1.0),
        ContextCompaction(invocation_id="root", before_model_call=ModelCallRef(model_call_id="m1")),
        SandboxObservation(role="agent", exit_code=-9),
    ),
    gaps=(ObservationGap(code="observation_capture_failed", detail="no events"),),
)


def test_a_bundle_survives_the_journey():
    encoded = encode_observations(BUNDLE)
    assert json.loads(json.dumps(encoded)) == encoded
    assert decode(AgentObservationBundle, encoded) == BUNDLE


def test_a_captured_close_answer_is_read_and_written_back_word_for_word():
    lines = (Path(__file__).parents[1] / "server" / "exchanges.jsonl").read_text().splitlines()
    bodies = [each["body"] for each in map(json.loads, lines) if "agent_observations" in each["body"]]
    assert any(body["agent_observations"] for body in bodies)
    assert [encode(decode(CloseResponse, body)) for body in bodies] == bodies


def invocations(*parents):
    return AgentObservationBundle(
        source="x",
        records=tuple(AgentInvocation(invocation_id=i, parent_invocation_id=parent) for i, parent in parents),
    )


def call(**fields):
    record = ToolCall(invocation_id="root", tool_call_id="c", tool_name="bash", **fields)
    return AgentObservationBundle(source="x", records=(record,))


@pytest.mark.parametrize(
    ("bundle", "place"),
    [
        (invocations(("a", None), ("a", None)), ["body", "records", 1, "invocation_id"]),
        (invocations(("a", "a")), ["body", "records"]),
        (invocations(("a", "b"), ("b", "c"), ("c", "a")), ["body", "records"]),
        (call(started_at=2.0, completed_at=1.0), ["body", "records", 0, "tool_call", "completed_at"]),
        (call(duration_ms=-1.0), ["body", "records", 0, "tool_call", "duration_ms"]),
        (call(status="done"), ["body", "records", 0, "tool_call", "status"]),
        (call(sandbox_id=7), ["body", "records", 0, "tool_call", "sandbox_id"]),
        (
            AgentObservationBundle(
                source="x",
                records=(AgentInvocation(invocation_id="a", model_calls=(ModelCallRef(model_ref="m"),)),),
            ),
            ["body", "records", 0, "agent_invocation", "model_calls", 0],
        ),
        (
            AgentObservationBundle(
                source="x", records=(AgentInvocation(invocation_id="a", conversation=({"at": object()},)),)
            ),
            ["body"],
        ),
        (
            AgentObservationBundle(
                source="x",
                records=(AgentInvocation(invocation_id="a", conversation=({"at": float("nan")},)),),
            ),
            ["body"],
        ),
    ],
)
def test_a_bundle_that_breaks_a_rule_is_refused_at_its_place(bundle, place):
    with pytest.raises(WireError) as caught:
        encode_observations(bundle)
    assert [each["loc"] for each in caught.value.problems] == [place]


def test_an_unknown_parent_is_no_cycle():
    assert encode_observations(invocations(("a", "elsewhere"), ("b", "a")))["source"] == "x"


def test_an_unknown_field_of_a_record_is_refused():
    encoded = encode_observations(BUNDLE)
    encoded["records"][4]["colour"] = "red"
    with pytest.raises(WireError, match=r"body\.records\.4\.sandbox\.colour"):
        decode(AgentObservationBundle, encoded)
