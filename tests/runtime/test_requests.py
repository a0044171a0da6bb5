"""The check of a request's fields: none is dropped without a word."""

import attrs
import pytest

from inspan_core.codec import decode
from inspan_core.errors import RequestRefused
from inspan_core.harness import HarnessSpec
from inspan_core.wire import ResponsesRequest
from inspan_runtime.requests import MEANT_ANYWAY, check_request

SAID = {
    "instructions": "be brief",
    "metadata": {"a": "b"},
    "model": "m",
    "tools": [{"type": "function", "name": "f"}],
    "tool_choice": "required",
    "parallel_tool_calls": False,
    "max_output_tokens": 1,
    "max_tool_calls": 1,
    "temperature": 0,
    "top_p": 0,
    "top_logprobs": 0,
    "reasoning": {"effort": "low"},
    "text": {"verbosity": "low"},
    "truncation": "auto",
    "include": ["reasoning.encrypted_content"],
    "background": True,
    "conversation": "c",
    "previous_response_id": "r",
    "prompt": {"id": "p"},
    "prompt_cache_key": "k",
    "prompt_cache_retention": "24h",
    "safety_identifier": "s",
    "service_tier": "flex",
    "store": False,
    "user": "u",
}
"""A value of each field that asks for something; of `stream` the body itself allows none."""

FIELDS = [each.name for each in attrs.fields(ResponsesRequest) if each.name not in ("input", "stream", "raw")]


def spec(**uses):
    return HarnessSpec(
        name="one",
        version="1",
        model_api="responses",
        level=2,
        request_fields={"input": "applied", "metadata": "refused", **uses},
    )


def request_with(**fields):
    return decode(ResponsesRequest, {"input": "x", **fields}).raw


def test_every_field_has_a_value_here():
    assert set(SAID) == set(FIELDS)


@pytest.mark.parametrize("name", FIELDS)
def test_a_field_that_asks_for_something_is_refused_by_name_unless_declared(name):
    request = request_with(**{name: SAID[name]})
    with pytest.raises(RequestRefused, match=f"'one' does not support the request field '{name}'") as caught:
        check_request(spec(), request)
    assert caught.value.field == name
    for use in ("applied", "ignored"):
        check_request(spec(**{name: use}), request)


@pytest.mark.parametrize("name", [*FIELDS, "stream"])
def test_a_field_that_says_nothing_new_is_taken(name):
    check_request(spec(), request_with(**{name: None}))
    if name in MEANT_ANYWAY:
        check_request(spec(), request_with(**{name: MEANT_ANYWAY[name]}))


@pytest.mark.parametrize("name", ["tools", "include"])
def test_an_empty_list_says_nothing_new(name):
    check_request(spec(), request_with(**{name: []}))
