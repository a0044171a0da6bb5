"""What is read without the general parser is what it would have read; all else is left to it."""

import h11
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inspan_server.plain_http import answer_head, may_become_plain, read_head

LIMIT = 4096
NAMES = ["Host", "content-length", "Content-Type", "Cookie", "CONNECTION", "Transfer-Encoding", "Upgrade",
         "Expect", "X-Odd", "x_y", "bad name", "", "Härte", "Accept"]  # fmt: skip
VALUES = ["", "a", "0", "3", "+3", " 3 ", "3,3", "0x3", "\u0663", "9" * 20, "keep-alive", "Close", "upgrade",
          "chunked", "websocket", "100-continue", "a b\tc", "\x7f", "\x01", "é", "a\nb", "a\rb", "a\0b",
          "keep-alive, close"]  # fmt: skip
LINES = st.tuples(
    st.sampled_from(["GET", "POST", "HEAD", "get", "PO ST", ""]),
    st.sampled_from(["/", "/a?b=%20", "/ä", "*", "http://x/", "/a b", "", "/\x7f", "/%00"]),
    st.sampled_from(["HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "http/1.1", ""]),
)
BLANKS = st.sampled_from(["", " ", "\t "])
FIELDS = st.lists(
    st.one_of(
        st.just("Host: x"),
        st.builds("{}:{}{}".format, st.sampled_from(NAMES), BLANKS, st.sampled_from(VALUES)),
        st.sampled_from([" folded", "no colon", "Host : x"]),
    ),
    max_size=6,
)
HOSTS = st.sampled_from([["Host: x"], ["Host: x"], ["Host: x"], []])
ENDS = st.sampled_from(["\r\n", "\r\n", "\r\n", "\n"])


def known(data):
    """What h11 makes of a head: the request, or None if it refuses it or waits."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=LIMIT)
    connection.receive_data(data)
    try:
        event = connection.next_event()
    except h11.RemoteProtocolError:
        return None
    return event if isinstance(event, h11.Request) else None


@settings(deadline=None, max_examples=500)
@given(line=LINES, hosts=HOSTS, fields=FIELDS, end=ENDS, rest=st.sampled_from([b"", b"abc", b"\r\n\r\n"]))
def test_what_is_read_as_plain_is_what_the_general_parser_reads(line, hosts, fields, end, rest):
    text = end.join([" ".join(line), *hosts, *fields, "", ""])
    data = text.encode("latin-1", "replace") + rest
    head = read_head(data, LIMIT)
    if head is None:
        return
    request = known(data)
    assert request is not None, data
    assert (head.method.encode(), head.target) == (request.method, request.target)
    assert head.headers == list(request.headers)
    assert data[: head.size] == data.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
    lengths = [value for name, value in head.headers if name == b"content-length"]
    assert head.body_bytes == (int(lengths[0]) if lengths else 0)


def head(*fields, line="POST /v1/responses HTTP/1.1"):
    return "\r\n".join([line, *fields, "", ""]).encode("latin-1")


def test_what_clients_send_is_plain():
    fields = ["Host: a:1", "Accept: */*", "Connection: keep-alive", "Content-Length: 3", "Cookie: a=b; c=d"]
    read = read_head(head(*fields) + b"abc", LIMIT)
    assert (read.method, read.target, read.body_bytes, read.is_last) == ("POST", b"/v1/responses", 3, False)
    assert read.headers[-1] == (b"cookie", b"a=b; c=d")


@pytest.mark.parametrize(
    "fields",
    [
        ["Host: a", "Transfer-Encoding: chunked"],
        ["Host: a", "Content-Length: 3", "Transfer-Encoding: chunked"],
        ["Host: a", "Content-Length: 3", "Content-Length: 3"],
        ["Host: a", "Host: a"],
        ["Host: a", "Expect: 100-continue"],
        ["Host: a", "Connection: Upgrade", "Upgrade: h2c"],
        ["Host: a", "Connection: te, keep-alive"],
        ["Host: a", "Content-Length: +3"],
        ["Host: a", "Content-Length: 1e3"],
        ["Content-Length: 3"],
        ["Host: a", *["X: y"] * 100],
        ["Host: a", "X: " + "y" * LIMIT],
        ["Host: a", "X: a\nContent-Length: 3"],
        ["Host: a", "X: a\0"],
    ],
)
def test_what_is_not_plain_is_left_to_the_general_parser(fields):
    assert read_head(head(*fields) + b"abc", LIMIT) is None


def test_a_head_that_is_not_whole_may_become_plain():
    whole = head("Host: a", line="GET / HTTP/1.1")
    assert [read_head(whole[:size], LIMIT) for size in range(len(whole))] == [None] * len(whole)
    assert read_head(whole, LIMIT) is not None
    assert all(may_become_plain(whole[:size], LIMIT) for size in range(len(whole)))
    assert not may_become_plain(whole, LIMIT)
    for other in (b"\x16\x03\x01", b"PRI * HTTP/2.0\r\n", b"GET /nothing\r\n\r\n", b"GET /" + b"a" * LIMIT):
        assert not may_become_plain(other, LIMIT)


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n", "\0"])
def test_a_header_of_an_answer_cannot_begin_another(end):
    with pytest.raises(ValueError, match="holds the end of a line"):
        answer_head(200, [(b"set-cookie", f"a=b{end}x: y".encode())])
