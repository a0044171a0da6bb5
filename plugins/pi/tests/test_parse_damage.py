"""Files that are cut, damaged or incomplete: what is lost is a gap, all else counts."""

from __future__ import annotations

import json

import attrs
import pytest

from inspan_core.findings import Outcome
from inspan_core.harness import ArtifactProblem, Artifacts
from inspan_pi.parse import parse
from inspan_runtime.testing.recorded import codes


def message(number, text):
    content = [{"type": "output_text", "text": text, "annotations": []}]
    head = {"type": "message", "id": f"msg_{number}", "role": "assistant", "status": "completed"}
    return {**head, "content": content}


def test_a_cut_last_line_is_dropped_with_a_gap(run_of, events_of):
    parsed = parse(run_of("two_tools", events__jsonl=events_of("two_tools")[:-20]))
    assert "trace_line_cut" in codes(parsed)
    assert [item["type"] for item in parsed.response["output"]].count("function_call") == 2


def test_bytes_that_are_not_text_are_replaced_with_a_gap(run_of, events_of):
    data = events_of("plain").replace(b"Hello.", b"Hel\xfflo.")
    parsed = parse(run_of("plain", events__jsonl=data))
    assert parsed.response["output"] == [message(0, "Hel�lo.")]
    assert codes(parsed) == ["trace_bytes_replaced"]


def test_half_a_surrogate_pair_becomes_text_that_can_be_written(run_of, events_of):
    data = events_of("plain").replace(b"Hello.", b"Hel\\ud800lo.")
    parsed = parse(run_of("plain", events__jsonl=data))
    assert json.dumps(parsed.response, ensure_ascii=False).encode()
    assert parsed.response["output"] == [message(0, "Hel�lo.")]


def test_the_tail_of_a_longer_file_loses_only_its_first_line(run_of, events_of):
    run = run_of("two_tools", events__jsonl=events_of("two_tools")[30:])
    problem = ArtifactProblem(name="events.jsonl", code="artifact_truncated", detail="only the tail")
    tail = Artifacts(files=run.artifacts.files, problems=(problem,))
    parsed = parse(attrs.evolve(run, artifacts=tail))
    assert parsed.outcome is Outcome.COMPLETED
    assert codes(parsed) == ["artifact_truncated"]


def test_events_that_the_shim_could_not_keep_are_a_gap_and_the_last_answer_still_counts(run_of, events_of):
    lines = events_of("plain").split(b"\n")
    last = next(line for line in lines if b'"role":"assistant"' in line)
    kept = b"\n".join(line for line in lines if line != last)
    output = {"return_code": 0, "events": {"written": 5, "dropped": 1}, "last_dropped": last.decode()}
    parsed = parse(run_of("plain", events__jsonl=kept, output__json=json.dumps(output).encode()))
    assert parsed.outcome is Outcome.COMPLETED
    assert parsed.response["output"] == [message(0, "Hello.")]
    assert codes(parsed) == ["trace_truncated"]


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"null", b'{"hostname": 1}', b"\xff", b"[" * 5000])
def test_malformed_process_metadata_is_a_gap_and_nothing_else(run_of, text):
    parsed = parse(run_of("plain", runtime_info__json=text))
    assert parsed.outcome is Outcome.COMPLETED
    assert codes(parsed) == ["runtime_info_unavailable"]


def test_a_prompt_that_pi_trims_is_a_gap(run_of):
    assert codes(parse(run_of("plain", request={"input": "  hi\n"}))) == ["prompt_whitespace_trimmed"]
