"""What an application sends, as it comes out of the wire; and what it is told."""

import asyncio
import re
import socket
import struct
import threading
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from urllib.parse import urlsplit

import anyio
import anyio.from_thread
import pytest

from inspan_server.plain_exchange import TAKE_BODY
from inspan_server.serving import served

GET = b"GET /x%20y?q=1 HTTP/1.1\r\nHost: a\r\n\r\n"
LENGTH_5 = (b"content-length", b"5")


def answering(status, headers, *parts, reads=True, fails=False):
    """An application that sends this, and tells what it was asked."""
    seen = SimpleNamespace(scopes=[], bodies=[])

    async def app(scope, receive, send):
        if scope["type"] == "lifespan":
            for word in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{word}.complete"})
            return
        seen.scopes.append(scope)
        body, more = b"", reads
        while more:
            message = await receive()
            more = message.get("more_body", False)
            body += message.get("body", b"")
        seen.bodies.append(body)
        if status:
            await send({"type": "http.response.start", "status": status, "headers": headers})
        for number, part in enumerate(parts, 1):
            has_more = fails or number < len(parts)
            await send({"type": "http.response.body", "body": part, "more_body": has_more})
        if fails:
            raise RuntimeError("it failed half-way")

    return app, seen


@contextmanager
def running(app):
    with anyio.from_thread.start_blocking_portal() as portal:
        with portal.wrap_async_context_manager(served(app, graceful_timeout_s=1)) as url:
            yield urlsplit(url).port


