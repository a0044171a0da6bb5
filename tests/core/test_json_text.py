"""JSON text: bounded, and nothing in it that is not JSON."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inspan_core.errors import WireError
from inspan_core.json_text import canonical_text, parse_json

LIMIT = 1 << 22


def refusal(data, **options):
    with pytest.raises(WireError) as caught:
        parse_json(data, LIMIT, **options)
    (problem,) = caught.value.problems
    return problem["type"], problem["loc"]


@pytest.mark.parametrize(
    "text", ["NaN", "Infinity", "-Infinity", '{"a": NaN}', "1e999", "[-1e400]", "9" * 5000]
)
def test_what_is_no_json_number_is_refused(text):
    assert refusal(text.encode()) == ("json_invalid", ["body"])


@pytest.mark.parametrize(
    ("data", "place"),
    [(b"", 0), (b'{"input": ', 10), (b"{nope", 1), (b"1 2", 2), (b'"\xff"', 1), (b'"a\nb"', 2)],
)
def test_broken_text_is_refused_at_its_place(data, place):
    assert refusal(data) == ("json_invalid", ["body", place])


def test_a_repeated_key_keeps_its_last_value():
    assert parse_json(b'{"a": 1, "a": 2}', LIMIT) == {"a": 2}


@pytest.mark.parametrize("depth", [99, 100])
def test_nesting_up_to_the_bound_is_taken(depth):
    assert parse_json(b"[" * depth + b"]" * depth, LIMIT) is not None


@pytest.mark.parametrize("depth", [101, 900, 200_000])
@pytest.mark.parametrize("brackets", [(b"[", b"]"), (b'{"a":', b"}")])
def test_deeper_nesting_is_refused(depth, brackets):
    opening, closing = brackets
    inner = b"1" if b"{" in opening else b""
    assert refusal(opening * depth + inner + closing * depth) == ("too_deep", ["body"])


def test_many_shallow_values_are_not_deep():
    assert len(parse_json(b"[" + b"[],{}," * 1000 + b"1]", LIMIT)) == 2001


NESTED = st.recursive(
    st.none() | st.text('[]{}"\\x', max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text('[{"', max_size=2), inner, max_size=3)
    ),
)


def levels(value):
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if parts is None else 1 + max(map(levels, parts), default=0)


@given(NESTED, st.integers(0, 5))
def test_depth_is_that_of_the_value_whatever_its_strings_hold(value, bound):
    data = json.dumps(value).encode()
    if levels(value) > bound:
        assert refusal(data, max_depth=bound)[0] == "too_deep"
    else:
        assert parse_json(data, LIMIT, max_depth=bound) == value


def test_a_body_over_the_limit_is_refused_before_it_is_read():
    with pytest.raises(WireError, match="12 bytes, more than 11"):
        parse_json(b'{"a": "bcd"}', 11)


def test_half_a_surrogate_pair_is_refused_or_replaced_and_a_whole_one_is_text():
    assert refusal(rb'{"a": "x\ud83dy"}') == ("string_unicode", ["body"])
    assert parse_json(rb'{"b": 1, "a": "x\ud83dy"}', LIMIT, lone_surrogates="replace") == {
        "b": 1,
        "a": "x\ufffdy",
    }
    assert parse_json(rb'"\ud83d\ude00"', LIMIT) == "\U0001f600"


@given(st.dictionaries(st.text(), st.integers() | st.text() | st.none()))
def test_canonical_text_does_not_depend_on_the_order_of_keys(value):
    shuffled = dict(reversed(list(value.items())))
    assert canonical_text(value) == canonical_text(shuffled)
    assert json.loads(canonical_text(value)) == value


@given(st.binary(max_size=200))
def test_any_bytes_are_a_value_or_a_problem(data):
    try:
        parse_json(data, LIMIT)
    except WireError as error:
        assert error.problems
