"""Every field of a request is bounded by itself, with an answer that names it and stays small."""

import json

import pytest

from inspan_core.codec import decode, parse_json
from inspan_core.errors import WireError
from inspan_core.wire import CloseRequest, ResponsesRequest, SeedRequest

GRANT = {"kind": "direct_http", "name": "a", "base_url": "http://h"}
SANDBOX = {"connection": {"kind": "direct", "provider_config_ref": "p", "descriptor": {}}, "workdir": "/w"}


def seed(**changes):
    return {
        "agent_session_id": "s",
        "episode_id": {"rollout_id": "r", "attempt": 0},
        "task_id": {"taskset": "t", "task_id": "x"},
        **changes,
    }


def episode(attempt):
    return {"rollout_id": "r", "attempt": attempt}


def connection(**changes):
    return {"sandbox_access": {**SANDBOX, "connection": {**SANDBOX["connection"], **changes}}}


def headers(count, size):
    return {"tool_accesses": [{**GRANT, "headers": {f"h{n}": "v" * size for n in range(count)}}]}


OVER = {
    "attempt": ({"episode_id": episode(10**9)}, "less_than_equal", "episode_id.attempt"),
    "attempt of many digits": ({"episode_id": episode(10**4000)}, "int_out_of_range", "episode_id.attempt"),
    "attempt below all": ({"episode_id": episode(-(10**4000))}, "int_out_of_range", "episode_id.attempt"),
    "attempt as text": ({"episode_id": episode("1" * 5000)}, "int_parsing", "episode_id.attempt"),
    "rollout_id": ({"episode_id": {"rollout_id": "r" * 257}}, "string_too_long", "episode_id.rollout_id"),
    "agent_session_id": ({"agent_session_id": "s" * 257}, "string_too_long", "agent_session_id"),
    "taskset": ({"task_id": {"taskset": "t" * 4097, "task_id": "x"}}, "string_too_long", "task_id.taskset"),
    "task_id": ({"task_id": {"taskset": "t", "task_id": "x" * 4097}}, "string_too_long", "task_id.task_id"),
    "tool_accesses": (
        {"tool_accesses": [{**GRANT, "name": f"n{n}"} for n in range(101)]},
        "too_long",
        "tool_accesses",
    ),
    "name": (
        {"tool_accesses": [{**GRANT, "name": "n" * 257}]},
        "string_too_long",
        "tool_accesses.0.direct_http.name",
    ),
    "base_url": (
        {"tool_accesses": [{**GRANT, "base_url": "http://h/" + "a" * 8200}]},
        "string_too_long",
        "tool_accesses.0.direct_http.base_url",
    ),
    "headers": (headers(101, 1), "too_long", "tool_accesses.0.direct_http.headers"),
    "headers together": (headers(90, 1000), "too_long", "tool_accesses.0.direct_http.headers"),
    "workdir": (
        {"sandbox_access": {**SANDBOX, "workdir": "/" + "w" * 4096}},
        "string_too_long",
        "sandbox_access.workdir",
    ),
    "provider_config_ref": (
        connection(provider_config_ref="p" * 257),
        "string_too_long",
        "sandbox_access.connection.provider_config_ref",
    ),
    "descriptor": (
        connection(descriptor={"sandbox_id": "x" * 70_000}),
        "too_long",
        "sandbox_access.connection.descriptor",
    ),
}


@pytest.mark.parametrize("what", OVER)
def test_a_field_over_its_bound_is_named(what):
    change, kind, place = OVER[what]
    with pytest.raises(WireError) as refused:
        decode(SeedRequest, seed(**change))
    (fault,) = refused.value.problems
    assert (fault["type"], ".".join(map(str, fault["loc"]))) == (kind, f"body.{place}")
    assert len(json.dumps(fault)) < 1000


def test_fields_at_their_bounds_are_taken():
    decode(
        SeedRequest,
        seed(
            agent_session_id="s" * 256,
            episode_id={"rollout_id": "r" * 256, "attempt": 999_999_999},
            task_id={"taskset": "t" * 4096, "task_id": "x" * 4096},
            tool_accesses=[{**GRANT, "name": f"n{n}"} for n in range(100)],
            **connection(descriptor={"sandbox_id": "x" * 60_000}),
        ),
    )
    decode(CloseRequest, {"agent_session_id": "s" * 256, "episode_id": episode(0)})


@pytest.mark.parametrize("name", ["max_output_tokens", "temperature", "top_logprobs"])
def test_a_number_that_no_other_program_could_hold_is_refused(name):
    for number in (2**63, -(2**63) - 1, 10**400):
        with pytest.raises(WireError) as refused:
            decode(ResponsesRequest, {"input": "hi", name: number})
        assert refused.value.problems[0]["loc"] == ["body", name]
    assert decode(ResponsesRequest, {"input": "hi", name: 2**63 - 1}).raw[name] == 2**63 - 1


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (b'{"input": "hi", "temperature": 1e999}', "json_invalid"),
        (b'{"input": "hi", "temperature": -1e999}', "json_invalid"),
        (b'{"input": "hi", "temperature": NaN}', "json_invalid"),
        (b'{"input": "hi", "temperature": -Infinity}', "json_invalid"),
        (b'{"input": "hi", "max_output_tokens": 1' + b"0" * 5000 + b"}", "json_invalid"),
        (b'{"input": "\\ud800"}', "string_unicode"),
        (b'{"\\udc00": 1}', "string_unicode"),
        (b'{"input": ' + b"[" * 101 + b"]" * 101 + b"}", "too_deep"),
        (b'{"input": ' + b'{"a":' * 100_000 + b"}", "too_deep"),
    ],
)
def test_what_is_no_json_of_ours_is_refused_before_it_is_looked_at(text, kind):
    with pytest.raises(WireError) as refused:
        parse_json(text, 1 << 20)
    assert [fault["type"] for fault in refused.value.problems] == [kind]


def test_a_repeated_name_has_its_last_value_wherever_it_is():
    """As in nearly all readers of JSON, so that nobody beside us reads another value."""
    body = parse_json(b'{"episode_id": {"attempt": 7, "attempt": 1}, "episode_id": {"attempt": 2}}', 1000)
    assert body == {"episode_id": {"attempt": 2}}