def exchange(port, data, *, ends=True):
    """Everything that comes back until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as wire:
        wire.sendall(data)
        if ends:
            wire.shutdown(socket.SHUT_WR)
        received = b""
        while part := wire.recv(65536):
            received += part
    return re.sub(rb"date: [^\r]*GMT\r\n", b"", received)


@pytest.mark.parametrize(
    ("status", "headers", "parts", "wire"),
    [
        (200, [LENGTH_5], [b"hello"], b"HTTP/1.1 200 \r\ncontent-length: 5\r\n\r\nhello"),
        (200, [], [b"hello"], b"HTTP/1.1 200 \r\ncontent-length: 5\r\n\r\nhello"),
        (404, [(b"a", b"b")], [b""], b"HTTP/1.1 404 \r\na: b\r\ncontent-length: 0\r\n\r\n"),
        (200, [LENGTH_5], [b"he", b"", b"llo"], b"HTTP/1.1 200 \r\ncontent-length: 5\r\n\r\nhello"),
        (
            200,
            [],
            [b"he", b"", b"llo", b""],
            b"HTTP/1.1 200 \r\ntransfer-encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
        ),
        (204, [], [b"not sent"], b"HTTP/1.1 204 \r\n\r\n"),
    ],
)
def test_an_answer_is_framed_by_what_is_known_of_its_length(status, headers, parts, wire):
    app, seen = answering(status, headers, *parts)
    with running(app) as port:
        assert exchange(port, GET * 2) == wire * 2
    assert [scope["path"] for scope in seen.scopes] == ["/x y"] * 2
    assert seen.scopes[0]["query_string"] == b"q=1"


@pytest.mark.parametrize(
    "app",
    [
        answering(None, [])[0],
        answering(200, [LENGTH_5], b"too long for that")[0],
        answering(200, [LENGTH_5], b"less")[0],
        answering(200, [(b"a", b"b\r\nc: d")], b"x")[0],
    ],
    ids=["nothing", "more than it said", "less than it said", "two headers in one"],
)
def test_an_application_that_does_not_answer_is_answered_for(app):
    """And the connection is of no use any more: nobody knows what the application was about to send."""
    failed = b"HTTP/1.1 500 \r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    with running(app) as port:
        assert exchange(port, GET * 2, ends=False) == failed


def test_an_answer_that_was_only_begun_is_one_that_breaks_off():
    app, _ = answering(200, [(b"a", b"b")])
    with running(app) as port, socket.create_connection(("127.0.0.1", port), timeout=30) as wire:
        wire.sendall(GET)
        received = b""
        with suppress(ConnectionResetError):
            while part := wire.recv(65536):
                received += part
    assert received.startswith(b"HTTP/1.1 200 \r\na: b\r\ntransfer-encoding: chunked\r\n")
    assert received.endswith(b"GMT\r\n\r\n")


def test_half_of_an_answer_does_not_look_like_a_whole_one():
    app, _ = answering(200, [], b"half", fails=True)
    with running(app) as port:
        with socket.create_connection(("127.0.0.1", port), timeout=30) as wire:
            wire.sendall(GET)
            received = b""
            with suppress(ConnectionResetError):
                while part := wire.recv(65536):
                    received += part
    assert received.endswith(b"\r\n\r\n4\r\nhalf\r\n")


def post(body, length=None):
    size = len(body) if length is None else length
    return b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%b" % (size, body)


def test_a_large_body_arrives_whole_and_so_does_a_large_answer():
    large = bytes(range(256)) * 20_000
    app, seen = answering(200, [], large)
    with running(app) as port:
        received = exchange(port, post(large))
    assert seen.bodies == [large]
    assert received == b"HTTP/1.1 200 \r\ncontent-length: %d\r\n\r\n%b" % (len(large), large)


def test_a_body_that_was_not_read_is_no_request():
    """One that has come is passed over; one that comes later ends the connection, with the answer read."""
    app, seen = answering(401, [], b"no", reads=False)
    refused = b"HTTP/1.1 401 \r\ncontent-length: 2\r\n"
    with running(app) as port:
        assert exchange(port, post(GET) * 2) == (refused + b"\r\nno") * 2
        with socket.create_connection(("127.0.0.1", port), timeout=30) as wire:
            wire.sendall(post(b"", 10 * len(GET)))
            received = b""
            while b"\r\n\r\nno" not in received:
                received += wire.recv(65536)
            assert b"connection: close" in received
            wire.sendall(GET * 10)
            assert wire.recv(100) == b""
    assert [scope["method"] for scope in seen.scopes] == ["POST"] * 3


def test_who_wants_the_connection_closed_is_told_so():
    app, _ = answering(200, [], b"x")
    asked = GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    told = b"HTTP/1.1 200 \r\ncontent-length: 1\r\nconnection: close\r\n\r\nx"
    with running(app) as port:
        assert exchange(port, asked + GET, ends=False) == told


@pytest.mark.parametrize("piece", [1, 7, 30])
def test_a_head_that_comes_in_parts_is_plain_too(piece):
    app, seen = answering(200, [], b"x")
    data = post(b"abc")
    with running(app) as port, socket.create_connection(("127.0.0.1", port), timeout=30) as wire:
        wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(2):
            for at in range(0, len(data), piece):
                wire.sendall(data[at : at + piece])
            received = b""
            while not received.endswith(b"\r\n\r\nx"):
                part = wire.recv(65536)
                assert part, received
                received += part
    assert seen.bodies == [b"abc"] * 2
    assert [TAKE_BODY in scope["extensions"] for scope in seen.scopes] == [True, True]


def test_requests_after_one_that_is_not_plain_are_answered_too():
    app, seen = answering(200, [], b"x")
    chunks = b"POST /c HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n"
    with running(app) as port:
        received = exchange(port, GET + chunks + GET + post(b"abc"))
    assert received.count(b"HTTP/1.1 200 ") == 4
    assert seen.bodies == [b"", b"ab", b"", b"abc"]


def test_a_client_that_resets_what_is_still_read_from_it_leaves_no_error_behind(caplog):
    is_gone = threading.Event()

    async def app(scope, receive, send):
        if scope["type"] == "lifespan":
            await answering(200, [])[0](scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": [LENGTH_5]})
        await send({"type": "http.response.body", "body": b"early"})
        while not is_gone.is_set():
            await anyio.sleep(0.01)

    with running(app) as port:
        with socket.create_connection(("127.0.0.1", port), timeout=30) as wire:
            # So much that the server has left off reading, and learns of the reset by shutting its side.
            wire.sendall(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 900000\r\n\r\n" + bytes(200_000))
            received = b""
            while not received.endswith(b"early"):
                received += wire.recv(65536)
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        is_gone.set()
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


def test_requests_that_came_together_leave_turns_of_the_loop_between_them():
    marks, seen = [], []

    async def app(scope, receive, send):
        if scope["type"] == "lifespan":
            await answering(200, [])[0](scope, receive, send)
            return
        seen.append(len(marks))
        asyncio.get_running_loop().call_soon(marks.append, None)
        await send({"type": "http.response.start", "status": 200, "headers": [LENGTH_5]})
        await send({"type": "http.response.body", "body": b"12345"})

    with running(app) as port:
        exchange(port, GET * 5)
    assert seen == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("head", [b"GET / HTTP/1.1\nHost: a\n\n", b"GET / HTTP/1.1\r\nHost: a\r\n\n"])
def test_a_head_with_other_line_ends_is_left_to_the_general_parser_at_once(head):
    app, seen = answering(200, [LENGTH_5], b"12345")
    with running(app) as port, socket.create_connection(("127.0.0.1", port), timeout=30) as wire:
        wire.sendall(head)
        assert wire.recv(65536).startswith(b"HTTP/1.1 200")
    assert len(seen.scopes) == 1
