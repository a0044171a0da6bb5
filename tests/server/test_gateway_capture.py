"""Records are bounded in number and size, and say so."""

import json

import attrs

from inspan_server.model.capture import Capture, ModelCall


def call(key="r", request=None, response=None, n=0):
    return ModelCall(
        model_call_id=f"call-{n}",
        rollout_key=key,
        token_capture=False,
        route="/v1/chat/completions",
        request=request,
        response=response,
        response_id=None,
        status=200,
        started_at=1.0,
        duration_ms=2.0,
        usage=None,
        attempt=1,
        streamed=False,
        cookie_returned=None,
        outcome="answered",
    )


def test_a_long_body_is_cut_and_marked():
    capture = Capture(max_body_bytes=100)
    capture.record(call(request={"a": "x" * 1000}, response={"b": 1}))
    (kept,) = capture.calls("r")
    assert kept.request == {"truncated": True, "size_bytes": 1009, "head": json.dumps({"a": "x" * 1000})[:50]}
    assert kept.response == {"b": 1}


def test_a_rollout_s_bodies_are_bounded_together():
    capture = Capture(max_body_bytes=100, max_rollout_bytes=250)
    for n in range(10):
        capture.record(call(request="x" * 90, response="y" * 20, n=n))
    kept = capture.calls("r")
    assert [k.model_call_id for k in kept] == [f"call-{n}" for n in range(10)]
    held = sum(
        len(json.dumps(b)) if isinstance(b, str) else len(b["head"])
        for k in kept
        for b in (k.request, k.response)
    )
    assert held <= 250
    assert kept[0].request == "x" * 90
    assert kept[-1].request["truncated"] is True
    capture.record(call(key="other", request="x" * 90))
    assert capture.calls("other")[0].request == "x" * 90


def test_calls_beyond_the_bound_are_counted(tmp_path):
    capture = Capture(max_calls=2)
    for n in range(5):
        capture.record(call(n=n))
    assert len(capture.calls("r")) == 2
    assert capture.not_recorded("r") == 3
    assert capture.export_jsonl(tmp_path / "calls.jsonl") == 2
    lines = [json.loads(line) for line in (tmp_path / "calls.jsonl").read_text().splitlines()]
    assert lines[-1] == {"rollout_key": "r", "not_recorded": 3}


def test_rollouts_beyond_the_bound_are_counted():
    capture = Capture(max_rollouts=1)
    capture.record(call(key="a"))
    capture.record(call(key="b"))
    assert capture.rollout_keys == ("a",)
    assert capture.calls_of_refused_rollouts == 1
    capture.discard("a")
    capture.record(call(key="b"))
    assert capture.rollout_keys == ("b",)


def test_export_writes_every_field_of_one_rollout_or_all(tmp_path):
    capture = Capture()
    capture.record(call(key="a", request={"text": "é\ud800"}))
    capture.record(call(key="b"))
    path = tmp_path / "calls.jsonl"
    assert capture.export_jsonl(path, "a") == 1
    (line,) = path.read_text().splitlines()
    assert json.loads(line) == attrs.asdict(capture.calls("a")[0])
    assert capture.export_jsonl(path) == 2
    assert [entry.name for entry in tmp_path.iterdir()] == ["calls.jsonl"]
