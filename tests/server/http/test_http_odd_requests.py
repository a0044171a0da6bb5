"""Requests that are unusual, over the bounds, or framed so that two readers would read two things."""

import pytest

EXPECT = ["Expect: 100-continue"]
CHUNKED = ["Transfer-Encoding: chunked"]


def head(line, *fields):
    return "\r\n".join([f"{line} HTTP/1.1", "Host: x", *fields, "", ""]).encode("latin-1")


def post(*fields):
    return head("POST /v1/agent_sessions", "Content-Type: application/json", *fields)


OVER_THE_BOUND = {
    "one header": head("GET /healthz", "X: " + "a" * 5000),
    "headers together": head("GET /healthz", *[f"X-{n}: {'a' * 90}" for n in range(50)]),
    "many headers": head("GET /healthz", *["X: y"] * 101),
    "the target": head("GET /healthz?" + "a" * 5000),
    "a session's target": head(f"POST /ng-rollout/{'a' * 5000}/v1/responses", "Content-Length: 2") + b"{}",
    "with a body in chunks": head("POST /run", *CHUNKED, "X: " + "a" * 5000) + b"0\r\n\r\n",
}


@pytest.fixture
def tight(start, backend):
    with start(backend, header_limit_bytes=4096) as server:
        yield server


@pytest.mark.parametrize("what", OVER_THE_BOUND)
def test_a_head_over_the_bound_is_refused_also_in_one_piece(tight, raw, logged, what):
    for is_first in (True, False):
        with tight.wire() as connection:
            if not is_first:
                connection.sendall(raw.request("/healthz", method="GET"))
                assert raw.answer(connection).status == 200
            connection.sendall(OVER_THE_BOUND[what])
            assert raw.answer(connection).status == 431
            assert connection.recv(100) == b""
    assert not [record for record in logged.records if record.levelname == "ERROR"], logged.text


def test_a_head_within_the_bound_is_taken(tight, raw):
    with tight.wire() as connection:
        for data in (
            head("GET /healthz", *["X: y"] * 99),
            head("GET /healthz", "X: " + "a" * 3900),
            head("GET /healthz?" + "a" * 3900),
        ):
            connection.sendall(data)
            assert raw.answer(connection).status == 200


TWO_READINGS = {
    "a length and chunks": (post("Content-Length: 5", *CHUNKED) + b"0\r\n\r\n", 400),
    "chunks and a length": (post(*CHUNKED, "Content-Length: 5") + b"0\r\n\r\n", 400),
    "chunks twice": (post(*CHUNKED, *CHUNKED) + b"0\r\n\r\n", 501),
    "chunks not last": (post("Transfer-Encoding: chunked, gzip") + b"0\r\n\r\n", 501),
    "an unknown coding": (post("Transfer-Encoding: cow") + b"0\r\n\r\n", 501),
    "no coding": (post("Transfer-Encoding: identity") + b"0\r\n\r\n", 501),
    "two lengths": (post("Content-Length: 2", "Content-Length: 4") + b"{}GE", 400),
    "a list of lengths": (post("Content-Length: 2, 4") + b"{}GE", 400),
    "a signed length": (post("Content-Length: +2") + b"{}", 400),
    "a length in another script": (post("Content-Length: \xb2") + b"{}", 400),
    "a length beyond all numbers": (post("Content-Length: " + "9" * 30) + b"{}", 400),
    "a negative chunk": (post(*CHUNKED) + b"-1\r\n{}\r\n0\r\n\r\n", 400),
    "a chunk that is no number": (post(*CHUNKED) + b"0x2\r\n{}\r\n0\r\n\r\n", 400),
    "a chunk beyond all numbers": (post(*CHUNKED) + b"f" * 30 + b"\r\n{}", 400),
    "a chunk longer than it says": (post(*CHUNKED) + b"1\r\n{}\r\n0\r\n\r\n", 400),
    "a blank before a colon": (post("Content-Length : 2") + b"{}", 400),
    "a folded length": (post("Content-Length:", " 2") + b"{}", None),
    "a bare end of line": (head("GET /healthz", "X: y\nContent-Length: 5") + b"GET /", None),
}


