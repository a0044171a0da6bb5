"""Clients by TLS that keep their connections: the server's end waits for none of them, and tells of none."""

import signal
import socket
import ssl

import pytest

pytestmark = [pytest.mark.timeout(120)]
END_S = 20.0
"""Far below the half minute that a TLS connection may take to end when its client does not answer."""


@pytest.fixture
def world(worlds, tmp_path, certificate):
    key, cert = certificate
    return worlds(
        kind="local",
        sandbox_config={"workdir": str(tmp_path / "work")},
        harness_options={"model": False},
        tls={"certfile": str(cert), "keyfile": str(key)},
    )


def connected(world, cert, *protocols):
    context = ssl.create_default_context(cafile=str(cert))
    context.set_alpn_protocols(list(protocols))
    wire = socket.create_connection(("127.0.0.1", world.port), timeout=60)
    return context.wrap_socket(wire, server_hostname="127.0.0.1")


def asked(wire, data, answered):
    wire.sendall(data)
    received = b""
    while answered not in received:
        part = wire.recv(65536)
        assert part, received
        received += part


PLAIN = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"
CHUNKS = b"POST /v1/responses HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
H2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000040000000000")
H2_SETTINGS_TAKEN = bytes.fromhex("000000040100000000")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_idle_clients_hold_up_no_end(world, certificate, number):
    _, cert = certificate
    idle = [connected(world, cert, "http/1.1") for _ in range(4)] + [connected(world, cert, "h2")]
    try:
        asked(idle[1], PLAIN, b'"status":"ok"')
        asked(idle[2], CHUNKS, b"HTTP/1.1 422 ")
        idle[3].sendall(PLAIN[:20])
        asked(idle[4], H2_PREFACE, H2_SETTINGS_TAKEN)
        with socket.create_connection(("127.0.0.1", world.port), timeout=60) as silent:
            idle.append(silent)
            world.server.send_signal(number)
            assert world.server.wait(END_S) == 0
        assert "Traceback" not in world.log.read_text() and "Error" not in world.log.read_text()
    finally:
        for wire in idle:
            wire.close()


def test_a_client_that_stays_silent_when_its_connection_ends_leaves_nothing_in_the_log(world, certificate):
    _, cert = certificate
    last = PLAIN.replace(b"Host", b"Connection: close\r\nHost")
    for data in (last, CHUNKS.replace(b"Host", b"Connection: close\r\nHost"), b"garbage\r\n\r\n"):
        with connected(world, cert, "http/1.1") as wire:
            wire.sendall(data)
            received = b""
            # It reads to the end, and does not say goodbye before that.
            while part := wire.recv(65536):
                received += part
            assert received.startswith(b"HTTP/1.1 ")
    assert world.end() == 0
    assert "Traceback" not in world.log.read_text() and "Error" not in world.log.read_text()
