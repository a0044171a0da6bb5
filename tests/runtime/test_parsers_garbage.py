"""What the plugins' parsers make of garbage: a verdict, never "completed", in bounded time and size."""

from __future__ import annotations

import json
import time
import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inspan_core.codec import encode_observations
from inspan_core.findings import Outcome
from inspan_core.harness import ArtifactProblem, Artifacts, ParseInput
from inspan_core.plugins import load_plugins

MIB = 1024 * 1024
ROLLOUT = "home/sessions/2026/11/29/rollout-x-t1.jsonl"
FILES = {
    "echo": ("events.jsonl", "output.json", "output.log"),
    "pi": ("events.jsonl", "session.jsonl", "output.json", "runtime_info.json", "stderr.log", "tools.ready"),
    "codex": ("events.jsonl", ROLLOUT, "output.json", "runtime_info.json", "stderr.log"),
    "hermes": ("events.jsonl", "output.json", "runtime_info.json", "ready.json"),
}
WORDS = (
    "event", "type", "at", "message", "role", "assistant", "content", "text", "toolCall", "id", "arguments",
    "usage", "input", "output", "item", "thread_id", "payload", "response_item", "timestamp", "call_id",
    "parent_thread_id", "agent_path", "source", "subagent", "turn.failed", "error", "status", "tool_calls",
    "function", "name", "finish_reason", "model_answered", "tool_ended", "call", "result", "tokens", "events",
    "dropped", "last_dropped", "cut", "raw_arguments", "t1", "session_meta", "function_call", "compacted",
)  # fmt: skip
"""Names and values of the four programs' traces, so that garbage gets past the first look."""


@pytest.fixture(scope="module")
def plugins():
    return load_plugins()


def judged(plugins, name, files, **ending):
    """The parser's verdict, seen to be one that can be sent and read."""
    harness = plugins.harness(name)
    given_ = {"return_code": 0, "timed_out": False, "interrupted": False, "problems": (), **ending}
    problems = given_.pop("problems")
    run = ParseInput(
        artifacts=Artifacts(files=files, problems=problems),
        request={"input": "Do the thing."},
        model_name="policy",
        sandbox_id="box-1",
        options=dict(harness.spec.options),
        **given_,
    )
    parsed = harness.parse(run)
    encode_observations(parsed.observations)
    json.dumps([parsed.response, parsed.detail], allow_nan=False).encode()
    assert parsed.outcome is not Outcome.COMPLETED
    return parsed


RAW = st.sampled_from(
    ["NaN", "1e999", "1e308", "-1", "9" * 400, "9" * 4300, '"\\ud800"', '"\\u0000"', "[" * 70 + "]" * 70]
)
VALUES = st.recursive(
    st.sampled_from(WORDS).map(json.dumps)
    | RAW
    | (st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, width=32)).map(json.dumps),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: f"[{','.join(items)}]")
        | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4).map(
            lambda items: "{" + ",".join(f"{json.dumps(key)}:{value}" for key, value in items.items()) + "}"
        )
    ),
    max_leaves=12,
)
LINES = st.lists(VALUES.map(str.encode) | st.binary(max_size=20), max_size=6).map(b"\n".join)


@pytest.mark.parametrize("name", FILES)
@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_garbage_gives_a_verdict_and_never_completed(plugins, name, data):
    files = {file: data.draw(LINES) for file in FILES[name] if data.draw(st.booleans())}
    lacks = data.draw(st.sampled_from([None, *FILES[name]]))
    problem = ArtifactProblem(name=str(lacks), code="artifact_truncated", detail="only the tail was kept")
    judged(
        plugins,
        name,
        files,
        return_code=data.draw(st.sampled_from([0, 1, -9, None])),
        timed_out=data.draw(st.booleans()),
        problems=() if lacks is None else (problem,),
    )


FULL = dict.fromkeys(("echo", "codex", "hermes"), pytest.mark.full)
"""What a flood does to one reader of lines it does to all that share it."""

LARGE = {
    "one line": lambda size: b"a" * size,
    "zeros": lambda size: b"\0" * size,
    "line ends": lambda size: b"\n" * size,
    "short lines": lambda size: b"[]\n" * (size // 3),
    "empty objects": lambda size: b"{}\n" * (size // 3),
    "deep lines": lambda size: (b'{"a":' * (MIB // 5) + b"\n") * (size // MIB),
    "long numbers": lambda size: (b'{"at":' + b"9" * MIB + b"}\n") * (size // MIB),
    "surrogates": lambda size: (b'{"event":"' + b"\\ud800" * (MIB // 6) + b'"}\n') * (size // MIB),
    "many parts": lambda size: (b'{"event":[' + b"{}," * (MIB // 3) + b"{}]}\n") * (size // MIB),
    "half objects": lambda size: (b'{"x":"' + b"y" * MIB + b"\n") * (size // MIB),
}
BOUND_S = 60.0
"""Of processor time, far above what any of them takes: none of it may grow with the square of the size."""


def flooded(plugins, name, what, size):
    for file in [each for each in FILES[name] if each.endswith(".jsonl")]:
        data = LARGE[what](size)
        tracemalloc.start()
        started = time.process_time()
        try:
            judged(plugins, name, {file: data})
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert time.process_time() - started < BOUND_S
        assert most < 8 * size + 64 * MIB


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.parametrize("what", LARGE)
@pytest.mark.parametrize("name", FILES)
def test_a_flood_is_read_in_bounded_time_and_memory(plugins, name, what):
    flooded(plugins, name, what, 8 * MIB)


@pytest.mark.parametrize("name", [pytest.param(each, marks=FULL.get(each, ())) for each in FILES])
def test_a_flood_of_short_lines_is_cut_to_the_last(plugins, name):
    data = b"[]\n" * (MIB // 3)
    gaps = judged(plugins, name, {"events.jsonl": data}).observations.gaps
    assert "trace_truncated" in {gap.code for gap in gaps}