@pytest.mark.parametrize("what", TWO_READINGS)
def test_a_request_that_can_be_read_in_two_ways_ends_the_connection(server, raw, logged, what):
    """What follows it may be a part of it, so that nothing of that is ever answered."""
    data, status = TWO_READINGS[what]
    smuggled = raw.request("/v1/nothing")
    with server.wire() as connection:
        connection.sendall(data + smuggled)
        answer = raw.answer(connection)
        if status is None:  # It is taken as one request, and only as one.
            assert answer.status in (200, 400, 422)
            return
        assert answer.status == status
        assert ("connection", "close") in [(name.lower(), value) for name, value in answer.headers]
        assert answer.rest + connection.recv(65536) == b""
    assert not [record for record in logged.records if record.levelname == "ERROR"], logged.text


def test_a_client_that_asks_before_it_sends_is_told_to(server, raw, bodies):
    whole = raw.request("/v1/agent_sessions", bodies.seed(), headers=EXPECT)
    top, _, body = whole.partition(b"\r\n\r\n")
    with server.wire() as connection:
        connection.sendall(top + b"\r\n\r\n")
        received = b""
        while b"\r\n\r\n" not in received:
            received += connection.recv(65536)
        assert received.startswith(b"HTTP/1.1 100 ")
        connection.sendall(body)
        assert raw.answer(connection).status == 200


@pytest.mark.parametrize("kept", [[], ["Connection: keep-alive"]])
def test_an_old_client_is_answered_and_left(server, raw, kept):
    with server.wire() as connection:
        connection.sendall("\r\n".join(["GET /healthz HTTP/1.0", *kept, "", ""]).encode())
        answer = raw.answer(connection)
        assert answer.status == 200 and b'"status":"ok"' in answer.body
        assert connection.recv(100) == b""


@pytest.mark.parametrize(
    ("path", "allowed"),
    [("/v1/agent_sessions", "POST"), ("/v1/responses", "POST"), ("/ng-rollout/r/v1/responses", "POST")],
)
def test_other_methods_of_a_session_are_refused_by_name(server, raw, path, allowed):
    with server.wire() as connection:
        for method in ("HEAD", "OPTIONS", "GET", "PUT", "DELETE", "PATCH"):
            connection.sendall(raw.request(path, method=method))
            answer = raw.answer(connection, has_body=method != "HEAD")
            assert answer.status == 405
            assert ("allow", allowed) in [(name.lower(), value) for name, value in answer.headers]


def test_the_head_of_a_page_is_its_head(server, raw):
    with server.wire() as connection:
        for _ in range(2):
            connection.sendall(raw.request("/healthz", method="HEAD"))
            answer = raw.answer(connection, has_body=False)
            assert (answer.status, answer.rest) == (200, b"")


@pytest.mark.parametrize("wanted", ["h2c", "websocket", "TLS/1.0, HTTP/1.1", "x"])
def test_a_wish_for_another_protocol_beside_a_body_is_not_heard(server, raw, bodies, wanted):
    fields = ["Connection: Upgrade", f"Upgrade: {wanted}"]
    with server.wire() as connection:
        for _ in range(2):
            connection.sendall(raw.request("/v1/agent_sessions", bodies.seed(), headers=fields))
            assert raw.answer(connection).status == 200


def test_chunks_are_a_body_like_any_other(server, raw, bodies):
    body = raw.request("", bodies.seed()).partition(b"\r\n\r\n")[2]
    parts = [body[:7], body[7:]]
    chunks = b"".join(b"%x;note=1\r\n%b\r\n" % (len(part), part) for part in parts)
    with server.wire() as connection:
        for _ in range(2):
            connection.sendall(post(*CHUNKED) + chunks + b"0\r\nX-Trailer: y\r\n\r\n")
            assert raw.answer(connection).status == 200
        connection.sendall(raw.request("/healthz", method="GET"))
        assert raw.answer(connection).status == 200
