"""Bytes that are no request, requests in one piece, and what many of them leave in memory."""

import gc
import json
import os
import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

H2_SETTINGS = "HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA"


def head(*lines):
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


POST = "POST /v1/agent_sessions HTTP/1.1"
GARBAGE = {
    "zeros": (b"\0\xff\xfe\r\n\r\n", 400),
    "the hello of TLS": (bytes.fromhex("16030100c8010000c403035a") + bytes(40), 400),
    "no host": (head("GET /healthz HTTP/1.1"), 400),
    "no version": (b"GET /healthz\r\n\r\n", 400),
    "a path that is not ASCII": ("GET /ä HTTP/1.1\r\nHost: x\r\n\r\n".encode(), 400),
    "a space in a header's name": (head("GET /healthz HTTP/1.1", "Host: x", "A b: c"), 400),
    "a header without a colon": (head("GET /healthz HTTP/1.1", "Host: x", "nonsense"), 400),
    "two hosts": (head("GET /healthz HTTP/1.1", "Host: x", "Host: y"), 400),
    "a negative length": (head(POST, "Host: x", "Content-Length: -5"), 400),
    "two lengths": (head(POST, "Host: x", "Content-Length: 5", "Content-Length: 6") + b"abcdef", 400),
    "a length that is no number": (head(POST, "Host: x", "Content-Length: 0x10") + b"a" * 16, 400),
    "a chunk's size that is none": (head(POST, "Host: x", "Transfer-Encoding: chunked") + b"zz\r\n", 400),
    # RFC 9112, 6.1: a transfer coding that is not understood is answered 501.
    "an unknown transfer coding": (head(POST, "Host: x", "Transfer-Encoding: gzip") + b"abc", 501),
    "a proxy's verb": (head("CONNECT x:1 HTTP/1.1", "Host: x"), 404),
    "all of the server": (head("OPTIONS * HTTP/1.1", "Host: x"), 404),
    "another server's path": (head("GET http://elsewhere/healthz HTTP/1.1", "Host: x"), 404),
    "a path without its slash": (head("GET healthz HTTP/1.1", "Host: x"), 404),
    "a path of its own making": (head("GET /%zz%00%ff HTTP/1.1", "Host: x"), 404),
    "headers over the bound": (head("GET /healthz HTTP/1.1", "Host: x", "X: " + "a" * 200_000), 431),
    "a path over the bound": (head(f"GET /{'a' * 200_000} HTTP/1.1", "Host: x"), 431),
    "a socket of the web": (
        head(
            "GET /admin/sessions HTTP/1.1", "Host: x", "Connection: Upgrade", "Upgrade: websocket",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version: 13",
        ),
        403,
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", GARBAGE)
def test_garbage_is_refused_and_the_next_request_answered(server, raw, logged, what):
    data, status = GARBAGE[what]
    for _ in range(2):
        with server.wire() as connection:
            try:
                connection.sendall(data)
            except ConnectionError:
                pass  # It was refused before it was whole.
            answer = raw.answer(connection)
            assert answer.status == status
        with server.wire() as connection:
            connection.sendall(raw.request("/healthz", method="GET"))
            assert raw.answer(connection).status == 200
    assert not [record for record in logged.records if record.levelname == "ERROR"], logged.text


@settings(
    deadline=None,
    max_examples=50,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    data=st.lists(
        st.one_of(
            st.binary(max_size=40),
            st.sampled_from(
                [
                    b"POST ", b"GET ", b"/healthz", b" HTTP/1.1\r\n", b"Host: x\r\n", b"\r\n", b"\r\n\r\n",
                    b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n", b"0\r\n\r\n", b"{}",
                    b"Expect: 100-continue\r\n", b"Connection: Upgrade\r\n", b"Upgrade: websocket\r\n", b"\0",
                ]
            ),
        ),
        max_size=14,
    ).map(b"".join)
)  # fmt: skip
def test_generated_garbage_holds_nothing_up(hasty_server, raw, data):
    """Whether it is answered, or waited for until the client goes: the next request is answered."""
    server = hasty_server
    with server.wire() as connection:
        connection.sendall(data)
        connection.shutdown(1)
        answer = raw.answer(connection)
        assert answer is None or answer.status < 500 or answer.status == 501
    with server.wire() as connection:
        connection.sendall(raw.request("/healthz", method="GET"))
        assert raw.answer(connection).status == 200


@pytest.fixture
def hasty_server(start, backend):
    with start(backend, idle_timeout_s=0.2, body_timeout_seconds=0.2) as started:
        yield started


def test_a_connection_that_says_nothing_whole_is_closed_within_the_bound(start, backend, raw):
    """Each stops somewhere: in a request's line, its headers, its body, a chunk, or before all that."""
    with start(backend, idle_timeout_s=0.3, body_timeout_seconds=0.3) as server:
        chunks = head(POST, "Host: x", "Transfer-Encoding: chunked")
        for data in (
            b"",
            b"GET /hea",
            b"GET /healthz HTTP/1.1\r\nHo",
            raw.request("/v1/agent_sessions", b"{", length=10),
            chunks,
            chunks + b"ffffffffffffffffffff\r\nabc\r\n",
            chunks + b"5\r\nab",
        ):
            with server.wire() as connection:
                connection.sendall(data)
                answer = raw.answer(connection)
                assert answer is None or answer.status == 408, data


def read_answers(raw, connection, count):
    """Answers come back to back."""
    received, found = b"", []
    while len(found) < count:
        part = connection.recv(65536)
        assert part, f"{len(found)} answers of {count}: {received[:200]!r}"
        received += part
        while b"\r\n\r\n" in received:
            top, _, rest = received.partition(b"\r\n\r\n")
            fields = dict(line.lower().split(b": ", 1) for line in top.split(b"\r\n")[1:])
            length = int(fields[b"content-length"])
            if len(rest) < length:
                break
            found.append((int(top.split()[1]), rest[:length]))
            received = rest[length:]
    return found


def test_requests_in_one_piece_are_answered_in_their_order(server, raw, bodies, paths, cookie_of):
    cookie = [f"Cookie: {cookie_of('s1')}"]
    asked = [
        (raw.request(paths.seed, bodies.seed()), 200),
        (raw.request(paths.seed, b"{nope"), 422),
        (raw.request(paths.activate, {"input": "hi"}, headers=cookie), 200),
        (raw.request("/v1/nothing"), 404),
        (raw.request(paths.activate, {"input": "ho"}, headers=cookie), 409),
        (raw.request(paths.close, bodies.close(), headers=cookie), 200),
        (raw.request(paths.close, bodies.close(), headers=cookie), 200),
        (raw.request("/healthz", method="GET"), 200),
    ]
    with server.wire() as connection:
        connection.sendall(b"".join(data for data, _ in asked))
        answers = read_answers(raw, connection, len(asked))
    assert [status for status, _ in answers] == [status for _, status in asked]
    assert answers[5] == answers[6]
    assert server.world.done["launch"] == 1


def test_a_hundred_requests_in_one_piece(server, raw):
    one = raw.request("/healthz", method="GET")
    with server.wire() as connection:
        connection.sendall(one * 100)
        assert [status for status, _ in read_answers(raw, connection, 100)] == [200] * 100


def test_a_body_over_the_bound_is_refused_however_it_comes(start, backend, raw, paths):
    with start(backend, body_limit_bytes=4096) as server:
        body = json.dumps({"input": "a" * 5000}).encode()
        chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:100], body[100:]))
        whole = head(f"POST {paths.activate} HTTP/1.1", "Host: x", "Transfer-Encoding: chunked")
        for data in (raw.request(paths.activate, body), whole + chunks + b"0\r\n\r\n"):
            with server.wire() as connection:
                connection.sendall(data)
                assert raw.answer(connection).status == 413


