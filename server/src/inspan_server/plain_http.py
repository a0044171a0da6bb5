"""Plain HTTP/1.1: the requests that nearly all clients send, read and answered without a general parser.

A plain request is a GET or POST of a path with one Host, at most one Content-Length, no other framing, no
upgrade and no expectation, in the grammar of RFC 9110 and 9112. Whatever differs in any way is not refused
here: it is left to the general parser, which knows every rule.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from attrs import define

HEAD_END = b"\r\n\r\n"
LENGTH_DIGITS = 15
HEADERS_LIMIT = 100
"""Apache takes as many. Clients send a dozen."""

_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]++"
_REQUEST = re.compile(rb"(GET|POST) (/[!-~]*+) HTTP/1\.1\r\n")
_FIELD = re.compile(rb"(" + _TOKEN + rb"):[ \t]*+([\t -~\x80-\xff]*+)\r\n")
_BEGINNINGS = (b"GET /", b"POST /")
_BARE_LINE_END = re.compile(rb"(?<!\r)\n")
_FRAMING = frozenset({b"host", b"content-length", b"connection"})
_NOT_PLAIN = frozenset({b"transfer-encoding", b"upgrade", b"expect"})
_KEPT = frozenset({b"keep-alive", b"close"})
_NO_BODY = frozenset({204, 304})


@define
class Head:
    """The head of a plain request.

    Attributes:
        headers: Names in small letters, and values.
        size: Its bytes, with the empty line.
        body_bytes: The length of the body that follows.
        is_last: The client wants the connection closed after the answer.
    """

    method: str
    target: bytes
    headers: list[tuple[bytes, bytes]]
    size: int
    body_bytes: int
    is_last: bool


def read_head(data: bytes, limit_bytes: int) -> Head | None:
    """The head that the data begins with; None if it is not whole, too large, or not plain."""
    end = data.find(HEAD_END, 0, limit_bytes + len(HEAD_END))
    line = _REQUEST.match(data)
    if end < 0 or line is None:
        return None
    headers: list[tuple[bytes, bytes]] = []
    framing: dict[bytes, bytes] = {}
    at, end = line.end(), end + 2
    while at < end:
        field = _FIELD.match(data, at, end)
        if field is None:
            return None
        at = field.end()
        name, value = field[1].lower(), field[2].rstrip(b" \t")
        if name in _FRAMING:
            if name in framing:
                return None
            framing[name] = value
        elif name in _NOT_PLAIN:
            return None
        headers.append((name, value))
    length, kept = framing.get(b"content-length", b"0"), framing.get(b"connection", b"keep-alive").lower()
    is_plain = length.isdigit() and len(length) <= LENGTH_DIGITS and kept in _KEPT and b"host" in framing
    if not is_plain or len(headers) > HEADERS_LIMIT:
        return None
    return Head(line[1].decode(), line[2], headers, end + 2, int(length), kept == b"close")


def may_become_plain(data: bytes, limit_bytes: int) -> bool:
    """Whether the rest of a plain head may still come, to data that `read_head` makes nothing of."""
    begins = any(each.startswith(data[: len(each)]) for each in _BEGINNINGS)
    is_open = len(data) <= limit_bytes and HEAD_END not in data and _BARE_LINE_END.search(data) is None
    return begins and is_open


def answer_head(
    status: int, headers: Iterable[tuple[bytes, bytes]], more: Iterable[tuple[bytes, bytes]] = ()
) -> bytes:
    """The head of an answer.

    Raises:
        ValueError: A header holds the end of a line.
    """
    lines = [b"HTTP/1.1 %d \r\n" % status]
    lines += [b"%b: %b\r\n" % each for each in headers]
    lines += [b"%b: %b\r\n" % each for each in more]
    head = b"".join(lines)
    if head.count(b"\n") != len(lines) or head.count(b"\r") != len(lines) or b"\0" in head:
        raise ValueError(f"a header of the answer {status} holds the end of a line: {headers!r}")
    return head + b"\r\n"


def has_body(status: int) -> bool:
    """Whether an answer may have a body, to GET and POST."""
    return status >= 200 and status not in _NO_BODY
