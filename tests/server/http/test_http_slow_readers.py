"""Clients that do not take their answers: each is given up in time, with its connection and its memory."""

import os
import socket
from contextlib import ExitStack, contextmanager

import anyio
import anyio.from_thread
import h2.config
import h2.connection
import h2.events
import pytest
from hypercorn.config import Config

from inspan_server.cli.serve import listen
from inspan_server.serving import serve_until

LARGE = 30_000_000
PLAIN = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
CHUNKS = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"


class Generous:
    """Answers more than fits into all buffers; and knows how its answers ended."""

    def __init__(self):
        self.begun = self.ended = 0

    async def __call__(self, scope, receive, send):
        if scope["type"] == "lifespan":
            for word in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{word}.complete"})
            return
        self.begun += 1
        try:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": bytes(LARGE)})
        finally:
            self.ended += 1


@contextmanager
def running(app, *, answer_timeout_s):
    listener = listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    config = Config()
    config.bind = [f"fd://{listener.detach()}"]
    config.graceful_timeout, config.accesslog = 30.0, None

    async def serve(stopping):
        await serve_until(app, config, stopping, answer_timeout_s=answer_timeout_s)

    with anyio.from_thread.start_blocking_portal() as portal:
        stopping = portal.call(anyio.Event)
        task = portal.start_task_soon(serve, stopping)
        try:
            yield port
        finally:
            portal.call(stopping.set)
            task.result(timeout=60)


@contextmanager
def small_window(port):
    """A client whose kernel takes little before it reads."""
    with socket.socket() as wire:
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        wire.settimeout(30)
        wire.connect(("127.0.0.1", port))
        yield wire


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def rest_of(wire):
    """How much still comes, to the end."""
    size = 0
    try:
        while part := wire.recv(1 << 20):
            size += len(part)
    except ConnectionResetError:
        pass
    return size


@pytest.mark.parametrize("data", [PLAIN, CHUNKS], ids=["plain", "chunks"])
def test_who_does_not_read_an_answer_is_given_up(data, poll):
    app = Generous()
    with running(app, answer_timeout_s=0.3) as port:
        before = descriptors()
        with small_window(port) as wire:
            wire.sendall(data)
            poll(lambda: app.ended == 1, "an end of the answer")
            poll(lambda: descriptors() == before + 1, "an end of the connection")
            assert rest_of(wire) < LARGE


@pytest.mark.parametrize("data", [PLAIN, CHUNKS], ids=["plain", "chunks"])
def test_who_reads_an_answer_in_time_has_all_of_it(data):
    app = Generous()
    with running(app, answer_timeout_s=60) as port:
        with small_window(port) as wire:
            wire.sendall(data.replace(b"Host: a\r\n", b"Host: a\r\nConnection: close\r\n"))
            assert rest_of(wire) > LARGE


def test_who_asks_much_and_reads_nothing_is_given_up(start, raw, poll):
    """Its small answers fill the buffers one after the other."""
    with start("asyncio", answer_timeout_seconds=0.3) as server:
        before = descriptors()
        with small_window(server.port) as wire:
            one = raw.request("/metrics", method="GET")
            with pytest.raises(ConnectionError):
                while True:
                    wire.sendall(one * 100)
        poll(lambda: descriptors() <= before, "an end of the connection")


def test_who_opens_no_window_of_http_2_is_given_up(poll):
    """It reads whatever comes, and so its kernel's buffers are never full."""
    app = Generous()
    with running(app, answer_timeout_s=0.3) as port:
        with socket.create_connection(("127.0.0.1", port), timeout=30) as wire:
            client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
            client.initiate_connection()
            names = {":method": "GET", ":path": "/", ":authority": "a", ":scheme": "http"}
            client.send_headers(1, list(names.items()), end_stream=True)
            wire.sendall(client.data_to_send())
            assert rest_of(wire) < LARGE
        poll(lambda: app.ended == 1, "an end of the answer")


@pytest.mark.parametrize("data", [PLAIN, CHUNKS], ids=["plain", "chunks"])
def test_who_does_not_read_holds_up_an_end_for_a_bounded_time(data, poll):
    app = Generous()
    with ExitStack() as clients:
        with running(app, answer_timeout_s=0.5) as port:
            wire = clients.enter_context(small_window(port))
            wire.sendall(data)
            poll(lambda: app.begun == 1, "a beginning of the answer")
        # The server has ended here, and the client is still there.
        assert app.ended == 1