@pytest.mark.parametrize("garbage", [b"", b"\xff" * 200, bytes(100)], ids=["none", "ones", "zeros"])
def test_who_begins_http_2_and_asks_nothing_is_not_waited_for(start, raw, garbage):
    """Nor who asks for one thing only. Its first answers tell the server's settings."""
    upgrade = head("GET /healthz HTTP/1.1", "Host: x", "Connection: Upgrade", "Upgrade: h2c", H2_SETTINGS)
    with start("asyncio", idle_timeout_s=0.3) as server:
        for begun in (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", upgrade):
            with server.wire() as connection:
                connection.sendall(begun + garbage)
                while connection.recv(65536):
                    pass
            with server.wire() as connection:
                connection.sendall(raw.request("/healthz", method="GET"))
                assert raw.answer(connection).status == 200


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def test_a_connection_ends_with_its_client(start, raw, poll):
    """Not only when the idle time has passed: descriptors are few. On asyncio, where `inspan serve` runs."""
    said = [b"", b"GET /he", raw.request("/healthz", method="GET"), raw.request("/v1/agent_sessions", b"{")]
    with start("asyncio") as server:
        before = descriptors()
        for data in said * 25:
            with server.wire() as connection:
                connection.sendall(data)
                if len(data) > 10:
                    assert raw.answer(connection).status in (200, 422)
        poll(lambda: descriptors() <= before + 2, "an end of a hundred connections")


@pytest.mark.full
def test_what_is_refused_leaves_no_memory(start, raw, bodies, paths, poll):
    """After as many of each again, nothing has grown: neither by their number nor by their size."""
    with start("asyncio") as server:
        no_memory_is_left(server, raw, bodies, paths, poll)


def no_memory_is_left(server, raw, bodies, paths, poll):
    big = "a" * 100_000
    refused = [
        raw.request(paths.seed, b"[" * 50_000),
        raw.request(paths.seed, {"agent_session_id": big}),
        raw.request(paths.seed, bodies.seed("s", "r", sandbox_access={"workdir": big})),
        raw.request(paths.activate, {"input": big, "nope": 1}),
        raw.request(paths.activate, {"input": "hi"}, headers=["Cookie: inspan_agent_session=x"]),
        raw.request(paths.close, {"agent_session_id": big}),
        raw.request("/run", {"responses_create_params": {"input": big}}),
        raw.request(f"/v1/{'a' * 5000}"),
        b"garbage\r\n\r\n",
    ]
    number, open_at_first = 0, descriptors()

    def play(rounds):
        nonlocal number
        for _ in range(rounds):
            number += 1
            another = raw.request(f"/ng-rollout/r{number}/v1/responses", {"input": "hi"})
            odd = raw.request(f"/odd/{number}", method=f"M{number}")
            for data in (*refused, another, odd):
                with server.wire() as connection:
                    connection.sendall(data)
                    assert raw.answer(connection).status < 500

    def held_bytes():
        poll(lambda: descriptors() <= open_at_first + 2, "an end of all connections")
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        play(15)
        before = held_bytes()
        play(30)
        grown = held_bytes() - before
    finally:
        tracemalloc.stop()
    assert grown < 400_000, f"{grown} bytes more are held after 30 rounds of refusals"
    assert server.service.phases == {}
