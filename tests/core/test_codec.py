"""The strict codec: real captured bodies in, whole values or whole error lists out."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inspan_core.codec import decode, encode, normalised_digest, parse_json
from inspan_core.errors import WireError
from inspan_core.json_text import INPUT_TEXT_LIMIT
from inspan_core.wire import (
    CloseRequest,
    DirectHttpAccess,
    DirectSandboxConnection,
    EpisodeId,
    McpAccess,
    McpConnection,
    ResponsesRequest,
    RunRequest,
    SandboxAccess,
    SeedRequest,
    TaskId,
)

EXCHANGES = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "server" / "exchanges.jsonl").read_text().splitlines()
]
BODY_KINDS = {"/v1/agent_sessions": SeedRequest, "/v1/agent_sessions/close": CloseRequest}
DECODED = [
    exchange
    for exchange in EXCHANGES
    if exchange["request"]["method"] == "POST" and exchange["request"]["path"] != "/v1/nothing"
]


def kind_of(exchange):
    return BODY_KINDS.get(exchange["request"]["path"], ResponsesRequest)


def parsed_body(exchange):
    body = exchange["request"]["body"]
    # A body of another content type reaches the checks as a plain string.
    if isinstance(body, str) and exchange["case"] != "seed-422-text-content-type":
        return parse_json(body.encode(), limit_bytes=1000)
    return body


def problems_of(kind, data):
    with pytest.raises(WireError) as caught:
        decode(kind, data)
    return [(each["type"], each["loc"], each["input"]) for each in caught.value.problems]


def seed_body(**changes):
    return {
        "agent_session_id": "agent-session-1",
        "episode_id": {"rollout_id": "r", "attempt": 0},
        "task_id": {"taskset": "t", "task_id": "x"},
        "tool_accesses": [],
        "sandbox_access": None,
        **changes,
    }


@pytest.mark.parametrize("exchange", DECODED, ids=lambda exchange: exchange["case"])
def test_a_captured_body_is_taken_or_refused_as_it_was_on_the_wire(exchange):
    if exchange["status"] != 422:
        value = decode(kind_of(exchange), parsed_body(exchange))
        assert decode(kind_of(exchange), encode(value)) == value
        return
    with pytest.raises(WireError) as caught:
        decode(kind_of(exchange), parsed_body(exchange))
    got = caught.value.problems
    wanted = exchange["body"]["detail"]
    assert [(each["type"], each["loc"]) for each in got] == [(each["type"], each["loc"]) for each in wanted]
    for each, other in zip(got, wanted, strict=True):
        assert each["msg"]
        longer = isinstance(other["input"], str) and len(other["input"]) > INPUT_TEXT_LIMIT
        assert longer or each["input"] == other["input"]


def test_the_capture_has_bodies_of_all_three_kinds_taken_and_refused():
    seen = {(kind_of(exchange), exchange["status"] == 422) for exchange in DECODED}
    assert seen == {
        (kind, refused) for kind in (*BODY_KINDS.values(), ResponsesRequest) for refused in (0, 1)
    }


def test_a_seed_becomes_a_whole_value():
    exchange = next(each for each in DECODED if each["case"] == "seed-with-grants")
    assert decode(SeedRequest, exchange["request"]["body"]) == SeedRequest(
        agent_session_id="agent-session-e74340518e9445ae9bdaba5759c6d070",
        episode_id=EpisodeId(rollout_id="r56ba8170", attempt=0),
        task_id=TaskId(taskset="test:source", task_id="task-1"),
        tool_accesses=(
            DirectHttpAccess(name="res.direct_http", base_url="http://127.0.0.1:9", cookies={"a": "b"}),
            McpAccess(name="tools", connection=McpConnection(url="http://127.0.0.1:9/mcp")),
        ),
        sandbox_access=SandboxAccess(
            connection=DirectSandboxConnection(
                kind="direct", provider_config_ref="p", descriptor={"sandbox_id": "s1"}
            ),
            workdir="/w",
        ),
    )


def test_a_run_request_becomes_a_whole_value():
    body = {
        "episode_id": {"rollout_id": "r", "attempt": 1},
        "task": {
            "task_id": {"taskset": "t", "task_id": "x"},
            "task_input": {"responses_create_params": {"input": "hi"}, "task_data": {"n": 1}},
        },
    }
    run = decode(RunRequest, body)
    assert run.episode_id.capture_key == "r-a1"
    assert encode(run) == body


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({"agent_session_id": 7}, [("string_type", ["body", "agent_session_id"], 7)]),
        ({"tool_accesses": "ab"}, [("list_type", ["body", "tool_accesses"], "ab")]),
        (
            {"episode_id": {"rollout_id": "r", "attempt": True}},
            [("int_type", ["body", "episode_id", "attempt"], True)],
        ),
        (
            {"episode_id": {"rollout_id": "r", "attempt": 1.0}},
            [("int_type", ["body", "episode_id", "attempt"], 1.0)],
        ),
        (
            {"episode_id": {"rollout_id": "r\n", "attempt": 0}},
            [("string_pattern_mismatch", ["body", "episode_id", "rollout_id"], "r\n")],
        ),
        ({"episode_id": None}, [("model_attributes_type", ["body", "episode_id"], None)]),
        (
            {"tool_accesses": [{"name": "a"}]},
            [("union_tag_not_found", ["body", "tool_accesses", 0], {"name": "a"})],
        ),
        (
            {
                "tool_accesses": [
                    {"kind": "direct_http", "name": "a b", "base_url": "http://h", "required": "yes"}
                ]
            },
            [
                ("string_pattern_mismatch", ["body", "tool_accesses", 0, "direct_http", "name"], "a b"),
                ("bool_type", ["body", "tool_accesses", 0, "direct_http", "required"], "yes"),
            ],
        ),
        (
            {
                "tool_accesses": [
                    {
                        "kind": "direct_http",
                        "name": "a",
                        "base_url": "http://h",
                        "headers": {"x": "1\r\ny: 2"},
                    }
                ]
            },
            [("value_error", ["body", "tool_accesses", 0, "direct_http", "headers", "x"], None)],
        ),
        (
            {
                "sandbox_access": {
                    "connection": {"kind": "direct", "provider_config_ref": "p", "descriptor": {}},
                    "workdir": "app",
                }
            },
            [("string_pattern_mismatch", ["body", "sandbox_access", "workdir"], "app")],
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_fault_is_named_by_its_place(change, wanted):
    assert problems_of(SeedRequest, seed_body(**change)) == wanted


@pytest.mark.parametrize(
    "url", ["http://", "http:///x", "http://h:99999", "http://[::1", "http://h h", "h/x"]
)
def test_what_is_no_url_is_refused(url):
    grant = {"kind": "mcp", "name": "a", "connection": {"transport": "streamable_http", "url": url}}
    (problem,) = problems_of(SeedRequest, seed_body(tool_accesses=[grant]))
    assert problem[1:] == (["body", "tool_accesses", 0, "mcp", "connection", "url"], url)


def test_the_offending_input_is_sent_back_only_in_part():
    deep = {"a": {"b": {"c": {"d": {"e": {"f": 1}}}}}, "long": "x" * 5000, "many": list(range(5000))}
    with pytest.raises(WireError) as caught:
        decode(CloseRequest, {"agent_session_id": deep, "episode_id": {"rollout_id": "r"}})
    assert len(json.dumps(caught.value.problems)) < 1000
    assert "x" * 50 not in str(caught.value)


def test_a_request_keeps_its_raw_body_and_refuses_a_field_of_ours():
    body = {"input": [{"role": "user", "content": "hi"}], "temperature": 1, "metadata": {"a": "b"}}
    request = decode(ResponsesRequest, body)
    assert (request.raw, encode(request), request.temperature) == (body, body, 1)
    assert problems_of(ResponsesRequest, {"input": "hi", "raw": {}}) == [
        ("extra_forbidden", ["body", "raw"], {})
    ]


@pytest.mark.parametrize("value", [None, 1, {"role": "user"}, ["hi"]])
def test_an_input_of_another_type_is_refused(value):
    with pytest.raises(WireError, match=r"body\.input"):
        decode(ResponsesRequest, {"input": value})


SAME_SEEDS = [
    seed_body(),
    {key: value for key, value in seed_body().items() if key not in ("tool_accesses", "sandbox_access")},
    seed_body(episode_id={"rollout_id": "r"}),
    seed_body(episode_id={"attempt": "0", "rollout_id": "r"}),
]


def test_seeds_that_mean_the_same_have_one_digest():
    assert len({normalised_digest(decode(SeedRequest, body)) for body in SAME_SEEDS}) == 1


def test_a_final_slash_makes_no_other_seed_and_another_path_does():
    def digest(url):
        grant = {"kind": "direct_http", "name": "a", "base_url": url}
        return normalised_digest(decode(SeedRequest, seed_body(tool_accesses=[grant])))

    assert digest("http://h/a") == digest("http://h/a/")
    assert digest("http://h/a") != digest("http://h/b")


def test_seeds_that_differ_have_different_digests():
    bodies = [
        seed_body(),
        seed_body(agent_session_id="agent-session-2"),
        seed_body(task_id={"taskset": "t", "task_id": "y"}),
        seed_body(episode_id={"rollout_id": "r", "attempt": 1}),
    ]
    assert len({normalised_digest(decode(SeedRequest, body)) for body in bodies}) == len(bodies)


def test_an_activation_that_spells_out_the_defaults_is_the_same():
    def digest(**body):
        return normalised_digest(decode(ResponsesRequest, body))

    spelt = digest(
        input="hi", tools=[], tool_choice="auto", parallel_tool_calls=True, stream=False, user=None
    )
    assert digest(input="hi") == spelt
    assert digest(input="ho") != spelt
    assert digest(input="hi", temperature=0.5) != spelt


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(data=JSON, kind=st.sampled_from([SeedRequest, CloseRequest, ResponsesRequest, RunRequest]))
def test_any_json_is_a_value_or_a_list_of_problems(data, kind):
    try:
        value = decode(kind, data)
    except WireError as error:
        assert error.problems
        assert all(set(each) == {"type", "loc", "msg", "input"} for each in error.problems)
        assert all(each["loc"][0] == "body" for each in error.problems)
        json.dumps(error.problems, allow_nan=False)
    else:
        assert decode(kind, encode(value)) == value


@given(
    rollout=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}(?<!-)", fullmatch=True),
    attempt=st.integers(0, 10**6),
)
def test_capture_keys_of_different_episodes_differ(rollout, attempt):
    try:
        episode = decode(EpisodeId, {"rollout_id": rollout, "attempt": attempt})
    except WireError:
        return
    assert episode.capture_key == (rollout if attempt == 0 else f"{rollout}-a{attempt}")
    with pytest.raises(WireError):
        decode(EpisodeId, {"rollout_id": f"{rollout}-a{attempt}", "attempt": 0})
