"""The session cookie: signed, of token characters, and never mistaken for another's."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inspan_core.findings import Cookie
from inspan_server.agent.cookies import COOKIE_NAME, Marker, SessionCookies

COOKIES = SessionCookies(b"sixteen bytes at least")
IDS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=256)


def header(value):
    return [f"{COOKIE_NAME}={value}"]


@given(session_id=IDS)
def test_a_cookie_comes_back_as_the_session_it_was_made_for(session_id):
    value = COOKIES.value(session_id)
    assert re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", value)
    for sent in (value, f'"{value}"'):
        assert COOKIES.read([f"other=1; {COOKIE_NAME}={sent};x=y"]) == Marker(session_id=session_id)


@given(session_id=IDS, place=st.integers(min_value=0), other=st.characters(codec="ascii"))
def test_one_changed_character_makes_it_malformed(session_id, place, other):
    value = COOKIES.value(session_id)
    place %= len(value)
    forged = value[:place] + other + value[place + 1 :]
    if forged == value or other in ';"' or other.isspace():
        return
    assert COOKIES.read(header(forged)) == Marker(is_malformed=True)


@given(st.text(st.characters(codec="latin-1"), max_size=200))
def test_any_header_is_read(text):
    marker = COOKIES.read(header(text))
    assert marker.session_id is None


@pytest.mark.parametrize(
    "headers", [header(""), header("invalid"), header("x" * 10_000), [*header("a"), *header("b")]]
)
def test_what_we_did_not_make_is_malformed(headers):
    assert COOKIES.read(headers).finding("s") is Cookie.MALFORMED


def test_two_sessions_at_once_are_malformed_and_one_sent_twice_is_one():
    first, second = header(COOKIES.value("s1")), header(COOKIES.value("s2"))
    assert COOKIES.read([*first, *second]) == Marker(is_malformed=True)
    assert COOKIES.read([*first, *first]) == Marker(session_id="s1")


def test_a_cookie_of_another_secret_is_malformed():
    assert COOKIES.read(header(SessionCookies(b"another secret that is long").value("s"))).is_malformed


def test_findings_compare_with_the_session_of_the_body():
    marker = COOKIES.read(header(COOKIES.value("s1")))
    assert (marker.finding("s1"), marker.finding("s2")) == (Cookie.SAME, Cookie.OTHER)
    assert marker.own_finding is Cookie.SAME
    assert COOKIES.read([]).finding("s1") is Cookie.ABSENT
    assert COOKIES.read(["a=b"]).own_finding is Cookie.ABSENT


def test_the_cookie_of_no_session_is_as_good_as_none():
    assert COOKIES.read(header(COOKIES.value(""))) == Marker()


def test_what_is_set_keeps_the_client_where_it_is():
    for marker in (Marker(), Marker(session_id="s1"), Marker(is_malformed=True)):
        pair = COOKIES.set_header(marker).partition(";")[0]
        assert COOKIES.read([pair]) == marker


def test_the_secret_is_not_shown():
    assert "sixteen" not in repr(COOKIES)
